"""The roster of the agents that joined the head: which are present, which are missing, which have fallen silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.lease import MemberLease
from hpc_elastic.membership.messages import Finished, Join, Report, Started, Stopped
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import Endpoint, World
from hpc_elastic.rundir.state_records import HeldState


@dataclass(slots=True, kw_only=True)
class RosterEntry:
    """A joined agent, and its lease by the head's clock.

    `attempt` is the attempt that the agent's workers belong to. `is_in_world`: the agent has workers, or had them
    until the decision on which the head acts. `has_started`: each worker has its process. `store_port`: the node's
    port for the next attempt's store; `held`: the training states in its memory. `was_unhealthy`: it is or has been
    unhealthy.
    """

    join: Join
    node: str = field(init=False)
    role: str = field(init=False)
    lease: MemberLease
    store_port: int
    attempt: int = 0
    is_in_world: bool = False
    has_started: bool = False
    was_unhealthy: bool = False
    held: tuple[HeldState, ...] = ()
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        self.node = self.join.node  # read so often that a property would cost noticeable time
        self.role = self.join.role
        self.workers = self.join.workers
        self.held = self.join.held


class Awaited:
    """The members of the latest world that have not done something yet.

    The head asks after every report whether any are left: the answer must not need a look at each of thousands.
    """

    __slots__ = ("_by_role",)

    def __init__(self) -> None:
        self._by_role: dict[str, dict[str, RosterEntry]] = {}

    def __contains__(self, member: RosterEntry) -> bool:
        return member.node in self._by_role.get(member.role, ())

    def add(self, member: RosterEntry) -> None:
        """Add a member to those that are waited for."""
        self._by_role.setdefault(member.role, {})[member.node] = member

    def discard(self, member: RosterEntry) -> None:
        """Remove a member that has done what was awaited, or that is gone."""
        self._by_role.get(member.role, {}).pop(member.node, None)

    def clear(self, roles: Collection[str] | None) -> None:
        """Wait for no member of these roles any more, or, for None, for no member at all."""
        for role in tuple(self._by_role) if roles is None else roles:
            self._by_role.pop(role, None)

    def roles(self) -> list[str]:
        """Return the roles of which members are waited for."""
        return [role for role, members in self._by_role.items() if members]

    def of(self, roles: Collection[str] | None = None) -> Iterator[RosterEntry]:
        """Return the members that are waited for, in these roles or, for None, in all."""
        wanted = self._by_role if roles is None else sorted(roles)
        return chain.from_iterable(self._by_role.get(role, {}).values() for role in wanted)


class Roster:
    """The agents that have joined, by node name, and the nodes that may still join.

    Args:
        expected: the names of the step's nodes, in the order of their ids.
    """

    __slots__ = (
        "_dead",
        "_entries",
        "_healthy_by_role",
        "_missing",
        "_names",
        "_unhealthy",
        "departures",
        "expected",
        "starting",
        "unfinished",
        "unstopped",
    )

    def __init__(self, expected: tuple[str, ...]) -> None:
        self.expected = expected
        self._names = frozenset(expected)
        self._entries: dict[str, RosterEntry] = {}
        self._dead: set[str] = set()
        self._unhealthy: dict[str, str] = {}  # of the agents that have joined: what their health checks found
        self._healthy_by_role: Counter[str] | None = None  # None: to be counted anew
        self.departures = 0
        self._missing = dict.fromkeys(expected)  # as an ordered set
        self.starting = Awaited()  # members of which not every worker has its process
        self.unfinished = Awaited()  # members of which not every worker has ended
        self.unstopped = Awaited()  # members that have workers which are not stopped yet

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RosterEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, node: str) -> RosterEntry | None:
        """Return the entry of a node, None if it has not joined."""
        return self._entries.get(node)

    def add(self, join: Join, now: float) -> None:
        """Add a node that has joined."""
        entry = RosterEntry(join=join, lease=MemberLease(now), store_port=join.store_port)
        self._entries[join.node] = entry
        self.examined(entry, join.unhealthy)
        self._dead.discard(join.node)
        self._missing.pop(join.node, None)

    def remove(self, node: str) -> RosterEntry | None:
        """Remove a node that is gone, and return its entry, None if it had not joined.

        Slurm never starts a task of a step again, but an agent that is still alive may join again.
        """
        entry = self._entries.pop(node, None)
        self._unhealthy.pop(node, None)
        self._healthy_by_role = None
        if entry is not None:
            self.departures += 1
            self._dead.add(node)
            for awaited in (self.starting, self.unfinished, self.unstopped):
                awaited.discard(entry)
        return entry

    def examined(self, member: RosterEntry, unhealthy: str | None) -> None:
        """Record what a member's health checks found, None if it is healthy."""
        self._healthy_by_role = None
        if unhealthy is None:
            self._unhealthy.pop(member.node, None)
        else:
            self._unhealthy[member.node] = unhealthy
            member.was_unhealthy = True

    def take_place(self, node: str, role: str, workers: int) -> None:
        """Have a member count for the role of its place, which it need not have heard of: it may have been a spare."""
        if (member := self._entries.get(node)) is not None:
            member.role, member.workers = role, workers
            self._healthy_by_role = None

    @property
    def unhealthy(self) -> Mapping[str, str]:
        """Return the members that may have no workers in the next attempt, and what their health checks found."""
        return self._unhealthy

    @property
    def healthy(self) -> int:
        """Return how many members may have workers."""
        return len(self._entries) - len(self._unhealthy)

    def keepers(self) -> dict[str, Endpoint]:
        """Return where the nodes that have joined take and give training states, by node, of those that do."""
        agents = ((entry.node, entry.join.agent.address, entry.join.keeper_port) for entry in self._entries.values())
        return {node: Endpoint(address=address, port=port) for node, address, port in agents if port}

    def switches(self) -> dict[str, str]:
        """Return the switch of each node that has told its own."""
        return {entry.node: entry.join.switch for entry in self._entries.values() if entry.join.switch}

    def expect(self, node: str) -> None:
        """Count a removed node among those that may join again."""
        self._dead.discard(node)
        self._missing[node] = None

    def leave_out(self, node: str) -> None:
        """Stop expecting a node that has not joined."""
        self._dead.add(node)
        self._missing.pop(node, None)

    def why_not(self, join: Join) -> str | None:
        """Return why a node cannot join, None if it can."""
        if join.node in self._entries:
            return f"an agent of {join.node} has joined already; start exactly one task a node"
        if join.node not in self._names:
            return f"{join.node} is not one of the step's nodes, {name_some(self.expected)}"
        return None

    @property
    def possible(self) -> int:
        """Return how many nodes that may have workers have joined, or can still join."""
        return len(self.expected) - len(self._dead) - len(self._unhealthy)

    def missing(self) -> tuple[str, ...]:
        """Return the nodes that can still join, in the order of their ids."""
        return tuple(self._missing)

    def is_missing(self, node: str) -> bool:
        """Return whether a node has not joined and can still do so."""
        return node in self._missing

    @property
    def is_complete(self) -> bool:
        """Return whether no other node can still join."""
        return not self._missing

    def oldest(self, nodes: Iterable[str]) -> float:
        """Return the earliest `acked` time of these nodes, in monotonic seconds; infinity if none has joined."""
        entries = (self._entries[node] for node in nodes if node in self._entries)
        return min((entry.lease.acked for entry in entries), default=float("inf"))

    def names(self) -> set[str]:
        """Return the names of the nodes that have joined."""
        return set(self._entries)

    def in_world(self) -> list[RosterEntry]:
        """Return the members of the latest world that are still here."""
        return [entry for entry in self._entries.values() if entry.is_in_world]

    def silent(self, now: float, lease_s: float) -> list[str]:
        """Return the nodes that have not answered for a whole lease."""
        return [node for node, entry in self._entries.items() if now - entry.lease.acked >= lease_s]

    def short_of(self, least: Mapping[str, int]) -> dict[str, int]:
        """Return the roles that have fewer healthy nodes here than they need, and how many nodes each lacks."""
        here = self._count_healthy()
        return {role: nodes - here[role] for role, nodes in least.items() if here[role] < nodes}

    def surplus(self, most: Mapping[str, int]) -> int:
        """Return how many healthy nodes are here beyond the most that their roles may have: spares of any role."""
        here = self._count_healthy()
        return sum(max(0, here[role] - nodes) for role, nodes in most.items())

    def called_back(self, least: Mapping[str, int], most: Mapping[str, int]) -> dict[str, str]:
        """Return the healthy nodes that leave a place of another role for their own, which lacks nodes, and that role.

        They had taken over the place as spares, and its role has enough nodes without them.
        """
        short, here = self.short_of(least), self._count_healthy()
        spared = {role: min(nodes, most.get(role, nodes)) - least.get(role, 0) for role, nodes in here.items()}
        back: dict[str, str] = {}
        if not short or len(least) < 2:  # asked for each of thousands of losses, most often where there is one role
            return back
        for entry in self._entries.values():
            own = entry.join.role
            if entry.role == own or entry.node in self._unhealthy or not short.get(own) or spared[entry.role] <= 0:
                continue
            back[entry.node] = own
            short[own] -= 1
            spared[entry.role] -= 1
        return back

    def _count_healthy(self) -> Counter[str]:
        """Return how many healthy nodes each role has.

        The head asks for each failure, and 10,000 ranks may fail together: it is counted when somebody comes or goes.
        """
        if self._healthy_by_role is None:
            self._healthy_by_role = Counter(entry.role for entry in self._entries.values())
            self._healthy_by_role.subtract(self._entries[node].role for node in self._unhealthy)
        return self._healthy_by_role

    def seats(self, *, with_unhealthy: bool = False, called_back: Collection[str] = ()) -> list[Seat]:
        """Return what each healthy node brings to a world, by node id; then the same of unhealthy ones, if asked.

        Nodes that are called back to their own role bring what they have joined with.
        """
        entries = sorted(
            (entry for entry in self._entries.values() if with_unhealthy or entry.node not in self._unhealthy),
            key=lambda entry: (entry.node in self._unhealthy, entry.join.node_id),
        )
        return [
            Seat(
                node=entry.node,
                node_id=entry.join.node_id,
                agent=entry.join.agent,
                store_port=entry.store_port,
                workers=entry.join.workers if entry.node in called_back else entry.workers,
                role=entry.join.role if entry.node in called_back else entry.role,
                is_asked_last=entry.was_unhealthy,
            )
            for entry in entries
        ]

    def seat(self, world: World, roles: Collection[str]) -> None:
        """Mark the world's members of these roles as starting an attempt; the other members stay as they are."""
        starting = {node.node for node in world.nodes if node.role in roles}
        for entry in self._entries.values():
            if entry.node in starting:
                entry.attempt = world.attempt
                entry.is_in_world = True
                entry.has_started = False
                entry.lease.nodes = len(world.nodes)
                for awaited in (self.starting, self.unfinished, self.unstopped):
                    awaited.add(entry)

    def reported(self, member: RosterEntry, message: Report) -> None:
        """Record what a member of the world reported about its workers."""
        if isinstance(message, Started):
            member.has_started = True
            self.starting.discard(member)
        elif isinstance(message, Finished):
            self.unfinished.discard(member)
            member.held = message.held
            self.starting.discard(member)  # where failures are ignored, some workers may never start
        elif isinstance(message, Stopped):
            self.unstopped.discard(member)
            if len(parse_ranks(message.succeeded)) == member.workers:  # the stop came before it could say Finished
                self.unfinished.discard(member)
            member.store_port = message.store_port
            member.held = message.held

    def unseat(self, roles: Collection[str] | None) -> None:
        """Mark the members of these roles, or, for None, of all, as having no workers left."""
        for entry in self._entries.values():
            if roles is None or entry.role in roles:
                entry.is_in_world = False
        for awaited in (self.starting, self.unfinished, self.unstopped):
            awaited.clear(roles)
