"""The knowledge of an agent without a head: how it lost the last one, what the records say, whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, RunResult, World


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHead:
    """The head that an agent had. `contact`: when its last message came, in monotonic seconds of this agent.

    `node` is None for a head that never assigned an attempt; `is_dead`: the kernel of its machine closed the
    connection without a message from the head, so its agent is dead, and its workers with it. `attempt`: the latest
    attempt that it assigned to this node.
    """

    node: str | None
    contact: float
    is_dead: bool
    why: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of the run directory that a search needs, read together.

    `first` is the claim of this allocation, `claim` the latest claim of an attempt in it and `world` that attempt's
    roster, both None before the first attempt; `is_finished`: by the node records, every worker of `world` exited 0.
    `started_again`: the number of the latest allocation, if it is of another start of the job than this agent's.
    """

    result: RunResult | None
    first: AllocationClaim | None
    claim: AttemptClaim | None
    world: World | None
    is_finished: bool = False
    started_again: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """The reason why a head gathers members for the attempt after `world`: the head of `world` is lost.

    `is_spare`: the agent that gathers is not a member of `world`.
    """

    lost: LostHead
    world: World
    is_finished: bool
    is_spare: bool = False


def order_of_succession(names: Sequence[str]) -> list[str]:
    """Return the nodes that may take the place of a lost head, in the order of their turns.

    The first node comes first, then the one in the middle, then those at the quarters, at the eighths and so on (the
    van der Corput sequence): nodes of one rack or switch have names in a row, and when all of them are lost with the
    head, only a few of the first turns are theirs.

    Args:
        names: the nodes that may take its place, by node id.
    """
    bits = max(len(names) - 1, 1).bit_length()
    places = (int(f"{turn:0{bits}b}"[::-1], 2) for turn in range(2**bits))
    return [names[place] for place in places if place < len(names)]
