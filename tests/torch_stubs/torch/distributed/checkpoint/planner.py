from enum import Enum


class LoadItemType(Enum):
    TENSOR = 1
    BYTE_IO = 2


class WriteItemType(Enum):
    TENSOR = 1
    SHARD = 2
    BYTE_IO = 3


class LoadPlan: ...


class SavePlan: ...
