"""What each node did from the beginning of a run to its end; pure.

Nodes that did the same at the same times have one row, however many they are: of 512 nodes those stand out that
failed, were lost or came late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from hpc_elastic.useful_time.division import AttemptTimes


class NodeState(str, Enum):
    """What a node does; before it has joined it has no state."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"
    SPARE = "spare"
    LOST = "lost"


_OF_NO_ATTEMPT = (NodeState.WAITING, NodeState.SPARE, NodeState.LOST)


@dataclass(frozen=True, slots=True)
class Segment:
    """A node's state between two times in Unix seconds; `attempt` is 0 where it has no part in one."""

    begin: float
    end: float
    state: NodeState
    attempt: int


_Segments: TypeAlias = tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNews:
    """A node joined, or was lost."""

    at: float
    node: str
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """The nodes that did the same, in their order, and what they did."""

    nodes: tuple[str, ...]
    segments: tuple[Segment, ...]


def draw_timeline(
    attempts: Sequence[tuple[AttemptTimes, frozenset[str], frozenset[str]]],
    news: Sequence[NodeNews],
    *,
    nodes: Sequence[str],
    begin: float,
    end: float,
) -> list[TimelineRow]:
    """Return a row for each group of nodes that did the same.

    Args:
        attempts: of each attempt its times, its nodes, and those of its nodes on which a rank failed.
        news: which node came and which was lost, in any order.
        nodes: all nodes, in the order of the rows.
        begin: the beginning of the run in Unix seconds.
        end: its end, or now.
    """
    by_node: dict[str, list[_Mark]] = {}
    for each in news:
        mark = _Mark(each.at, 1, NodeState.LOST if each.is_lost else NodeState.WAITING, 0)
        by_node.setdefault(each.node, []).append(mark)
    histories = _Histories(attempts, begin, end)
    rows: dict[tuple[_Segments, int], list[str]] = {}
    for node in nodes:
        rows.setdefault(histories.find(node, by_node.get(node, ())), []).append(node)
    return [TimelineRow(nodes=tuple(names), segments=histories.segments(key)) for key, names in rows.items()]


class _Mark(NamedTuple):
    """A moment at which a node's state may change, to `state`; marks of one moment go in the order of `turn`."""

    at: float
    turn: int
    state: NodeState | None
    attempt: int


class _Histories:
    """What nodes did, as two parts: until the first attempt, and from then on.

    Nodes come one by one, and most of them do the same from the first attempt on: of thousands of nodes with hundreds
    of attempts that part is found once.

    Args:
        attempts: as `draw_timeline` gets them.
        begin: the beginning of the run in Unix seconds.
        end: its end, or now.
    """

    def __init__(
        self, attempts: Sequence[tuple[AttemptTimes, frozenset[str], frozenset[str]]], begin: float, end: float
    ) -> None:
        self._attempts = attempts
        self._begin = begin
        self._end = end
        every = [
            mark for index in range(len(attempts)) for part in _Part for mark in self._marks_of_attempt(index, part)
        ]
        self._first = min((mark[:2] for mark in every), default=(math.inf, 0))
        self._later: dict[tuple[object, ...], tuple[Segment | None, int, int]] = {}
        self._numbers: dict[_Segments, int] = {}

    def find(self, node: str, news: Sequence[_Mark]) -> tuple[_Segments, int]:
        """Return a node's segments until the first attempt, and the number of those from then on."""
        early = [mark for mark in news if mark[:2] < self._first]
        late = tuple(mark for mark in news if mark[:2] >= self._first)
        early = sorted([_Mark(self._begin, 0, None, 0), *early], key=lambda mark: mark[:2])
        segments, state = self._walk(early, None, min(self._first[0], self._end))
        parts = bytes(
            _Part.NONE if node not in members else _Part.FAILED if node in failed else _Part.MEMBER
            for _, members, failed in self._attempts
        )
        key = (parts, state, late)
        if key not in self._later:
            marks = [mark for index, part in enumerate(parts) for mark in self._marks_of_attempt(index, part)]
            marks = sorted([*late, *marks], key=lambda mark: mark[:2])
            later, _ = self._walk(marks, state, self._end)
            self._later[key] = (later[0] if later else None, self._number(later), self._number(later[1:]))
        first, number, number_without_first = self._later[key]
        if first is not None and segments and _are_one(segments[-1], first):
            _add(segments, first)
            number = number_without_first
        return self._rounded(segments), number

    def _number(self, segments: Sequence[Segment]) -> int:
        return self._numbers.setdefault(self._rounded(segments), len(self._numbers))

    def segments(self, key: tuple[_Segments, int]) -> _Segments:
        """Return all segments of nodes for which `find` has returned this."""
        early, number = key
        return early + list(self._numbers)[number]

    def _marks_of_attempt(self, index: int, part: int) -> Iterator[_Mark]:
        attempt, number = self._attempts[index][0], self._attempts[index][0].number
        if part == _Part.NONE:
            yield _Mark(attempt.opened, 2, NodeState.SPARE, number)
            return
        yield _Mark(attempt.opened, 2, NodeState.STARTING, number)
        if attempt.started is not None:
            yield _Mark(attempt.started, 3, NodeState.RUNNING, number)
        later = self._attempts[index + 1][0].opened if index + 1 < len(self._attempts) else self._end
        if attempt.ended is not None and attempt.ended < later:
            yield _Mark(attempt.ended, 4, NodeState.FAILED if part == _Part.FAILED else NodeState.STOPPING, number)

    def _walk(
        self, marks: Sequence[_Mark], state: NodeState | None, until: float
    ) -> tuple[list[Segment], NodeState | None]:
        """Return the segments between all marks, and the last state, which lasts `until` then."""
        segments: list[Segment] = []
        number = 0
        for index, (at, _, new, attempt) in enumerate(marks):
            state, number = _next_state(state, new), attempt or number
            following = marks[index + 1].at if index + 1 < len(marks) else until
            if state is not None and min(following, self._end) > max(at, self._begin):
                own = 0 if state in _OF_NO_ATTEMPT else number
                _add(segments, Segment(max(at, self._begin), min(following, self._end), state, own))
        return segments, state

    def _rounded(self, segments: Sequence[Segment]) -> _Segments:
        """Return segments with times to a thousandth of the whole, so that nodes that nearly did the same are alike."""
        begin, unit = self._begin, max((self._end - self._begin) / 1000, 1e-6)
        found: list[Segment] = []
        for each in segments:
            first, last = round((each.begin - begin) / unit), round((each.end - begin) / unit)
            if last > first:
                found.append(Segment(begin + first * unit, begin + last * unit, each.state, each.attempt))
        return tuple(found)


class _Part(IntEnum):
    """A node's part in an attempt."""

    NONE = 0
    MEMBER = 1
    FAILED = 2  # a rank failed there


def _next_state(state: NodeState | None, new: NodeState | None) -> NodeState | None:
    """Return the state after a mark: who is not there is no spare, and who is at work does not wait."""
    if new is NodeState.SPARE and state in (None, NodeState.LOST):
        return state
    if new is NodeState.WAITING and state in (NodeState.STARTING, NodeState.RUNNING, NodeState.SPARE):
        return state
    if new in (NodeState.RUNNING, NodeState.STOPPING) and state in (NodeState.LOST, NodeState.FAILED):
        return state  # the head hears of the loss of a node before it decides that the attempt is over
    return new


def _are_one(before: Segment, after: Segment) -> bool:
    return before.state is after.state and before.attempt == after.attempt


def _add(segments: list[Segment], segment: Segment) -> None:
    if segments and _are_one(segments[-1], segment):
        segment = Segment(segments.pop().begin, segment.end, segment.state, segment.attempt)
    segments.append(segment)
