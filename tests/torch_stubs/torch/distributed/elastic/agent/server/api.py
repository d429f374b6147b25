from dataclasses import dataclass, field
from enum import Enum

WorkerState = Enum("WorkerState", "UNKNOWN INIT HEALTHY UNHEALTHY STOPPED SUCCEEDED FAILED")


class Worker:
    def __init__(self, local_rank, global_rank=-1, role_rank=-1, world_size=-1, role_world_size=-1):
        self.id = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size


@dataclass
class RunResult:
    state: WorkerState
    return_values: dict = field(default_factory=dict)
    failures: dict = field(default_factory=dict)
