"""Reads from a run directory all that a report shows, also from one that is incomplete or still written."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.pace import Pace
from hpc_elastic.observe.facts import AttemptFacts
from hpc_elastic.observe.report.timeline import NodeNews, TimelineRow, draw_timeline
from hpc_elastic.observe.samples import read_pace, read_spread
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.sample_tail import Line
from hpc_elastic.useful_time.division import AttemptTimes
from hpc_elastic.useful_time.reading import UsefulTime, read_useful_time

MOST_SAMPLES = 40_000  # of all nodes together
MOST_STACKS = 100
LONGEST_STACK = 16_000  # characters, of its end
MOST_FAILURES = 1000
_NEWS = {"node.joined": False, "node.returned": False, "node.parked": False, "node.lost": True}
_ENDS = ("attempt.failed", "run.ending")
_NO_FAILURES = b'"failures": {}'


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSeen:
    """A failed rank: where, when (Unix seconds), how, and its stack or the end of what it wrote."""

    attempt: int
    rank: int
    node: str
    at: float
    failure_class: str
    message: str
    stack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """An attempt of the report; `cause` is why it ended, empty while it runs."""

    times: AttemptTimes
    nodes: tuple[str, ...]
    workers: int | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """All that a report shows; times are in Unix seconds, `first_ranks` has each node's first rank and its workers."""

    snapshot: Snapshot
    begin: float
    end: float
    attempts: tuple[AttemptSeen, ...]
    useful_time: UsefulTime
    rows: tuple[TimelineRow, ...]
    failures: tuple[FailureSeen, ...]
    failures_left_out: int
    first_ranks: Mapping[str, tuple[int, int]]
    samples: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)


def collect_report(layout: RunLayout, snapshot: Snapshot) -> ReportData:
    """Read what a report shows.

    Args:
        layout: the run's.
        snapshot: the run's state. The report of a run that is not over ends with the last that it wrote.
    """
    attempts, claims = snapshot.attempt_history, _claims(layout)
    heads = {str(claim.get("node")) for claim in claims} | {attempt.head for attempt in attempts} - {""}
    events = sorted((each for head in sorted(heads) for each in _head_events(layout, head)), key=_time)
    nodes = _all_nodes(claims, snapshot, events)
    per_node = max(20, min(600, MOST_SAMPLES // max(1, len(nodes))))
    samples = {node: found for node in nodes if (found := read_spread(layout.samples(node), per_node))}
    failures = list(_failures(layout, [attempt.number for attempt in attempts]))
    moments = [_seconds(snapshot.submitted), *(_seconds(claim.get("time")) for claim in claims[:1])]
    begin = max((moment for moment in moments if moment is not None), default=0.0)
    last = max([begin, *(_time(each) for each in events), *(lines[-1]["time_ns"] / 1e9 for lines in samples.values())])
    end = _seconds(snapshot.ended) or last
    seen = _attempts(layout, snapshot, events, end)
    begin = min([begin or end, *(each.times.opened for each in seen)])
    useful_time = read_useful_time(layout, samples=samples)
    failed_on: dict[int, set[str]] = {}
    for failure in failures:
        failed_on.setdefault(failure.attempt, set()).add(failure.node)
    rows = draw_timeline(
        [(each.times, frozenset(each.nodes), frozenset(failed_on.get(each.times.number, ()))) for each in seen],
        [_news(each) for each in events if each.get("name") in _NEWS],
        nodes=nodes,
        begin=begin,
        end=end,
    )
    latest = snapshot.attempts
    pace = read_pace(layout, snapshot.nodes, latest)
    return ReportData(
        snapshot=snapshot,
        begin=begin,
        end=end,
        attempts=tuple(seen),
        useful_time=useful_time,
        rows=tuple(rows),
        failures=tuple(failures[:MOST_FAILURES]),
        failures_left_out=max(0, len(failures) - MOST_FAILURES),
        first_ranks=_first_ranks(layout, latest),
        samples=samples,
        pace=pace,
    )


def _claims(layout: RunLayout) -> list[Mapping[str, Any]]:
    with contextlib.suppress(RunDirectoryError):
        found = [store.read_json(layout.allocation(number)) for number in store.list_numbers(layout.allocations)]
        return [claim for claim in found if isinstance(claim, dict)]
    return []


def _head_events(layout: RunLayout, node: str) -> Iterator[Mapping[str, Any]]:
    """Yield what a node's agent recorded as head; its workers' events, perhaps most of the file, are not parsed."""
    try:
        with open(layout.events(node), "rb") as file:
            content = file.read()
    except OSError:
        return
    for line in content.splitlines():
        if b'"attempt.' in line or b'"node.' in line or b'"run.ending"' in line:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and all(isinstance(event.get(key), int) for key in ("time_ns", "attempt")):
                    yield event


def _all_nodes(
    claims: Sequence[Mapping[str, Any]], snapshot: Snapshot, events: Sequence[Mapping[str, Any]]
) -> list[str]:
    names: dict[str, None] = {}
    for claim in claims:
        names.update(dict.fromkeys(map(str, claim.get("nodes") or ())))
    for attempt in snapshot.attempt_history:
        names.update(dict.fromkeys(attempt.nodes))
    names.update(dict.fromkeys(_news(each).node for each in events if each.get("name") in _NEWS))
    return [name for name in names if name and "/" not in name]


def _news(event: Mapping[str, Any]) -> NodeNews:
    metadata = event.get("metadata")
    node = str(metadata.get("node", "")) if isinstance(metadata, dict) else ""
    return NodeNews(at=_time(event), node=node, is_lost=_NEWS[event["name"]])


def _attempts(
    layout: RunLayout,
    snapshot: Snapshot,
    events: Sequence[Mapping[str, Any]],
    end: float,
) -> list[AttemptSeen]:
    started = {each.get("attempt"): _time(each) for each in reversed(events) if each.get("name") == "attempt.started"}
    ends = [each for each in events if each.get("name") in _ENDS]
    result = _object(layout.result)
    history = snapshot.attempt_history
    found = []
    for index, attempt in enumerate(history):
        is_last = index + 1 == len(history)
        after = result if is_last else _object(layout.claim(history[index + 1].number))
        root = after.get("root_cause")
        root = root if isinstance(root, dict) and root.get("attempt") == attempt.number else {}
        cause = str(root.get("line") or (after.get("cause") if is_last else after.get("reason")) or "")
        opened = _seconds(attempt.opened)
        if opened is None:
            continue
        ended = (_time(each) for each in ends if _is_of(each, attempt))
        failed = next(ended, end if is_last and snapshot.is_over else None)
        times = AttemptTimes(number=attempt.number, opened=opened, started=started.get(attempt.number), ended=failed)
        found.append(AttemptSeen(times=times, nodes=attempt.nodes, workers=attempt.workers, cause=cause))
    return found


def _is_of(event: Mapping[str, Any], attempt: AttemptFacts) -> bool:
    """Return whether an event is of an attempt, and not of another head that meant to claim it before."""
    allocation = event.get("allocation")
    is_since = isinstance(allocation, int) and allocation >= attempt.allocation
    return is_since and event.get("attempt") == attempt.number


def _failures(layout: RunLayout, attempts: Sequence[int]) -> Iterator[FailureSeen]:
    stacks = 0
    for attempt in attempts:
        found: list[FailureSeen] = []
        for record in _node_results(layout, attempt):
            failures = record.get("failures")
            for rank, failure in failures.items() if isinstance(failures, dict) else ():
                if isinstance(failure, dict) and str(rank).isdigit():
                    found.append(_failure(attempt, int(rank), failure))
        for failure_seen in sorted(found, key=lambda each: (each.at, each.rank)):
            stacks += 1
            stack = _stack(layout, attempt, failure_seen.rank) if stacks <= MOST_STACKS else ""
            yield replace(failure_seen, stack=stack)


def _failure(attempt: int, rank: int, failure: Mapping[str, Any]) -> FailureSeen:
    at = failure.get("timestamp")
    return FailureSeen(
        attempt=attempt,
        rank=rank,
        node=str(failure.get("node", "")),
        at=float(at) if isinstance(at, (int, float)) and math.isfinite(at) else 0.0,
        failure_class=str(failure.get("class", "")),
        message=str(failure.get("message") or _exit(failure)),
    )


def _exit(failure: Mapping[str, Any]) -> str:
    return str(failure.get("signal_name") or f"exit code {failure.get('exitcode')}")


def _node_results(layout: RunLayout, attempt: int) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the nodes on which a rank failed."""
    folder = os.path.dirname(layout.node_result(attempt, "node"))
    try:
        entries = sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".json"))
    except OSError:
        return
    for path in entries:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            content = file.read()
            record = {} if _NO_FAILURES in content else json.loads(content)
            if isinstance(record, dict) and record:
                yield record


def _stack(layout: RunLayout, attempt: int, rank: int) -> str:
    error = _object(layout.error(attempt, rank))
    message = error.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or error.get("stderr_tail") or "")[-LONGEST_STACK:]


def _first_ranks(layout: RunLayout, attempt: int) -> dict[str, tuple[int, int]]:
    nodes = _object(layout.world(attempt)).get("nodes") if attempt else None
    return {
        str(node["node"]): (node["first_rank"], node["workers"])
        for node in (nodes if isinstance(nodes, list) else ())
        if isinstance(node, dict)
        and "node" in node
        and all(isinstance(node.get(key), int) for key in ("first_rank", "workers"))
    }


def _object(path: str) -> Mapping[str, Any]:
    with contextlib.suppress(RunDirectoryError):
        data = store.read_json(path)
        return data if isinstance(data, dict) else {}
    return {}


def _time(event: Mapping[str, Any]) -> float:
    return float(event["time_ns"]) / 1e9


def _seconds(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    with contextlib.suppress(ValueError):
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
    return None
