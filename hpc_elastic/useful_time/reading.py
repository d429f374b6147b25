"""Reads the records that say what a run's time was spent on, and adds it up; of a large run as few as of a small one.

Read are the claims, the requests, and the events of the heads and of the first nodes of each attempt, of which one has
the trace of the steps. How many nodes an attempt has makes no difference.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.useful_time.division import TimeSpan, TimeUse, divide, share_of, totals
from hpc_elastic.useful_time.history import STEPS_DONE, RunHistory, RunRecords, find_history

MOST_MEMBERS = 3  # of an attempt, whose events are read beside the head's
MOST_NODES = 64
_NAMES = (
    b'"attempt.',
    b'"failure.observed"',
    b'"node.',
    b'"run.',
    b'"head.',
    b'"steps.',
    b'"ranks.stalled"',
    b'"torchelastic.worker.status.',
)
_TIME = re.compile(rb'"time_ns": ?(\d{1,19})')
_TAIL = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UsefulTime:
    """What a run's time was spent on: the spans, and the history that they divide.

    `forbidden` are files of events that this user may not read: without them starting looks like all of the time.
    """

    history: RunHistory
    spans: tuple[TimeSpan, ...]
    forbidden: tuple[str, ...] = ()

    @property
    def seconds(self) -> Mapping[TimeUse, float]:
        """The seconds of each use, over all allocations."""
        return totals(self.spans)

    @property
    def share(self) -> float | None:
        """The useful share: training / all; None if there is no time at all, or if it cannot be known."""
        return None if self.forbidden else share_of(self.seconds)

    @property
    def has_repeats(self) -> bool:
        """Whether steps that were done again can be told from new ones."""
        return self.history.has_steps and self.history.are_steps_comparable

    def to_json(self) -> dict[str, Any]:
        """Return the object of records and of `status --json`."""
        by_number: dict[int, list[TimeSpan]] = {each.number: [] for each in self.history.allocations}
        for span in self.spans:
            by_number[span.allocation].append(span)
        return {
            "useful_share": _rounded(self.share),
            "seconds": _seconds(self.spans),
            "queued_s": _rounded(self.history.queued_s),
            "has_steps": self.history.has_steps,
            "are_repeats_known": self.has_repeats,
            "allocations": [
                {"allocation": number, "seconds": _seconds(spans), "useful_share": _rounded(share_of(totals(spans)))}
                for number, spans in by_number.items()
            ],
        }


def read_useful_time(
    layout: RunLayout,
    *,
    now: float | None = None,
    result: Mapping[str, Any] | None = None,
    samples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    claims: Sequence[Mapping[str, Any]] | None = None,
) -> UsefulTime:
    """Return what a run's time was spent on, as far as its records can be read; blocks, and raises nothing.

    Args:
        layout: the run's.
        now: the present in Unix seconds, if the run is at work; None: its time ends with the last that was recorded.
        result: the result that is about to be written; None: the one that is there.
        samples: by node; for runs of versions that recorded no steps as events.
        claims: what the attempts' claims say, in their order, if the caller has read them; None: they are read.
    """
    forbidden: list[str] = []
    records = _read(layout, now=now, result=result, claims=claims, forbidden=forbidden)
    if samples and not any(event.get("name") == STEPS_DONE for event in records.events):
        records = replace(records, events=[*records.events, *_steps_in(samples)])
    history = find_history(records)
    spans = divide(history.allocations, are_steps_comparable=history.are_steps_comparable)
    return UsefulTime(history=history, spans=tuple(spans), forbidden=tuple(forbidden))


def furthest_step(layout: RunLayout, attempt: int, nodes: Sequence[str]) -> int | None:
    """Return the furthest step of an attempt that is recorded; None if there is none.

    Args:
        layout: the run's.
        attempt: its number.
        nodes: the attempt's nodes, of which the events of the first ones and the last one are read.
    """
    read = dict.fromkeys([*nodes[:MOST_MEMBERS], *nodes[-1:]])
    steps = [
        event["metadata"]["step"]
        for node in read
        for event in _events(layout.events(node))
        if event.get("name") == STEPS_DONE and event.get("attempt") == attempt
        if isinstance(event.get("metadata"), dict) and isinstance(event["metadata"].get("step"), int)
    ]
    return max(steps, default=None)


def _read(
    layout: RunLayout,
    *,
    now: float | None,
    result: Mapping[str, Any] | None,
    claims: Sequence[Mapping[str, Any]] | None,
    forbidden: list[str],
) -> RunRecords:
    """Return a run's records, and add to `forbidden` the files of events that this user may not read."""
    allocations = [each for number in _numbers(layout.allocations) if (each := _object(layout.allocation(number)))]
    if claims is None:
        claims = [each for number in _numbers(layout.attempts) if (each := _object(layout.claim(number)))]
    attempts = list(claims)
    nodes = _nodes(allocations, attempts)
    return RunRecords(
        plan=_object(layout.plan),
        submission=_object(layout.submission),
        allocations=allocations,
        attempts=attempts,
        events=[event for node in nodes for event in _events(layout.events(node), forbidden)],
        requests=list(_requests(layout)),
        result=result or _object(layout.result) or None,
        last_signs=_last_signs(layout, allocations, attempts),
        now=now,
    )


def _steps_in(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Yield the steps in samples as events."""
    for node, lines in samples.items():
        for line in lines:
            time_ns, ranks = line.get("time_ns"), line.get("ranks")
            found = [rank.get("step") for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
            steps = [step for step in found if isinstance(step, int)]
            if steps and isinstance(time_ns, int):
                attempt, done = line.get("attempt"), {"step": max(steps), "step_time_ns": time_ns}
                yield {"name": STEPS_DONE, "time_ns": time_ns, "node": node, "attempt": attempt, "metadata": done}


def _nodes(allocations: Iterable[Mapping[str, Any]], attempts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the nodes whose events are read: all heads, and some members of each attempt."""
    heads = dict.fromkeys(str(claim.get("node", "")) for claim in allocations)
    others: dict[str, None] = {}
    for claim in attempts:
        members = claim.get("members")
        heads[str(claim.get("head", ""))] = None
        if isinstance(members, list):
            others.update(dict.fromkeys(map(str, [*members[: MOST_MEMBERS - 1], *members[-1:]])))
    names = [*heads, *[name for name in others if name not in heads][:MOST_NODES]]
    return [name for name in names if name and "/" not in name and name not in (".", "..")]


def _events(path: str, forbidden: list[str] | None = None) -> Iterator[Mapping[str, Any]]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except PermissionError:
        lines = []
        if forbidden is not None:
            forbidden.append(path)
    except OSError:
        lines = []
    for line in lines:
        if any(name in line for name in _NAMES):
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event


def _requests(layout: RunLayout) -> Iterator[Mapping[str, Any]]:
    with contextlib.suppress(RunDirectoryError, ValueError, RecursionError):
        for line in store.read_lines(layout.requests):
            if isinstance(line, dict):
                yield line


def _last_signs(
    layout: RunLayout, allocations: list[Mapping[str, Any]], attempts: list[Mapping[str, Any]]
) -> dict[int, tuple[str, float]]:
    """Return for the latest allocation its last head, and when that took a sample: its end may not be recorded."""
    claims = [(claim.get("allocation"), claim.get("node")) for claim in allocations]
    claims += [(claim.get("allocation"), claim.get("head")) for claim in attempts]
    heads = {number: node for number, node in claims if isinstance(number, int) and isinstance(node, str)}
    found: dict[int, tuple[str, float]] = {}
    for number, head in list(heads.items())[-1:]:
        if head and "/" not in head:
            with contextlib.suppress(OSError), open(layout.samples(head), "rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL))
                times = _TIME.findall(file.read())
                if times:
                    found[number] = (head, int(times[-1]) / 1e9)
    return found


def _numbers(folder: str) -> list[int]:
    with contextlib.suppress(RunDirectoryError):
        return store.list_numbers(folder)
    return []


def _object(path: str) -> Mapping[str, Any]:
    with contextlib.suppress(RunDirectoryError, ValueError, RecursionError):
        data = store.read_json(path)
        return data if isinstance(data, dict) else {}
    return {}


def _seconds(spans: Iterable[TimeSpan]) -> dict[str, float]:
    return {use.key: round(seconds, 3) for use, seconds in totals(list(spans)).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
