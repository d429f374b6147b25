"""Keeps this node's member connected to its head, which may be on another node or on this one, and may change.

Theory of operation. At any time the member has at most one head. It is remote (on another node) or local (on this one):

    first search --an agent answers--> remote, on a connection; --the allocation is ours--> local, a Coordinator
    remote       --lost, and the member has no workers any more--> discovery
    local        --superseded, and the member has no workers any more--> discovery
    discovery    --an agent answers--> remote; --it is this node's turn--> local, while the discovery goes on until
                                                                           the next attempt is claimed

Messages on a connection that is not the head's any more, or from a local head that has ended, are
ignored. The agents that dial this one are the members of the local head.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.drivers.local_member import LocalMember
from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, Receiver
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry
from hpc_elastic.agent.rendezvous.head_link import answers
from hpc_elastic.agent.rendezvous.refusal import Refuser
from hpc_elastic.agent.rendezvous.search import HeadLostError, HeadSearch
from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import MissingNode, RunDirectoryError
from hpc_elastic.membership.actions import HeadOver, Leave, Level
from hpc_elastic.membership.discovery import MOST_CLAIMS, DiscoverySettings
from hpc_elastic.membership.messages import Assign, Elsewhere, GiveNotice, Message, Welcome
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import Timing
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation

CLAIMS_AGAIN_AFTER_S = 1.0
# How many allocations an agent may have claimed in its searches when it yields to a later head of this start: two sides
# of a cut network, neither with enough nodes, would else yield to each other until both have been head too often.
MOST_YIELDS = 1
NEVER = float("inf")


class HeadSide(Receiver):
    """Finds the head or starts one here, and passes messages between it and this node's member.

    Args:
        plan: the launch plan.
        place: this node's place.
        member: this node's member.
        own: the address and port on which this agent listens.
        ports: the ports on which node 0 may listen.
        journal: the run directory.
        disk: the thread for access to the run directory.
        head_start: creates heads.
        make: makes connections.
        moved: is called when the time until which the workers may run may have changed.
        say: logs a line for people.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        place: Allocation,
        *,
        member: LocalMember,
        own: Endpoint,
        ports: list[int],
        journal: Journal,
        disk: BackgroundThread,
        head_start: HeadStart,
        make: ConnectionFactory,
        moved: Callable[[], None],
        say: Callable[[str, Level], None],
    ) -> None:
        self._plan = plan
        self._place = place
        self._member = member
        self._own = own
        self._ports = ports
        self._journal = journal
        self._disk = disk
        self._head_start = head_start
        self._make = make
        self._moved = moved
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._connection: Connection | None = None  # to a head elsewhere
        self._head_node: str  # the node of the head elsewhere; "" until its Welcome has named it
        self._head: Coordinator | None = None  # the head here
        self._refuser: Refuser | None = None
        self._claims = 0  # of allocations without an attempt, while this agent searched for a head
        self._relieved: MissingNode | None = None  # the first head, if this agent took its place: it was out of reach
        self._successor: Successor | None = None
        self._timing = Timing(lease_s=plan.elastic.lease_s)
        # Whether this agent has to end the Slurm job, or if its script is gone; known when this part has ended.
        self.ends_job = self.looks_for_script = False
        self._making: object = None  # marks the head under creation; replaced if that is called off
        self._is_closing = False  # no head may begin any more
        self._heard: NoticeGiven | None = None  # the notice that a head has told the member of last
        self._heard_at: float

    def fence_deadline(self) -> float:
        """Returns until when a local head lets the workers run if it does not check its leases again."""
        return self._head.fence_deadline() if self._head is not None else NEVER

    async def find(self) -> None:
        """Joins the first head, or becomes the first head.

        Raises:
            HpcElasticError: no head could be joined, and this agent cannot become head.
        """
        search = HeadSearch(
            self._plan,
            self._place,
            ports=self._ports,
            own=self._own,
            journal=self._journal,
            disk=self._disk,
            make=self._make,
        )
        try:
            is_found = await search.find(self._member.join, self, self._say)
        except RunDirectoryError as error:
            await self._refuse(error)
            raise
        except HeadLostError as error:  # it had this node as a member, which could not hear of it
            self._journal.allocation = error.allocation
            self._member.connected(is_joined=True)
            self._member.disconnected(error.message, is_dead=False)
            return
        if not is_found:
            self._relieved = search.relieved
            await self._become_head(None)

    async def _refuse(self, error: RunDirectoryError) -> None:
        """Reports the error to people and, on node 0, to the other agents, which look for their head here."""
        if self._place.node_id == 0:
            self._refuser = Refuser(error, len(self._place.nodes) - 1)
            self._journal.is_head = True
            await self._disk.call(lambda: self._journal.say(error.message))
            await self._refuser.wait()

    def discover_head(self, lost: LostHead) -> None:
        """Starts the discovery of another head, unless one runs; the member has lost its head and has no workers."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close("its head is lost")
        if self._head is not None:
            self._loop.call_soon(self._rejoin, self._head, lost)
        elif self._successor is None:
            self._successor = self._discover_head(lost)
            self._loop.call_soon(self._successor.start)

    def _discover_head(self, lost: LostHead) -> Successor:
        elastic = self._plan.elastic
        left = MOST_CLAIMS if lost.attempt else MOST_CLAIMS - self._claims
        settings = DiscoverySettings(
            node=self._place.node,
            join_timeout_s=elastic.join_timeout_s,
            claims_left=left,
            can_end_job=self._member.join.can_end_job,
            asks_again_s=self._timing.asks_again_s(elastic.join_timeout_s),
        )
        return Successor(
            settings,
            lost,
            join=self._member.asks,
            headship=self,
            journal=self._journal,
            disk=self._disk,
            make=self._make,
            say=self._say,
        )

    def _rejoin(self, head: Coordinator, lost: LostHead) -> None:
        """Joins the member to the local head again, which it lost because this process was paused."""
        if head is self._head:
            head.own_member_left(lost.why)
            self._member.connected(is_joined=False)
        else:
            self.discover_head(lost)  # another head has taken its place since; the member could not hear of it

    def tell(self, message: Message) -> None:
        """Sends a message of the member to its head, if there is one."""
        if self._head is not None:
            self._loop.call_soon(self._head.received_from_own, message)
        elif self._connection is not None:
            self._connection.send(message)

    async def close(self) -> None:
        """Ends this part after the member has left; a local head stays until all other members have left."""
        self._making, self._is_closing = None, True
        if self._successor is not None:
            await self._successor.close()
        if (head := self._head) is not None:
            head.own_member_left("left")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(head.over.wait(), self._timing.head_closes_within_s)
            await head.close()
        if self._connection is not None:
            self._connection.close()
        await self._tasks.cancel()

    async def abandon(self) -> None:
        """Closes all connections without a message, as when this process is killed."""
        self._making, self._is_closing = None, True
        if self._successor is not None:
            await self._successor.close()
        if self._head is not None:
            self._head.abandon()
            await self._head.close()
        if self._connection is not None:
            self._connection.abort("this agent goes")
        await self._tasks.cancel()

    # Implementation of transport.Receiver: connections of other agents, which a local head takes over.

    def opened(self, connection: Connection) -> None:
        """Closes another agent's connection if there is no local head, and tells it where this node's head is."""
        if self._answering is None:
            self._send_on(connection)
            connection.close("this agent is not the head")

    def received(self, connection: Connection, message: Message) -> None:
        """Passes a message of another agent on to the local head."""
        if self._answering is not None:
            self._answering.received(connection, message)
        else:
            connection.close("this agent is not the head any more")

    def closed(self, connection: Connection, why: str) -> None:
        """Tells the local head that another agent's connection has closed."""
        if self._answering is not None:
            self._answering.closed(connection, why)

    def _send_on(self, connection: Connection) -> None:
        """Tells an agent where this node's head is, if it has one: dialling a rack of dead nodes would take long."""
        remote = self._connection.remote if self._connection is not None else None
        if remote is not None and self._head_node:
            connection.send(Elsewhere(node=self._head_node, agent=remote))

    @property
    def _answering(self) -> Receiver | None:
        """The receiver that answers other agents: the local head or the refuser; None if there is neither."""
        return self._head or self._refuser

    # Implementation of head_link.HeadListener: this node's connection to a remote head.

    def head_found(self, connection: Connection) -> None:
        """Connects the member to a remote head that has answered its join."""
        self._successor = None
        self._connection, self._head_node = connection, ""
        self._member.connected(is_joined=True, asked=connection.opened_at)

    def head_said(self, connection: Connection, message: Message) -> None:
        """Passes a message of the remote head on to the member."""
        if connection is self._connection:
            self._hear(message)

    def head_lost(self, connection: Connection, why: str) -> None:
        """Tells the member that the connection to its head has closed."""
        if connection is self._connection:
            self._connection = None
            self._member.disconnected(why, is_dead=connection.is_closed_by_peer)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._journal.allocation = message.allocation
            self._head_node = message.head
        if isinstance(message, (GiveNotice, Assign)) and message.notice is not None:
            self._heard, self._heard_at = message.notice, self._loop.time()
        self._member.received(message)

    def _heard_notice(self) -> NoticeGiven | None:
        """Return the notice that the member was told of last, with the seconds that are left of it now."""
        if self._heard is None or self._heard.seconds_left is None:
            return self._heard
        age_s = self._loop.time() - self._heard_at
        return replace(self._heard, seconds_left=max(0.0, self._heard.seconds_left - age_s))

    # Implementation of successor.Headship: a head on this node.

    def gather(self, succession: Succession) -> None:
        """Starts a head on this node that gathers the members of the lost head."""
        self._tasks.run(self._become_head(succession))

    def claim_allocation(self, after: int, lost: LostHead) -> None:
        """Claims the allocation after the one with this number, and starts a head here in the place of the lost one."""
        self._claims += 1
        self._tasks.run(self._claim_allocation(after, lost))

    def step_down(self, reason: str) -> None:
        """Ends the local head, which tells the members that have joined it. The discovery goes on."""
        self._making = None
        head, self._head = self._head, None
        if head is not None:
            head.step_down(reason)
            self._has_ended(head, reason)

    def give_up(self, leave: Leave) -> None:
        """Tells the member to leave: no head was found, or the run is over."""
        self._member.leaves(leave.exit_code, leave.cause, ends_job=leave.ends_job)

    async def _become_head(self, succession: Succession | None, *, lost: LostHead | None = None) -> None:
        """Starts a head on this node, unless it is called off or another head has claimed meanwhile."""
        if self._is_closing:
            return
        making = self._making = object()
        try:
            past = await retry(self._head_start.read, say=self._warn, is_wanted=lambda: making is self._making)
        except RunDirectoryError:
            if making is self._making:
                raise
        if making is not self._making:
            return
        if not past.is_followed_by(succession):
            if self._successor is None:
                raise RunDirectoryError(f"another head has opened attempt {past.history.attempts} in this allocation")
            self._successor.superseded()
            return
        outputs = HeadOutputs(
            to_own_member=lambda message: self._hear_own(head, message),
            claiming=self._claiming,
            superseded=lambda reason: self._superseded(head, reason),
            over=self._over,
            moved=self._moved,
            reaches=partial(answers, self._make),
        )
        head = self._head = self._head_start.make(
            self._member.join,
            past,
            succession,
            outputs,
            self._heard_notice,
            may_yield=self._claims <= MOST_YIELDS,
            relieved=self._relieved if succession is None else None,
            lost=lost,
        )
        self._journal.is_head = succession is None
        self._member.connected(is_joined=False)

    async def _claim_allocation(self, after: int, lost: LostHead) -> None:
        try:
            claim = partial(self._journal.claim_next_allocation, self._own, after)
            is_ours = await retry(lambda: self._disk.call(claim), say=self._warn)
        except RunDirectoryError as error:
            self._say(error.message, "warning")
            await asyncio.sleep(CLAIMS_AGAIN_AFTER_S)
            is_ours = False
        successor = self._successor
        if self._is_closing:
            return
        if is_ours:
            await self._become_head(None, lost=lost)
            if self._head is not None and successor is not None:
                successor.stop()
                self._successor = None
        elif successor is not None:
            successor.superseded()

    def _warn(self, text: str) -> None:
        self._say(text, "warning")

    def _hear_own(self, head: Coordinator, message: Message) -> None:
        if head is self._head:
            self._hear(message)

    def _claiming(self) -> None:
        """Ends the search for another head, as the local head claims an attempt or ends the run."""
        self._journal.is_head = True
        if self._successor is not None:
            self._successor.claiming()

    def _over(self, action: HeadOver) -> None:
        """Takes in how the local head has ended the run."""
        self.ends_job, self.looks_for_script = action.ends_job, action.looks_for_script

    def _superseded(self, head: Coordinator, reason: str) -> None:
        """Removes the local head, which others have superseded, and the discovery that has started it, if one has."""
        if head is not self._head:
            return
        self._head = None
        if self._successor is not None:
            self._successor.stop()
            self._successor = None  # the member will ask for a new discovery
        self._has_ended(head, reason)

    def _has_ended(self, head: Coordinator, reason: str) -> None:
        """Closes a local head after it has told all other members of its end, and tells its own member last."""
        self._journal.is_head = False
        self._tasks.run(head.close())
        self._member.disconnected(reason, is_dead=False)
