"""Tells by how much nodes' clocks were ahead of the first head's, as that was at first, in a run's records; pure.

Theory of operation. A head notes of a node that joins by how much its clock differs. An agent notes when its own clock
was set, and the events of a node stand in the order in which they were written: those after such a note are by the
clock as it was set then. What is no event is taken for as old as the events of the same attempt, or start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Object = Mapping[str, Any]
CLOCK_SET = "node.clock_set"


class NodeClocks:
    """How many seconds the clock of each node was ahead.

    Args:
        allocations: the claims, in their order.
        events: those of each node in the order of their writing.
    """

    def __init__(self, allocations: Sequence[Object], events: Sequence[Object]) -> None:
        self._differs: dict[str, float] = {}
        self._set_by: dict[str, float] = {}
        self._in_attempt: dict[tuple[str, int], float] = {}
        self._in_allocation: dict[tuple[str, int], float] = {}
        self._last_in: dict[tuple[str, int], float] = {}
        sets = (event for event in events if event.get("name") == CLOCK_SET)
        self._steps = [(text_of(event, "node"), _time_of(event), _step_of(event)) for event in sets]
        for claim in allocations[:1]:
            self._differs[text_of(claim, "node")] = 0.0
        steps = [self._read(event) for event in events]
        self.of_events: list[float] = [
            self._differs.get(text_of(event, "node"), 0.0) + step for event, step in zip(events, steps, strict=True)
        ]

    def at_attempt(self, node: str, attempt: int) -> float:
        """Return by how much a node's clock was ahead as an attempt began of which it has noted something."""
        return self._differs.get(node, 0.0) + self._in_attempt.get((node, attempt), self.set_by(node))

    def at_allocation(self, node: str, allocation: int) -> float:
        """Return by how much a node's clock was ahead as an allocation began of which it has noted something."""
        return self._differs.get(node, 0.0) + self._in_allocation.get((node, allocation), 0.0)

    def at_end(self, node: str, allocation: int | None = None) -> float:
        """Return by how much a node's clock was ahead when it noted something for the last time, of an allocation."""
        last = self.set_by(node)
        if allocation is not None:
            last = self._last_in.get((node, allocation), last)
        return self._differs.get(node, 0.0) + last

    def set_by(self, node: str) -> float:
        """Return by how many seconds a node's clock was set, in all."""
        return self._set_by.get(node, 0.0)

    def _set_before(self, node: str, shown: float) -> float:
        """Return by how many seconds a node's clock was set until it showed this time."""
        return sum(step for name, at, step in self._steps if name == node and at <= shown)

    def _read(self, event: Object) -> float:
        """Take an event in; return by how much its node's clock was set until then."""
        node, metadata, name = text_of(event, "node"), event.get("metadata"), event.get("name")
        metadata = metadata if isinstance(metadata, dict) else {}
        before = self.set_by(node)
        if name != CLOCK_SET:
            self._in_attempt.setdefault((node, whole_of(event, "attempt")), before)
            self._in_allocation.setdefault((node, whole_of(event, "allocation")), before)
        offset, other = metadata.get("offset_s"), metadata.get("node")
        if step := _step_of(event):
            self._set_by[node] = before + step  # the event itself is by the new clock
        elif name == "node.clock_differs" and isinstance(other, str) and is_number(offset):
            first = float(offset) - self._set_before(other, _time_of(event) + float(offset))
            self._differs.setdefault(other, self._differs.get(node, 0.0) + before + first)
        self._last_in[node, whole_of(event, "allocation")] = self.set_by(node)
        return self.set_by(node)


def _step_of(event: Object) -> float:
    """Return by how many seconds a clock was set, as an event tells; 0.0 if it tells of none."""
    metadata = event.get("metadata")
    step = metadata.get("step_s") if event.get("name") == CLOCK_SET and isinstance(metadata, dict) else None
    return float(step) if is_number(step) else 0.0


def _time_of(event: Object) -> float:
    """Return the Unix seconds of an event, by its node's clock."""
    time_ns = event.get("time_ns")
    return float(time_ns) / 1e9 if is_number(time_ns) else 0.0


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a record's value is a finite number."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**64  # a longer one does not fit into a float
    return isinstance(value, float) and math.isfinite(value)


def text_of(fields: Object, key: str) -> str:
    """Return a record's text; empty if it is none."""
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def whole_of(fields: Object, key: str) -> int:
    """Return a record's whole number; 0 if it is none."""
    value = fields.get(key)
    return value if isinstance(value, int) else 0
