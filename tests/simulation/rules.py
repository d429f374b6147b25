"""What must hold after every event, and at the end: checked on what nodes do, not on what machines believe."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun


class BrokenRuleError(AssertionError):
    """The simulated agents did what agents must never do."""


def check(run: SimulatedRun) -> None:
    """The rules of every moment.

    Raises:
        BrokenRuleError: one is broken.
    """
    at_work = {attempt for node in run.nodes for attempt in node.alive.values()}
    if len(at_work) > 1:
        raise BrokenRuleError(f"two worlds work at once: attempts {sorted(at_work)}")
    if at_work - set(run.disk.claims):
        raise BrokenRuleError(f"workers of attempt {at_work} run, which nobody claimed")
    if at_work and max(run.disk.claims) not in at_work and run.head.phase.value == "running":
        working = {node.name: node.alive for node in run.nodes}
        raise BrokenRuleError(f"attempt {max(run.disk.claims)} runs with workers of an older one: {working}")
    claims = [run.disk.claims[number] for number in sorted(run.disk.claims)]
    if [claim.attempt for claim in claims] != list(range(1, len(claims) + 1)):
        raise BrokenRuleError(f"attempts have a gap: {sorted(run.disk.claims)}")
    for before, after in pairwise(claims):
        if after.predecessor != before.attempt or after.spend.restarts < before.spend.restarts:
            raise BrokenRuleError(f"attempt {after.attempt} does not follow from attempt {before.attempt}")
    if claims and claims[-1].spend.restarts > run.scenario.max_restarts:
        raise BrokenRuleError(f"{claims[-1].spend.restarts} restarts of {run.scenario.max_restarts} are spent")
    if run.is_over and at_work:
        raise BrokenRuleError(f"the run is over and workers of attempt {at_work} run")


def check_end(run: SimulatedRun) -> None:
    """The rules of a run that is over.

    Raises:
        BrokenRuleError: one is broken.
    """
    is_quiet = not run.scenario.faults and run.scenario.failure_chance == 0
    has_joined = 3.0  # seconds, for all who start at all
    nobody_can_write = any(
        (what == "lose_node" and number == 0) or (what in ("term", "term_all") and moment < has_joined)
        for moment, what, number in run.scenario.faults
    )
    if not run.disk.results and not nobody_can_write:
        raise BrokenRuleError("the run ended without a result")
    codes = {node.name: node.exit_code for node in run.nodes if node.is_up and node.has_joined}
    if run.disk.results and not nobody_can_write and set(codes.values()) != {run.disk.results[0].exit_code}:
        raise BrokenRuleError(f"the agents left with {codes}, the result is {run.disk.results[0].exit_code}")
    if is_quiet and run.disk.results[0].state.value != "SUCCEEDED":
        raise BrokenRuleError(f"nothing went wrong, and the run is {run.disk.results[0]}")
