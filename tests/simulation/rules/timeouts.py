"""What the records say where ranks time out in a collective: who did not take part, and that the others did not fail.

A time-out is a consequence, so the head waits for two seconds whether other ranks say the same: then those that did not
are the ones that all waited for. A rank that fails by itself meanwhile is the cause, and is acted on at once; so are
time-outs of all ranks, of which none is the cause. Who waits longer than that has not failed when it is stopped, but
its stack says that it waited too, so it is not the one that others waited for. One that a SIGSTOP has stopped is.

Where a connection between two ranks breaks, both fail, and neither has waited for anybody: that is acted on at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import RESTART_GRACE_S, require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

SETTLES_S = 2.0
WORDS = "RuntimeError: Operation timed out!"
BROKEN = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41033"
STACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 8, in step
    dist.all_reduce(loss)
  File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce
    work.wait()
"""


class TimeOuts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._way = ""
        self._attempt = 0
        self._hangs: set[int] = set()
        self._timed_out: dict[int, float] = {}
        self._failed: dict[int, float] = {}

    def happen(self, fault: Fault) -> None:
        """Ranks of the attempt at work begin to time out."""
        run = self._run
        alive = [(agent, worker) for agent in run.agents for worker in agent.workers.alive.values()]
        if len(alive) < 2 or any(worker.waits_since is not None for _, worker in alive):  # one waits for nobody
            return
        attempt = max(worker.attempt for _, worker in alive)
        if attempt == self._attempt:  # one such moment is enough for it
            return
        self._attempt, self._hangs, self._timed_out, self._failed = attempt, set(), {}, {}
        here = [worker for agent, worker in alive if agent.number == fault.node]
        odd = here[0] if fault.way != "nobody_hangs" and here else None
        self._way = fault.way if odd is not None else "nobody_hangs"
        if self._way == "connection_breaks":
            for agent, worker in alive[:2]:
                self._fails_with(BROKEN, agent, worker)
            return
        if odd is not None and self._way == "one_hangs":
            odd.does_hang = True
            odd.is_paused = self._run.scenario.seed % 2 == 1
            self._hangs.add(odd.rank)
        others = [(agent, worker) for agent, worker in alive if worker is not odd]
        for number, (agent, worker) in enumerate(others):
            worker.awaits_others = True
            after_s = fault.lasts_s * number / max(1, len(others) - 1)
            run.clock.after(after_s, lambda agent=agent, worker=worker: self._times_out(agent, worker))  # type: ignore[misc]
        if odd is not None and self._way == "one_fails":
            agent = run.agents[fault.node]
            run.clock.after(fault.lasts_s / 2, lambda: self._fails(agent, odd))

    def _times_out(self, agent: object, worker: Worker) -> None:
        run = self._run
        if all(worker is not each.workers.alive.get(worker.local_rank) for each in run.agents):
            return
        if worker.has_term or worker.attempt != self._attempt:  # it is stopped while it still waits
            return
        self._fails_with(WORDS, agent, worker)

    def _fails_with(self, words: str, agent: object, worker: Worker) -> None:
        """A rank fails in a collective, as a consequence of what happens elsewhere."""
        run, path = self._run, LAYOUT.error(worker.attempt, worker.rank)
        stack = f"{STACK}{words}\n"
        error = {
            "message": {"message": words, "extraInfo": {"py_callstack": stack, "timestamp": str(int(run.clock.now))}},
            "class": "exception",
            "rank": worker.rank,
            "pid": 100 + worker.rank,
            "attempt": worker.attempt,
            "time_ns": int(1e9 * run.clock.now),
        }
        run.files.content[path] = [json.dumps(error).encode()]
        self._timed_out[worker.rank] = run.clock.now
        agent.workers.end(worker, 1)  # type: ignore[attr-defined]

    def _fails(self, agent: object, worker: Worker) -> None:
        self._failed[worker.rank] = self._run.clock.now
        agent.workers.end(worker, 7)  # type: ignore[attr-defined]

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        if before is None or before.attempt != self._attempt or not self._timed_out:
            return
        if "loss" in self._run.witness.kinds:  # for which the attempt may come, and no time-out is paid for
            return
        what, cause = f"attempt {claim.attempt}", claim.root_cause
        require(cause is not None, f"{what} follows time-outs, and names no cause")
        assert cause is not None
        spent = claim.spend.restarts - before.spend.restarts
        require(spent == 1, f"{what} follows time-outs, and costs {spent} restarts")
        first, decided_at = min(self._timed_out.values()), self._run.disk.asked_at[claim.attempt]
        stops_s = 1.0 + max(min(role.patience_s, RESTART_GRACE_S) for role in self._run.scenario.roles)
        slack_s = self._run.progress.slack_s + stops_s
        if self._way == "one_hangs":
            victims = {*parse_ranks(cause.victims)} if cause.victims else set()
            require(victims == set(self._timed_out), f"{what} names the victims {victims}, not {set(self._timed_out)}")
            (hung,) = self._hangs
            require(cause.rank == hung, f"{what} names rank {cause.rank}, and all waited for {hung}: {cause.line}")
            is_told = f"rank {hung} on" in cause.line and "stopped by a signal such as SIGSTOP" in cause.line
            is_paused = self._run.scenario.seed % 2 == 1
            require(is_told == is_paused, f"{what}: rank {hung} was paused: {is_paused}, and the cause is {cause.line}")
            silent = {rank.rank for rank in self._run.disk.worlds[before.attempt].ranks} - set(self._timed_out)
            told = {*parse_ranks(cause.silent)}
            require(told == silent, f"{what} says that {told} were stopped, not {silent}")
            require(decided_at >= first + SETTLES_S - 0.1, f"{what} comes {decided_at - first:.2f} s after a time-out")
            most = first + SETTLES_S + slack_s
        elif self._way == "one_fails":
            acts = f"{what} names rank {cause.rank}, and comes before one has failed by itself, which was about to"
            require(bool(self._failed), acts)
            (failed,) = self._failed
            require(cause.rank == failed, f"{what} names rank {cause.rank}, and {failed} has failed: {cause.line}")
            most = self._failed[failed] + slack_s
        elif self._way == "connection_breaks":
            most = first + slack_s
        else:
            victims = {*parse_ranks(cause.victims)} if cause.victims else set()
            require(victims == set(self._timed_out), f"{what} names the victims {victims}, not {set(self._timed_out)}")
            require(not cause.silent, f"{what} says that {cause.silent} were waited for, and all have timed out")
            most = max(self._timed_out.values()) + slack_s - SETTLES_S
        require(decided_at <= most, f"{what} comes at {decided_at:.2f} s, not by {most:.2f} s")
