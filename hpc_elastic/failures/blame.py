"""Says of failures whether a node or the user's own program is the problem: for admins who drain nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.failures.classes import FailureClass


class WhoseProblem(str, Enum):
    """Whose problem a failure is; the words are those that Slurm's node reasons use at many sites."""

    NODE = "node_problem"
    USER = "user_problem"


# What heads note of nodes that have no part in an attempt, beside the classes of failures.
UNHEALTHY = "unhealthy"  # its health checks found something
LEFT_OUT = "left_out"  # no agent came from it, or it could not take part
# A healthy node does not do this, whatever program runs on it.
_OF_NODES: frozenset[str] = frozenset(
    {
        UNHEALTHY,
        FailureClass.NODE_LOST,
        FailureClass.UNKILLABLE,
        FailureClass.CUDA_HARDWARE,
        FailureClass.CUDA_NO_DEVICE,
    }
)
# A program or a node may be why: it is the node if the same one is named again and again.
_UNCLEAR: frozenset[str] = frozenset(
    {
        LEFT_OUT,
        FailureClass.AGENT_LOST,
        FailureClass.BUS_ERROR,
        FailureClass.CUDA_ERROR,
        FailureClass.FILE_SYSTEM,
        FailureClass.DISK_FULL,
        FailureClass.PORT_IN_USE,
        FailureClass.SHARED_MEMORY_FULL,
        FailureClass.SIGNAL,
        FailureClass.SILENT,
        FailureClass.STALLED,
    }
)
# The node's hardware or mounts, so that the next attempt there would most likely fail again.
_FAILS_AGAIN = frozenset(
    {FailureClass.CUDA_HARDWARE, FailureClass.CUDA_NO_DEVICE, FailureClass.UNKILLABLE, FailureClass.FILE_SYSTEM}
)
REPEATED = 2  # so many unclear failures of one node, in as many runs, make it the node's problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The end of an attempt whose cause was on one node, or a start without it.

    `failure_class` is that of the failure, or `unhealthy` or `left_out`. `attempt` is the latest one then, 0 before the
    first; `time` is in Unix seconds, 0 if it is not known. `is_of_most`: most nodes of the start were unhealthy, or
    most were left out, so that what they lack is most likely nowhere.
    """

    node: str
    run: str
    attempt: int
    failure_class: str
    line: str
    time: float
    is_of_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamedNode:
    """A node with the incidents of which it was the place, the latest first."""

    node: str
    problem: WhoseProblem
    incidents: Sequence[Incident]


def fails_again_there(failure_class: str) -> bool:
    """Return whether a failure of this class most likely comes again on the same node, and not on another one."""
    return failure_class in _FAILS_AGAIN


def blame_nodes(incidents: Iterable[Incident]) -> list[BlamedNode]:
    """Return the nodes that incidents name: those with a problem of their own first, then by number and time."""
    by_node: dict[str, list[Incident]] = {}
    for incident in incidents:
        by_node.setdefault(incident.node, []).append(incident)
    blamed = [
        BlamedNode(node=node, problem=_problem(found), incidents=sorted(found, key=lambda each: -each.time))
        for node, found in by_node.items()
    ]
    return sorted(
        blamed,
        key=lambda each: (each.problem is WhoseProblem.USER, -len(each.incidents), -each.incidents[0].time, each.node),
    )


def _problem(incidents: Sequence[Incident]) -> WhoseProblem:
    """Return whose problem the incidents of one node are; a class that only a newer version knows is the user's."""
    incidents = [each for each in incidents if not each.is_of_most]
    if any(incident.failure_class in _OF_NODES for incident in incidents):
        return WhoseProblem.NODE
    runs = Counter(incident.run for incident in incidents if incident.failure_class in _UNCLEAR)
    return WhoseProblem.NODE if len(runs) >= REPEATED else WhoseProblem.USER
