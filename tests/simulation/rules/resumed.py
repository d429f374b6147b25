"""A run that a person goes on with in another job: not before the scheduler has said that the one before is over.

Two jobs of one run at work are what leases cannot prevent, for the later one opens its attempt after seconds. Who gets
no answer asks again for a minute; who is told that the other job lives ends, and leaves the run to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.timing import DRIFT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.rundir.records import AllocationClaim
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

ASKS_FOR_S, ASKS_EVERY_S = 60.0, 2.0
TELLS_OTHERS_S = 20.0  # why there will be no head
SOON_S = 1.0  # for a question, an answer and the records


class Resumed:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._answers: dict[Agent, tuple[bool | None, float]] = {}  # the last one that each has got
        self._asked_first: dict[Agent, float] = {}

    def is_over(self, asking: Agent, job_id: str) -> bool | None:
        """What the scheduler says: nothing for a while, and that a job lives of which an agent does."""
        run, now = self._run, self._run.clock.now
        if not run.scenario.is_resumed:
            return True
        agents = [each for each in run.everybody if run.job_of(each) == job_id]
        answer = None if now < run.scheduler.silent_until else not any(each.is_running for each in agents)
        has_asked = self._answers.get(asking, (None, 0.0))[0] is False
        require(not has_asked, f"{asking.name} has been told that job {job_id} lives, and asks again")
        self._answers[asking] = answer, now
        self._asked_first.setdefault(asking, now)
        return answer

    @property
    def is_held_up(self) -> bool:
        """Whether the latest job may not begin, for all that the scheduler has said to its agents."""
        return any(self._answers.get(agent, (True, 0.0))[0] is not True for agent in self._run.agents)

    def allocated(self, agent: Agent, claim: AllocationClaim) -> None:
        """The claim of an allocation is on disk."""
        before = self._run.disk.allocations[-2:-1]
        if not before or before[0].job_id == claim.job_id:
            return
        answer, answered_at = self._answers.get(agent, (None, 0.0))
        what = f"{agent.name} claims allocation {claim.allocation} for job {claim.job_id}"
        require(answer is True, f"{what}, and the scheduler has not said that job {before[0].job_id} is over: {answer}")
        took_s, soon_s = self._run.clock.now - answered_at, SOON_S + self._run.progress.slack_s
        require(took_s <= soon_s, f"{what} {took_s:.1f} s after that could be, not {soon_s:.1f} s")

    def check_end(self) -> None:
        """Nobody runs any more."""
        run = self._run
        for agent, (answer, answered_at) in self._answers.items():
            first, left_at = self._asked_first[agent], agent.left_at
            is_calm = agent.exit_code is not None and not agent.process.has_ever_frozen
            what = f"{agent.name} has asked about the job before from {first:.1f} s on, and leaves at {left_at:.1f} s"
            if answer is None and is_calm:
                asks_for_s = answered_at - first
                is_so = asks_for_s <= ASKS_FOR_S * (1 + DRIFT)
                require(is_so, f"{agent.name} has asked about the job before for {asks_for_s:.1f} s")
                require(left_at >= first + ASKS_FOR_S - ASKS_EVERY_S - SOON_S, f"{what}, without an answer")
                latest = answered_at + ASKS_EVERY_S + TELLS_OTHERS_S + SOON_S + run.progress.slack_s
                require(left_at <= latest, f"{what}, long after it")
            is_refused = answer is False and agent.exit_code is not None
            is_so = agent.exit_code == ExitCode.RUN_DIRECTORY or not is_refused
            require(is_so, f"{what} with {agent.exit_code}, and the job before lives")
