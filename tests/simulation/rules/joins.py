"""How long an agent looks for the first head that it cannot reach, and what that costs the others.

One node cannot reach the head, from the start, until its way opens or for ever, or it does not know the run's secret.
A try ends when the obstacle has lasted for ten seconds unchanged; more tries follow after pauses of five seconds, ten
and so on, as many as `join_retries`. Then the agent gives up, and says so where the head reads it: the head waits no
longer. It leaves, where no packet reaches the head once that has gone on without it, or nobody takes its place. For
another try that would begin after `join_timeout` it does not wait. A node whose way opens is let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.timing import RELIEVED_WITHIN_S
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

CLAIM_KNOWN_S = 2.0  # the agent looks for the claim, from when a try can be in vain
PERSISTS_S = 10.0
ROUND_S = 3.2  # of dialling: 2 s for a connection, and the pause
PAUSES_S = (5.0, 10.0, 20.0, 40.0)
DIAGNOSES_EVERY_S = 5.0
LOOKS_EVERY_S = 2.0  # who has given up, whether the head has gone on


class Joins:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._is_played = run.scenario.is_search
        tries = run.scenario.join_retries + 1
        self.least_s = CLAIM_KNOWN_S + tries * PERSISTS_S + sum(PAUSES_S[: tries - 1])
        self._most_s = self.least_s + tries * ROUND_S + 1.0
        self._gave_up_at: float | None = None
        timeout_s, pauses_s = run.scenario.join_timeout_s, PAUSES_S[: tries - 1]
        self._is_short = timeout_s < self._most_s  # of time: there may be none for another try
        if self._is_short:
            self.least_s = min(self.least_s, timeout_s - max(pauses_s, default=0.0))
            self._most_s = min(self._most_s, timeout_s + ROUND_S + 1.0)

    @property
    def _opens_at(self) -> float:
        """When the way opens."""
        return self._run.scenario.faults[0].lasts_s

    def gives_up(self, agent: Agent) -> None:
        """An agent has written that it does not try to join the head any more."""
        run = self._run
        if not self._is_played or self._gave_up_at is not None:
            return
        took_s = run.clock.now - agent.started_at
        is_usual = self._opens_at > self._most_s + agent.started_at
        require(is_usual, f"{agent.name} gives up after {took_s:.1f} s, and its way to the head opens")
        what = f"{agent.name} gives up after {took_s:.1f} s, not after {self.least_s:.1f} to {self._most_s:.1f} s"
        require(self.least_s <= took_s <= self._most_s, what)
        self._gave_up_at = run.clock.now

    def left(self, agent: Agent, exit_code: int) -> None:
        """An agent leaves."""
        run = self._run
        if not self._is_played or agent.number != run.scenario.faults[0].side[0] or run.disk.results:
            return
        require(exit_code == ExitCode.NODES_MISSING, f"{agent.name} finds no head, and leaves with {exit_code}")
        require(self._gave_up_at is not None, f"{agent.name} leaves, and has not written that it gives up")
        assert self._gave_up_at is not None
        waits_s = RELIEVED_WITHIN_S if run.scenario.faults[0].what == "partition" else 0.0
        latest = self._gave_up_at + waits_s
        if run.disk.claims:  # nobody takes the place of a head that goes on
            latest = min(latest, max(self._gave_up_at, run.disk.asked_at[1]))
        what = f"{agent.name} gives up at {self._gave_up_at:.1f} s, and leaves at {run.clock.now:.1f} s"
        require(run.clock.now <= latest + LOOKS_EVERY_S + 1.0, f"{what}, not by {latest:.1f} s")

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        run = self._run
        if not self._is_played or claim.attempt != 1 or self._is_short:  # the head waits for nobody for longer either
            return
        name = f"node{run.scenario.faults[0].side[0]}"
        now, agent = run.disk.asked_at[1], run.agent(name)
        if self._opens_at < self._most_s:
            require(name in claim.members, f"the first attempt comes without {name}, whose way is open")
            latest = max(self._opens_at, agent.started_at) + max(PAUSES_S[: run.scenario.join_retries], default=0.0)
            latest += 2 * ROUND_S + 1
            require(now <= latest, f"the first attempt comes at {now:.1f} s, not by {latest:.1f} s")
            return
        gave_up_at = self._gave_up_at
        require(gave_up_at is not None, f"the first attempt comes at {now:.1f} s, and {name} has not given up")
        assert gave_up_at is not None
        latest = gave_up_at + DIAGNOSES_EVERY_S + 1.0
        require(now <= latest, f"the first attempt comes at {now:.1f} s, and {name} has given up at {gave_up_at:.1f} s")
