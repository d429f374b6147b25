"""Tells where nobody knows how much time has passed between two records, because the clock of a node was set; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLOCK_SET = "node.clock_set"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """A step of a node's clock: when, in Unix seconds by the clock as it was set, and by how many seconds it was."""

    node: str
    at: float
    step_s: float
    message: str


def parse_step(event: Mapping[str, Any]) -> ClockStep | None:
    """Return the step that an event tells of; None if it tells of none."""
    metadata, time_ns = event.get("metadata"), event.get("time_ns")
    if event.get("name") != CLOCK_SET or not isinstance(metadata, dict) or not isinstance(time_ns, int):
        return None
    node, step = metadata.get("node"), metadata.get("step_s")
    if not isinstance(node, str) or not isinstance(step, (int, float)) or isinstance(step, bool):
        return None
    return ClockStep(node=node, at=time_ns / 1e9, step_s=float(step), message=str(event.get("message", "")))


def known_span(begin: float | None, end: float | None, steps: Iterable[ClockStep]) -> float | None:
    """Return the seconds between two times; None if one is not known, or a clock may have been set between them.

    What was written between the two readings of a clock at its step can be of before and of after it.
    """
    if not begin or not end or end < begin:
        return None
    is_known = all(
        begin > max(each.at, each.at - each.step_s) or end < min(each.at, each.at - each.step_s) for each in steps
    )
    return end - begin if is_known else None


def describe_steps(steps: Sequence[ClockStep]) -> str:
    """Return for people which clocks were set, and what becomes of durations; empty if none was."""
    told = "; ".join(dict.fromkeys(each.message for each in steps[:3]))
    return f"{told}: how long what lay around that took is not told" if told else ""
