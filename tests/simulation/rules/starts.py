"""What several starts of one job owe each other: the later one is announced, and the earlier one ends no run of it.

The old agents find the `start` line of the new one within a second, or the claim itself before they write a result.
Before one for want of nodes they ask the scheduler, which knows of the new start before anybody has claimed for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, RunResultRecord, RunState
from tests.simulation.disk import LAYOUT
from tests.simulation.process import ANSWERS_S
from tests.simulation.rules.invariants import require, start_of

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

OPERATIONS = 4  # on the disk, between the last look at the claims and the result
FOR_WANT_OF_NODES = ("node_lost", "nodes_missing", "setup_failed")
REFUSING = ("disk_refuses", "disk_fails", "stall_disk", "stall_disks", "pause", "freeze")


class Starts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._are_disturbed = any(fault.what in REFUSING for fault in run.scenario.faults)

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk: the first one of another start than the one before."""
        disk = self._run.disk
        if before is None or self._are_disturbed or start_of(disk, claim) == start_of(disk, before):
            return
        start = start_of(disk, claim)
        first = next(each.allocation for each in disk.allocations if each.restart_count == start)
        lines = [json.loads(line) for line in self._run.files.content[LAYOUT.requests][0].splitlines() if line]
        is_told = any(line.get("kind") == "start" and line.get("allocation") == first for line in lines)
        require(is_told, f"attempt {claim.attempt} is of allocation {first} of another start, which no line announces")

    def announces(self, agent: Agent, claim: AllocationClaim) -> None:
        """An agent tells others of a start's claim, if it has claimed in that start: else each of thousands would."""
        claimed = {each.node for each in self._run.disk.allocations if each.restart_count == claim.restart_count}
        what = f"{agent.name} announces the claim of {claim.node}"
        require(agent.name in claimed, f"{what}, and has claimed none itself")

    def ended(self, agent: Agent, result: RunResultRecord) -> None:
        """The result is on disk."""
        run, slack_s = self._run, OPERATIONS * max(self._run.scenario.disk_s)
        if self._are_disturbed or result.state is RunState.SUCCEEDED:
            return
        later = [each.allocation for each in run.disk.allocations if each.restart_count > agent.start_number]
        since = min((run.promptness.allocated_at[number] for number in later), default=run.clock.now)
        what = f"{agent.name}, of start {agent.start_number + 1} of the job, ends the run by {result.reason}"
        require(run.clock.now <= since + slack_s, f"{what}, which goes on in allocation {later} since {since:.2f} s")
        known = run.requeued_at[agent.start_number :] if run.restarts() and not run.scenario.is_resumed else []
        if result.reason in FOR_WANT_OF_NODES and known:
            is_so = run.clock.now <= known[0] + slack_s + ANSWERS_S
            require(is_so, f"{what}, and the scheduler has started the job again at {known[0]:.2f} s")
