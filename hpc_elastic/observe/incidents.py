"""Reads, of many runs, which nodes failed them: from claims and results, and from what heads note of nodes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.blame import LEFT_OUT, UNHEALTHY, BlamedNode, Incident
from hpc_elastic.observe.facts import root_cause_of
from hpc_elastic.observe.narrate import unix_time
from hpc_elastic.observe.tail import Tail
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

_CLASSES = {"node.unhealthy": UNHEALTHY, "node.left_out": LEFT_OUT}  # by the name of a head's event


def read_incidents(layout: RunLayout, run: str) -> Iterator[Incident]:
    """Yield the ends of a run's attempts whose cause was on known nodes, and its starts without a node, for each node.

    Args:
        layout: the run's. What cannot be read of it is passed over.
        run: the run's id.
    """
    heads: dict[str, None] = {}
    for number in _numbers(layout.allocations):
        heads[str(_read(layout.allocation(number)).get("node") or "")] = None
    for number in _numbers(layout.attempts):
        claim = _read(layout.claim(number))
        heads[str(claim.get("head") or "")] = None
        if number > 1:  # the first one has no attempt before it
            yield from _of_record(claim, run)
    yield from _of_record(_read(layout.result), run)
    for head in heads:
        if head:
            yield from _of_events(layout.events(head), run)


def _numbers(directory: str) -> list[int]:
    with contextlib.suppress(RunDirectoryError):
        return store.list_numbers(directory)
    return []


def _read(path: str) -> Mapping[str, Any]:
    with contextlib.suppress(RunDirectoryError):
        record = store.read_json(path)
        return record if isinstance(record, dict) else {}
    return {}


def _of_record(record: Mapping[str, Any], run: str) -> Iterator[Incident]:
    if (cause := root_cause_of(record)) is not None:
        yield from _incidents(cause, record, run)


def _of_events(path: str, run: str) -> Iterator[Incident]:
    """Yield one incident for each node that a head found unhealthy or left out, of each start of the job."""
    seen: set[tuple[str, str, object]] = set()
    lines: list[str] = []
    with contextlib.suppress(OSError, RunDirectoryError):
        lines = Tail(path).read_lines()
    for line in lines:
        if not any(name in line for name in _CLASSES):
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line, or one of another version
            event = json.loads(line)
            failure_class = _CLASSES[event["name"]]
            node, reason = str(event["metadata"]["node"]), str(event["metadata"]["reason"])
            key = node, failure_class, event["allocation"]
            if key in seen:
                continue
            seen.add(key)
            yield Incident(
                node=node,
                run=run,
                attempt=int(event["attempt"]),
                failure_class=failure_class,
                line=f"unhealthy: {reason}" if failure_class == UNHEALTHY else reason,
                time=event["time_ns"] / 1e9,
            )


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
