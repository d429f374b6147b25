"""What an agent without a head knows: how it lost the last one, and what the run directory says."""

from __future__ import annotations

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
    """

    result: RunResult | None
    first: AllocationClaim | None
    claim: AttemptClaim | None
    world: World | None
    is_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """Why a head gathers members for the attempt after `world`: it lost the head of that."""

    lost: LostHead
    world: World
    is_finished: bool
