"""The heads of this node's member, one after the other: the one that is found, the one that is here, the next one.

Theory of operation. At any time the member has at most one head, here or on another node:

    finding   --an agent answers--> there, on a connection; --the allocation is ours--> here, a Coordinator
    there     --lost, and the member has no workers any more--> seeking
    here      --superseded, and the member has no workers any more--> seeking
    seeking   --an agent answers--> there; --it is this node's turn--> here, while the search goes on until
                                                                       the next attempt is claimed

What comes on a connection that is not the head's any more, or from a head that is here no more, is
passed over. The agents that dial this one are the members of the head that is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.drivers.local_member import LocalMember
from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, Receiver
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry
from hpc_elastic.agent.rendezvous.refusal import Refuser
from hpc_elastic.agent.rendezvous.search import HeadSearch
from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Level
from hpc_elastic.membership.discovery import DiscoverySettings
from hpc_elastic.membership.messages import Elsewhere, Message, Welcome
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation

HEAD_CLOSES_WITHIN_S = 10.0
CLAIMS_AGAIN_AFTER_S = 1.0
NEVER = float("inf")


class HeadSide(Receiver):
    """Finds heads, is one, and passes on what a head and its member say to each other.

    Args:
        plan: the launch plan.
        place: this node's place.
        member: this node's member.
        own: where this agent listens.
        ports: where node 0 may listen.
        journal: the run directory.
        disk: the thread for it.
        head_start: makes heads.
        make: makes connections.
        moved: is told when the moment may have moved until when the workers may run.
        say: takes a line for people.
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
        self._head_node = ""  # that head's, once it has said so
        self._head: Coordinator | None = None  # the head here
        self._refuser: Refuser | None = None
        self._successor: Successor | None = None
        self._making: object = None  # the head that is being made, and not called off
        self._is_stepping_down = False

    def fence_deadline(self) -> float:
        """Until when the workers may run without another look of the head that is here, if one is."""
        return self._head.fence_deadline() if self._head is not None else NEVER

    async def find(self) -> None:
        """Joins the first head, or becomes it.

        Raises:
            HpcElasticError: there is no head to be joined, and none to become.
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
        if not is_found:
            await self._become_head(None)

    async def _refuse(self, error: RunDirectoryError) -> None:
        """Tells a person, and the others, who look for their head here."""
        if self._place.node_id == 0:
            self._refuser = Refuser(error, len(self._place.nodes) - 1)
            self._journal.is_head = True
            await self._disk.call(lambda: self._journal.say(error.message))
            await self._refuser.wait()

    def seek(self, lost: LostHead) -> None:
        """The member has lost its head and has no workers: finds it another one, unless that goes on already."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close("its head is lost")
        if self._head is not None:
            self._loop.call_soon(self._rejoin, self._head, lost)
        elif self._successor is None:
            self._successor = self._seek(lost)
            self._loop.call_soon(self._successor.start)

    def _seek(self, lost: LostHead) -> Successor:
        elastic = self._plan.elastic
        settings = DiscoverySettings(node=self._place.node, join_timeout_s=elastic.join_timeout_s)
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
        """The head is on this node, and the member lost it because this process was paused."""
        if head is self._head:
            head.own_member_left(lost.why)
            self._member.connected(is_joined=False)
        else:
            self.seek(lost)  # another one has taken its place since, which the member could not hear of

    def tell(self, message: Message) -> None:
        """The member says something to its head."""
        if self._head is not None:
            self._loop.call_soon(self._head.received_from_own, message)
        elif self._connection is not None:
            self._connection.send(message)

    async def close(self) -> None:
        """The member has left: the head that is here goes last of all."""
        self._making = None
        if self._successor is not None:
            await self._successor.close()
        if self._head is not None:
            self._head.own_member_left("left")
            await asyncio.wait([asyncio.ensure_future(self._head.over.wait())], timeout=HEAD_CLOSES_WITHIN_S)
            await self._head.close()
        if self._connection is not None:
            self._connection.close()
        await self._tasks.cancel()

    async def abandon(self) -> None:
        """Goes without a word, as a process that is killed."""
        self._making = None
        if self._successor is not None:
            await self._successor.close()
        if self._head is not None:
            self._head.abandon()
            await self._head.close()
        if self._connection is not None:
            self._connection.abort("this agent goes")
        await self._tasks.cancel()

    # Of transport.Receiver: other agents' connections, which are the head's if it is here.

    def opened(self, connection: Connection) -> None:
        """Another agent connected."""
        if self._answering is None:
            self._send_on(connection)
            connection.close("this agent is not the head")

    def received(self, connection: Connection, message: Message) -> None:
        """Another agent sent something."""
        if self._answering is not None:
            self._answering.received(connection, message)
        else:
            connection.close("this agent is not the head any more")

    def closed(self, connection: Connection, why: str) -> None:
        """Another agent's connection is over."""
        if self._answering is not None:
            self._answering.closed(connection, why)

    def _send_on(self, connection: Connection) -> None:
        """Says where this node's own head is, if it has one: with a rack of dead nodes there are many to ask."""
        remote = self._connection.remote if self._connection is not None else None
        if remote is not None and self._head_node:
            connection.send(Elsewhere(node=self._head_node, agent=remote))

    @property
    def _answering(self) -> Receiver | None:
        """Who talks to the other agents, if this one does."""
        return self._head or self._refuser

    # Of head_link.HeadListener: this node's connection to the head.

    def head_found(self, connection: Connection) -> None:
        """There is a head, and it is another agent."""
        self._successor = None
        self._connection, self._head_node = connection, ""
        self._member.connected(is_joined=True, asked=connection.opened_at)

    def head_said(self, connection: Connection, message: Message) -> None:
        """The head sent something."""
        if connection is self._connection:
            self._hear(message)

    def head_lost(self, connection: Connection, why: str) -> None:
        """The connection to the head is over."""
        if connection is self._connection:
            self._connection = None
            self._member.disconnected(why, is_dead=connection.is_closed_by_peer)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._journal.allocation = message.allocation
            self._head_node = message.head
        self._member.received(message)

    # Of successor.Headship: a head on this node.

    def gather(self, succession: Succession) -> None:
        """Be a head that gathers the members of the lost one."""
        self._tasks.run(self._become_head(succession))

    def claim_allocation(self, after: int) -> None:
        """Claim the allocation after this one, and be its head."""
        self._tasks.run(self._claim_allocation(after))

    def step_down(self, reason: str) -> None:
        """Be a head no more; those who have joined are told so. The search goes on."""
        self._making = None
        if self._head is not None:
            self._is_stepping_down = True
            self._head.step_down(reason)
            self._is_stepping_down = False

    def give_up(self, exit_code: int, cause: str) -> None:
        """There is no head to be found, or the run is over."""
        self._successor = None
        self._member.leaves(exit_code, cause)

    async def _become_head(self, succession: Succession | None) -> None:
        """Is the head here, unless that is called off or the claims have gone on meanwhile."""
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
            moved=self._moved,
        )
        head = self._head = self._head_start.make(self._member.join, past, succession, outputs)
        self._journal.is_head = succession is None
        self._member.connected(is_joined=False)

    async def _claim_allocation(self, after: int) -> None:
        try:
            claim = partial(self._journal.claim_next_allocation, self._own, after)
            is_ours = await retry(lambda: self._disk.call(claim), say=self._warn)
        except RunDirectoryError as error:
            self._say(error.message, "warning")
            await asyncio.sleep(CLAIMS_AGAIN_AFTER_S)
            is_ours = False
        successor = self._successor
        if is_ours:
            await self._become_head(None)
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
        """The head here claims an attempt or ends the run: the search for another one is over."""
        self._journal.is_head = True
        if self._successor is not None:
            self._successor.claiming()

    def _superseded(self, head: Coordinator, reason: str) -> None:
        """The head here has told everybody else that it is none any more; its own member is the last to hear."""
        if head is not self._head:
            return
        self._head = None
        self._journal.is_head = False
        self._tasks.run(head.close())
        if self._successor is not None and not self._is_stepping_down:
            self._successor.stop()
            self._successor = None  # the member asks for a new search
        self._member.disconnected(reason, is_dead=False)
