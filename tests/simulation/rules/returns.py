"""Nodes that are lost more than once: who lost them says so in its claims, and does without them where it can."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, World
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

REPEATED = 2
MOST_SPARES = MOST_LOST = 64  # that a record names
FORGETS_AFTER = 3  # allocations


class Returns:
    """Of one run. Every method raises BrokenRuleError.

    A node was surely lost from an attempt if it is not even a spare when the next one is claimed. Those that came back
    before are not known here, so only the claims count that charge no other loss than these. What happened in a start
    of the job is forgotten some starts later, and not before.
    """

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._lost: Counter[str] = Counter()
        self._latest: dict[str, int] = {}  # the allocation in which each was lost last

    def claimed(self, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk, after another one."""
        here = {each.node for each in world.nodes} | {each.node for each in world.spares}
        if len(world.spares) >= MOST_SPARES:
            return
        for node, allocation in self._latest.items():
            if claim.allocation - allocation > FORGETS_AFTER:
                self._lost[node] = 0
        if before is not None and before.allocation == claim.allocation:
            self._check_times(claim, before)
            self._count(claim, before, here)
        self._check_left_out(claim, world, here)
        self._check_forgotten(claim, world)

    def _check_times(self, claim: AttemptClaim, before: AttemptClaim) -> None:
        """What claims say of losses grows by the losses of one attempt, and each node is named once."""
        times = {each.node: each.times for each in claim.lost_nodes}
        late = (each for each in before.lost_nodes if claim.allocation - each.allocation <= FORGETS_AFTER)
        earlier = {each.node: each.times for each in late}
        require(len(times) == len(claim.lost_nodes), f"attempt {claim.attempt} names a lost node twice")
        is_full = len(times) == MOST_LOST
        require(
            is_full or earlier.keys() <= times.keys(),
            f"attempt {claim.attempt} forgets {earlier.keys() - times.keys()}",
        )
        more = {node: count - earlier.get(node, 0) for node, count in times.items()}
        is_one_more = {node for node, count in more.items() if count}
        require(set(more.values()) <= {0, 1}, f"attempt {claim.attempt} counts losses by {more}")
        is_so = is_one_more <= set(before.members)
        require(is_so, f"attempt {claim.attempt} counts losses of {is_one_more}, of {before.members}")

    def _count(self, claim: AttemptClaim, before: AttemptClaim, here: set[str]) -> None:
        absent = set(before.members) - here
        if claim.spend.node_losses - before.spend.node_losses == len(absent) < len(here):
            self._lost.update(absent)
            self._latest.update(dict.fromkeys(absent, claim.allocation))
        blamed = {each.node for each in claim.set_aside}
        for node in absent:
            is_said = self._lost[node] < REPEATED or node in blamed
            require(is_said, f"attempt {claim.attempt} does not say that {node} was lost {self._lost[node]} times")

    def _check_forgotten(self, claim: AttemptClaim, world: World) -> None:
        """A node whose losses are forgotten takes part again, if there is room."""
        blamed = {each.node for each in claim.set_aside if claim.allocation - each.allocation <= FORGETS_AFTER}
        if not self._latest or len(world.nodes) >= self._run.scenario.max_nodes or self._run.witness.kinds != {"loss"}:
            return
        idle = {each.node for each in world.spares} - blamed
        idle = {node for node in idle if claim.allocation - self._latest.get(node, claim.allocation) > FORGETS_AFTER}
        require(not idle, f"attempt {claim.attempt} leaves out {idle}, whose losses are forgotten")

    def _check_left_out(self, claim: AttemptClaim, world: World, here: set[str]) -> None:
        """A node that was lost twice has workers only if the others are too few."""
        if len(self._run.scenario.roles) > 1:
            return
        lost = {node for node, times in self._lost.items() if times >= REPEATED}
        sick = {agent.name for agent in self._run.everybody if agent.found_at is not None}
        used = lost.intersection(node.node for node in world.nodes)
        others = here - sick - {each.node for each in claim.set_aside}
        are_few = len(others) < self._run.scenario.min_nodes
        require(not used or are_few, f"attempt {claim.attempt} uses {used}, lost twice, though {others} are enough")
