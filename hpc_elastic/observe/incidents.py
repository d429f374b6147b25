"""Reads, of many runs, which nodes were the place of a failure's cause: from claims and results alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.blame import BlamedNode, Incident
from hpc_elastic.observe.facts import root_cause_of
from hpc_elastic.observe.narrate import unix_time
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout


def read_incidents(layout: RunLayout, run: str) -> Iterator[Incident]:
    """Yield the ends of a run's attempts whose cause was on known nodes, one for each of these nodes.

    Args:
        layout: the run's. What cannot be read of it is passed over.
        run: the run's id.
    """
    numbers: list[int] = []
    with contextlib.suppress(RunDirectoryError):
        numbers = store.list_numbers(layout.attempts)
    paths = [layout.claim(number) for number in numbers if number > 1]  # the first claim has no attempt before it
    for path in [*paths, layout.result]:
        try:
            record = store.read_json(path)
        except RunDirectoryError:
            continue
        if isinstance(record, dict) and (cause := root_cause_of(record)) is not None:
            yield from _incidents(cause, record, run)


def _incidents(cause: Mapping[str, Any], record: Mapping[str, Any], run: str) -> Iterator[Incident]:
    """Yield one incident for each node that a root cause names.

    Its time is that of the failure, or that of the record where no worker failed.
    """
    many, one = cause.get("nodes"), cause.get("node")
    nodes = [node for node in many if isinstance(node, str) and node] if isinstance(many, list) else []
    if not nodes and isinstance(one, str) and one:
        nodes = [one]
    moment, attempt = cause.get("timestamp"), cause.get("attempt")
    if not isinstance(moment, (int, float)) or not moment:
        moment = unix_time(record.get("time") or record.get("ended"))
    for node in nodes:
        yield Incident(
            node=node,
            run=run,
            attempt=attempt if isinstance(attempt, int) else 0,
            failure_class=str(cause.get("class", "")),
            line=str(cause["line"]),
            time=float(moment or 0.0),
        )


def blamed_to_json(blamed: Iterable[BlamedNode]) -> list[dict[str, Any]]:
    """Return the nodes as JSON objects, for programs that drain them."""
    return [
        {
            "node": each.node,
            "problem": each.problem.value,
            "incidents": [
                {
                    "run": incident.run,
                    "attempt": incident.attempt,
                    "class": incident.failure_class,
                    "cause": incident.line,
                    "time": incident.time or None,
                }
                for incident in each.incidents
            ],
        }
        for each in blamed
    ]
