"""The specification of one role's workers on one node: the counterpart of torch's WorkerSpec."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_elastic.errors import WorkerSpecError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.std_streams import LocalStreams, Std

# TCP ports; 0 would leave the choice to the kernel, which every worker would have to be told.
_PORTS = range(1, 65536)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The blueprint of the workers that one node runs for one role.

    Attributes:
        role: the role's name, `ROLE_NAME` to the workers.
        local_world_size: how many workers the node runs.
        entrypoint: a function, or the name of a script, module or program.
        args: its arguments.
        max_restarts: failures of workers that the whole run survives; torch counts them agent by agent.
        monitor_interval: seconds between two looks at the workers; accepted because torch's callers pass
            it, and not needed: a worker's exit makes its pidfd readable, so nothing looks again and again.
        master_port: a fixed port for the workers' store; None takes the one that the rendezvous agreed on.
        master_addr: a fixed address for it, likewise.
        local_addr: this node's own address; None takes the one that the other nodes reach it by.
        redirects: which streams go to files, for every worker or by local rank.
        tee: which streams go to files and to the agent's output as well, likewise; it outranks `redirects`.
        duplicate_stdout_filters: lines of standard output with one of these in them go to a file of their own.
        duplicate_stderr_filters: lines of standard error likewise.

    Raises:
        WorkerSpecError: a value makes no sense; torch raises an AssertionError without a word.
    """

    role: str
    local_world_size: int
    entrypoint: Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    redirects: Std | Mapping[int, Std] = Std.NONE
    tee: Std | Mapping[int, Std] = Std.NONE
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.role:
            raise WorkerSpecError("role: expected a name, found an empty one", tip="torchrun's own is `default`")
        if self.local_world_size < 1:
            raise WorkerSpecError(f"local_world_size: expected at least 1 worker, found {self.local_world_size}")
        if self.max_restarts < 0:
            found = f"max_restarts: expected 0 or more, found {self.max_restarts}"
            raise WorkerSpecError(found, tip="0 is a run that ends with its first failure")
        if not 0 < self.monitor_interval < float("inf"):
            raise WorkerSpecError(f"monitor_interval: expected more than 0 seconds, found {self.monitor_interval}")
        if not (callable(self.entrypoint) or (isinstance(self.entrypoint, str) and self.entrypoint)):
            raise WorkerSpecError(f"entrypoint: expected a function or a name, found {self.entrypoint!r}")
        if self.master_port is not None and self.master_port not in _PORTS:
            raise WorkerSpecError(f"master_port: expected 1 to {_PORTS[-1]}, found {self.master_port}")
        for name in ("redirects", "tee"):
            self._check_streams(name, getattr(self, name))

    def _check_streams(self, name: str, streams: Std | Mapping[int, Std]) -> None:
        if not isinstance(streams, Mapping):
            return
        strangers = sorted(set(streams) - set(range(self.local_world_size)))
        if strangers:
            expected = f"local ranks from 0 to {self.local_world_size - 1}"
            raise WorkerSpecError(f"{name}: expected {expected}, found {', '.join(map(str, strangers))}")

    def get_entrypoint_name(self) -> str:
        """Return a function's qualified name, else the last part of a path, as torch's."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return str(getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__))


def planned_spec(plan: LaunchPlan, node_id: int, nodes: int) -> WorkerSpec:
    """Return the spec of the workers that a plan gives to a node, in a step of so many nodes."""
    role, logs = plan.role_on(node_id, nodes), plan.logs
    count = plan.workers_on(node_id, nodes)
    return WorkerSpec(
        role=role.name,
        local_world_size=count,
        entrypoint=role.entrypoint.target,
        args=role.entrypoint.args,
        max_restarts=plan.restart.max_restarts,
        redirects=_streams(logs.redirects, count),
        tee=_streams(logs.tee, count),
        duplicate_stdout_filters=logs.duplicate_stdout_filters,
        duplicate_stderr_filters=logs.duplicate_stderr_filters,
    )


def _streams(streams: LocalStreams, count: int) -> Std | Mapping[int, Std]:
    return streams.to_map(count) if streams.by_local_rank else streams.others
