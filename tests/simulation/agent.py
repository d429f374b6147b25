"""A simulated agent: finds or becomes the head, and carries out what its member decides.

Theory of operation. It wires a Member as `agent.supervisor` does. Whatever the process gets (a message,
a timer, the end of some work) comes through `do`: while it is paused that piles up, as it does in the
kernel; what the machines' clocks have made due they do before they hear of it. Its guard is another process
and not paused with it. Its clock has nothing to do with that of any other node.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hpc_elastic.membership import actions as asked
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import End as RunEnd
from hpc_elastic.membership.messages import Join, Message, Refused, Welcome
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import AttemptClaim, Endpoint
from tests.simulation.clock import NEVER, Event, MachineClock
from tests.simulation.disk import DiskThread
from tests.simulation.headquarters import VERSIONS, Headquarters
from tests.simulation.local_member import LocalMember
from tests.simulation.network import End
from tests.simulation.search import Search
from tests.simulation.seeking import Seeking
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun


class Agent:
    """The agent of one node, and its node."""

    def __init__(self, run: SimulatedRun, number: int, role: str, workers: int) -> None:
        self.run = run
        self.number = number
        self.name = f"node{number}"
        self.role = role
        self.is_powered = True
        self.is_running = False
        self.died_at = NEVER
        self.exit_code: int | None = None
        self.left_at = NEVER
        self.problem: str | None = None
        self.versions = VERSIONS
        self.is_refused = False
        self.is_told = False  # how the run ended, by the head or by the result
        self.ends: dict[End, None] = {}
        self.link: End | None = None
        self.headquarters: Headquarters | None = None
        self.search: Search | None = None
        self.seeking: Seeking | None = None
        self.workers = Workers(self)
        self.dice = random.Random(f"{run.scenario.seed}/{number}")
        self.disk = DiskThread(self, run.scenario.disk_s, self.dice)
        ahead_s = self.dice.choice([0.0, 0.0, -3600.0, 3600.0, 86400.0])
        drift = random.Random(f"{run.scenario.seed}/{number}/drift").choice([0.0, -DRIFT / 2, DRIFT / 2])
        self.clock = MachineClock(ahead_s, 1 + drift)
        self.troubled_until = 0.0
        self.parted_at = -1.0  # from a head, by whichever side
        self._worker_count = workers
        self.is_paused = False
        self._backlog: list[Event] = []
        self._making: object = None  # the head that is being made, and not called off
        self._is_disbanding = False

    # The process.

    @property
    def now(self) -> float:
        """By this node's own clock."""
        return self.clock.shows(self.run.clock.now)

    def _first_join(self) -> Join:
        return Join(
            node=self.name,
            node_id=self.number,
            agent=Endpoint(address=self.name, port=1),
            store_port=self.workers.store_port,
            workers=self._worker_count,
            role=self.role,
            versions=self.versions,
            problem=self.problem,
        )

    def start(self) -> None:
        self.is_running = True
        self.join = self._first_join()
        self.local = LocalMember(self, self.join, self.workers)
        self.search = Search(self)

    def do(self, event: Event) -> None:
        """Something comes to this process."""
        if self.is_paused:
            self._backlog.append(event)
        elif self.is_running:
            event()

    def later(self, seconds: float, event: Event) -> None:
        self.run.clock.after(seconds, lambda: self.do(event))

    def pause(self, seconds: float) -> None:
        if self.is_running and not self.is_paused:
            self.is_paused = True
            self.run.clock.after(seconds, self._go_on)

    def _go_on(self) -> None:
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.do(event)
        self.local.catch_up()
        if self.headquarters is not None:
            self.headquarters.catch_up()
        if self.seeking is not None:
            self.seeking.catch_up()

    def die(self, *, is_power_off: bool = False) -> None:
        """The process is gone, and its workers with it; the kernel closes its connections if there is one."""
        if not self.is_powered or not (self.is_running or is_power_off):
            return
        self.run.trace(self, "power off" if is_power_off else "killed")
        was_running, self.died_at = self.is_running, min(self.died_at, self.run.clock.now)
        self._stop_running()
        if is_power_off:
            self.is_powered = False
            self.workers.alive.clear()
            for end in list(self.ends):
                end.vanish()
        elif was_running:
            self.workers.kill_all()
            for end in list(self.ends):
                end.abort()

    def _stop_running(self) -> None:
        self.is_running = self.is_paused = False
        if self.search is not None:
            self.local.end()
        if self.search is not None:
            self.search.is_over = True
        if self.seeking is not None:
            self.seeking.end()
        if self.headquarters is not None:
            self.headquarters.is_closed = True

    # Other agents.

    def accepts(self, end: End) -> None:
        """Another agent has called."""
        if self.headquarters is None or self.headquarters.is_closed:
            end.close()
            return
        end.on_message, end.on_closed = self._stranger_says, self._stranger_goes

    def _stranger_says(self, end: End, message: Message) -> None:
        if self.headquarters is None or self.headquarters.is_closed:
            end.close()
        else:
            self.headquarters.hears(end, message)

    def _stranger_goes(self, end: End, why: str, is_by_peer: bool) -> None:
        if self.headquarters is not None:
            self.headquarters.loses(end, why, is_by_peer)

    def head_found(self, end: End, message: Message, asked_at: float) -> None:
        """Another agent is the head, and has answered the join."""
        self.link, self.seeking = end, None
        end.on_message, end.on_closed = self._hears_head, self._loses_head
        self.local.do(lambda now: self.member.connected(now, is_joined=True, asked=asked_at))
        self._hears_head(end, message)

    def becomes_head(self, allocation: int, succession: Succession | None = None) -> None:
        """This agent has claimed the allocation, or gathers the members of a head that is lost."""
        making = self._making = object()

        def go_on(claim: AttemptClaim | None) -> None:
            if making is not self._making:
                return
            opened, expected = claim and claim.attempt, succession and succession.world.attempt
            if opened != expected:
                if self.seeking is not None:
                    self.seeking.superseded()
                return
            if self.seeking is not None and succession is None:
                self.seeking.end()
                self.seeking = None
            self.headquarters = Headquarters(self, allocation=allocation, claim=claim, succession=succession)
            self.local.do(lambda now: self.member.connected(now, is_joined=False))

        self.disk.call(lambda: self.run.disk.latest_claim, go_on, failed=self.crash)

    def disbands(self, reason: str) -> None:
        """This agent gathers nobody any more."""
        self._making = None
        if self.headquarters is not None:
            self._is_disbanding = True
            self.headquarters.supersede(reason)
            self._is_disbanding = False

    def superseded(self, reason: str) -> None:
        """This agent is no head any more, but a member without one."""
        self.headquarters = None
        if self.seeking is not None and not self._is_disbanding:
            self.seeking.end()
            self.seeking = None
        self.local.do(lambda _: self.member.disconnected(reason, is_dead=False))

    def hears_own_head(self, headquarters: Headquarters, message: Message) -> None:
        if self.headquarters is headquarters:
            self._hears(message)

    def _hears_head(self, end: End, message: Message) -> None:
        if end is self.link:
            self._hears(message)

    def _hears(self, message: Message) -> None:
        if message.KIND != "echo":
            self.run.trace(self, message)
        if isinstance(message, Welcome):
            self.run.witness.joined.add(self.name)
        self.is_told = self.is_told or isinstance(message, RunEnd)
        self.is_refused = self.is_refused or isinstance(message, Refused)
        self.local.do(lambda now: self.member.received(message, now))

    def _loses_head(self, end: End, why: str, is_by_peer: bool) -> None:
        if end is self.link:
            self.link = None
            self.run.trace(self, f"loses the head: {why}")
            self.local.do(lambda _: self.member.disconnected(why, is_dead=is_by_peer))

    # What the member asks for.

    @property
    def member(self) -> Member:
        return self.local.member

    def tell(self, message: Message) -> None:
        if self.headquarters is not None:
            headquarters = self.headquarters
            self.later(0.0, lambda: headquarters.hears_own(message))
        elif self.link is not None:
            self.link.send(message)

    def seek(self, action: asked.Seek) -> None:
        self.run.rules.seeks(self)
        self.parted_at = self.run.clock.now
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.headquarters is not None:
            headquarters = self.headquarters
            self.later(0.0, lambda: self._rejoin(headquarters, action))
        elif self.seeking is None:
            self.seeking = Seeking(self, action.lost)

    def _rejoin(self, headquarters: Headquarters, action: asked.Seek) -> None:
        """The head is on this node, and the member lost it because this process was paused."""
        if headquarters is self.headquarters:
            headquarters.own_member_parted(action.lost.why)
            self.local.do(lambda now: self.member.connected(now, is_joined=False))
        else:
            self.seek(action)  # another one has taken its place since

    def leaves_for(self, exit_code: int, cause: str) -> None:
        """No head is to be found, or the run is over."""
        self.is_told = self.is_told or any(result.cause == cause for result in self.run.disk.results)
        self.local.do(lambda _: self.member.leaves(exit_code, cause))

    def crash(self) -> None:
        """The run directory cannot be written: an agent that is no head ends with the error."""
        self.run.witness.see("disk")
        self.die()

    def leave(self, exit_code: int, cause: str) -> None:
        """No worker is left; a head stays until everybody has gone."""
        self.run.rules.leaves(self, exit_code)
        self.run.trace(self, f"leaves with {exit_code}: {cause}")
        self.exit_code = exit_code
        self.left_at = self.run.clock.now
        self.local.end()
        if self.headquarters is not None and not self.headquarters.is_closed:
            self.headquarters.own_member_left()
        else:
            self.gone()

    def gone(self) -> None:
        """The process ends in order."""
        self._stop_running()
        for end in list(self.ends):
            end.close()
