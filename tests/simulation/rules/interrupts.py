"""Ctrl-C on a machine without a scheduler: workers have their time to save, unless a person asks for the end again.

A signal reaches the agents alone there. The second one ends the workers at once, and so does the first one if the
person has asked for the end in another way before. One Ctrl-C may come twice, and to several agents of the machine.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.simulation.rules.invariants import BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

SAME_S = 1.0  # so soon after the first one it is the same
ARRIVES_S = 0.02  # at the agents of a machine, one after the other
TOLD_S = 0.3  # from the head to all of its members, and a signal's way
KILLS_WITHIN_S = 0.5


class Interrupts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.is_played = run.scenario.is_local
        self._first_at: float | None = None  # when a signal came
        self._again_at: float | None = None  # when a person has asked for the end again

    def happen(self) -> None:
        """A person presses Ctrl-C."""
        run, now = self._run, self._run.clock.now
        told_at = run.witness.told_to_stop_at
        is_second = self._first_at is not None and now > self._first_at + SAME_S + TOLD_S
        if is_second or (told_at is not None and self._first_at is None):
            self._again_at = now if self._again_at is None else self._again_at
            is_sure = is_second or (told_at is not None and now > told_at + TOLD_S)
            run.clock.after(KILLS_WITHIN_S, self._are_killed if is_sure else lambda: None)
        self._first_at = now if self._first_at is None else self._first_at
        run.witness.see("term")
        for agent in run.agents:
            run.witness.terminated.add(agent.name)
            run.clock.after(run.dice.uniform(0, ARRIVES_S), lambda agent=agent: agent.process.signal(signal.SIGINT))  # type: ignore[misc]

    @property
    def is_asked_again(self) -> bool:
        """Whether a person wants the end at once, or it may look so: the stop and the signal crossed."""
        told_at, first_at = self._run.witness.told_to_stop_at, self._first_at
        have_crossed = told_at is not None and first_at is not None and told_at <= first_at + ARRIVES_S
        return self._again_at is not None or have_crossed

    def _are_killed(self) -> None:
        left = [worker.rank for agent in self._run.agents for worker in agent.workers.alive.values()]
        require(not left, f"ranks {left} run {KILLS_WITHIN_S} s after a person has asked for the end again")

    def kills(self, agent: Agent, rank: int) -> None:
        """A worker is ended by a KILL."""
        if not self.is_played or self.is_asked_again:
            return
        times = (self._first_at, self._run.witness.told_to_stop_at)
        since_s = self._run.clock.now - min((at for at in times if at is not None), default=self._run.clock.now)
        if since_s < self._run.scenario.grace_s:
            raise BrokenRuleError(f"rank {rank} on {agent.name} is killed {since_s:.2f} s after the first Ctrl-C")
