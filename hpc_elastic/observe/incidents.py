"""Reads, of many runs, which nodes failed them: from claims and results, and from what heads note of nodes."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpc_elastic.errors import NO_SIGN, RunDirectoryError
from hpc_elastic.failures.blame import LEFT_OUT, UNHEALTHY, BlamedNode, Incident
from hpc_elastic.observe.explain_facts import unix_seconds
from hpc_elastic.observe.facts import root_cause_of
from hpc_elastic.observe.narrate import unix_time
from hpc_elastic.observe.nodes import JOINED, NODE_LEFT_OUT, NODE_UNHEALTHY
from hpc_elastic.observe.tail import Tail
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import RunState

_CLASSES = {NODE_UNHEALTHY: UNHEALTHY, NODE_LEFT_OUT: LEFT_OUT}
_MAY_COME_S = 600.0  # a run without enough nodes waits so long by default for an agent that has given no sign
# What a job file asks for that a node has not: a slip of the pen, or a folder that is missing on this node alone.
_ASKED_IN_VAIN = re.compile(r"is not (a file|a directory|set) on this node")
_NODES = re.compile(r'"node": ?"([^"]*)"')


def read_incidents(layout: RunLayout, run: str) -> Iterator[Incident]:
    """Yield the ends of a run's attempts whose cause was on known nodes, and its starts without a node, for each node.

    Args:
        layout: the run's. What cannot be read of it is passed over.
        run: the run's id.
    """
    heads: dict[str, None] = {}
    steps: dict[int, Collection[str]] = {}
    worlds: list[tuple[object, Collection[str]]] = []  # of each attempt: the start, and its nodes
    for number in _numbers(layout.allocations):
        claim = _read(layout.allocation(number))
        heads[str(claim.get("node") or "")] = None
        steps[number] = _names(claim.get("nodes"))
    for number in _numbers(layout.attempts):
        claim = _read(layout.claim(number))
        heads[str(claim.get("head") or "")] = None
        worlds.append((claim.get("allocation"), _names(claim.get("members"))))
        if number > 1:  # the first one has no attempt before it
            yield from _of_record(claim, run)
    result = _read(layout.result)
    yield from _of_record(result, run)
    if result.get("state") == RunState.SUCCEEDED.value and _lacked_no_node(steps, worlds):
        return  # what is left to read are the heads' events, the most of a run's files
    events = _read_events([layout.events(head) for head in heads if head])
    yield from _of_events(events, steps, run, until=unix_time(result.get("ended")) or time.time())


def _lacked_no_node(steps: Mapping[int, Collection[str]], worlds: Sequence[tuple[object, Collection[str]]]) -> bool:
    """Return whether each start of the job had one attempt, in which all of its nodes took part."""

    def lacked_none(start: int, step: Collection[str]) -> bool:
        members = [set(nodes) for allocation, nodes in worlds if allocation == start]
        return bool(step) and len(members) == 1 and members[0].issuperset(step)

    return all(lacked_none(start, step) for start, step in steps.items())


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


class _Event(NamedTuple):
    """A head's event about a node."""

    name: str
    allocation: int
    attempt: int
    node: str
    reason: str
    time: float


def _read_events(paths: Iterable[str]) -> Sequence[_Event]:
    """Return what heads noted of the nodes that they found unhealthy or left out, if any: these events, and joins."""
    lines: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError, RunDirectoryError):
            lines += Tail(path).read_lines()
    found = [
        event
        for line in lines
        if NODE_UNHEALTHY in line or NODE_LEFT_OUT in line
        if (event := _parse(line)) is not None
    ]
    nodes = {event.node for event in found if event.name == NODE_LEFT_OUT}
    if nodes:  # which are few: most of the thousands of joins need no parsing
        joins = (line for line in lines if any(name in line for name in JOINED))
        about = (line for line in joins if not nodes.isdisjoint(_NODES.findall(line)))
        found += [event for line in about if (event := _parse(line)) is not None]
    return found


def _parse(line: str) -> _Event | None:
    # A torn line, or one of another version.
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
        event = json.loads(line)
        name, about = event["name"], event["metadata"]
        if name not in (*_CLASSES, *JOINED):
            return None
        reason = str(about["reason"]) if name in _CLASSES else ""
        time = unix_seconds(event["time_ns"] / 1e9)
        return _Event(name, int(event["allocation"]), int(event["attempt"]), str(about["node"]), reason, time)
    return None


def _of_events(
    events: Sequence[_Event], steps: Mapping[int, Collection[str]], run: str, *, until: float
) -> Iterator[Incident]:
    """Yield one incident for each node that heads found unhealthy or left out, of each start of the job.

    A node that was left out and has come after all was only late, and so may be one that the run did not wait for: with
    spare nodes it begins without the last ones, and `until`, when it was over, in Unix seconds, may be soon after that.
    """
    came = {(event.allocation, event.node) for event in events if event.name in JOINED}
    found: dict[tuple[str, str, int], _Event] = {}
    for event in events:
        if event.reason == NO_SIGN and until - event.time < _MAY_COME_S:
            continue
        if event.name in _CLASSES and not (event.name == NODE_LEFT_OUT and (event.allocation, event.node) in came):
            key = event.node, event.name, event.allocation
            if key not in found or event.time > found[key].time:  # the latest reason is the best one
                found[key] = event
    alike: dict[tuple[str, int], set[str]] = {}
    for node, name, allocation in found:
        alike.setdefault((name, allocation), set()).add(node)
    for event in found.values():
        step, these = set(steps.get(event.allocation, ())), alike[event.name, event.allocation]
        is_vain = step <= these and _ASKED_IN_VAIN.search(event.reason) is not None  # also on the only node
        yield Incident(
            node=event.node,
            run=run,
            attempt=event.attempt,
            failure_class=_CLASSES[event.name],
            line=f"unhealthy: {event.reason}" if event.name == NODE_UNHEALTHY else event.reason,
            time=event.time,
            is_of_most=is_vain or len(these) > max(1, len(step - these)),
        )


def _incidents(cause: Mapping[str, Any], record: Mapping[str, Any], run: str) -> Iterator[Incident]:
    """Yield one incident for each node that a root cause names.

    Its time is that of the failure, or that of the record where no worker failed.
    """
    many, one = cause.get("nodes"), cause.get("node")
    nodes = _names(many)
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
            time=unix_seconds(moment),
        )


def _names(value: object) -> list[str]:
    return [node for node in value if isinstance(node, str) and node] if isinstance(value, list) else []


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
