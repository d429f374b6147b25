"""Follows the events of all nodes of a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.observe.tail import Tail
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Event


def follow_events(layout: RunLayout, is_over: Callable[[], bool], *, pause_s: float) -> Iterator[Event]:
    """Yield every event of the run from the first one on, until the run is over and all its events are read.

    The new events of one read are in the order of their times, by the clocks of the nodes that wrote them.

    Args:
        layout: the run's.
        is_over: returns whether no event is written any more.
        pause_s: the pause between two reads.
    """
    tails: dict[str, Tail] = {}
    while True:
        is_last = is_over()  # before the read, which sees all that was written until then
        for node in _nodes(layout):
            tails.setdefault(node, Tail(layout.events(node)))
        lines = [line for tail in tails.values() for line in tail.read_lines(is_last=is_last)]
        yield from sorted(filter(None, map(_parse, lines)), key=lambda event: event.time_ns)
        if is_last:
            return
        time.sleep(pause_s)


def _nodes(layout: RunLayout) -> list[str]:
    try:
        return sorted(os.listdir(layout.nodes))
    except OSError:
        return []


def _parse(line: str) -> Event | None:
    try:
        return from_json(Event, json.loads(line))
    except (ValueError, DecodeError):  # a torn line
        return None
