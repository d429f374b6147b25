"""When heads ask the scheduler for the end of the job: rarely while it is far, for it is shared, and before they act.

They ask again when half of the time until the notice is over, but never within half a minute, and every ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.membership.timing import DRIFT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

NEVER = float("inf")
RARELY_S = 600.0  # between two questions about the end, however far it is
OFTEN_S = 30.0  # however near it is
FRESH_S = 5.0  # of an answer: the head asks again before it acts on an older one
LATE_S = 0.3  # of a task of the head
ACTS = 2  # for which a head asks again: the notice of an end, and the stop


@dataclass(slots=True)
class _Clock:
    """What one head's clock has asked: when at last, when it is to ask again, and how often it did so to act."""

    asked_at: float = -NEVER
    due_at: float = 0.0
    ends_at: float | None = None  # as it knew then
    acts: int = 0
    may_ask: bool = False
    moves: int = 0  # of the end that it knew
    notices: int = 0


class EndQuestions:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._clocks: dict[object, _Clock] = {}
        self._ends_at: dict[Agent, float | None] = {}  # of the job, as each agent knows

    def begins(self, agent: Agent, clock: object) -> None:
        """A head has a clock, which begins with what its agent knows: from the script, or as an earlier head."""
        now, scenario = self._run.clock.now, self._run.scenario
        if agent not in self._ends_at:
            knows = scenario.knows_time and scenario.time_left_s is not None
            self._ends_at[agent] = agent.started_at + int(scenario.time_left_s or 0.0) if knows else None
        made = self._clocks[clock] = _Clock(ends_at=self._ends_at[agent], due_at=now)
        if made.ends_at is not None:
            made.asked_at, made.due_at = now, self._next(now, made.ends_at)

    def _next(self, now: float, ends_at: float | None) -> float:
        until_notice_s = NEVER if ends_at is None else ends_at - self._run.scenario.lead_s - now
        return now + min(RARELY_S, max(OFTEN_S, until_notice_s / 2))

    def may_ask(self, clock: object) -> None:
        """Somebody has said that the end may have moved."""
        self._clocks[clock].may_ask = True

    def asks(self, agent: Agent, clock: object) -> None:
        """A head's clock asks when the job ends."""
        now, made = self._run.clock.now, self._clocks[clock]
        what = f"{agent.name} asks for the end of the job at {now:.1f} s, after {made.asked_at:.1f} s"
        require(now <= made.due_at + DRIFT * RARELY_S + LATE_S, f"{what}, not by {made.due_at:.1f} s")
        if made.may_ask or now >= made.due_at - DRIFT * RARELY_S - LATE_S:
            made.may_ask = False
            return
        ends_at = NEVER if made.ends_at is None else made.ends_at
        is_to_act = ends_at - now <= self._run.limits.acts_before_s + LATE_S + DRIFT * now and made.acts < ACTS
        is_old = now - made.asked_at > FRESH_S - LATE_S
        made.acts += 1
        require(is_to_act and is_old, f"{what}, not from {made.due_at:.1f} s on, and ends at {ends_at:.1f} s")

    def answered(self, agent: Agent, clock: object) -> None:
        """The scheduler has said something, or has not answered."""
        now, scheduler, made = self._run.clock.now, self._run.scheduler, self._clocks[clock]
        if now >= scheduler.silent_until and scheduler.is_running:
            self._ends_at[agent] = scheduler.ends_at
        elif self._ends_at[agent] is None and self._run.scenario.plans_time:
            self._ends_at[agent] = agent.started_at + (self._run.scenario.time_left_s or 0.0)
        ends_at = self._ends_at[agent]
        if ends_at is not None and (made.ends_at is None or abs(made.ends_at - ends_at) > 1.0):
            made.acts = 0
            made.moves += made.ends_at is not None
        made.asked_at, made.due_at, made.ends_at = now, self._next(now, ends_at), ends_at

    def gives_notice(self, agent: Agent, clock: object) -> None:
        """A head gives the notice of an end: once of each."""
        made = self._clocks[clock]
        made.notices += 1
        is_new = made.notices <= 1 + made.moves
        require(is_new, f"{agent.name} gives notice {made.notices} of an end that has moved {made.moves} times")

    def acts(self, agent: Agent, clock: object) -> None:
        """A head gives the notice of an end, or stops the workers because of it."""
        old_s = self._run.clock.now - self._clocks[clock].asked_at
        require(old_s <= FRESH_S + LATE_S, f"{agent.name} acts on what it was told of the end {old_s:.1f} s ago")
