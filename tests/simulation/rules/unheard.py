"""A head is lost as its result is on disk: it has told nobody, and the others find the result, and do what it says.

They leave with its exit code and for its cause, as soon as they have read it, and none of them takes the run further.
Where the script's machine was lost before, they end the job themselves (`job_ends`), and where it is there, none does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.timing import DRIFT, READS_EVERY_S, Timing
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

WRITERS = {"kill_writer": "kill_agent", "power_off_writer": "power_off"}
READS = 12  # of files, one after the other: those under way, and those that say that the run is over
SEARCHES_S = 0.5  # for its workers to be gone, and the first look


class Unheard:
    """Of one run. Those that end with `s` but `arm` and `ended` raise BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._armed: Fault | None = None
        self._writer: Agent | None = None
        self._result: RunResultRecord

    def arm(self, fault: Fault) -> None:
        """Who writes the result is to be lost with it."""
        self._armed = fault

    def ended(self, agent: Agent, result: RunResultRecord) -> None:
        """The result is on disk, and its writer has not heard of it."""
        if self._armed is None or self._writer is not None:
            return
        self._writer, self._result = agent, result
        lost = replace(self._armed, what=WRITERS[self._armed.what], node=agent.number)
        self._run.clock.after(0.0, lambda: self._run.strikes(lost))

    def leaves(self, agent: Agent, leave: Leave) -> None:
        """An agent leaves: as the result says, and soon."""
        writer, run = self._writer, self._run
        if writer is None or agent is writer:
            return
        told, does = (self._result.exit_code, self._result.cause), (leave.exit_code, leave.cause)
        require(does == told, f"{agent.name} finds a result that says {told}, and leaves with {does}")
        timing = Timing(lease_s=run.scenario.lease_s, profile=run.scenario.profile)
        silent_s = 0.0 if writer.is_powered else timing.patience_s
        bound_s = (silent_s + READS_EVERY_S + SEARCHES_S) * (1 + DRIFT) + READS * max(run.scenario.disk_s)
        waited_s = run.clock.now - max(run.disk.ended_at, agent.troubled_until)
        require(waited_s <= bound_s, f"{agent.name} leaves {waited_s:.2f} s after the result, not {bound_s:.2f} s")
        is_needless = leave.ends_job and run.agents[0].is_powered
        require(not is_needless, f"{agent.name} is to end the job, and the machine of its script was never away")

    def claims(self, attempt: int) -> None:
        """An attempt is claimed: not after the result that its head can read."""
        require(self._writer is None, f"attempt {attempt} is claimed, and the run is over")
