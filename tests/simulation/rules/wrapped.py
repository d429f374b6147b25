"""Failures inside of wrappers: a shell script's program has failed, and the script still runs when it is stopped.

One wrapper passes its program's failure on, which stops all. What the others' programs have written tells then which of
them had failed too; one that only lost its peers has not. Some wrappers pass it on when they are told to end. Where a
person stops the run before any has, none of that is a failure that has ended it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import RESTART_GRACE_S, require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

TERM = -15
FAILED = "./train.sh: line 2:  4711 Segmentation fault      (core dumped) python3 train.py\n"
VICTIM = (
    "[W1123 ProcessGroupNCCL.cpp:1] Connection closed by remote peer\n"
    "./train.sh: line 2:  4711 Aborted                 python3 train.py\n"
)


class Wrapped:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._attempt = 0
        self._failed: set[int] = set()  # ranks of that attempt, inside of their wrappers or with them
        self._passes_on_at = 0.0

    def happen(self, fault: Fault) -> None:
        """Programs of the attempt at work fail, and a moment later one wrapper ends for that."""
        run = self._run
        alive = [(agent, worker) for agent in run.agents for worker in agent.workers.alive.values()]
        attempt = max((worker.attempt for _, worker in alive), default=0)
        if attempt <= self._attempt or any(worker.written for _, worker in alive):
            return
        dice = random.Random(f"{run.scenario.seed}/wrapped/{attempt}")
        dice.shuffle(alive)
        (agent, first), *others = alive
        self._attempt, self._failed, self._passes_on_at = attempt, {first.rank}, run.clock.now + fault.lasts_s
        for _, worker in others:
            worker.written = dice.choice([FAILED, FAILED, VICTIM, ""])
            worker.does_hang = bool(worker.written)
            worker.ends_with = dice.choice([TERM, 1]) if worker.written else TERM
            if worker.written == FAILED:
                self._failed.add(worker.rank)
        run.clock.after(fault.lasts_s, lambda: self._passes_on(agent, first))

    def _passes_on(self, agent: Agent, worker: Worker) -> None:
        agent.workers.end(worker, 1)

    def is_inside(self, attempt: int, rank: int) -> bool:
        """Whether the program of this rank had failed when its wrapper was stopped."""
        return attempt == self._attempt and rank in self._failed

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        if before is None or before.attempt != self._attempt:
            return
        what, cause = f"attempt {claim.attempt}", claim.root_cause
        require(cause is not None, f"{what} follows failures, and names no cause")
        assert cause is not None
        spent = claim.spend.restarts - before.spend.restarts
        require(spent == 1, f"{what} follows failures in one attempt, and costs {spent} restarts")
        told = {*parse_ranks(cause.failed)} if cause.failed else set()
        told |= {*parse_ranks(cause.victims)} if cause.victims else set()
        require(told == self._failed, f"{what} says that {sorted(told)} have failed, not {sorted(self._failed)}")
        silent = {rank.rank for rank in self._run.disk.worlds[before.attempt].ranks} - self._failed
        said = {*parse_ranks(cause.silent)} if cause.silent else set()
        require(said == silent, f"{what} says that {sorted(said)} were stopped, not {sorted(silent)}")
        most = self._passes_on_at + RESTART_GRACE_S + self._run.progress.slack_s
        at = self._run.disk.asked_at[claim.attempt]
        require(at <= most, f"{what} comes at {at:.2f} s, not by {most:.2f} s")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        claim = self._run.disk.latest_claim
        if claim is None or claim.attempt != self._attempt or not self._failed:
            return
        named = {int(rank) for rank in result.failures}
        if result.reason == "stop_requested":
            require(not named, f"a person has stopped the run, and its result has failures of {named}")
            return
        require(named == self._failed, f"the result has failures of {named}, and {self._failed} have failed")
