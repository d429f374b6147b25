"""Drives the discovery machine of an agent that has lost its head: dials agents, reads records, starts a head here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, NoHandshakeError
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.head_link import HeadLink, HeadListener, ask_to_join
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Leave, Level, Log
from hpc_elastic.membership.authentication import ProtocolError
from hpc_elastic.membership.discovery import (
    ClaimAllocation,
    Dial,
    DiscoveryAction,
    DiscoveryPhase,
    DiscoverySettings,
    Gather,
    HeadDiscovery,
    ReadRecords,
    StepDown,
)
from hpc_elastic.membership.messages import Dropped, Join, Message
from hpc_elastic.membership.succession import LostHead, Succession

NEVER = float("inf")


class Headship(HeadListener, Protocol):
    """The part of an agent that starts and ends a head here, and receives the messages of a head elsewhere."""

    def gather(self, succession: Succession) -> None:
        """Starts a head on this node that gathers the members of the lost head."""

    def claim_allocation(self, after: int, lost: LostHead) -> None:
        """Claims the allocation after the one with this number, and starts a head here in the place of the lost one."""

    def step_down(self, reason: str) -> None:
        """Ends the head on this node."""

    def give_up(self, leave: Leave) -> None:
        """Ends the search: no head was found, or the run is over."""


class Successor(HeadListener):
    """The driver of one head discovery, until there is a head or this agent leaves.

    Theory of operation. The machine (`membership.discovery`) decides; this class gives it a clock and
    connections. The run directory is read in a thread of its own: while a read hangs, the search only dials.
    The connection on which a head has answered goes to `headship`, with every message on it.

    Args:
        settings: the settings of the discovery.
        lost: the head that is lost.
        join: returns this node's join message, with a new number for each agent that it is sent to.
        headship: carries out what the discovery decides.
        journal: the run directory.
        disk: the thread for access to the run directory.
        make: makes connections.
        say: logs a line for people.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        lost: LostHead,
        *,
        join: Callable[[], Join],
        headship: Headship,
        journal: Journal,
        disk: BackgroundThread,
        make: ConnectionFactory,
        say: Callable[[str, Level], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._discovery = HeadDiscovery(settings, lost, self._loop.time())
        self._join = join
        self._headship = headship
        self._journal = journal
        self._disk = disk
        self._make = make
        self._say = say
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Starts the search."""
        self._tick()

    def claiming(self) -> None:
        """Tells the discovery that the head on this node claims the attempt, or ends the run."""
        self._discovery.claiming()
        self._set_timer()

    def superseded(self) -> None:
        """Tells the discovery that another head has made the claim which this node wanted to make."""
        self._apply(self._discovery.superseded(self._loop.time()))

    async def close(self) -> None:
        """Stops the search and cancels its tasks."""
        self.stop()
        await self._tasks.cancel()

    def stop(self) -> None:
        """Stops the search; tasks under way end by themselves."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # Implementation of head_link.HeadListener.

    def head_found(self, connection: Connection) -> None:
        """Accepts the agent that answered the join as the head, or declines it if the search has ended otherwise."""
        if self._is_closed:
            _decline(connection, "this agent has a head")
            return
        self._apply(self._discovery.answered())
        if self._discovery.phase is DiscoveryPhase.OVER:
            self.stop()
            self._headship.head_found(connection)
        else:
            _decline(connection, "this agent claims the attempt itself")

    def head_said(self, connection: Connection, message: Message) -> None:
        """Passes a message of the head on to `headship`."""
        self._headship.head_said(connection, message)

    def head_lost(self, connection: Connection, why: str) -> None:
        """Passes the end of the connection to the head on to `headship`."""
        self._headship.head_lost(connection, why)

    # Steps.

    def _apply(self, actions: list[DiscoveryAction]) -> None:
        if self._is_closed:
            return
        for action in actions:
            self._act(action)
        self._set_timer()

    def _act(self, action: DiscoveryAction) -> None:
        if isinstance(action, ReadRecords):
            self._tasks.run(self._read(action))
        elif isinstance(action, Dial):
            self._tasks.run(self._dial(action))
        elif isinstance(action, Gather):
            self._headship.gather(action.succession)
        elif isinstance(action, ClaimAllocation):
            self._headship.claim_allocation(action.after, action.lost)
        elif isinstance(action, StepDown):
            self._headship.step_down(action.reason)
        elif isinstance(action, Log):
            self._say(action.text, action.level)
        elif isinstance(action, Leave):
            self.stop()
            self._headship.give_up(action)

    async def _read(self, action: ReadRecords) -> None:
        read = partial(self._journal.read_records, needs_world=action.needs_world)
        try:
            records = await self._disk.call(read)
        except RunDirectoryError as error:
            self._apply(self._discovery.read_failed(error.message, self._loop.time()))
        else:
            self._apply(self._discovery.read(records, self._loop.time()))

    async def _dial(self, dial: Dial) -> None:
        link, began = HeadLink(self), self._loop.time()
        try:
            is_asked = await asyncio.wait_for(self._ask(link, dial), dial.within_s)
        except asyncio.TimeoutError:
            is_asked = False
        if is_asked:
            await asyncio.wait([link.answered], timeout=dial.answer_s)
        link.give_up()
        if not (link.answered.done() and link.answered.result()):
            now = self._loop.time()
            is_silent = now - began >= dial.within_s / 2
            self._apply(
                self._discovery.not_answered(
                    now, is_silent=is_silent, is_refused=link.is_refused, elsewhere=link.elsewhere
                )
            )

    async def _ask(self, link: HeadLink, dial: Dial) -> bool:
        """Returns whether the join was sent; raises nothing: Python 3.10's `wait_for` loses what comes as it cancels.

        No more than the handshake tells whether the other side lives. It is the head if it then keeps the connection
        open, and an agent that closed it before the answer would be taken for lost after the join was counted.
        """
        address, port = dial.agent.address, dial.agent.port
        try:
            await ask_to_join(self._make, link, self._join(), address=address, port=port, timeout_s=dial.within_s)
        except (OSError, ProtocolError, NoHandshakeError) as error:
            link.is_refused = isinstance(error, ConnectionRefusedError)
            return False
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._discovery.next_tick()
        self._timer = self._loop.call_at(at, self._tick) if at < NEVER and not self._is_closed else None

    def _tick(self) -> None:
        self._apply(self._discovery.tick(self._loop.time()))


def _decline(connection: Connection, why: str) -> None:
    """Closes the connection to an agent that answered the join, with a `Dropped`: a close without one means a death."""
    connection.send(Dropped(reason=why))
    connection.close(why)
