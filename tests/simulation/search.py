"""How a simulated agent finds its first head, as `agent.search` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.messages import Message
from tests.simulation.clock import NEVER
from tests.simulation.network import Call, End

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

# As agent.search has them.
CLAIM_AFTER_S, CLAIM_STEP_S = 20.0, 5.0
DIAL_AGAIN_S, DEAD_AFTER_S, HEAD_ANSWERS_WITHIN_S = 0.5, 20.0, 30.0
NODES_MISSING, RUN_DIRECTORY = 6, 5


class Search:
    """One agent's, until it has a head or is one."""

    def __init__(self, agent: Agent) -> None:
        run = agent.run
        self._agent = agent
        self._run = run
        self._call: Call | None = None
        self.is_over = False
        self._asked: str | None = None
        timeout_s, now = run.scenario.join_timeout_s, run.clock.now
        latest = timeout_s * (0.5 + 0.25 * agent.number / run.scenario.nodes)
        self._claim_at = now + min(CLAIM_AFTER_S + CLAIM_STEP_S * agent.number, latest)
        self._deadline = self._give_up_at = now + timeout_s
        if agent.number == 0:
            self._claim()
        else:
            self._look()

    def _look(self) -> None:
        """Dials the head, again and again; claims the allocation if none shows."""
        if self.is_over:
            return
        clock, disk, agent = self._run.clock, self._run.disk, self._agent
        known = disk.head if agent.disk.is_well else self._asked
        if disk.results and agent.disk.is_well:
            agent.leave(RUN_DIRECTORY, "the run is over")
            return
        if known is not None and known != self._asked:
            self._asked = known
            self._give_up_at = min(self._deadline, clock.now + HEAD_ANSWERS_WITHIN_S)
        if clock.now >= self._give_up_at:
            self._gives_up()
        elif known is None and clock.now >= self._claim_at and agent.disk.is_well:
            self._claim_at = NEVER
            self._claim()
        else:
            target = self._run.agent(known) if known is not None else self._run.agents[0]
            if target is agent:  # it was head of an allocation in another life: there is none for an agent
                agent.later(DIAL_AGAIN_S, self._look)
                return
            self._call = Call(agent, target, within_s=None, answered=self._answered, failed=self._not_answered)
            call = self._call
            agent.later(DEAD_AFTER_S, lambda: self._check_peer(call, target))

    def _check_peer(self, call: Call, target: Agent) -> None:
        """As the kernel does while the join is not answered: who is gone acknowledges nothing."""
        if self._call is not call or self.is_over:
            return
        network = self._run.network
        is_there = network.is_open(self._agent, target) and network.is_open(target, self._agent)
        if not is_there or self._run.clock.now >= self._deadline:
            call.give_up("timed out")
        else:
            self._agent.later(DEAD_AFTER_S, lambda: self._check_peer(call, target))

    def _answered(self, end: End, message: Message, asked_at: float) -> None:
        self.is_over = True
        self._agent.head_found(end, message, asked_at)

    def _not_answered(self, _: str) -> None:
        self._call = None
        self._agent.later(DIAL_AGAIN_S, self._look)

    def _gives_up(self) -> None:
        for other in self._run.agents:
            if other.headquarters is not None:
                other.headquarters.find_gone(self._agent.name)
        self._agent.leave(NODES_MISSING, "no head was joined")

    def _claim(self) -> None:
        disk, name = self._run.disk, self._agent.name
        self._agent.disk.call(
            lambda: disk.claim_allocation(name, 0) or (len(disk.allocations) == 1 and disk.allocations[0].node == name),
            self._claimed,
            failed=self._agent.crash,
        )

    def _claimed(self, is_ours: bool) -> None:
        if not is_ours:
            self._look()
            return
        self.is_over = True
        self._agent.becomes_head(1)
