"""What each node did from the beginning of a run to its end; pure.

Nodes that did the same at the same times have one row, however many they are: of 512 nodes those stand out that
failed, were lost or came late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

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
    by_node: dict[str, list[NodeNews]] = {}
    for each in sorted(news, key=lambda each: each.at):
        by_node.setdefault(each.node, []).append(each)
    rows: dict[tuple[Segment, ...], list[str]] = {}
    for node in nodes:
        segments = tuple(_segments(node, attempts, by_node.get(node, ()), begin, end))
        rows.setdefault(_rounded(segments, begin, end), []).append(node)
    return [TimelineRow(nodes=tuple(names), segments=segments) for segments, names in rows.items()]


def _segments(
    node: str,
    attempts: Sequence[tuple[AttemptTimes, frozenset[str], frozenset[str]]],
    news: Sequence[NodeNews],
    begin: float,
    end: float,
) -> list[Segment]:
    """Return what one node did: the states between all times at which one may begin."""
    marks: list[tuple[float, int, NodeState | None, int]] = [(begin, 0, None, 0)]
    for each in news:
        marks.append((each.at, 1, NodeState.LOST if each.is_lost else NodeState.WAITING, 0))
    for number, (attempt, members, failed) in enumerate(attempts):
        later = attempts[number + 1][0].opened if number + 1 < len(attempts) else end
        if node not in members:
            marks.append((attempt.opened, 2, NodeState.SPARE, attempt.number))
            continue
        marks.append((attempt.opened, 2, NodeState.STARTING, attempt.number))
        if attempt.started is not None:
            marks.append((attempt.started, 3, NodeState.RUNNING, attempt.number))
        if attempt.ended is not None and attempt.ended < later:
            ending = NodeState.FAILED if node in failed else NodeState.STOPPING
            marks.append((attempt.ended, 4, ending, attempt.number))
    marks.sort(key=lambda mark: mark[:2])
    segments: list[Segment] = []
    state: NodeState | None = None
    number = 0
    for index, (at, _, new, attempt_number) in enumerate(marks):
        state, number = _next_state(state, new), attempt_number or number
        until = marks[index + 1][0] if index + 1 < len(marks) else end
        if state is not None and min(until, end) > max(at, begin):
            own = 0 if state in _OF_NO_ATTEMPT else number
            _add(segments, Segment(max(at, begin), min(until, end), state, own))
    return segments


def _next_state(state: NodeState | None, new: NodeState | None) -> NodeState | None:
    """Return the state after a mark: who is not there is no spare, and who is at work does not wait."""
    if new is NodeState.SPARE and state in (None, NodeState.LOST):
        return state
    if new is NodeState.WAITING and state in (NodeState.STARTING, NodeState.RUNNING, NodeState.SPARE):
        return state
    if new in (NodeState.RUNNING, NodeState.STOPPING) and state in (NodeState.LOST, NodeState.FAILED):
        return state  # the head hears of the loss of a node before it decides that the attempt is over
    return new


def _add(segments: list[Segment], segment: Segment) -> None:
    if segments and segments[-1].state is segment.state and segments[-1].attempt == segment.attempt:
        segment = Segment(segments[-1].begin, segment.end, segment.state, segment.attempt)
        segments.pop()
    segments.append(segment)


def _rounded(segments: Sequence[Segment], begin: float, end: float) -> tuple[Segment, ...]:
    """Return the segments with times to a thousandth of the whole, so that nodes that nearly did the same are alike."""
    unit = max((end - begin) / 1000, 1e-6)

    def near(at: float) -> float:
        return begin + round((at - begin) / unit) * unit

    found: list[Segment] = []
    for each in segments:
        if near(each.end) > near(each.begin):
            found.append(Segment(near(each.begin), near(each.end), each.state, each.attempt))
    return tuple(found)
