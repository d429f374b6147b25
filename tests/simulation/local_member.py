"""The simulated member of one node: gives it what happens there, and does what it decides, as `agent.local_member`.

Whatever the clock has made due comes first, before anything else is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpc_elastic.membership import actions as asked
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rundir.records import FailureRecord, NodeResult
from tests.simulation.clock import NEVER, Timer
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

GUARD_LATE_S = 0.15 + 0.25  # as late as it may be, whatever the code that is tried takes for that


class LocalMember:
    """Drives a Member, the workers of its node, and their guard, which is a process of its own."""

    def __init__(self, agent: Agent, join: Join, workers: Workers) -> None:
        run = agent.run
        self._agent = agent
        self.run = run
        self.workers = workers
        self.member = run.plant.make_member(join, run="run", timing=Timing(lease_s=run.scenario.lease_s))
        self._is_tick_due = False
        self._timer = Timer(run.clock, self._ring, agent.clock)
        self._guard = Timer(run.clock, self._guard_kills, agent.clock)

    def end(self) -> None:
        """The agent is gone; so is its guard."""
        self._timer.set(NEVER)
        self._guard.set(NEVER)

    def catch_up(self) -> None:
        """The process goes on after a pause."""
        if self._is_tick_due:
            self._is_tick_due = False
            self._ring()

    # What the member asks for.

    def do(self, step: Callable[[float], list[asked.Action]]) -> None:
        now = self._agent.now
        if now >= self.member.next_tick():
            self._act_all(self.member.tick(now))
        self._act_all(step(now))
        if self._agent.is_running:
            self._timer.set(self.member.next_tick())
            self.set_guard()

    def _act_all(self, actions: list[asked.Action]) -> None:
        for action in actions:
            if self._agent.is_running:
                self._act(action)

    def set_guard(self) -> None:
        """The guard learns until when the workers may run."""
        deadline = self.member.fence_deadline()
        if self._agent.headquarters is not None:
            deadline = min(deadline, self._agent.headquarters.head.fence_deadline())
        self._guard.set(deadline + GUARD_LATE_S if deadline < NEVER else NEVER)

    def _ring(self) -> None:
        if self._agent.is_paused:
            self._is_tick_due = True
        elif self._agent.is_running:
            self.do(lambda _: [])

    def _guard_kills(self) -> None:
        if self.workers.alive:
            self.run.trace(self._agent, "the guard kills the workers")
            self.workers.kill_all()

    def _act(self, action: asked.Action) -> None:
        if isinstance(action, asked.Tell):
            self._agent.tell(action.message)
            return
        self.run.trace(self._agent, action)
        if isinstance(action, asked.StartWorkers):
            self.run.rules.assigned(self._agent, action.assign)
            self.workers.start(action.assign)
        elif isinstance(action, asked.StopWorkers):
            self.run.rules.stops(self._agent, action)
            self.workers.stop(action)
        elif isinstance(action, asked.RecordFailure):
            self.record_failure(action.attempt, action.local_rank, action.exitcode, "")
        elif isinstance(action, asked.WriteNodeResult):
            self._agent.disk.call(lambda: self._write(action.result), self._wrote, failed=self._agent.crash)
        elif isinstance(action, asked.Seek):
            self._agent.seek(action)
        elif isinstance(action, asked.Leave):
            self._agent.leave(action.exit_code, action.cause)

    # What happens on the node.

    def terminate(self) -> None:
        """A TERM from outside to every process of the node; the guard ignores it."""
        self.workers.terminate_all()
        self._agent.later(self._agent.dice.uniform(0, 0.02), self._got_term)

    def _got_term(self) -> None:
        self.run.trace(self._agent, "SIGTERM")
        self.workers.has_term = True
        self.do(lambda _: self.member.terminated("SIGTERM", have_workers=True))

    def break_store(self) -> None:
        """The store host ends, if there is one."""
        if self.workers.served is not None:
            self.run.witness.broke(self._agent)
            self.run.trace(self._agent, "the store host ends")
            self._agent.do(lambda: self.do(lambda _: self.member.node_broke("the store host ended (exit code -9)")))

    def workers_started(self, attempt: int, pids: Mapping[str, int]) -> None:
        self.run.trace(self._agent, f"started {len(pids)} workers of attempt {attempt}")
        self.do(lambda _: self.member.workers_started(attempt, pids))

    def worker_exited(self, attempt: int, local_rank: int, exitcode: int) -> None:
        self.run.trace(self._agent, f"worker {local_rank} of attempt {attempt} exited {exitcode}")
        self.do(lambda now: self.member.worker_exited(attempt, local_rank, exitcode, now))

    def workers_stopped(self, attempt: int, unkillable: tuple[int, ...], store_port: int) -> None:
        self.run.trace(self._agent, f"no worker of attempt {attempt} is left but {unkillable}")
        self.do(lambda _: self.member.workers_stopped(attempt, unkillable, store_port))

    def record_failure(self, attempt: int, local_rank: int, exitcode: int, failure_class: str) -> None:
        failure = self._failure(attempt, local_rank, exitcode, failure_class)
        self._agent.disk.call(
            lambda: failure,
            lambda written: self.do(lambda _: self.member.failure_recorded(written)),
            failed=self._agent.crash,
        )

    def _failure(self, attempt: int, local_rank: int, exitcode: int, failure_class: str) -> FailureRecord:
        assert self.workers.assign is not None
        return FailureRecord(
            rank=self.workers.assign.first_rank + local_rank,
            local_rank=local_rank,
            role=self._agent.role,
            node=self._agent.name,
            attempt=attempt,
            pid=1,
            exitcode=exitcode,
            signal_name=f"SIG{-exitcode}" if exitcode < 0 else None,
            error_file="",
            message="it failed",
            timestamp=self.run.clock.now,
            failure_class=failure_class or ("signal" if exitcode < 0 else "exit_code"),
        )

    def _write(self, result: NodeResult) -> NodeResult:
        self.run.disk.node_results[result.attempt, self._agent.name] = result
        return result

    def _wrote(self, result: NodeResult) -> None:
        self.do(lambda _: self.member.node_result_written(result))
