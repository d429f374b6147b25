"""The nodes that a head leaves out as long as enough others are there: blamed for a failure, or drained by a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpc_elastic.membership.actions import Action, Log, Note
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.rundir.records import LostNode, SetAside
from hpc_elastic.rundir.states import FORGETS_AFTER

MOST_CARRIED_ON = 16  # blamed nodes in a claim; an older blame is forgotten
MOST_LOST_CARRIED_ON = 64  # nodes in a claim that were lost
REPEATED = 2  # so many losses of a node in one run make it one that will be lost again


def blamed_nodes(set_aside: Sequence[SetAside], allocation: int) -> tuple[str, ...]:
    """Return the nodes that a claim blames, as seen in an allocation: without those whose blame is forgotten."""
    return tuple(each.node for each in set_aside if allocation - each.allocation <= FORGETS_AFTER)


def count_lost(before: Sequence[LostNode], nodes: Sequence[str], allocation: int) -> tuple[LostNode, ...]:
    """Return which nodes were lost how often, when these have been lost once more; the latest are the last.

    Losses are forgotten as blames are, `FORGETS_AFTER` allocations after the latest one.

    Args:
        before: the losses so far.
        nodes: the nodes that were lost from the latest world through a fault of their own.
        allocation: the present one.
    """
    times = {each.node: each.times for each in before if allocation - each.allocation <= FORGETS_AFTER}
    others = tuple(each for each in before if each.node in times and each.node not in nodes)
    lost = tuple(LostNode(node=node, times=times.get(node, 0) + 1, allocation=allocation) for node in nodes)
    return (*others, *lost)[-MOST_LOST_CARRIED_ON:]


def blame(before: Sequence[SetAside], blamed: SetAside) -> tuple[SetAside, ...]:
    """Return the nodes that a claim blames, with this one as the latest."""
    return (*(each for each in before if each.node != blamed.node), blamed)[-MOST_CARRIED_ON:]


def blame_lost(before: Sequence[SetAside], lost: Sequence[LostNode], nodes: Sequence[str]) -> tuple[SetAside, ...]:
    """Return the nodes that a claim blames, with those of these nodes that were lost repeatedly as the latest."""
    blamed = tuple(before)
    for each in lost:
        if each.node in nodes and each.times >= REPEATED:
            why = f"lost {each.times} times in this run"
            blamed = blame(blamed, SetAside(node=each.node, why=why, allocation=each.allocation))
    return blamed


class Aside:
    """The nodes that are set aside, with the reasons.

    They stay members, and one of them may even be head; only their workers are left out of further attempts. Where too
    few nodes would be left, they are used: a node that may fail again is better than none.

    Args:
        settings: how many nodes are enough.
        blamed: the nodes of the run's latest claim.
    """

    def __init__(self, settings: HeadSettings, blamed: Sequence[SetAside]) -> None:
        self._settings = settings
        self._nodes = {
            each.node: f"blamed: {each.why}"
            for each in blamed
            if settings.allocation - each.allocation <= FORGETS_AFTER and each.node in settings.expected
        }

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, the one that was set aside last at the end."""
        return tuple(self._nodes)

    def add(self, node: str, why: str, seats: Sequence[Seat] | None, attempt: int) -> list[Action] | None:
        """Set a node aside; return None, and do nothing, if too few of the others are here.

        Args:
            node: one of the step's nodes.
            why: the reason, for people.
            seats: the nodes that could take part in the next attempt; None while they are still gathered.
            attempt: the attempt in which that is decided.
        """
        others = [seat for seat in seats or () if seat.node != node and seat.node not in self._nodes]
        if seats is not None and not self._are_enough(others):
            return None
        self._nodes[node] = why
        text = f"{node} is set aside: {why}; no attempt starts workers on it while enough other nodes are there"
        metadata = {"node": node, "reason": why}
        note = Note(name="node.set_aside", message=text, attempt=attempt, metadata=metadata)
        return [Log(text=text, level="warning"), note]

    def leave_out(self, seats: Sequence[Seat], *, is_first: bool) -> Sequence[Seat]:
        """Return the seats without the nodes that are set aside, or all of them if the others are too few.

        Args:
            seats: the nodes that could take part in the next attempt.
            is_first: there was no world in this allocation yet, so no place of which a spare could take the role.
        """
        others = [seat for seat in seats if seat.node not in self._nodes]
        return others if self._are_enough(others, is_first=is_first) else seats

    def _are_enough(self, seats: Sequence[Seat], *, is_first: bool = False) -> bool:
        by_role = Counter(seat.role for seat in seats)
        short = sum(max(0, least - by_role[role]) for role, least in self._settings.role_nodes.items())
        spares = sum(max(0, by_role[role] - most) for role, most in self._settings.role_max_nodes.items())
        return len(seats) >= self._settings.min_nodes and short <= (0 if is_first else spares)
