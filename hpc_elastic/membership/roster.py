"""The agents that joined the head: who is here, who is missing, who has fallen silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.rundir.records import World

NODES_NAMED = 8  # in one line


@dataclass(slots=True, kw_only=True)
class RosterEntry:
    """A joined agent. `last_heard` is in monotonic seconds of the head.

    `attempt` is the one that its workers belong to. `is_in_world`: it has workers, or had them until
    the decision on which the head acts.
    """

    join: Join
    last_heard: float
    attempt: int = 0
    is_in_world: bool = False
    has_started: bool = False
    has_ended: bool = False
    is_finished: bool = False
    is_stopped: bool = True

    @property
    def node(self) -> str:
        """The node's name."""
        return self.join.node

    @property
    def role(self) -> str:
        """The role of the node's workers."""
        return self.join.role

    def offer_store_port(self, port: int) -> None:
        """The node's port for the next attempt's store."""
        self.join = replace(self.join, store_port=port)


class Roster:
    """Joined agents by node name.

    Args:
        expected: the names of the step's nodes, in the order of their ids.
    """

    __slots__ = ("_dead", "_entries", "expected")

    def __init__(self, expected: tuple[str, ...]) -> None:
        self.expected = expected
        self._entries: dict[str, RosterEntry] = {}
        self._dead: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RosterEntry]:
        return iter(tuple(self._entries.values()))

    def get(self, node: str) -> RosterEntry | None:
        """The entry of a node, None if it has not joined."""
        return self._entries.get(node)

    def add(self, join: Join, now: float) -> None:
        """A node has joined."""
        self._entries[join.node] = RosterEntry(join=join, last_heard=now)
        self._dead.discard(join.node)

    def remove(self, node: str) -> RosterEntry | None:
        """A node is gone for good: Slurm never starts a task of a step again."""
        entry = self._entries.pop(node, None)
        if entry is not None:
            self._dead.add(node)
        return entry

    def leave_out(self, node: str) -> None:
        """A node that is not here will not come."""
        self._dead.add(node)

    def clear(self) -> None:
        """Nobody is here any more."""
        self._entries.clear()

    def why_not(self, join: Join) -> str | None:
        """Why a node cannot join, None if it can."""
        if join.node in self._entries:
            return f"an agent of {join.node} has joined already; start exactly one task a node"
        if join.node not in self.expected:
            return f"{join.node} is not one of the step's nodes, {name_some(self.expected)}"
        return None

    @property
    def possible(self) -> int:
        """How many nodes are here or can still come."""
        return len(self.expected) - len(self._dead)

    def missing(self) -> tuple[str, ...]:
        """Who can still come, in the order of the node ids."""
        return tuple(node for node in self.expected if node not in self._entries and node not in self._dead)

    def in_world(self) -> list[RosterEntry]:
        """The members of the latest world that are still here."""
        return [entry for entry in self._entries.values() if entry.is_in_world]

    def unfinished(self) -> list[RosterEntry]:
        """The members whose workers have not all ended."""
        return [entry for entry in self.in_world() if not entry.is_finished]

    def silent(self, now: float, lease_s: float) -> list[str]:
        """The nodes that were not heard for longer than the lease."""
        return [node for node, entry in self._entries.items() if now - entry.last_heard > lease_s]

    def short_of(self, least: Mapping[str, int]) -> tuple[str, ...]:
        """The roles that have fewer nodes here than they must."""
        here = Counter(entry.role for entry in self._entries.values())
        return tuple(role for role, nodes in least.items() if here[role] < nodes)

    def seats(self) -> list[Seat]:
        """What the nodes bring, in the order of their ids."""
        joins = sorted((entry.join for entry in self._entries.values()), key=lambda join: join.node_id)
        return [
            Seat(
                node=join.node,
                node_id=join.node_id,
                agent=join.agent,
                store_port=join.store_port,
                workers=join.workers,
                role=join.role,
            )
            for join in joins
        ]

    def seat(self, world: World, roles: Collection[str]) -> None:
        """The world's members of these roles begin an attempt; everybody else stays as he is."""
        starting = {node.node for node in world.nodes if node.role in roles}
        for entry in self._entries.values():
            if entry.node in starting:
                entry.attempt = world.attempt
                entry.is_in_world = True
                entry.has_started = entry.has_ended = entry.is_finished = entry.is_stopped = False

    def unseat(self, roles: Collection[str] | None) -> None:
        """No worker of these roles is left; None: of any."""
        for entry in self._entries.values():
            if roles is None or entry.role in roles:
                entry.is_in_world = False


def name_some(nodes: Sequence[str]) -> str:
    """The nodes in a line that stays one: the first few by name, the others as a number."""
    more = f" and {len(nodes) - NODES_NAMED} more" if len(nodes) > NODES_NAMED else ""
    return ", ".join(nodes[:NODES_NAMED]) + more
