"""The simulated workers of one node: started, stopped and ended as `agent.workers` and `agent.group` do it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import StopWorkers
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.rundir.records import Endpoint
from tests.simulation.scenario import GRACE_S, RESTART_GRACE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

FIND_S = 0.01  # finding a node's processes
TERM_ARRIVES_WITHIN_S = 1.0
KILL_BOUND_S = 10.0
HANGS_S = 300.0
KILL, TERM = -9, -15


@dataclass(eq=False)
class Worker:
    """One process."""

    role: str
    attempt: int
    rank: int
    local_rank: int
    master: Endpoint
    started_at: float
    is_unkillable: bool = False
    has_term: bool = False


class Workers:
    """All of one node, attempt after attempt, and the store that may be served there."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run = agent.run
        self.alive: dict[int, Worker] = {}  # by local rank
        self.assign: Assign | None = None
        self.store_port = 1000 * (agent.number + 1)
        self.served: tuple[int, int] | None = None  # attempt and port of the store that is served here
        self.has_next_unkillable = False
        self.has_term = False  # one from outside
        self._is_starting = False
        self._after_start: StopWorkers | None = None
        self._stopping: StopWorkers | None = None
        self._sent: int | None = None
        self._is_hurried = False
        self._is_killing = False
        self._stops = 0

    # Starting.

    def start(self, assign: Assign) -> None:
        scenario = self._run.scenario
        self.assign = assign
        self._is_starting = True
        self._sent = None
        self._is_hurried = False
        if assign.serves_store:
            self.served, self.store_port = (assign.attempt, self.store_port), self.store_port + 1
        dice = self._dice("spawn", assign.attempt)
        fails = dice.random() < scenario.role(assign.role).start_failure_chance
        self._agent.later(dice.choice(scenario.spawn_s), lambda: self._fail_to_start() if fails else self._spawn())

    def _spawn(self) -> None:
        assign = self.assign
        assert assign is not None
        for local_rank in range(assign.workers):
            rank, now = assign.first_rank + local_rank, self._run.clock.now
            worker = Worker(assign.role, assign.attempt, rank, local_rank, assign.master, now)
            self.alive[local_rank] = worker
            self._draw_fate(worker)
        self._run.is_dirty = True
        self._run.witness.started(self._agent, assign)
        self._started()
        pids = {str(worker.rank): 100 + worker.rank for worker in self.alive.values()}
        self._agent.local.workers_started(assign.attempt, pids)

    def _fail_to_start(self) -> None:
        assert self.assign is not None
        self._run.witness.start_failed(self._agent, self.assign)
        self._started()
        for local_rank in range(self.assign.workers):
            self._agent.local.record_failure(self.assign.attempt, local_rank, 1, "start_failed")

    def _started(self) -> None:
        self._is_starting = False
        if self._after_start is not None:
            stop, self._after_start = self._after_start, None
            self._stop(stop)

    def _draw_fate(self, worker: Worker) -> None:
        """What becomes of a worker that nobody stops is known when it starts."""
        role, dice = self._run.scenario.role(worker.role), self._dice("fate", worker.attempt, worker.local_rank)
        if dice.random() < role.failure_chance:
            after, exitcode = dice.uniform(0, role.work_s), dice.choice([1, 1, 7, KILL, -11])
            self._run.clock.after(after, lambda: self.end(worker, exitcode))
        elif dice.random() < role.hang_chance:
            self._run.clock.after(HANGS_S, lambda: self.end(worker, 1))
        else:
            self._run.clock.after(role.work_s * dice.uniform(0.8, 1.2), lambda: self.end(worker, 0))

    # Ends.

    def end(self, worker: Worker, exitcode: int) -> None:
        """A process ends, whether or not its agent runs just now."""
        if self.alive.get(worker.local_rank) is not worker or worker.is_unkillable:
            return
        del self.alive[worker.local_rank]
        self._run.witness.ended(self._agent, worker, exitcode, is_stopped=self._is_stop_of(exitcode))
        self._agent.do(lambda: self._collect(worker, exitcode))

    def _collect(self, worker: Worker, exitcode: int) -> None:
        if not self._is_stop_of(exitcode):
            self._agent.local.worker_exited(worker.attempt, worker.local_rank, exitcode)
        if not self.alive and self._stopping is not None and self._sent == TERM:
            self._kill()

    def _is_stop_of(self, exitcode: int) -> bool:
        """After a TERM of ours only a KILL of somebody else's is no work of the stop."""
        return self._sent == KILL or (self._sent == TERM and exitcode != KILL)

    def terminate_all(self) -> None:
        """A TERM reaches every process, from outside or from a stop; a worker heeds the first."""
        for worker in list(self.alive.values()):
            if worker.has_term:
                continue
            worker.has_term = True
            patience_s = self._run.scenario.role(worker.role).patience_s
            dice = self._dice("term", worker.attempt, worker.local_rank)
            saves = patience_s > 0 and dice.random() < 0.7
            after = dice.uniform(0.3, patience_s + 0.3) if saves else dice.uniform(0, 0.01)
            exitcode = dice.choice([0, 143, TERM]) if saves else TERM
            self._run.clock.after(after, lambda worker=worker, exitcode=exitcode: self.end(worker, exitcode))  # type: ignore[misc]

    def kill_all(self) -> None:
        """KILL to every process, of a stop, of the guard, or because the agent died."""
        for worker in list(self.alive.values()):
            self._run.clock.after(0.01, lambda worker=worker: self.end(worker, KILL))  # type: ignore[misc]

    # Stopping.

    def stop(self, action: StopWorkers) -> None:
        if self._stopping is not None:
            if action.manner is StopManner.FENCE:
                self.hurry()
            return
        self._stopping = action
        if action.is_term_coming and not self.has_term:
            self._agent.later(TERM_ARRIVES_WITHIN_S, lambda: self._stop_after_start(action))
        else:
            self._stop_after_start(action)

    def _stop_after_start(self, action: StopWorkers) -> None:
        if self._is_starting:
            self._after_start = action
        else:
            self._stop(action)

    def hurry(self) -> None:
        """No more patience."""
        self._is_hurried = True
        if self._sent == TERM:
            self._kill()

    def _stop(self, action: StopWorkers) -> None:
        self._stops += 1
        number = self._stops
        if action.manner is StopManner.FENCE or self._is_hurried:
            self._agent.later(FIND_S, self._kill)
            return
        has_term = action.is_terminated or (action.is_term_coming and self.has_term)
        grace_s = RESTART_GRACE_S if action.manner is StopManner.RESTART else GRACE_S

        def terminate() -> None:
            if self._is_hurried:  # meanwhile
                self._kill()
                return
            self._sent = TERM
            self._choose_unkillable()
            if not has_term:
                self.terminate_all()
            if not self.alive:
                self._kill()
            else:
                self._agent.later(grace_s, lambda: self._kill() if number == self._stops else None)

        self._agent.later(0.0 if has_term else FIND_S, terminate)

    def _kill(self) -> None:
        if self._is_killing:
            return
        self._is_killing = True
        self._sent = KILL
        self._stops += 1
        self._choose_unkillable()
        is_any_unkillable = any(worker.is_unkillable for worker in self.alive.values())
        self.kill_all()
        self._agent.later(KILL_BOUND_S if is_any_unkillable else 0.02, self._stopped)

    def _choose_unkillable(self) -> None:
        """One process hangs in the kernel: no signal ends it."""
        if self.has_next_unkillable and self.alive:
            self.has_next_unkillable = False
            next(iter(self.alive.values())).is_unkillable = True
            self._run.witness.unkillable.add(self._agent.name)

    def _stopped(self) -> None:
        self._is_killing = False
        action, self._stopping = self._stopping, None
        assert action is not None
        survivors = tuple(100 + worker.rank for worker in self.alive.values() if worker.is_unkillable)
        self._agent.local.workers_stopped(action.attempt, survivors, self.store_port)

    def _dice(self, *what: object) -> random.Random:
        """The same for the same thing, whatever else happens in the run."""
        return random.Random(f"{self._run.scenario.seed}/{self._agent.number}/{what}")
