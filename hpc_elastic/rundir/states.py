"""The states of a run and of a worker group, apart from the records because `status` needs them alone."""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):
    """Where a run stands. The first four are final and stand in `result.json`."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    REQUEUED = "REQUEUED"

    @property
    def is_final(self) -> bool:
        """Whether a run in this state is over."""
        return self in _FINAL


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.UNKNOWN})


class WorkerState(str, Enum):
    """A worker group's state, with torch.distributed.elastic's members and meaning."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_running(self) -> bool:
        """Whether there are worker processes, as in torch: INIT, HEALTHY and UNHEALTHY."""
        return self in (WorkerState.INIT, WorkerState.HEALTHY, WorkerState.UNHEALTHY)
