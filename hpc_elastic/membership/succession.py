"""What an agent without a head knows: how it lost the last one, and what the run directory says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, RunResult, World


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHead:
    """The head that an agent had. `contact`: when its last message came, in monotonic seconds of this agent.

    `node` is None for one that never assigned an attempt; `is_dead`: the kernel of its machine closed the
    connection without a word of the head, so its agent is dead, and its workers with it. `attempt`: the latest
    one that it assigned to this node.
    """

    node: str | None
    contact: float
    is_dead: bool
    why: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What the run directory says, read at once.

    `first` is the claim of this allocation, `claim` the latest one of an attempt in it and `world` its
    roster, both None before the first; `is_finished`: by the node records, every worker of `world` exited 0.
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
    """Why a head gathers members for the attempt after `world`: it lost the head of that."""

    lost: LostHead
    world: World
    is_finished: bool


def order_of_succession(names: Sequence[str]) -> list[str]:
    """Who takes the place of a lost head, by turns.

    The first comes first, then the one in the middle, those of the quarters, of the eighths and so on (the van der
    Corput sequence): nodes of one rack or switch have names in a row, and when all of them are lost with the head,
    only a few of the first turns are theirs.

    Args:
        names: who may, by node id.
    """
    bits = max(len(names) - 1, 1).bit_length()
    places = (int(f"{turn:0{bits}b}"[::-1], 2) for turn in range(2**bits))
    return [names[place] for place in places if place < len(names)]
