from dataclasses import dataclass, field


@dataclass
class ProcessFailure:
    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict = field(init=False, default_factory=dict)
    message: str = field(init=False, default="")
    timestamp: int = field(init=False, default=0)

    def signal_name(self): ...


class ChildFailedError(Exception):
    def __init__(self, name, failures): ...

    def get_first_failure(self): ...
