"""Runs the head on the node that has it: its connections, its disk work, its clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from hpc_elastic.agent.allocation import Allocation
from hpc_elastic.agent.background import BackgroundThread
from hpc_elastic.agent.findings import Findings
from hpc_elastic.agent.journal import Journal
from hpc_elastic.agent.policy import Policy
from hpc_elastic.agent.tasks import Tasks
from hpc_elastic.agent.telemetry import Telemetry
from hpc_elastic.agent.transport import Connection
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.membership.actions import Action, ClaimAttempt, Drop, HeadOver, Level, Note, Say, Send, WriteResult
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import Failed, Finished, Join, Message
from hpc_elastic.membership.phases import Phase
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import place_roles
from hpc_elastic.rundir.records import AttemptClaim

LOOK_FOR_REQUESTS_EVERY_S = 1.0
DIAGNOSE_AFTER_S = 3.0  # an agent writes what it found after 2 s; a look before would hide that on NFS
DIAGNOSE_EVERY_S = 5.0


class Coordinator:
    """Drives a Head; the receiver of the other agents' connections.

    Args:
        head: the machine.
        node: this node, whose own member is reached without a connection.
        journal: the run directory.
        disk: the thread for it.
        telemetry: told how long a claim took, and how the run ended.
        to_own_member: delivers a message to this node's member.
        diagnose: looks why nodes have not joined; blocking.
    """

    def __init__(
        self,
        head: Head,
        *,
        node: str,
        journal: Journal,
        disk: BackgroundThread,
        telemetry: Telemetry,
        to_own_member: Callable[[Message], None],
        diagnose: Callable[[Sequence[str]], Sequence[Diagnosis]] = lambda _: (),
    ) -> None:
        self._head = head
        self._node = node
        self._journal = journal
        self._disk = disk
        self._telemetry = telemetry
        self._to_own_member = to_own_member
        self._connections: dict[str, Connection] = {}
        self._names: dict[Connection, str] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._judging: Counter[str] = Counter()  # by node, failures that wait for the disk
        self._finished: dict[str, Finished] = {}  # by node, what waits for these
        self.over = asyncio.Event()
        self._diagnose = diagnose
        self._tasks.run(self._watch_requests())
        self._tasks.run(self._watch_missing())
        self._set_timer()

    # Of transport.Receiver.

    def opened(self, connection: Connection) -> None:
        """An agent connected; it says who it is next."""

    def received(self, connection: Connection, message: Message) -> None:
        """An agent sent something."""
        node = self._names.get(connection)
        if node is not None:
            self._deliver(node, message)
        elif isinstance(message, Join):
            self._join(connection, message)
        else:
            connection.refuse("the first message was not a join")

    def closed(self, connection: Connection, why: str) -> None:
        """An agent's connection is over."""
        node = self._names.pop(connection, None)
        if node is not None and self._connections.get(node) is connection:
            del self._connections[node]
            self._apply(self._head.lost(node, why, self._loop.time(), is_gone=connection.is_closed_by_peer))

    # This node's own member.

    def received_from_own(self, message: Message) -> None:
        """This node's member sent something."""
        if isinstance(message, Join):
            self._apply(self._head.joined(message, self._loop.time()))
        else:
            self._deliver(self._node, message)

    def own_member_left(self) -> None:
        """This node's member is done; only its head is left."""
        self._apply(self._head.lost(self._node, "left", self._loop.time(), is_gone=True))

    async def close(self) -> None:
        """Ends what is still under way."""
        await self._tasks.cancel()
        if self._timer is not None:
            self._timer.cancel()

    # Steps.

    def _join(self, connection: Connection, join: Join) -> None:
        refusal = self._head.refusal(join)
        if refusal is not None:
            self._say(f"refused {join.node}: {refusal.reason}", "warning")
            connection.send(refusal)
            connection.close()
            self._tick()  # there may be nobody left to wait for
            return
        self._names[connection] = join.node
        self._connections[join.node] = connection
        self._apply(self._head.joined(join, self._loop.time()))

    def _deliver(self, node: str, message: Message) -> None:
        if isinstance(message, Failed):
            self._judging[node] += 1
            self._tasks.run(self._deliver_failure(node, message))
        elif isinstance(message, Finished) and self._judging[node]:
            self._finished[node] = message  # else the run could succeed before it knows of the failure
        else:
            self._apply(self._head.received(node, message, self._loop.time()))

    async def _deliver_failure(self, node: str, message: Failed) -> None:
        """A failure is judged with the progress that the run had made when it came."""
        self._head.progress_seen(await self._disk.call(self._journal.progress))
        self._apply(self._head.received(node, message, self._loop.time()))
        self._judging[node] -= 1
        if not self._judging[node] and (finished := self._finished.pop(node, None)) is not None:
            self._deliver(node, finished)

    async def _watch_requests(self) -> None:
        while (by := await self._look_for_request()) is None:
            await asyncio.sleep(LOOK_FOR_REQUESTS_EVERY_S)
        self._apply(self._head.stop_requested(by, self._loop.time()))

    async def _look_for_request(self) -> str | None:
        try:
            return await self._disk.call(self._journal.stop_request)
        except RunDirectoryError:  # a file system in trouble (ESTALE, EIO) is asked again; it is no failure yet
            return None

    async def _watch_missing(self) -> None:
        """While nodes are missing, reads what their agents have found out."""
        await asyncio.sleep(DIAGNOSE_AFTER_S)
        while True:
            missing = self._head.gathering.waits_for()
            if missing and self._head.phase is Phase.GATHERING:
                diagnoses = await self._disk.call(partial(self._diagnose, missing))
                self._apply(self._head.gathering.diagnosed(diagnoses))
                self._tick()  # there may be nobody left to wait for
            await asyncio.sleep(DIAGNOSE_EVERY_S)

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)
        self._set_timer()

    def _act(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action.node, action.message)
        elif isinstance(action, Drop):
            connection = self._connections.get(action.node)
            if connection is not None:
                connection.abort("the head dropped the connection")
        elif isinstance(action, ClaimAttempt):
            self._tasks.run(self._claim(action))
        elif isinstance(action, WriteResult):
            self._tasks.run(self._write_result(action))
        elif isinstance(action, HeadOver):
            self.over.set()
        elif isinstance(action, Say):
            self._say(action.text, action.level)
        elif isinstance(action, Note):
            note = action
            self._disk.spare(lambda: self._journal.note(note.name, note.message, note.attempt, dict(note.metadata)))

    def _send(self, node: str, message: Message) -> None:
        if node == self._node:
            self._loop.call_soon(self._to_own_member, message)
        elif (connection := self._connections.get(node)) is not None:
            connection.send(message)

    async def _claim(self, action: ClaimAttempt) -> None:
        attempt = action.claim.attempt
        try:
            with self._telemetry.measuring("assign_worker_ranks"):
                is_ours, digest = await self._disk.call(lambda: self._journal.claim_attempt(action.claim, action.world))
        except RunDirectoryError as error:
            self._apply(self._head.disk_failed(str(error), self._loop.time()))
        else:
            self._apply(self._head.claimed(attempt, is_ours, digest, self._loop.time()))

    async def _write_result(self, action: WriteResult) -> None:
        if action.result.reason == Trigger.TERMINATED.value and await self._disk.call(self._journal.is_requeued):
            cause = "the scheduler has requeued the job; the run goes on when it starts again"
            self._apply(self._head.result_written(int(ExitCode.REQUEUE), cause, self._loop.time()))
            return
        try:
            answer = await self._disk.call(lambda: self._journal.write_result(action.result))
        except RunDirectoryError as error:
            self._apply(self._head.disk_failed(str(error), self._loop.time()))
            return
        if isinstance(answer, AttemptClaim):
            cause = f"{answer.head} has opened attempt {answer.attempt}"
            self._apply(self._head.disk_failed(cause, self._loop.time()))
            return
        self._telemetry.run_ended(action.result)
        self._apply(self._head.result_written(*answer, self._loop.time()))

    def _say(self, text: str, level: Level = "info") -> None:
        self._disk.spare(lambda: self._journal.say(text, level))

    def _set_timer(self) -> None:
        at = self._head.next_tick()
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._head.tick(self._loop.time()))


async def become_head(
    plan: LaunchPlan,
    place: Allocation,
    own: Join,
    *,
    journal: Journal,
    disk: BackgroundThread,
    telemetry: Telemetry,
    to_own_member: Callable[[Message], None],
) -> Coordinator:
    """The head of an allocation that this agent has claimed, going on from the run's latest claim."""
    history = await disk.call(journal.history)
    restarts = {role.name: role.restart for role in plan.roles}
    placed = place_roles(plan.roles, len(place.nodes))
    settings = HeadSettings(
        run=plan.run,
        node=place.node,
        allocation=journal.allocation,
        expected=place.nodes,
        min_nodes=min(plan.nodes.min, len(place.nodes)),
        max_nodes=plan.nodes.max,
        join_timeout_s=plan.elastic.join_timeout_s,
        lease_s=plan.elastic.lease_s,
        started=await disk.call(journal.first_start),
        exit_timeout_s=plan.elastic.exit_timeout_s,
        restarts=restarts,
        versions=own.versions,
        role_nodes={role.name: min(role.nodes.min, placed.count(role)) for role in plan.roles},
        role_max_nodes={role.name: role.nodes.max for role in plan.roles},
        rejoin=plan.elastic.rejoin,
    )
    journal.is_head = True
    decide = Policy(restart=plan.restart, roles=restarts).decide
    head = Head(settings, history=history, decide=decide, now=asyncio.get_running_loop().time())
    findings = Findings(plan, place)
    return Coordinator(
        head,
        node=place.node,
        journal=journal,
        disk=disk,
        telemetry=telemetry,
        to_own_member=to_own_member,
        diagnose=lambda nodes: findings.read(nodes, own.agent),
    )
