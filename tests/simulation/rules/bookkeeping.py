"""What stands in the run directory beside claims and results: written when it is due, and true by what nodes did.

A person who looks at a run reads what is spent (`budget.json`), which ranks of a role that goes on without them have
failed (a node's record), and when each failure was.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hpc_elastic.codec import to_json
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Message, Stopped
from hpc_elastic.rundir.records import FailureRecord, NodeResult, WorkerState
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

EXACT_S = 0.02
READS_WITHIN_S = 3.0  # what stopped workers have written last: of these the end of the look is known, at most
HOLDING = ("disk", "pause", "freeze", "late")  # faults that hold records up


class Bookkeeping:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._ended_at: dict[tuple[int, int], float] = {}  # by attempt and rank
        self._owed: list[tuple[float, Agent, int, int]] = []  # when, by whom, of which attempt and rank
        self._unsaid: list[tuple[float, Agent, int]] = []  # when at the latest, by whom, of which attempt
        self._is_held_up = any(word in fault.what for fault in run.scenario.faults for word in HOLDING)

    def ended(self, worker: Worker) -> None:
        """A worker has ended, whoever ended it."""
        self._ended_at[worker.attempt, worker.rank] = self._run.clock.now

    def fails(self, agent: Agent, worker: Worker) -> None:
        """An agent at work has taken in that a worker has failed: where that is ignored, its record says so."""
        is_ignored = self._run.scenario.role(worker.role).restart == "ignore"
        if is_ignored and agent.workers.alive and not self._is_held_up:
            due = self._run.clock.now + 2 * self._run.progress.slack_s
            self._owed.append((due, agent, worker.attempt, worker.rank))

    def says(self, agent: Agent, message: Message) -> None:
        """An agent tells its head that its workers are stopped: its record says then what became of them.

        A failure whose error file is not written yet would be in neither.
        """
        if isinstance(message, Stopped):
            unwritten = agent.part.member._recording_failures - {asyncio.current_task()}
            what = f"{agent.name} says that the workers of attempt {message.attempt} are stopped"
            require(not unwritten, f"{what}, and {len(unwritten)} error files are not written yet")
        if isinstance(message, Stopped) and not self._is_held_up:
            self._unsaid.append((self._run.clock.now + 2 * self._run.progress.slack_s, agent, message.attempt))

    def watch(self) -> None:
        """From time to time."""
        now = self._run.clock.now
        for unsaid in [each for each in self._unsaid if each[0] <= now]:
            self._unsaid.remove(unsaid)
            _, agent, attempt = unsaid
            record = self._run.disk.node_results.get((attempt, agent.name))
            is_said = record is not None and record.state not in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)
            is_excused = agent.died_at <= now or not agent.disk.is_well or agent.process.has_ever_frozen
            what = f"{agent.name} has stopped its workers of attempt {attempt}"
            require(is_said or is_excused, f"{what}, and its record does not say so: {record}")
        for owed in [each for each in self._owed if each[0] <= now]:
            self._owed.remove(owed)
            _, agent, attempt, rank = owed
            is_at_work = agent.is_running and agent.member.phase is MemberPhase.WORKING
            if is_at_work and agent.member.attempt == attempt and agent.disk.is_well:
                record = self._run.disk.node_results.get((attempt, agent.name))
                is_told = record is not None and str(rank) in record.failures
                require(is_told, f"rank {rank} has failed, and the record of {agent.name} does not say so: {record}")
        self._check_budget()

    def _check_budget(self) -> None:
        """What is spent, as the latest claim says it, once its head has had the time to write it."""
        run, claim = self._run, self._run.disk.latest_claim
        if claim is None or self._is_held_up or run.earlier or run.disk.results:
            return
        head = run.agent(claim.head)
        is_due = run.clock.now > run.disk.asked_at[claim.attempt] + 2 * run.progress.slack_s
        if not is_due or head.headquarters is None or not head.disk.is_well or head.process.has_ever_frozen:
            return
        content = run.files.content.get(LAYOUT.budget)
        told = None if content is None else json.loads(content[0])
        is_so = told is not None and (told["attempt"], told["spend"]) == (claim.attempt, to_json(claim.spend))
        require(is_so, f"attempt {claim.attempt} is open, with {claim.spend}, and people read that it is {told}")

    def records(self, record: NodeResult) -> None:
        """A node's part in an attempt is on disk."""
        is_ignored = self._run.scenario.role(record.role).restart == "ignore"
        what = f"the record of {record.node} in attempt {record.attempt} says that failures are ignored"
        require(record.state is not WorkerState.UNHEALTHY or is_ignored, f"{what}, and they are not")
        for failure in record.failures.values():
            self._check_time(failure)

    def _check_time(self, failure: FailureRecord) -> None:
        """A failure is of the moment at which its process ended."""
        ended_at = self._ended_at.get((failure.attempt, failure.rank))
        agent = self._run.agent(failure.node)
        if ended_at is None or agent.process.has_ever_frozen or agent in self._run.everybody[len(self._run.agents) :]:
            return
        late_s = READS_WITHIN_S if failure.is_after_stop else EXACT_S
        is_so = ended_at - EXACT_S <= failure.timestamp <= ended_at + late_s
        what = f"rank {failure.rank} has ended at {ended_at:.3f} s"
        require(is_so, f"{what}, and its failure is said to be of {failure.timestamp:.3f} s")
