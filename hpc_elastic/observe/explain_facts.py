"""The facts behind an explanation, as they were read, and the failure among them that is the cause; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpc_elastic.failures.classes import blame_of
from hpc_elastic.observe.facts import AttemptFacts
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rank_set import RankSetError, parse_ranks

if TYPE_CHECKING:  # compiled patterns that only an attempt that hung needs
    from hpc_elastic.failures.stacks import StackGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFacts:
    """The failure of one rank, from a record or from its error file."""

    rank: int
    node: str
    attempt: int
    failure_class: str
    message: str
    frame: str = ""
    detail: str = ""
    exitcode: int | None = None
    signal_name: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    timestamp: float = 0.0
    is_after_stop: bool = False

    @property
    def order(self) -> tuple[int, bool, float, int]:
        """The failure's place among others as the likely cause: the lowest is the likeliest."""
        return blame_of(self.failure_class).value, self.is_after_stop, self.timestamp or float("inf"), self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The end of a file as evidence, and the file's path."""

    title: str
    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoss:
    """A head's note that a node was lost; `timestamp` is in Unix seconds."""

    node: str
    message: str
    timestamp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWish:
    """A person's or a program's request to stop the run."""

    by: str
    time: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFacts:
    """The facts behind an explanation.

    `attempt` is the one to explain, None if there is none to explain. `failures` are the failures of that attempt that
    are known, `has_all_failures` says whether these are all; `culprit` the one that is its cause. `has_ended` says
    whether the attempt is over; `failed_agent` is the node whose agent failed itself. `stacks` are where the ranks of
    an attempt that hung were, those that wait for others last; `collectives` what torch's flight recorder says.
    `is_scancelled`: the agents got the TERM that ended the run from a `scancel`, by the script's output. `taken_nodes`
    are lost nodes that the scheduler has taken from the job. `is_foreground`: the run was called in an allocation.
    """

    snapshot: Snapshot
    attempt: int | None
    has_ended: bool = True
    failures: tuple[FailureFacts, ...] = ()
    has_all_failures: bool = True
    culprit: FailureFacts | None = None
    failed_agent: str = ""
    losses: tuple[NodeLoss, ...] = ()
    stops: tuple[StopWish, ...] = ()
    stacks: tuple[StackGroup, ...] = ()
    collectives: tuple[str, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_scancelled: bool = False
    taken_nodes: tuple[str, ...] = ()
    is_foreground: bool = False


def find_culprit(root_cause: Mapping[str, Any] | None, failures: Iterable[FailureFacts]) -> FailureFacts | None:
    """Return the failure that the root cause names; without one the likeliest, None if none is known."""
    if root_cause is None:
        return min(failures, key=lambda failure: failure.order, default=None)
    rank = number_of(root_cause, "rank")
    if rank is None:
        return None
    named = FailureFacts(
        rank=rank,
        node=text_of(root_cause, "node"),
        attempt=number_of(root_cause, "attempt") or 0,
        failure_class=text_of(root_cause, "class"),
        message="",
        frame=text_of(root_cause, "frame"),
        timestamp=seconds_of(root_cause),
    )
    same = (failure for failure in failures if failure.rank == rank)
    return next(same, named)


def root_cause_of_attempt(snapshot: Snapshot, attempt: int | None) -> Mapping[str, Any] | None:
    """Return the recorded root cause of an attempt's end: it is in the claim of the next attempt, or in the result.

    Of a run that has ended before its first attempt (`attempt` is None) it is the result's.
    """
    if attempt is None and snapshot.attempt_history:
        return None
    later = attempt_after(snapshot, attempt)
    return later.root_cause if later is not None else snapshot.root_cause if snapshot.is_over else None


def attempt_after(snapshot: Snapshot, attempt: int | None) -> AttemptFacts | None:
    """Return the attempt that followed an attempt; None if it is the last one, or none."""
    return next((each for each in snapshot.attempt_history if attempt is not None and each.number > attempt), None)


def frame_of(facts: ExplainFacts) -> str:
    """Return the innermost frame of the user's code, such as `train.py:88 in step`; empty if none is known."""
    root_cause = root_cause_of_attempt(facts.snapshot, facts.attempt)
    frame = (facts.culprit.frame if facts.culprit else "") or text_of(root_cause, "frame")
    return frame.removesuffix(" in <module>")


def text_of(record: Mapping[str, Any] | None, key: str) -> str:
    """Return a record's text; empty if the record has none there."""
    value = record.get(key) if record is not None else None
    return value if isinstance(value, str) else ""


def number_of(record: Mapping[str, Any] | None, key: str) -> int | None:
    """Return a record's whole number; None if the record has none there."""
    value = record.get(key) if record is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks of a set in a record; none if it is no set of ranks."""
    try:
        return parse_ranks(text)
    except RankSetError:
        return ()


def seconds_of(record: Mapping[str, Any] | None) -> float:
    """Return a record's `timestamp` as Unix seconds; 0.0 if it has none."""
    return unix_seconds(record.get("timestamp") if record is not None else None)


def unix_seconds(value: object) -> float:
    """Return a value of a record as Unix seconds; 0.0 if it is no time that this machine can show."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 253_402_300_800 else 0.0  # type: ignore[operator,arg-type]
