import copy
import pickle
import typing
from dataclasses import dataclass, fields

import __main__


@dataclass
class Config:
    rate: float
    parent: "typing.Optional[Config]" = None


text = pickle.dumps(Config(0.5), protocol=0)
print(text, pickle.loads(text) == Config(0.5), Config.__module__, copy.deepcopy(Config(1.0)))
print(typing.get_type_hints(Config), [field.type for field in fields(Config)], __main__.Config is Config)
print(sorted(name for name in vars(__main__) if not name.startswith("__")))
