"""Collects the nodes that cannot take part, so that the end of the run names all of them and not the first alone."""

from __future__ import annotations

from collections import Counter

from hpc_elastic.hostlist import NODES_NAMED, name_some
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.judge import Seen
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.timing import UNFIT_SETTLES_S

NEVER = float("inf")


class UnfitNodes:
    """The nodes without which the run cannot begin and that cannot take part; the others get a moment to say so too.

    Args:
        roster: the agents that have joined.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._problems: dict[str, str] = {}
        self._left_out: dict[str, Join] = {}  # of nodes that the run could do without when they said so
        self.found: tuple[str, ...] = ()  # when they had settled
        self._until = NEVER

    @property
    def are_there(self) -> bool:
        """Return whether a node has said that it cannot take part, so that no attempt may be opened any more."""
        return bool(self._problems)

    @property
    def next_tick(self) -> float:
        """Return when `settled` must be asked again, in monotonic seconds."""
        return self._until

    def add(self, join: Join, now: float) -> None:
        """Add a node that cannot take part."""
        if not self._problems:
            self._until = now + UNFIT_SETTLES_S
        self._problems[join.node] = join.problem or ""

    def left_out(self, join: Join) -> None:
        """Note a node that the run goes on without, to be named beside the others if it cannot begin after all."""
        self._left_out[join.node] = join

    def settled(self, now: float) -> Seen | None:
        """Return what was seen when every node has joined, or the others have had their time; None before."""
        if not self._problems or (now < self._until and not self._roster.is_complete):
            return None
        problems = {node: join.problem or "" for node, join in self._left_out.items()} | self._problems
        self.found = nodes = tuple(node for node in self._roster.expected if node in problems)
        by_problem: dict[str, list[str]] = {}
        for node in nodes:
            by_problem.setdefault(problems[node], []).append(node)
        told = [f"{name_some(names)}: {problem}" for problem, names in by_problem.items()]
        more = f"; and {len(told) - NODES_NAMED} more" if len(told) > NODES_NAMED else ""
        detail = "; ".join(told[:NODES_NAMED]) + more
        self._problems, self._until = {}, NEVER
        return Seen(trigger=Trigger.NODE_UNFIT, nodes=nodes, detail=detail)

    def are_most_of_a_role(self) -> bool:
        """Return whether those that were found are more than the others of a role, whose workers alone lack something.

        Its script, say: the others need another one.
        """
        roles = {node: join.role for node, join in self._left_out.items()}
        roles |= {member.node: member.role for member in self._roster}
        here = Counter(roles.values())
        unfit = Counter(role for node, role in roles.items() if node in self.found)
        return any(2 * number > here[role] for role, number in unfit.items())
