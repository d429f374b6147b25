"""Finds in a run's records what its time is divided by: allocations, attempts, and their steps; pure.

Theory of operation. Records are JSON objects that somebody else wrote, perhaps an older version, perhaps only half: a
field that is missing or odd is not known, and nothing raises. Each time is by the clock of the node that wrote it. What
a head noted of other clocks (`node.clock_differs`) is subtracted, and so is what an agent noted of its own when that
was set (`node.clock_set`): all times are by the clock of the first head as it was at first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise

from hpc_elastic.useful_time.division import AllocationTimes, AttemptTimes
from hpc_elastic.useful_time.node_clocks import NodeClocks, Object
from hpc_elastic.useful_time.node_clocks import is_number as _is_number
from hpc_elastic.useful_time.node_clocks import text_of as _text
from hpc_elastic.useful_time.node_clocks import whole_of as _whole

STEPS_DONE = "steps.done"
_ENDS = ("failure.observed", "attempt.failed", "run.ending", "head.lost")  # the first: workers are stopped from then on
_STALLS = ("stalled", "collective_timeout")
_GONE = tuple(f"torchelastic.worker.status.{state}" for state in ("TERMINATED", "FAILED", "SUCCEEDED"))
_COMES = ("node.joined", "node.returned", "node.healthy")
_LATEST = 32503680000.0  # the year 3000, in Unix seconds: a time that is later is none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The records of one run, as JSON objects; each sequence is in the order of the records' numbers or writing.

    `events` are those of heads and of some members. `last_signs` has by allocation a node, and when that node last
    wrote anything in it, in Unix seconds. `now` is the present, None if the run is not at work.
    """

    plan: Object = field(default_factory=dict)
    submission: Object = field(default_factory=dict)
    allocations: Sequence[Object] = ()
    attempts: Sequence[Object] = ()
    events: Sequence[Object] = ()
    requests: Sequence[Object] = ()
    result: Object | None = None
    last_signs: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    now: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """What a run's time is divided by.

    `queued_s` are the seconds in which the job waited for its allocations, which are in none of them; None if that is
    not known. `has_steps`: ranks named their steps. `are_steps_comparable`: none of them began anew within an attempt.
    """

    allocations: tuple[AllocationTimes, ...] = ()
    queued_s: float | None = None
    has_steps: bool = False
    are_steps_comparable: bool = True


def find_history(records: RunRecords) -> RunHistory:
    """Return what the run's time is divided by."""
    clocks = NodeClocks(records.allocations, records.events)
    events = [
        _Event(at, _text(event, "node"), _whole(event, "allocation"), _whole(event, "attempt"), event)
        for event, ahead in zip(records.events, clocks.of_events, strict=True)
        if (at := _event_time(event, ahead)) is not None
    ]
    starts = _starts(records, clocks)
    attempts, are_comparable = _attempts(records, events, clocks)
    allocations: list[AllocationTimes] = []
    for index, start in enumerate(starts):
        following = starts[index + 1] if index + 1 < len(starts) else None
        own = _merged([each for each in attempts if each.allocation in start.numbers])
        allocations.append(_allocation(start, following, own, events, records, clocks))
    return RunHistory(
        allocations=tuple(allocations),
        queued_s=_queued_s(records, allocations),
        has_steps=any(attempt.steps for allocation in allocations for attempt in allocation.attempts),
        are_steps_comparable=are_comparable,
    )


def seconds_of(text: object) -> float | None:
    """Return a record's time in Unix seconds; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True, slots=True)
class _Event:
    """An event, with its time in Unix seconds by the first head's clock."""

    at: float
    node: str
    allocation: int
    attempt: int
    fields: Object

    @property
    def name(self) -> str:
        return _text(self.fields, "name")

    @property
    def metadata(self) -> Object:
        found = self.fields.get("metadata")
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class _Start:
    """One start of the job: several allocation claims of the same start count as one."""

    begin: float
    claimed: float
    numbers: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """An attempt's times; `is_partial`: the workers of other roles ran on when it was opened."""

    allocation: int
    times: AttemptTimes
    is_partial: bool


def _starts(records: RunRecords, clocks: NodeClocks) -> list[_Start]:
    starts: list[_Start] = []
    latest: object = None
    for claim in records.allocations:
        offset = clocks.at_allocation(_text(claim, "node"), _whole(claim, "allocation"))
        start, claimed = (claim.get("job_id"), claim.get("restart_count")), seconds_of(claim.get("time"))
        number = _whole(claim, "allocation")
        if start == latest and starts:
            starts[-1].numbers.append(number)
        elif claimed is not None:
            begun = claim.get("script_started")
            begin = float(begun) if _is_number(begun) and 0 < begun <= claimed else claimed
            starts.append(_Start(begin - offset, claimed - offset, [number]))
        latest = start
    return starts


def _attempts(records: RunRecords, events: Sequence[_Event], clocks: NodeClocks) -> tuple[list[_Attempt], bool]:
    of_attempt: dict[int, list[_Event]] = {}
    for event in events:
        of_attempt.setdefault(event.attempt, []).append(event)
    claims = sorted(records.attempts, key=lambda claim: _whole(claim, "attempt"))
    roles = records.plan.get("roles")
    found, are_comparable = [], True
    for index, claim in enumerate(claims):
        number, opened = _whole(claim, "attempt"), seconds_of(claim.get("time"))
        if opened is None:
            continue
        own = sorted(of_attempt.get(number, ()), key=lambda event: event.at)
        after = claims[index + 1] if index + 1 < len(claims) else records.result or {}
        cause = after.get("root_cause")
        is_named = isinstance(cause, dict) and cause.get("attempt") == number
        failed_for = cause.get("class") if isinstance(cause, dict) and is_named else None
        steps, is_rising = _steps(own)
        are_comparable &= is_rising
        names = {event.name for event in own}
        # The head of an earlier allocation may have meant to claim this attempt, and given that up.
        own = [event for event in own if event.name not in _ENDS or event.allocation >= _whole(claim, "allocation")]
        ended = next((event.at for event in own if event.name in _ENDS), None)
        gone = [event.at for event in own if event.name in _GONE]
        starting = claim.get("roles")
        times = AttemptTimes(
            number=number,
            opened=opened - clocks.at_attempt(_text(claim, "head"), number),
            started=next((event.at for event in own if event.name == "attempt.started"), None),
            ended=ended,
            stopped=max(gone, default=None),
            waited=_waited(own, claim, ended),
            is_failed="attempt.failed" in names or is_named,
            is_stalled=failed_for in _STALLS or (failed_for is None and "ranks.stalled" in names),
            steps=steps,
        )
        is_partial = isinstance(starting, list) and isinstance(roles, list) and 0 < len(starting) < len(roles)
        found.append(_Attempt(allocation=_whole(claim, "allocation"), times=times, is_partial=is_partial))
    return found, are_comparable


def _waited(own: Iterable[_Event], claim: Object, ended: float | None) -> float | None:
    """Return when a node came that was not in the attempt, or had left it, after the attempt's end."""
    members = claim.get("members")
    known = set(members) if isinstance(members, list) and all(isinstance(each, str) for each in members) else set()
    came = [
        event.at
        for event in own
        if ended is not None
        and event.at > ended
        and event.name in _COMES
        and (event.name != "node.joined" or _text(event.metadata, "node") not in known)
    ]
    return max(came, default=None)


def _steps(events: Iterable[_Event]) -> tuple[tuple[tuple[float, int], ...], bool]:
    """Return the furthest steps at the moments that are known, and whether no rank's steps began anew."""
    points: list[tuple[float, int]] = []
    by_node: dict[str, list[tuple[float, int]]] = {}
    for event in events:
        if event.name != STEPS_DONE:
            continue
        offset = _event_offset(event)
        for name, at_ns in (("first_step", "first_time_ns"), ("step", "step_time_ns")):
            number, moment = event.metadata.get(name), event.metadata.get(at_ns)
            if isinstance(number, int) and abs(number) < 2**63 and _is_number(moment) and 0 < moment / 1e9 < _LATEST:
                by_node.setdefault(event.node, []).append((moment / 1e9 - offset, number))
    for own in by_node.values():
        points += own
    points = sorted(set(points))
    is_rising = all(
        later >= earlier for own in by_node.values() for (_, earlier), (_, later) in pairwise(sorted(set(own)))
    )
    rising: list[tuple[float, int]] = []
    for at, step in points:  # the nodes' clocks differ by less than is noted
        if not rising or step >= rising[-1][1] or not is_rising:
            rising.append((at, step))
    return tuple(rising), is_rising


def _event_offset(event: _Event) -> float:
    return float(event.fields["time_ns"]) / 1e9 - event.at


def _merged(attempts: Sequence[_Attempt]) -> list[AttemptTimes]:
    """Return the attempts, with those in which only some roles started as parts of the ones whose workers ran on."""
    found: list[AttemptTimes] = []
    for attempt in attempts:
        if not (attempt.is_partial and found):
            found.append(attempt.times)
            continue
        before, after = found[-1], attempt.times
        found[-1] = replace(
            before,
            started=before.started if before.started is not None else after.started,
            ended=after.ended,
            stopped=after.stopped,
            waited=after.waited,
            is_failed=after.is_failed,
            is_stalled=after.is_stalled,
            steps=tuple(sorted(before.steps + after.steps)),
        )
    return found


def _allocation(
    start: _Start,
    following: _Start | None,
    attempts: Sequence[AttemptTimes],
    events: Sequence[_Event],
    records: RunRecords,
    clocks: NodeClocks,
) -> AllocationTimes:
    own = [event for event in events if event.allocation in start.numbers]
    asked = [
        (_text(request, "kind"), at - clocks.at_end(_text(request, "by"), _whole(request, "allocation")))
        for request in records.requests
        if _whole(request, "allocation") in start.numbers and (at := seconds_of(request.get("time"))) is not None
    ]
    endings = _decided_ends(
        own, [each for each in records.attempts if _whole(each, "allocation") in start.numbers], clocks
    )
    endings += [at for kind, at in asked if kind == "requeue"]
    signs = [event.at for event in own] + [at for kind, at in asked if kind in ("requeue", "left")]
    signs += [at for times in attempts for at in (times.opened, times.started, times.ended) if at is not None]
    seen = [(*records.last_signs[number], number) for number in start.numbers if number in records.last_signs]
    signs += [at - clocks.at_end(node, number) for node, at, number in seen]
    end = max([start.claimed, *signs])
    if following is not None:
        end = min(end, max(following.begin, start.begin))
    elif records.result is not None:
        ended = seconds_of(records.result.get("ended"))
        if ended is not None and records.result.get("written_by") != "login":
            end = ended - clocks.at_end(_text(records.result, "written_by"))
            endings.append(end)
    elif records.now is not None and not endings:
        end = max(end, records.now - clocks.set_by(_latest_head(records)))
    ending = min(endings, default=None)
    if ending is None and (following is not None or records.result is not None) and attempts:
        attempts = [*attempts[:-1], replace(attempts[-1], is_failed=True)]  # it was cut off
    return AllocationTimes(
        number=start.numbers[0],
        begin=start.begin,
        claimed=start.claimed,
        end=end,
        ending=ending,
        attempts=tuple(attempts),
    )


def _decided_ends(own: Iterable[_Event], claims: Sequence[Object], clocks: NodeClocks) -> list[float]:
    """Return when heads decided on the end of an allocation in which these attempts were opened.

    After the end that a head decides on that was cut off, or that had too few nodes for a while, others or itself open
    another attempt. A head that decides while its own claim is being made opens that attempt, and ends with it; in
    older records that is an event of the attempt before.
    """
    latest: Object = max(claims, key=lambda claim: _whole(claim, "attempt"), default={})
    last, head, opened = _whole(latest, "attempt"), _text(latest, "head"), seconds_of(latest.get("time"))
    allocation = _whole(latest, "allocation")
    at = math.inf if opened is None else opened - clocks.at_attempt(head, last)
    return [
        event.at
        for event in own
        if event.name == "run.ending"
        and (event.attempt != last or event.allocation >= allocation)
        and (
            event.attempt not in range(1, last) or (event.attempt == last - 1 and event.node == head and event.at >= at)
        )
    ]


def _queued_s(records: RunRecords, allocations: Sequence[AllocationTimes]) -> float | None:
    """Return how long the job waited: from its submission to the first allocation, and from each one to the next."""
    submitted = seconds_of(records.submission.get("submitted"))
    if not allocations:
        return None
    ends = [submitted if submitted is not None else allocations[0].begin, *(each.end for each in allocations[:-1])]
    return sum(max(0.0, each.begin - end) for end, each in zip(ends, allocations, strict=True))


def _event_time(event: Object, ahead: float) -> float | None:
    time_ns = event.get("time_ns")
    if not _is_number(time_ns) or not 0 < time_ns / 1e9 < _LATEST:
        return None
    return float(time_ns) / 1e9 - ahead


def _latest_head(records: RunRecords) -> str:
    """Return the head of the latest attempt, else of the latest allocation: who asks has its clock, as it is now."""
    if records.attempts:
        return _text(records.attempts[-1], "head")
    return _text(records.allocations[-1], "node") if records.allocations else ""
