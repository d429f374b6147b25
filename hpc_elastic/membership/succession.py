"""The knowledge of an agent without a head: how it lost the last one, what the records say, whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.membership.timing import MOST_TURNS
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Candidate,
    Candidates,
    Endpoint,
    RunResultRecord,
    World,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHead:
    """The head that an agent had. `contact`: when its last message came, in monotonic seconds of this agent.

    `node` is None for a head that never assigned an attempt; `is_dead`: the kernel of its machine closed the
    connection without a message from the head, so its agent is dead, and its workers with it. `was_silent`: it did so
    after a silence, as a machine does that has started again meanwhile. `attempt`: the latest attempt that it assigned
    to this node. `was_paused`: this agent stood still until then, so the head may have stood still as well. `spares`:
    the nodes without a part in its world, as far as it has told. `round_trip_s`: how long the slowest of its latest
    echoes took, which tells of the network as well as of the head.
    """

    node: str | None
    contact: float
    is_dead: bool
    why: str
    attempt: int = 0
    was_silent: bool = False
    was_paused: bool = False
    spares: tuple[Candidate, ...] = ()
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of the run directory that a search needs, read together.

    `first` is the claim of this allocation, `claim` the latest claim of an attempt in it, None before the first, and
    `world` that attempt's roster, None also where it is not needed yet; `is_finished`: by the node records, every
    worker of `world` exited 0.
    `started_again`: the number of the latest allocation, if it is of another start of the job than this agent's.
    `left_for`: the reason for which a head has left this allocation before its first attempt, and the job starts again.
    `has_head_failed`: the agent of its head has recorded, before the first attempt, that it failed itself.
    """

    result: RunResultRecord | None
    first: AllocationClaim | None
    claim: AttemptClaim | None
    world: World | None
    is_finished: bool = False
    started_again: int | None = None
    left_for: str = ""
    has_head_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """The reason why a head gathers members for the attempt after `world`: the head of `world` is lost.

    `is_spare`: the agent that gathers is not a member of `world`.
    """

    lost: LostHead
    world: World
    is_finished: bool
    is_spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order in which the agents of a world may take its head's place, and where they listen.

    `members` are all nodes of the world; `turns` those other than the head, in the order of their turns, from the claim
    only the first ones. `spares`, all other nodes of the step, come after the members: those of the record first, for
    all of them have it; where the agents of the others listen the head may have told. A head without workers is none of
    them.
    """

    head: str
    members: frozenset[str]
    turns: tuple[str, ...]
    spares: tuple[str, ...]
    agents: Mapping[str, Endpoint]

    @property
    def others(self) -> int:
        """Return how many members the world has beside its head."""
        return len(self.members - {self.head})

    def before(self, node: str) -> tuple[str, ...]:
        """Return the known members whose turn comes before this member's; the head's own comes first of all."""
        if node == self.head:
            return ()
        return self.turns[: self.turns.index(node)] if node in self.turns else self.turns


def order_of(records: Records, told: Sequence[Candidate] = ()) -> Order | None:
    """Return the order of succession by the roster, else as far as the claim itself has it; None if neither does.

    Args:
        records: what the run directory says.
        told: the spares that the lost head has named.
    """
    claim, candidates = records.claim, None
    if records.world is not None:
        head, names = records.world.head, [node.node for node in records.world.nodes]
        candidates = candidates_of(records.world)
    elif claim is not None:
        head, names, candidates = claim.head, list(claim.members), claim.candidates
    if candidates is None:
        return None
    agents = {each.node: each.agent for each in (*told, *candidates.turns, *candidates.spares)}
    members = frozenset(names)
    named = [each.node for each in candidates.spares]
    known = {*members, *named, head}
    step = records.first.nodes if records.first is not None else ()
    return Order(
        head=head,
        members=members,
        turns=tuple(each.node for each in candidates.turns),
        spares=(*named, *(node for node in step if node not in known)),
        agents=agents if candidates.head is None else {**agents, head: candidates.head},
    )


def candidates_of(world: World, *, most: int | None = None) -> Candidates:
    """Return the agents that may take the place of a world's head, with `most` members at most."""
    nodes = {node.node: node for node in sorted(world.nodes, key=lambda node: node.node_id)}
    turns = order_of_succession([name for name in nodes if name != world.head])[:most]
    spares = {spare.node: spare.agent for spare in world.spares}
    head = nodes[world.head].agent if world.head in nodes else spares.get(world.head)
    return Candidates(
        head=head,
        turns=tuple(Candidate(node=name, agent=nodes[name].agent) for name in turns),
        spares=tuple(Candidate(node=name, agent=agent) for name, agent in spares.items() if name != world.head),
    )


def with_candidates(claim: AttemptClaim, world: World) -> AttemptClaim:
    """Return the claim with the first agents that may take its head's place."""
    return replace(claim, candidates=candidates_of(world, most=MOST_TURNS))


def order_of_succession(names: Sequence[str]) -> list[str]:
    """Return the nodes that may take the place of a lost head, in the order of their turns.

    The first node comes first, then the one in the middle, then those at the quarters, at the eighths and so on (the
    van der Corput sequence): nodes of one rack or switch have names in a row, and when all of them are lost with the
    head, only a few of the first turns are theirs.

    Args:
        names: the nodes that may take its place, by node id.
    """
    bits = len(names).bit_length()
    places = (int(f"{turn:0{bits}b}"[::-1], 2) for turn in range(2**bits))
    return [names[place] for place in places if place < len(names)]
