"""The simulated guard of one node: a process beside the agent, which kills what runs beyond its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.clock import LATE_S, NEVER

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

KILL_S = 0.25  # as late as it may be, whatever the code that is tried takes for that; less what a kill takes
LOOKS_AGAIN_S = 0.05
COMES_BACK_S = 0.3


class Guard:
    """As the modules of `agent.guard`: the deadline is in memory that agent, guard and new workers share."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._clock = agent.run.clock
        self.is_alive = True
        self.deadline = NEVER  # by the machine's clock

    @property
    def has_expired(self) -> bool:
        return self._agent.now >= self.deadline

    def set_deadline(self, deadline: float) -> None:
        """The agent writes it; the guard need not be awake for that."""
        if self._agent.process.is_armed:
            self._agent.process.reached()
        if deadline != self.deadline:
            self.deadline = deadline
            self._arm()

    def dismiss(self) -> None:
        """The agent has gone, and its workers with it."""
        self.is_alive = False

    def die(self) -> None:
        """Somebody kills it; the agent, if it runs, starts another one."""
        if self.is_alive:
            self.is_alive = False
            self._clock.after(COMES_BACK_S, lambda: self._agent.process.when_thawed(self._come_back))

    def _come_back(self) -> None:
        self.is_alive = self._agent.is_running
        self._arm()

    def _arm(self) -> None:
        if self.deadline < NEVER:
            moment = self._agent.clock.moment_of(self.deadline) + KILL_S - 2 * LATE_S
            self._clock.at(moment, self._look)

    def _look(self) -> None:
        """Stays armed: what is started beyond the deadline is killed too."""
        if not self.is_alive or self._agent.now < self.deadline + KILL_S / 2:
            return
        if self._agent.workers.alive:
            self._agent.run.trace(self._agent, "the guard kills the workers")
            self._agent.workers.kill_all()
            self._clock.after(LOOKS_AGAIN_S, self._look)
