"""A node's place in a scheduler's allocation; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_elastic.errors import AllocationError

LOCAL_NETWORK = "127.0.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """This node's place in one start by the scheduler.

    `nodes` are the names of all nodes of the step, by node id. `is_local` is the local backend,
    where every node is this machine, with a loopback address of its own. There `runs_at_once` is how many
    runs of an array share the machine, this one among them. The `job_id` of a task of an array is
    `<array>_<task>`. `time_left` is what the scheduler has said of the job's time when the agents were started,
    in its own words; None if nobody has asked. `switch` is what this node is connected to, in the words of the
    scheduler's topology; empty if it says nothing of it. `is_reserved`: the job was started in a reservation.
    """

    job_id: str
    restart_count: int
    array_task: int | None
    node_id: int
    nodes: tuple[str, ...]
    is_local: bool
    runs_at_once: int = 1
    time_left: str | None = None
    switch: str = ""
    is_reserved: bool = False

    @property
    def node(self) -> str:
        """This node's name."""
        return self.nodes[self.node_id]

    def local_address(self, node_id: int) -> str:
        """Return a node's loopback address on the local backend: 127.0.0.2, 127.0.0.3 ..."""
        return f"{LOCAL_NETWORK}{node_id + 2}"


def read_number(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    """Read a number from the environment.

    Raises:
        AllocationError: the value is no number, or the variable is not set and there is no default.
    """
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise AllocationError(f"{name} is {text!r}, expected a number")
    return int(text)
