"""A simulated agent: finds or becomes the head, and carries out what its member decides.

Theory of operation. It wires a Member as `agent.supervisor` does. Whatever the process gets (a message,
a timer, the end of some work) comes through `do`: while it is paused that piles up, as it does in the
kernel, and when it goes on the timers ring last. Its guard is another process and not paused with it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.membership import actions as asked
from hpc_elastic.membership.messages import End, Join, Message, Refused, Welcome
from hpc_elastic.rundir.records import Endpoint, FailureRecord, NodeResult
from tests.simulation.clock import NEVER, Event, Timer
from tests.simulation.disk import DiskThread
from tests.simulation.headquarters import VERSIONS, Headquarters
from tests.simulation.network import Link
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

# As agent.search has them.
CLAIM_AFTER_S, CLAIM_STEP_S = 20.0, 5.0
DIAL_AGAIN_S, DEAD_AFTER_S, HEAD_ANSWERS_WITHIN_S = 0.5, 20.0, 30.0
NODES_MISSING = 6


class Agent:
    """The agent of one node, and its node."""

    def __init__(self, run: SimulatedRun, number: int, role: str, workers: int) -> None:
        self.run = run
        self.number = number
        self.name = f"node{number}"
        self.role = role
        self.is_powered = True
        self.is_running = False
        self.exit_code: int | None = None
        self.problem: str | None = None
        self.versions = VERSIONS
        self.is_refused = False
        self.is_told = False  # how the run ended, by the head or by the result
        self.link: Link | None = None
        self.link_stalled_until = 0.0
        self.headquarters: Headquarters | None = None
        self.workers = Workers(self)
        self.dice = random.Random(f"{run.scenario.seed}/{number}")
        self.disk = DiskThread(self, run.scenario.disk_s, self.dice)
        self._worker_count = workers
        self._is_paused = False
        self._backlog: list[Event] = []
        self._is_tick_due = False
        self._is_answered = False
        self._give_up_at = self._claim_at = NEVER
        self._timer = Timer(run.clock, self._ring)
        self._guard = Timer(run.clock, self._guard_kills)

    # The process.

    def start(self) -> None:
        self.is_running = True
        self.join = Join(
            node=self.name,
            node_id=self.number,
            agent=Endpoint(address=self.name, port=1),
            store_port=self.workers.store_port,
            workers=self._worker_count,
            role=self.role,
            versions=self.versions,
            problem=self.problem,
        )
        self.member = self.run.plant.make_member(self.join, run="run", lease_s=self.run.scenario.lease_s)
        now, timeout_s = self.run.clock.now, self.run.scenario.join_timeout_s
        latest = timeout_s * (0.5 + 0.25 * self.number / self.run.scenario.nodes)
        self._claim_at = now + min(CLAIM_AFTER_S + CLAIM_STEP_S * self.number, latest)
        self._give_up_at = now + timeout_s
        if self.number == 0:
            self._claim_allocation()
        else:
            self._search()

    def do(self, event: Event) -> None:
        """Something comes to this process."""
        if self._is_paused:
            self._backlog.append(event)
        elif self.is_running:
            event()

    def later(self, seconds: float, event: Event) -> None:
        self.run.clock.after(seconds, lambda: self.do(event))

    def pause(self, seconds: float) -> None:
        if self.is_running and not self._is_paused:
            self._is_paused = True
            self.run.clock.after(seconds, self._go_on)

    def _go_on(self) -> None:
        self._is_paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.do(event)
        if self._is_tick_due:
            self._is_tick_due = False
            self._ring()
        if self.headquarters is not None:
            self.headquarters.catch_up()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def die(self, *, is_power_off: bool = False) -> None:
        """The process is gone, and its workers with it; the kernel closes its connections if there is one."""
        if not self.is_powered or not (self.is_running or is_power_off):
            return
        self.run.trace(self, "power off" if is_power_off else "killed")
        if is_power_off:
            self.is_powered = False
            self.workers.alive.clear()
        elif self.is_running:
            self.workers.kill_all()
        self.is_running = self._is_paused = False
        self._guard.set(NEVER)
        self._close_links("connection reset by peer")

    def _close_links(self, why: str) -> None:
        if self.link is not None:
            self.link.close("down", why)
        if self.headquarters is not None:
            self.headquarters.close(why)

    # The head.

    def _search(self) -> None:
        """Dials the head, again and again; claims the allocation if none shows."""
        if self._is_answered or self.headquarters is not None:
            return
        clock, head = self.run.clock, self.run.head_agent
        if self.run.disk.head is not None:
            self._give_up_at = min(self._give_up_at, clock.now + HEAD_ANSWERS_WITHIN_S)
        if clock.now >= self._give_up_at:
            if head is not None and head.headquarters is not None:
                head.headquarters.find_gone(self.name)
            self.leave(NODES_MISSING, "no head was joined")
        elif self.run.disk.head is None and clock.now >= self._claim_at:
            self._claim_allocation()
        elif head is not None and head.is_running and head.is_powered and head.headquarters is not None:
            link = self.link = Link(self, head, self.run.scenario.delays_s, self.dice)
            link.up(self.join)
            self.later(DEAD_AFTER_S, lambda: self._check_peer(link))
        else:
            self.later(DIAL_AGAIN_S, self._search)

    def _check_peer(self, link: Link) -> None:
        """As the kernel does while the join is not answered: who is gone acknowledges nothing."""
        if self.link is not link or self._is_answered:
            return
        head = link.head
        if head.is_powered and head.is_running and head.headquarters is not None:
            self.later(DEAD_AFTER_S, lambda: self._check_peer(link))
        else:
            self._dial_again(link)

    def _dial_again(self, link: Link) -> None:
        if self.link is link:
            self.link = None
            self.later(DIAL_AGAIN_S, self._search)

    def _claim_allocation(self) -> None:
        def claim() -> bool:
            if self.run.disk.head is None:
                self.run.disk.head = self.name
            return self.run.disk.head == self.name

        self.disk.call(claim, self._claimed_allocation, failed=self.crash)

    def _claimed_allocation(self, is_ours: bool) -> None:
        if not is_ours:
            self._search()
            return
        self.headquarters = Headquarters(self)
        self.run.head_agent = self
        self._apply(self.member.connected(self.run.clock.now, is_joined=False))

    def hears(self, link: Link | None, message: Message) -> None:
        """The head sent something."""
        if link is not self.link:
            return
        self.run.trace(self, message)
        if link is not None and not self._is_answered:
            assert isinstance(message, (Welcome, Refused))
            self._is_answered = True
            self._apply(self.member.connected(self.run.clock.now, is_joined=True))
        if isinstance(message, Welcome):
            self.run.witness.joined.add(self.name)
        self.is_told = self.is_told or isinstance(message, End)
        self.is_refused = self.is_refused or isinstance(message, Refused)
        self._apply(self.member.received(message, self.run.clock.now))

    def loses_head(self, link: Link, why: str) -> None:
        if link is self.link and not self._is_answered:
            self._dial_again(link)
        elif link is self.link:
            self.link = None
            self.run.trace(self, f"loses the head: {why}")
            self._apply(self.member.disconnected(why, is_dead=False))

    def head_hears(self, link: Link, message: Message) -> None:
        if self.headquarters is not None:
            self.headquarters.hears(link, message)

    def head_loses(self, link: Link, why: str) -> None:
        if self.headquarters is not None:
            self.headquarters.loses(link, why)

    # This node.

    def terminate(self) -> None:
        """A TERM from outside to every process of the node; the guard ignores it."""
        if not self.is_running:
            return
        self.workers.terminate_all()
        self.later(self.dice.uniform(0, 0.02), self._got_term)

    def _got_term(self) -> None:
        self.run.trace(self, "SIGTERM")
        self.workers.has_term = True
        self._apply(self.member.terminated("SIGTERM", have_workers=True))

    def break_store(self) -> None:
        """The store host ends, if there is one."""
        if self.workers.served is not None:
            self.run.witness.broke(self)
            self.run.trace(self, "the store host ends")
            self.do(lambda: self._apply(self.member.node_broke("the store host ended (exit code -9)")))

    def workers_started(self, attempt: int, pids: Mapping[str, int]) -> None:
        self.run.trace(self, f"started {len(pids)} workers of attempt {attempt}")
        self._apply(self.member.workers_started(attempt, pids))

    def worker_exited(self, attempt: int, local_rank: int, exitcode: int) -> None:
        self.run.trace(self, f"worker {local_rank} of attempt {attempt} exited {exitcode}")
        self._apply(self.member.worker_exited(attempt, local_rank, exitcode, self.run.clock.now))

    def workers_stopped(self, attempt: int, unkillable: tuple[int, ...], store_port: int) -> None:
        self.run.trace(self, f"no worker of attempt {attempt} is left but {unkillable}")
        self._apply(self.member.workers_stopped(attempt, unkillable, store_port))

    def record_failure(self, attempt: int, local_rank: int, exitcode: int, failure_class: str) -> None:
        failure = self._failure(attempt, local_rank, exitcode, failure_class)
        self.disk.call(
            lambda: failure, lambda written: self._apply(self.member.failure_recorded(written)), failed=self.crash
        )

    def _failure(self, attempt: int, local_rank: int, exitcode: int, failure_class: str) -> FailureRecord:
        assert self.workers.assign is not None
        return FailureRecord(
            rank=self.workers.assign.first_rank + local_rank,
            local_rank=local_rank,
            role=self.role,
            node=self.name,
            attempt=attempt,
            pid=1,
            exitcode=exitcode,
            signal_name=f"SIG{-exitcode}" if exitcode < 0 else None,
            error_file="",
            message="it failed",
            timestamp=self.run.clock.now,
            failure_class=failure_class or ("signal" if exitcode < 0 else "exit_code"),
        )

    # What the member asks for.

    def _apply(self, actions: list[asked.Action]) -> None:
        for action in actions:
            self._act(action)
        if self.is_running:
            self._timer.set(self.member.next_tick())
            deadline = self.member.fence_deadline()
            self._guard.set(deadline + 0.05 if deadline < NEVER else NEVER)

    def _ring(self) -> None:
        if self._is_paused:
            self._is_tick_due = True
        elif self.is_running:
            self._apply(self.member.tick(self.run.clock.now))

    def _guard_kills(self) -> None:
        self.run.trace(self, "the guard kills the workers")
        self.workers.kill_all()

    def _act(self, action: asked.Action) -> None:
        if isinstance(action, asked.Tell):
            self._tell(action.message)
            return
        self.run.trace(self, action)
        if isinstance(action, asked.StartWorkers):
            self.run.rules.assigned(self, action.assign)
            self.workers.start(action.assign)
        elif isinstance(action, asked.StopWorkers):
            self.run.rules.stops(self, action)
            self.workers.stop(action)
        elif isinstance(action, asked.RecordFailure):
            self.record_failure(action.attempt, action.local_rank, action.exitcode, "")
        elif isinstance(action, asked.WriteNodeResult):
            self.disk.call(lambda: self._write(action.result), self._wrote, failed=self.crash)
        elif isinstance(action, asked.WriteResult):
            self.later(action.after_s, lambda: self._write_result(action))
        elif isinstance(action, asked.Leave):
            self.leave(action.exit_code, action.cause)

    def _tell(self, message: Message) -> None:
        if self.headquarters is not None:
            headquarters = self.headquarters
            self.later(0.0, lambda: headquarters.hears_own(message))
        elif self.link is not None:
            self.link.up(message)

    def _write(self, result: NodeResult) -> NodeResult:
        self.run.disk.node_results[result.attempt, self.name] = result
        return result

    def _wrote(self, result: NodeResult) -> None:
        self._apply(self.member.node_result_written(result))

    def _write_result(self, action: asked.WriteResult) -> None:
        self.disk.call(
            lambda: self.run.disk.write_result(action.result),
            self._result_written,
            failed=self.crash,
        )

    def _result_written(self, written: tuple[int, str]) -> None:
        self.is_told = True
        self._apply(self.member.leaves(*written))

    def crash(self) -> None:
        """The run directory cannot be written: an agent that is no head ends with the error."""
        self.run.witness.see("disk")
        self.die()

    def leave(self, exit_code: int, cause: str) -> None:
        """No worker is left; a head stays until everybody has gone."""
        self.run.rules.leaves(self, exit_code)
        self.run.trace(self, f"leaves with {exit_code}: {cause}")
        self.exit_code = exit_code
        self._guard.set(NEVER)
        self._timer.set(NEVER)
        if self.headquarters is not None:
            self.headquarters.own_member_left()
        else:
            self.gone()

    def gone(self) -> None:
        """The process ends in order."""
        self.is_running = False
        self._close_links("this side closed the connection")
