"""Two local nodes of one allocation that look for their head, over real sockets and a real run directory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, connection_factory
from hpc_elastic.agent.node.network import listen, listen_on_first
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.search import HeadSearch
from hpc_elastic.agent.rendezvous.search_times import SearchTimes
from hpc_elastic.agent.rendezvous.trouble import ReportTimes
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.membership.authentication import Scope, Side
from hpc_elastic.membership.messages import Join, Message
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import ElasticPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AttemptClaim, Endpoint, Spend, World, WorldNode, WorldRole
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_join
from tests.plans import make_run_plan

ENDPOINT = Endpoint(address="127.0.0.2", port=1)
SCOPE = Scope(run="run", job_id="local-1", restart_count=0)
MAKE = connection_factory(b"s" * 32, SCOPE)
IN_NO_TIME = SearchTimes(read_claim_every_s=0.0, first_pause_s=0.001, longest_pause_s=0.005)


def without_clock(message: Message) -> Message:
    """A Join apart from when it was sent, which it tells."""
    assert not isinstance(message, Join) or abs(message.clock_ns - time.time_ns()) < 600 * 10**9
    return replace(message, clock_ns=0) if isinstance(message, Join) else message


class Answering:
    """What a listening agent says to a join; the head says Welcome."""

    def __init__(self, answer: Message | None) -> None:
        self.answer = answer
        self.joins: list[Message] = []
        self.connections: list[Connection] = []

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        if self.answer is None:
            connection.close("this agent is not the head")

    def received(self, connection: Connection, message: Message) -> None:
        self.joins.append(without_clock(message))
        if self.answer is not None:
            connection.send(self.answer)

    def closed(self, connection: Connection, why: str) -> None:
        pass


class Member:
    """Hears the head."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.losses: list[str] = []
        self.connection: Connection | None = None

    def head_found(self, connection: Connection) -> None:
        assert not self.heard  # where to report is known before the first word
        self.connection = connection

    def head_said(self, connection: Connection, message: Message) -> None:
        assert connection is self.connection
        self.heard.append(message)

    def head_lost(self, connection: Connection, why: str) -> None:
        assert connection is self.connection
        self.losses.append(why)


class Scene:
    """Two local nodes of one allocation; ports of their own for each test."""

    def __init__(self, root: Path, times: SearchTimes = IN_NO_TIME) -> None:
        self.layout = RunLayout(root)
        elastic = ElasticPlan(join_timeout_s=600, join_retries=0, lease_s=9, exit_timeout_s=None, rejoin="at_restart")
        self.plan = replace(make_run_plan(root), elastic=elastic)
        self.ports = port_sequence(str(root), "local-1", (20000, 32000))
        self.disk = BackgroundThread("disk", asyncio.get_running_loop())
        self.member = Member()
        self.said: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._agents: list[Answering] = []

        self.nodes: tuple[str, ...] = ("local0", "local1")
        self.answers = Answers()
        self.times = times

    def allow(self, *, join_retries: int = 0, join_timeout_s: float = 600.0, lease_s: float = 9.0) -> None:
        elastic = replace(self.plan.elastic, join_retries=join_retries, join_timeout_s=join_timeout_s, lease_s=lease_s)
        self.plan = replace(self.plan, elastic=elastic)

    def record(self) -> Any:
        """What local1 wrote for the head to read."""
        return json.loads(Path(self.layout.rendezvous("local1")).read_text())

    def journal(self, node_id: int) -> Journal:
        return Journal(self.layout, self.plan, self.place(node_id), questions=self.answers)

    def place(self, node_id: int) -> Allocation:
        return Allocation(
            job_id="local-1",
            restart_count=0,
            array_task=None,
            node_id=node_id,
            nodes=self.nodes,
            is_local=self.nodes[0].startswith("local"),
        )

    async def listen(
        self, answer: Message | None, *, port: int | None = None, make: ConnectionFactory = MAKE
    ) -> tuple[Answering, Endpoint]:
        """Node 0 listens on its address, on the first port of the sequence or on another one."""
        agent = Answering(answer)
        return agent, await self.listen_as(agent, port=port, make=make)

    async def listen_as(self, agent: Answering, *, port: int | None = None, make: ConnectionFactory = MAKE) -> Endpoint:
        """This agent listens there."""
        self._agents.append(agent)
        bound = listen("127.0.0.2", port) if port is not None else listen_on_first("127.0.0.2", self.ports)
        endpoint = Endpoint(address="127.0.0.2", port=bound.getsockname()[1])
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: make(Side.LISTENING, agent), sock=bound))
        return endpoint

    def search(self, node_id: int) -> HeadSearch:
        return HeadSearch(
            self.plan,
            self.place(node_id),
            ports=self.ports,
            own=Endpoint(address=f"127.0.0.{node_id + 2}", port=1),
            journal=self.journal(node_id),
            disk=self.disk,
            make=MAKE,
            times=self.times,
        )

    async def find(self, node_id: int = 1) -> bool:
        search = self.search(node_id)
        return await search.find(self.join(node_id), self.member, lambda text, _: self.said.append(text))

    @staticmethod
    def join(node_id: int) -> Join:
        return a_join(node_id, node=f"local{node_id}")

    async def close(self) -> None:
        if self.member.connection is not None:
            self.member.connection.abort("the test is over")
        for agent in self._agents:
            for connection in agent.connections:
                connection.abort("the test is over")
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)
        await self.disk.close(5)


def play(root: Path, scene: Callable[[Scene], Awaitable[None]], *, times: SearchTimes = IN_NO_TIME) -> None:
    async def main() -> None:
        made = Scene(root, times)
        try:
            await asyncio.wait_for(scene(made), 30)
        finally:
            await made.close()

    asyncio.run(main())


def open_attempt(made: Scene, head: Endpoint, *members: str) -> None:
    """The head on the first node opens an attempt with these nodes."""
    world = World(
        run="run",
        attempt=1,
        allocation=1,
        head="local0",
        roles=(WorldRole(role="", size=1, restart="restart_all", master=head, master_node="local0", attempt=1),),
        nodes=(WorldNode(node="local0", node_id=0, role="", agent=head, first_rank=0, workers=1),),
        ranks=(),
    )
    claim = AttemptClaim(
        run="run",
        attempt=1,
        allocation=1,
        predecessor=None,
        head="local0",
        members=members,
        roles=(),
        reason="",
        spend=Spend(),
        time="",
    )
    made.journal(0).claim_attempt(claim, world)


def retrying(*, answers_within_s: float = 600.0, persists_s: float = 600.0) -> SearchTimes:
    """The times of a search whose pauses are short, and which reports at once."""
    return replace(
        IN_NO_TIME,
        head_answers_within_s=answers_within_s,
        persists_s=persists_s,
        first_retry_s=0.001,
        reports=ReportTimes(settles_s=0.0, starts_within_s=0.0),
    )
