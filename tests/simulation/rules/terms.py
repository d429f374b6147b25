"""What a TERM from outside is taken for: as the scheduler explains it when it comes, or when the workers are gone.

`docs/how-to/time-limits-and-preemption.md` says how the causes are told apart, and for how long the scheduler is asked.
What it says when the TERM comes stands if it says no more later, but that somebody sent a TERM: that may get a meaning.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import Note
from hpc_elastic.rundir.records import RunState
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

TERMS = ("preempt", "scancel", "scheduler_requeues", "term_job")
NEAR_S = 15.0  # a TERM so soon before the time limit is that of the time limit
ASKS_FOR_S = 10.0
ASKS_EVERY_S = 0.5
SOON_S = 0.35  # messages, files and turns
LOOKS_S = 1.0  # a head, into the run directory
MOST_A_SECOND = 6  # questions, of all that an agent asks
REQUEUE = 75


class Terms:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.is_played = run.scenario.is_term
        self._fault = next((fault for fault in run.scenario.faults if fault.what in TERMS), None)
        self._asked: defaultdict[Agent, list[float]] = defaultdict(list)
        self._answers: list[tuple[float, float, bool]] = []  # when it was asked and has said something or nothing
        self._noted: dict[object, list[tuple[float, str]]] = {}  # by head, when and what
        self._decides_at: float | None = None  # when a head has first wanted to write the result
        self._left_at: float | None = None  # when an agent has first left

    # What happens.

    def asks(self, agent: Agent) -> None:
        """An agent asks the scheduler about the end of its job."""
        now, asked = self._run.clock.now, self._asked[agent]
        asked.append(now)
        often = sum(moment > now - 1.0 for moment in asked)
        require(often <= MOST_A_SECOND, f"{agent.name} asks the scheduler {often} times in a second")

    def answered(self, asked_at: float, *, is_said: bool) -> None:
        """It gets an answer, or none."""
        self._answers.append((asked_at, self._run.clock.now, is_said))

    def notes(self, head: object, note: Note) -> None:
        """A head notes that the scheduler stops the job."""
        noted = self._noted.setdefault(head, [])
        noted.append((self._run.clock.now, str(note.metadata.get("reason"))))

    def decides(self) -> None:
        """The workers are gone, and a head makes out what that means for the run."""
        if self._decides_at is None:
            self._decides_at = self._run.clock.now

    # What must come of it.

    @property
    def stops_at(self) -> float:
        """When the job ends, as far as the agents know: at the TERM, or when the time is over that it is granted."""
        scheduler = self._run.scheduler
        is_told = bool(self._said(scheduler.terminated_at, self._run.clock.now))
        return scheduler.ends_at if scheduler.is_preempted and is_told else scheduler.terminated_at

    @property
    def _means(self) -> str:
        """What the scheduler says of the TERM, if it says anything."""
        fault, left_s = self._fault, self._run.scenario.time_left_s
        assert fault is not None
        assert left_s is not None
        is_near = fault.what == "term_job" and left_s - fault.at <= NEAR_S
        return {"preempt": "preempted", "scheduler_requeues": "requeued"}.get(
            fault.what, "time_limit" if is_near else "terminated"
        )

    def _said(self, since: float, until: float) -> list[float]:
        return [at for asked_at, at, is_said in self._answers if is_said and since <= asked_at <= until]

    def check_end(self) -> None:
        """When nobody runs any more: one event tells why the job stops, and the run ends or goes on as that says."""
        if not self.is_played or self._decides_at is None:
            return
        run, fault, decided_at = self._run, self._fault, self._decides_at
        assert fault is not None
        self._check_notes(fault)
        stopped_at = min((each.at for each in run.scenario.faults if each.what == "stop"), default=float("inf"))
        said = self._said(decided_at, decided_at + ASKS_FOR_S)
        is_explained = self._means != "terminated" and bool(self._said(fault.at, fault.at + SOON_S))
        left_at = min(agent.left_at for agent in run.agents)
        latest = (said[0] if said else decided_at + ASKS_FOR_S) + max(run.scenario.answers_s) + SOON_S
        if stopped_at < latest:
            latest = min(latest, max(decided_at, stopped_at + LOOKS_S) + ASKS_EVERY_S + SOON_S)
        what = f"the head decides at {decided_at:.2f} s what the TERM means, and the agents leave at {left_at:.2f} s"
        require(left_at <= latest, f"{what}, not by {latest:.2f} s")
        is_stopped = stopped_at + LOOKS_S + SOON_S < left_at or (not said and stopped_at < left_at)
        if is_stopped:
            self._is_cancelled()
            return
        if not said:
            earliest = decided_at + ASKS_FOR_S - 2 * ASKS_EVERY_S
            require(left_at >= earliest, f"{what}, and the scheduler is to be asked until {earliest:.2f} s")
        run.limits.ends_for(self._means if said or is_explained else "")

    def _check_notes(self, fault: Fault) -> None:
        """Each head says once why the job stops: as soon as it knows, or that it is unknown."""
        within_s = max(self._run.scenario.answers_s) + SOON_S
        require(bool(self._noted), "the scheduler stops the job, and no event says so")
        for noted in self._noted.values():
            at, reason = noted[0]
            require(len(noted) == 1, f"the scheduler stops the job once, and a head notes {noted}")
            is_known = any(heard_at <= at for heard_at in self._said(fault.at, at))
            expected = self._means if is_known else "unknown"
            require(reason == expected, f"the event says that the job is stopped by {reason}, and it is {expected}")
            require(
                at <= fault.at + within_s, f"the job is stopped at {fault.at:.2f} s, and that is noted at {at:.2f} s"
            )

    def _is_cancelled(self) -> None:
        """A person has asked for the end while the scheduler said nothing."""
        results = self._run.disk.results
        require(bool(results), "a person has asked for the end, and the run has no result")
        require(results[0].state is RunState.CANCELLED, f"a person has cancelled the run, and it is {results[0].state}")
        codes = {agent.exit_code for agent in self._run.agents}
        require(codes == {results[0].exit_code}, f"the agents of a run that was cancelled leave with {codes}")
