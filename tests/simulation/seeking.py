"""How a simulated agent finds a head when it has lost one: drives a Seeker, as `agent.successor` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership import seeker as asked
from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.messages import Dropped, Message, Welcome
from hpc_elastic.membership.succession import LostHead, Records
from tests.simulation.clock import Timer
from tests.simulation.network import Call, End

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Seeking:
    """One search, from the loss of a head to the next one."""

    def __init__(self, agent: Agent, lost: LostHead) -> None:
        self._agent = agent
        self._run = agent.run
        self.is_over = False
        settings = asked.SeekerSettings(node=agent.name, join_timeout_s=self._run.scenario.join_timeout_s)
        self.seeker = self._run.plant.make_seeker(settings, lost, agent.now)
        self._timer = Timer(self._run.clock, self._ring, agent.clock)
        self._is_tick_due = False
        self._timer.set(self.seeker.next_tick())

    def end(self) -> None:
        """There is a head, or no agent."""
        self.is_over = True

    def claiming(self) -> None:
        self.seeker.claiming()
        self._set_timer()

    def superseded(self) -> None:
        self._apply(self.seeker.superseded(self._agent.now))

    def catch_up(self) -> None:
        """The process goes on after a pause."""
        if self._is_tick_due:
            self._is_tick_due = False
            self._ring()

    def _ring(self) -> None:
        if self.is_over:
            return
        if self._agent.is_paused:
            self._is_tick_due = True
        elif self._agent.is_running:
            self._apply(self.seeker.tick(self._agent.now))

    def _apply(self, actions: list[asked.SeekerAction]) -> None:
        for action in actions:
            if not self.is_over:
                self._act(action)
        self._set_timer()

    def _set_timer(self) -> None:
        if not self.is_over:
            self._timer.set(self.seeker.next_tick())

    def _act(self, action: asked.SeekerAction) -> None:
        agent, disk = self._agent, self._run.disk
        if not isinstance(action, asked.ReadRecords):
            self._run.trace(agent, action)
        if isinstance(action, asked.ReadRecords):
            agent.disk.call(disk.read_records, self._has_read, failed=self._cannot_read)
        elif isinstance(action, asked.Dial):
            Call(
                agent,
                self._run.agent(action.node),
                within_s=action.within_s,
                answered=self._answered,
                failed=self._not_answered,
            )
        elif isinstance(action, asked.Gather):
            agent.becomes_head(action.succession.world.allocation, action.succession)
        elif isinstance(action, asked.ClaimAllocation):
            after = action.after
            agent.disk.call(
                lambda: disk.claim_allocation(agent.name, after),
                lambda is_ours: self._claimed_allocation(after + 1, is_ours),
                failed=lambda: self._claimed_allocation(after + 1, False),
            )
        elif isinstance(action, asked.Disband):
            agent.disbands(action.reason)
        elif isinstance(action, Leave):
            self._leave(action)

    def _leave(self, action: Leave) -> None:
        self.end()
        self._agent.seeking = None
        self._agent.leaves_for(action.exit_code, action.cause)

    def _has_read(self, records: Records) -> None:
        if not self.is_over:
            self._apply(self.seeker.read(records, self._agent.now))

    def _cannot_read(self) -> None:
        if not self.is_over:
            self._apply(self.seeker.read_failed("the run directory: Input/output error", self._agent.now))

    def _answered(self, end: End, message: Message, asked_at: float) -> None:
        if self.is_over:
            _decline(end, "this agent has a head")
        elif not isinstance(message, Welcome):
            end.close()
            self._run.trace(self._agent, message)
            self._apply(self.seeker.not_answered(self._agent.now))
        else:
            self._apply(self.seeker.answered())
            if self.seeker.phase is asked.Phase.OVER:
                self.end()
                self._agent.head_found(end, message, asked_at)
            else:
                _decline(end, "this agent claims the attempt itself")

    def _not_answered(self, _: str) -> None:
        if not self.is_over:
            self._apply(self.seeker.not_answered(self._agent.now))

    def _claimed_allocation(self, number: int, is_ours: bool) -> None:
        if self.is_over:
            return
        if is_ours:
            self._agent.becomes_head(number)
        else:
            self.superseded()


def _decline(end: End, why: str) -> None:
    end.send(Dropped(reason=why))
    end.close()
