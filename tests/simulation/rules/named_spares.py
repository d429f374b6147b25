"""Nodes without a part in a world know of each other, for the record of the world may not name them.

A node that joins while a world is at work, and has no part in it, is in no record: were the head and all members lost,
nobody would dial it. So a head tells all such nodes of each other as one of them joins, of a few where there are many.
Who was one too many when it came has heard of those, and dials them: of it nobody is told when one of them is lost.
Nobody is told while nodes gather for the first attempt, in which thousands would hear of each other thousands of times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import Action, SendToMember
from hpc_elastic.membership.messages import Spares
from tests.simulation.rules.invariants import BrokenRuleError

if TYPE_CHECKING:
    from hpc_elastic.membership.head import Head
    from hpc_elastic.membership.roster import RosterEntry
    from tests.simulation.agent import Agent

MOST_SPARES = 64  # that others are told of, and that a record names


class NamedSpares:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self) -> None:
        self._told: dict[tuple[Head, str], set[str]] = {}
        self._came: dict[Head, dict[str, int]] = {}  # with their numbers, those that wait or waited, lost ones too

    def acts(self, head: Head, action: Action) -> None:
        """A head does something; it may tell a node of others."""
        if isinstance(action, SendToMember) and isinstance(action.message, Spares):
            if head._members.world is None:
                raise BrokenRuleError(f"{action.node} is told of others, and all are gathered for the first attempt")
            self._told[head, action.node] = {each.node for each in action.message.agents}

    def stepped(self, agent: Agent, head: Head) -> None:
        """A head has handled something."""
        members, world = head._members, head._members.world
        if world is None:
            return
        waiting = [each.node for each in sorted(members.roster, key=_number) if not members.is_in_world(each.node)]
        if len(waiting) < 2:
            return
        came = self._came.setdefault(head, {})
        came.update((each.node, _number(each)) for each in members.roster if each.node in waiting)
        first = sorted(came, key=came.__getitem__)[:MOST_SPARES]
        recorded = {each.node for each in world.spares}
        for named in (each for each in waiting if each in first and each not in recorded):
            for node in waiting:
                if node != named and named not in self._told.get((head, node), ()):
                    raise BrokenRuleError(f"the head of {agent.name} has not told {node} of {named}, which waits as it")


def _number(entry: RosterEntry) -> int:
    return entry.join.node_id
