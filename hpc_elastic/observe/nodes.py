"""Finds the nodes that are spare, lost, or set aside, from the claims and from the heads' events.

Theory of operation. A head notes in its own events who joins and who is lost, with the attempt that is the
latest one then, or that it is claiming. The head of an attempt may be cut off and note that everybody is lost, while
another node claims the next attempt; so the notes of one attempt are read in this order: those of heads of earlier
allocations, which meant to claim it too, the attempt's claim, the notes of the head that claimed it, the notes of other
heads, which gather for the next attempt, in the order of their allocations. Times are not compared: they are of
different machines. A head that is lost notes nothing, but the next world is without it. Nor does it note whom it takes
along: a spare that was with it and has not come to the next head is lost as well, until it does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpc_elastic.observe.clock_steps import CLOCK_SET, ClockStep, parse_step
from hpc_elastic.observe.tail import Tail
from hpc_elastic.rundir.layout import RunLayout

_LOST = "node.lost"
_ASIDE = "node.set_aside"
NODE_LEFT_OUT = "node.left_out"
_NOTICE = "notice.given"
_FAILED = "attempt.failed"
NODE_UNHEALTHY = "node.unhealthy"
_HEALTHY = "node.healthy"
JOINED = ("node.joined", "node.returned", "node.parked")
_NAMES = (_LOST, _ASIDE, NODE_LEFT_OUT, NODE_UNHEALTHY, _HEALTHY, *JOINED)


class NodeNote(NamedTuple):
    """A head's note of a node, by the name of the event; `why` is empty where the event needs no reason."""

    allocation: int
    attempt: int
    head: str
    node: str
    name: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNodes:
    """The nodes of an attempt, the head that claimed it, and why its claim leaves others out that are to blame.

    `allocation` is the one in which it was claimed.
    """

    attempt: int
    allocation: int
    head: str
    nodes: Sequence[str]
    blamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesBeside:
    """The nodes that are not at work: those that could be, those that are lost, and those that are here and left out.

    `set_aside` has the reason of each of the last, in the order of the step: it is drained, blamed, or unhealthy.
    `lost_aside` has that of each lost node that gets no workers when it is back either. `left_out` are those without
    which the others have begun, with the reasons: no agent has come, or it cannot take part. `awaited` are those that
    have not joined, until the first attempt.
    """

    spares: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)
    lost_aside: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    awaited: tuple[str, ...] = ()


class NoticeNote(NamedTuple):
    """A head's note that it gave the workers a notice, in nanoseconds since 1970 by that head's clock."""

    allocation: int
    time_ns: int
    text: str


class FailureNote(NamedTuple):
    """A head's note of why an attempt ended, after which it makes ready the next one."""

    allocation: int
    attempt: int
    text: str


class NodeNotes:
    """Reads the notes of heads repeatedly; each note is read once.

    `notices`, `failures` and `clock_steps` are those of the heads read so far.
    """

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._tails: dict[str, Tail] = {}
        self._notes: list[NodeNote] = []
        self.notices: list[NoticeNote] = []
        self.failures: list[FailureNote] = []
        self.clock_steps: list[ClockStep] = []

    def read(self, heads: Iterable[str]) -> Sequence[NodeNote]:
        """Return all notes of these heads so far."""
        for head in heads:
            tail = self._tails.setdefault(head, Tail(self._layout.events(head)))
            for line in tail.read_lines():
                if '"node.' in line and (note := _parse(head, line)) is not None:
                    self._notes.append(note)
                elif _NOTICE in line and (notice := _parse_notice(line)) is not None:
                    self.notices.append(notice)
                elif _FAILED in line and (failure := _parse_failure(line)) is not None:
                    self.failures.append(failure)
                elif CLOCK_SET in line and (step := parse_step(_event(line, CLOCK_SET))) is not None:
                    self.clock_steps.append(step)
        return self._notes


def find_nodes_beside(worlds: Sequence[AttemptNodes], notes: Iterable[NodeNote], order: Sequence[str]) -> NodesBeside:
    """Return the nodes that are spare, those that are lost, and those that are set aside now.

    Args:
        worlds: the attempts of one allocation.
        notes: the notes of the same allocation.
        order: the nodes of the step, by node id.
    """
    claims = {world.attempt: world for world in worlds}
    by_attempt: dict[int, list[NodeNote]] = {}
    notes = tuple(notes)
    for note in notes:
        by_attempt.setdefault(_latest_then(note, claims), []).append(note)
    joined: dict[str, int] = {}  # the attempt that was the latest one when the node joined
    lost: set[str] = set()
    aside: dict[str, str] = {}
    unhealthy: dict[str, str] = {}
    absent: dict[str, str] = {}
    world: AttemptNodes | None = None
    for attempt in sorted({*claims, *by_attempt}):
        if attempt in claims:
            world, before = claims[attempt], world
            aside = {**{node: f"blamed: {why}" for node, why in world.blamed.items()}, **aside}
            lost |= _left_out(before, world, joined) - aside.keys() - unhealthy.keys()
            lost |= joined.keys() & _stayed_behind(before, world, notes) - aside.keys() - unhealthy.keys()
            lost.difference_update(world.nodes)
            absent = {node: why for node, why in absent.items() if node not in world.nodes}
        claimed_by = claims[attempt].head if attempt in claims else None
        for note in sorted(by_attempt.get(attempt, ()), key=lambda note: (note.head != claimed_by, note.allocation)):
            if note.name == _ASIDE:
                aside[note.node] = note.why
            elif note.name == NODE_UNHEALTHY:
                unhealthy[note.node] = f"unhealthy: {note.why}"
            elif note.name == _HEALTHY:
                unhealthy.pop(note.node, None)
            elif note.name == _LOST:
                lost.add(note.node)
            elif note.name == NODE_LEFT_OUT:
                absent[note.node] = note.why
                joined.pop(note.node, None)  # that was with another head
            else:
                lost.discard(note.node)
                absent.pop(note.node, None)
                joined[note.node] = attempt
    at_work: Collection[str] = world.nodes if world is not None else ()
    waiting = joined.keys() - lost - set(at_work)
    left_out = {**unhealthy, **aside}
    return NodesBeside(
        spares=tuple(node for node in order if node in waiting and node not in left_out),
        lost=tuple(node for node in order if node in lost),
        set_aside={node: left_out[node] for node in order if node in waiting and node in left_out},
        lost_aside={node: aside[node] for node in order if node in lost and node in aside},
        left_out={node: absent[node] for node in order if node in absent},
        awaited=tuple(node for node in order if node not in joined | absent) if joined and world is None else (),
    )


def _latest_then(note: NodeNote, claims: Mapping[int, AttemptNodes]) -> int:
    """Return the latest attempt when a head made a note: the one before, if another head has claimed that one since."""
    claim = claims.get(note.attempt)
    return note.attempt - (claim is not None and note.allocation < claim.allocation)


def _stayed_behind(before: AttemptNodes | None, world: AttemptNodes, notes: Sequence[NodeNote]) -> set[str]:
    """Return the nodes that have not come to a new head, of all that some head has noted."""
    if before is None or before.head == world.head:
        return set()
    own = {
        note.node
        for note in notes
        if note.name in JOINED and note.head == world.head and note.attempt >= before.attempt
    }
    return {note.node for note in notes} - own


def _left_out(before: AttemptNodes | None, world: AttemptNodes, joined: Mapping[str, int]) -> set[str]:
    """Return the nodes lost between two worlds: those of the first that are not in the next and have not rejoined."""
    if before is None:
        return set()
    gone = set(before.nodes) - set(world.nodes)
    return {node for node in gone if joined.get(node, -1) < before.attempt}


def _parse(head: str, line: str) -> NodeNote | None:
    try:
        event: Any = json.loads(line)
        if event["name"] not in _NAMES:
            return None
        metadata = event["metadata"]
        node, why = str(metadata["node"]), str(metadata.get("reason", ""))
        return NodeNote(int(event["allocation"]), int(event["attempt"]), head, node, event["name"], why)
    except (ValueError, KeyError, TypeError):
        return None  # a torn line, or one of an older version


def _parse_notice(line: str) -> NoticeNote | None:
    event = _event(line, _NOTICE)
    if not isinstance(event.get("time_ns"), int):
        return None
    return NoticeNote(_number(event, "allocation"), event["time_ns"], str(event.get("message", "")))


def _parse_failure(line: str) -> FailureNote | None:
    event = _event(line, _FAILED)
    text = event.get("message")
    if not isinstance(text, str):
        return None
    return FailureNote(_number(event, "allocation"), _number(event, "attempt"), text)


def _event(line: str, name: str) -> Mapping[str, Any]:
    """Return the event in a line if it has this name; empty for another one, and for a torn line."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) and event.get("name") == name else {}


def _number(event: Mapping[str, Any], key: str) -> int:
    value = event.get(key)
    return value if isinstance(value, int) else 0
