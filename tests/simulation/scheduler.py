"""The scheduler of a simulated run, as far as it ends the job: its time limit, preemption, a cancel, a requeue.

As Slurm does it: a TERM to every process of the job, and a KILL half a minute later, or half a minute after the end of
the time that a preempted job is granted. It answers at once, or not at all. In runs without a time limit
`wiring.Questions` answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import Request
from hpc_elastic.scheduler.protocol import JobOutlook, JobState
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

KILLS_AFTER_S = 30.0
ENDS = (
    *("limit_moves", "preempt", "preempt_warned", "scancel", "scheduler_requeues", "scheduler_silent"),
    "term_job",  # without a reason that it would tell
)


class JobScheduler:
    """Of one run."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        left_s = run.scenario.time_left_s
        self.is_played = left_s is not None
        self.ends_at = float("inf") if left_s is None else left_s
        self.state = JobState.RUNNING
        self.is_preempted = self.is_out_of_time = False
        self.restarts = 0
        self.silent_until = float("inf") if run.scenario.is_scheduler_silent else 0.0
        self.asked: list[float] = []
        self.ends = [self.ends_at]  # all that it has said so far
        self.terminated_at = self.kills_at = float("inf")

    @property
    def is_running(self) -> bool:
        """Whether nobody has cancelled the job."""
        return self.state is JobState.RUNNING

    def begin(self) -> None:
        """The job has started."""
        if self.is_played:
            self._ring()

    def outlook(self) -> JobOutlook | None:
        """What it answers now."""
        now = self._run.clock.now
        self.asked.append(now)
        if now < self.silent_until:
            return None
        return JobOutlook(
            state=self.state,
            restarts=self.restarts,
            seconds_left=max(0.0, self.ends_at - now),
            is_preempted=self.is_preempted,
            is_out_of_time=self.is_out_of_time,
        )

    def happens(self, fault: Fault) -> None:
        """Something is done with the job."""
        now = self._run.clock.now
        if fault.what == "scheduler_silent":
            self.silent_until = max(self.silent_until, now + fault.lasts_s)
        elif fault.what == "limit_moves":
            self.ends_at = now + fault.lasts_s
            self._ring()
        elif fault.what in ("preempt", "preempt_warned"):
            self.is_preempted, self.ends_at = True, now + fault.lasts_s
            if fault.what == "preempt":
                self._terminate(kills_at=self.ends_at + KILLS_AFTER_S)
            else:  # the batch script has got a signal, and writes that down
                self._run.notices.append(Request(kind="notice", by="slurm", time="", id="slurm-0"))
            self._ring()
        elif fault.what == "term_job":
            self._terminate()
        elif fault.what == "scancel":
            self.state = JobState.CANCELLED
            self._terminate()
        elif fault.what == "scheduler_requeues":
            self.restarts += 1
            self._terminate()
        self.ends.append(self.ends_at)
        self._run.limits.happens(fault)

    def _ring(self) -> None:
        ends_at = self.ends_at
        self._run.clock.at(ends_at, lambda: self._is_over(ends_at))

    def _is_over(self, ends_at: float) -> None:
        if ends_at == self.ends_at and self.state is JobState.RUNNING:
            self.is_out_of_time = not self.is_preempted
            self._terminate()

    def _terminate(self, kills_at: float | None = None) -> None:
        run, now = self._run, self._run.clock.now
        run.witness.see("term")
        self.terminated_at = min(self.terminated_at, now)
        self.kills_at = min(self.kills_at, now + KILLS_AFTER_S if kills_at is None else kills_at)
        for agent in run.agents:
            if agent.is_running:
                run.witness.terminated.add(agent.name)
                run.clock.after(run.dice.uniform(0, 0.02), agent.terminate)
                run.clock.after(1.0 + run.dice.uniform(0, 0.02), agent.terminate)  # a person asks again
            run.clock.at(self.kills_at, agent.die)
