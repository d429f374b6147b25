"""A simulated node: its agent's member, and workers that end as the dice say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.membership import actions as do
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, Join, Message, Refused, StopManner, Welcome
from hpc_elastic.rundir.records import Endpoint, FailureRecord, NodeResult
from tests.simulation.clock import Timer
from tests.simulation.rules import BrokenRuleError
from tests.simulation.scenario import GRACE_S, LEASE_S, RESTART_GRACE_S

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun


class Node:
    """One agent with its workers; on node 0 the head is beside it."""

    def __init__(self, run: SimulatedRun, number: int) -> None:
        self.run = run
        self.number = number
        self.name = f"node{number}"
        self.alive: dict[int, int] = {}  # local rank -> attempt
        self.working: Assign | None = None
        self.exit_code: int | None = None
        self.is_up = True
        self.is_connected = False
        self.has_joined = False
        self.stop_number = 0
        join = Join(
            node=self.name,
            node_id=number,
            agent=Endpoint(address=self.name, port=1),
            store_port=2,
            workers=run.scenario.workers,
            role="default",
            versions={},
        )
        self.join = join
        self.member = Member(join, run="run", lease_s=LEASE_S)
        self.timer = Timer(run.clock, self._tick)

    @property
    def is_here(self) -> bool:
        return self.is_up and self.exit_code is None

    def connect(self) -> None:
        """Dials the head until it answers."""
        if not self.is_here:
            return
        if self.number == 0:
            self.apply(self.member.connected(self.run.clock.now, is_joined=False))
        else:
            self.run.dial(self)

    def hear(self, message: Message) -> None:
        if self.is_here:
            self.has_joined = self.has_joined or isinstance(message, Welcome)
            if isinstance(message, (Welcome, Refused)) and self.number != 0:
                self.is_connected = True
                self.apply(self.member.connected(self.run.clock.now, is_joined=True))
            self.apply(self.member.received(message))

    def lose_head(self, why: str) -> None:
        if self.is_here and self.is_connected:
            self.is_connected = False
            self.apply(self.member.disconnected(why))

    def terminate(self) -> None:
        """Slurm's TERM, to every process of this node."""
        if self.is_here:
            for local_rank in list(self.alive):
                self.run.clock.after(self.run.dice.uniform(0, 0.02), self._exit(local_rank, -15))
            self._later(
                self.run.dice.uniform(0, 0.02),
                lambda: self.apply(self.member.terminated("SIGTERM", have_workers=True)),
            )

    def kill_worker(self, exitcode: int) -> None:
        if self.is_here and self.alive:
            self._exit(self.run.dice.choice(sorted(self.alive)), exitcode)()

    def vanish(self) -> None:
        """Power off: agent and workers are gone."""
        self.is_up = False
        self.alive.clear()
        self.timer.stop()
        self.run.gone(self)

    def apply(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._act(action)
        if self.is_here:
            self.timer.set(self.member.next_tick())

    def _tick(self) -> None:
        if self.is_here:
            self.apply(self.member.tick(self.run.clock.now))

    def _act(self, action: do.Action) -> None:
        run, later = self.run, self._later
        if isinstance(action, do.Tell):
            run.to_head(self, action.message)
        elif isinstance(action, do.StartWorkers):
            self.working = action.assign
            later(0.02, lambda: self._start(action.assign))
        elif isinstance(action, do.StopWorkers):
            self._stop(action)
        elif isinstance(action, do.RecordFailure):
            later(run.disk_s(), lambda: self.apply(self.member.failure_recorded(self._failure(action))))
        elif isinstance(action, do.WriteNodeResult):
            later(run.disk_s(), lambda: self._wrote(action.result))
        elif isinstance(action, do.WriteResult):
            later(
                run.disk_s(),
                lambda: self.apply(self.member.run_result_written(*run.disk.write_result(action.result))),
            )
        elif isinstance(action, do.Leave):
            self._leave(action)

    def _leave(self, action: do.Leave) -> None:
        if self.alive:
            raise BrokenRuleError(f"{self.name} leaves with workers {self.alive}")
        self.exit_code = action.exit_code
        self.timer.stop()
        self.run.gone(self)

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        self.run.clock.after(seconds, lambda: event() if self.is_here else None)

    def _start(self, assign: Assign) -> None:
        if self.stop_number and self.working is not assign:
            return
        for local_rank in range(assign.workers):
            self.alive[local_rank] = assign.attempt
            self._schedule_exit(local_rank, assign.attempt)
        ranks = range(assign.first_rank, assign.first_rank + assign.workers)
        self.apply(self.member.workers_started(assign.attempt, {str(rank): 1 for rank in ranks}))

    def _schedule_exit(self, local_rank: int, attempt: int) -> None:
        dice, scenario = self.run.dice, self.run.scenario
        is_failure = dice.random() < scenario.failure_chance
        after = dice.uniform(0, scenario.work_s) if is_failure else scenario.work_s * dice.uniform(0.9, 1.1)
        exit_it = self._exit(local_rank, dice.choice([1, -9, -11]) if is_failure else 0)
        self._later(after, lambda: exit_it() if self.alive.get(local_rank) == attempt else None)

    def _exit(self, local_rank: int, exitcode: int) -> Callable[[], None]:
        attempt = self.alive.get(local_rank)

        def exit_now() -> None:
            if attempt is None or self.alive.get(local_rank) != attempt:
                return
            del self.alive[local_rank]
            self.apply(self.member.worker_exited(attempt, local_rank, exitcode, self.run.clock.now))

        return exit_now

    def _stop(self, action: do.StopWorkers) -> None:
        """Workers go when they want to within the grace, and are killed after it."""
        bound = {StopManner.FENCE: 0.0, StopManner.RESTART: RESTART_GRACE_S, StopManner.GRACE: GRACE_S}[action.manner]
        self.stop_number += 1
        number = self.stop_number

        def stopped() -> None:
            if number == self.stop_number:
                self.alive.clear()
                self.apply(self.member.workers_stopped(action.attempt, (), 2))

        self._later(0.05 + self.run.dice.uniform(0, bound), stopped)

    def _failure(self, action: do.RecordFailure) -> FailureRecord:
        assert self.working is not None
        rank = self.working.first_rank + action.local_rank
        is_signal = action.exitcode < 0
        return FailureRecord(
            rank=rank,
            local_rank=action.local_rank,
            role="default",
            node=self.name,
            attempt=action.attempt,
            pid=1,
            exitcode=action.exitcode,
            signal_name=f"SIG{-action.exitcode}" if is_signal else None,
            error_file="",
            message="it failed",
            timestamp=self.run.clock.now,
            failure_class="signal" if is_signal else "exit_code",
        )

    def _wrote(self, result: NodeResult) -> None:
        self.run.disk.node_results[result.attempt, self.name] = result
        self.apply(self.member.node_result_written(result))
