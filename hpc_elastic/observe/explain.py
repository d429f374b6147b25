"""Assembles the explanation of a run, or of one of its attempts, from facts that were read before; pure.

Theory of operation. What the agents wrote goes first: the root cause in the next attempt's claim, or in the result.
Where there is none (old runs, a head that died) the likeliest of the failures that are recorded is chosen: by blame,
then whether it came before the stop, then by time. That is a guess, as clocks of different machines are compared, and
the explanation says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from shlex import quote
from typing import Any

from hpc_elastic.failures.classes import Blame, FailureClass, blame_of
from hpc_elastic.failures.describe import describe_failure
from hpc_elastic.hostlist import name_some
from hpc_elastic.observe.clock_steps import known_span
from hpc_elastic.observe.diagnosis import JOB_CANCELLED
from hpc_elastic.observe.explain_advice import advice_of, meaning_of
from hpc_elastic.observe.explain_facts import (
    Excerpt,
    ExplainFacts,
    FailureFacts,
    StopWish,
    attempt_after,
    frame_of,
    number_of,
    root_cause_of_attempt,
    seconds_of,
    text_of,
)
from hpc_elastic.observe.narrate import (
    NO_LIMIT,
    STOPPED,
    describe_left_out,
    describe_nodes,
    has_no_logs,
    is_in_prolog,
    unix_time,
)
from hpc_elastic.observe.snapshot import RESULT_AWAITED, Snapshot
from hpc_elastic.rank_set import format_ranks, name_ranks

FORMAT_VERSION = 1
MOST_STACKS = 8  # groups of ranks at one place that are told
MOST_FAILURES = 20  # in the explanation; the records have all
_LONGEST_CAUSE = 600  # characters
_CLASS_OF_REASON = {
    "node_lost": FailureClass.NODE_LOST,
    "node_losses_used_up": FailureClass.NODE_LOST,
    "agent_failed": FailureClass.AGENT_LOST,
    "unkillable": FailureClass.UNKILLABLE,
    "start_failed": FailureClass.START_FAILED,
    "stop_requested": FailureClass.CANCELLED,
    "time_limit": FailureClass.TIME_LIMIT,
    "preempted": FailureClass.PREEMPTED,
}
_REASONS_OF_WORKERS = ("restarts_used_up", "no_progress", "start_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedAttempt:
    """One attempt in the run's history; `cause` is why it ended, empty while it runs; `lasted_s` None if not known."""

    number: int
    opened: str | None
    lasted_s: float | None
    workers: int | None
    nodes: int
    cause: str
    failure_class: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a run, or one of its attempts, ended. The fields are the keys of `explain --json`, in this order.

    `attempt` is the one that is explained, None if none has ended; `cause` the line for people. `is_guess`: no root
    cause was recorded, and the likeliest failure was chosen. `failed`, `victims` and `stopped` are the ranks that
    failed by themselves, that failed because of others, and that had not failed and were stopped: sets of ranks as
    text. `stacks`: where the ranks were when their stacks were taken, a sentence for each group. `collectives`: a
    sentence for each process group in which ranks waited, by torch's flight recorder. `is_between`: the run goes on,
    its latest attempt has ended, and the next one is not open yet.
    """

    run: str
    name: str
    run_dir: str
    job_id: str | None
    state: str
    exit_code: int | None
    reason: str | None
    attempt: int | None
    attempts: int
    cause: str
    is_guess: bool
    failure_class: str | None
    meaning: str
    detail: str
    rank: int | None
    local_rank: int | None
    pid: int | None
    node: str
    frame: str
    time: str | None
    into_attempt_s: float | None
    observed_first: int | None
    candidates: str
    failed: str
    victims: str
    stopped: str
    lost_nodes: tuple[str, ...]
    failures: tuple[FailureFacts, ...]
    history: tuple[ExplainedAttempt, ...]
    restarts: int
    max_restarts: int | None
    node_losses: int
    max_node_losses: int | None
    stops: tuple[StopWish, ...]
    stacks: tuple[str, ...]
    collectives: tuple[str, ...]
    excerpts: tuple[Excerpt, ...]
    files: tuple[str, ...]
    advice: tuple[str, ...]
    next: tuple[str, ...]
    notes: tuple[str, ...]
    is_between: bool = False


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the object of `explain --json`; keys are only ever added."""
    return {"format_version": FORMAT_VERSION, **asdict(explanation)}


def explain(facts: ExplainFacts, now: float, *, run: str | None = None) -> Explanation:
    """Explain a run; `now` is in Unix seconds, and `run` names the run in commands, by default its job id."""
    snapshot, culprit = facts.snapshot, facts.culprit
    root_cause = root_cause_of_attempt(snapshot, facts.attempt)
    failure_class = _class(facts, root_cause)
    timestamp = _timestamp(facts, root_cause)
    opened = unix_time(next((each.opened for each in snapshot.attempt_history if each.number == facts.attempt), None))
    failed, victims, stopped = _others(facts, root_cause)
    cause = _cause(facts, root_cause)
    if facts.is_scancelled and not cause.startswith(JOB_CANCELLED):
        cause = f"somebody cancelled the job with scancel ({cause})"
    is_sure = root_cause is not None or culprit is None
    is_guess = not is_sure and (len(facts.failures) > 1 or cause != _written(facts))
    return Explanation(
        run=snapshot.run,
        name=snapshot.name,
        run_dir=snapshot.run_dir,
        job_id=snapshot.job_id,
        state=snapshot.state.value,
        exit_code=snapshot.exit_code,
        reason=snapshot.reason,
        attempt=facts.attempt,
        attempts=snapshot.attempts,
        cause=_with_wait(facts, cause),
        is_guess=is_guess,
        failure_class=failure_class,
        meaning=meaning_of(facts, failure_class),
        detail=culprit.detail if culprit else "",
        rank=culprit.rank if culprit else number_of(root_cause, "rank"),
        local_rank=culprit.local_rank if culprit else None,
        pid=culprit.pid or None if culprit else None,
        node=_node(facts, root_cause),
        frame=frame_of(facts),
        time=_utc(timestamp),
        into_attempt_s=known_span(opened, timestamp, snapshot.clock_steps),
        observed_first=number_of(root_cause, "observed_first"),
        candidates=text_of(root_cause, "candidates"),
        failed=failed,
        victims=victims,
        stopped=stopped,
        lost_nodes=tuple(dict.fromkeys(loss.node for loss in facts.losses)),
        failures=tuple(sorted(facts.failures, key=lambda failure: failure.order)[:MOST_FAILURES]),
        history=tuple(_history(snapshot, now)),
        restarts=snapshot.restarts,
        max_restarts=_limit(snapshot.max_restarts),
        node_losses=snapshot.node_losses,
        max_node_losses=_limit(snapshot.max_node_losses),
        stops=facts.stops,
        stacks=tuple(_stacks(facts)),
        collectives=facts.collectives,
        excerpts=facts.excerpts,
        files=facts.files,
        advice=(*advice_of(facts, failure_class), *snapshot.wait.advice(), *_later(snapshot)),
        next=tuple(_next(facts, root_cause, quote(run or snapshot.job_id or snapshot.run_dir))),
        notes=tuple(_notes(facts, is_guess=is_guess)),
        is_between=snapshot.between is not None,
    )


# The cause.


def _cause(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> str:
    snapshot, attempt = facts.snapshot, facts.attempt
    if attempt is None:
        return _cause_without_attempt(snapshot)
    later, written = attempt_after(snapshot, attempt), _written(facts)
    line = text_of(root_cause, "line")
    if line:
        is_one = not written or written in line
        return _clip(line if is_one else written if line in written else f"{line}; {written}")
    if facts.culprit is not None and not _names(written, facts.culprit.rank):
        found = _clip(describe_failure(facts.culprit))
        if later is None and written and snapshot.reason not in _REASONS_OF_WORKERS:
            return _clip(f"{written}; what failed before that: {found}")
        return _clip(f"{found}; the head wrote: {written}" if written else found)
    if not facts.has_ended and not written:
        return f"nothing is known to have failed in attempt {attempt}, which still runs"
    return _clip(written or "no cause was recorded")


def _with_wait(facts: ExplainFacts, cause: str) -> str:
    """Add to the cause of a run's latest attempt why its job waits in the queue now."""
    snapshot = facts.snapshot
    waits = snapshot.wait.why if facts.attempt is not None and facts.attempt == snapshot.attempts else ""
    return f"{cause}; {waits}" if waits else cause


def _written(facts: ExplainFacts) -> str:
    """Return the line in which the next claim, the result or an event says why the attempt ended; empty if none."""
    later = attempt_after(facts.snapshot, facts.attempt)
    if later is not None:
        return later.reason
    return (facts.snapshot.cause if facts.snapshot.is_over else facts.snapshot.between) or ""


def _cause_without_attempt(snapshot: Snapshot) -> str:
    if snapshot.is_over:
        survived = _survived(snapshot) if snapshot.state.value == "SUCCEEDED" else ""
        return _clip(f"{snapshot.cause or 'no cause was recorded'}{survived}")
    if snapshot.note and RESULT_AWAITED in snapshot.note:
        return snapshot.note
    if gone := [node for node in snapshot.nodes if node in snapshot.lost_nodes]:
        were = "was" if len(gone) == 1 else "were"
        return f"{describe_nodes(gone)} of attempt {snapshot.attempts} {were} lost; the others wait to go on, or to end"
    if snapshot.attempts:
        return f"nothing has failed: attempt {snapshot.attempts} runs"
    if is_in_prolog(snapshot):
        return "the run has not started: a prolog of the cluster runs on the job's nodes"
    if snapshot.allocations:
        return "no attempt was opened yet: the agents wait for nodes, or prepare them"
    if _is_before_agents(snapshot):
        return "no agent has started yet: the job's script runs its setup lines, or starts the agents"
    return ": ".join(filter(None, ("the run has not started", snapshot.wait.why)))


def _is_before_agents(snapshot: Snapshot) -> bool:
    """Return whether the job's script runs, and has started no agent, as far as the records tell."""
    return snapshot.job_state == "RUNNING" and not snapshot.allocations and not is_in_prolog(snapshot)


def _survived(snapshot: Snapshot) -> str:
    parts = [
        f"{number} {what if number == 1 else many}"
        for number, what, many in (
            (snapshot.restarts, "failure", "failures"),
            (snapshot.node_losses, "node loss", "node losses"),
            (snapshot.allocations - 1, "new start of the job", "new starts of the job"),
        )
        if number > 0
    ]
    return f"; it survived {' and '.join(parts)}" if parts else ""


def _history(snapshot: Snapshot, now: float) -> Iterable[ExplainedAttempt]:
    attempts = snapshot.attempt_history
    for attempt, later in zip(attempts, [*attempts[1:], None], strict=False):
        is_over = later is not None or snapshot.is_over
        is_between = not is_over and snapshot.between is not None
        begun = unix_time(attempt.opened)
        ended = unix_time(later.opened if later else snapshot.ended) if is_over else None if is_between else now
        record = root_cause_of_attempt(snapshot, attempt.number)
        written = later.reason if later else snapshot.cause if is_over else snapshot.between
        yield ExplainedAttempt(
            number=attempt.number,
            opened=attempt.opened,
            lasted_s=known_span(begun, ended, snapshot.clock_steps),
            workers=attempt.workers,
            nodes=len(attempt.nodes),
            cause=_clip(text_of(record, "line") or written or ""),
            failure_class=text_of(record, "class") or None,
        )


def _class(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> str | None:
    if found := text_of(root_cause, "class") or (facts.culprit.failure_class if facts.culprit else ""):
        is_agents = found == FailureClass.AGENT_LOST.value and facts.losses
        is_taken = is_agents and {loss.node for loss in facts.losses} <= set(facts.taken_nodes)
        return FailureClass.NODE_LOST.value if is_taken else found
    if facts.losses:
        return FailureClass.NODE_LOST.value
    is_end = facts.snapshot.is_over and attempt_after(facts.snapshot, facts.attempt) is None
    if is_end and facts.is_scancelled:
        return FailureClass.CANCELLED.value
    by_reason = _CLASS_OF_REASON.get(facts.snapshot.reason or "") if is_end else None
    return by_reason.value if by_reason else None


def _node(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> str:
    lost = facts.losses[0].node if facts.losses else ""
    return facts.culprit.node if facts.culprit else text_of(root_cause, "node") or lost or facts.failed_agent


def _timestamp(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> float:
    found = seconds_of(root_cause) or (facts.culprit.timestamp if facts.culprit else 0.0)
    return found or (facts.losses[0].timestamp if facts.losses else 0.0)


def _others(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return the ranks that failed by themselves, because of others, and that had not failed and were stopped."""
    if root_cause is not None:
        return text_of(root_cause, "failed"), text_of(root_cause, "victims"), text_of(root_cause, "silent")
    if facts.culprit is None:
        return "", "", ""
    blamed = {failure.rank: blame_of(failure.failure_class) for failure in facts.failures}
    failed = [rank for rank, blame in blamed.items() if blame is Blame.CULPRIT]
    victims = [rank for rank, blame in blamed.items() if blame is Blame.VICTIM]
    if not facts.has_all_failures:
        return format_ranks(failed), format_ranks(victims), ""
    workers = next((each.workers for each in facts.snapshot.attempt_history if each.number == facts.attempt), None)
    stopped = set(range(workers or 0)) - {*failed, *victims}
    return format_ranks(failed), format_ranks(victims), format_ranks(stopped)


def _stacks(facts: ExplainFacts) -> Iterable[str]:
    """Yield a sentence for each group of ranks that were at the same place when the stacks were taken."""
    own = next((each.nodes for each in facts.snapshot.attempt_history if each.number == facts.attempt), ())
    for group in facts.stacks[:MOST_STACKS]:
        which = f": {name_ranks(group.ranks)}" if len(group.ranks) > 1 else ""
        yield f"{group.sentence(of_nodes=len(own))}{which}"
    left = facts.stacks[MOST_STACKS:]
    if left:
        yield f"{sum(len(group.ranks) for group in left)} more ranks at {len(left)} other places"


# What to do.


def _next(facts: ExplainFacts, root_cause: Mapping[str, Any] | None, run: str) -> Iterable[str]:
    snapshot, culprit = facts.snapshot, facts.culprit
    yield from snapshot.wait.commands()
    if not snapshot.is_over:
        yield f"hpc-elastic logs {run} --follow"
    if facts.stacks and facts.attempt == snapshot.attempts:
        first = culprit.rank if culprit is not None else facts.stacks[0].ranks[0]
        yield f"hpc-elastic stacks {run} --rank {first}"
    if culprit is not None:
        yield f"hpc-elastic logs {run} --rank {culprit.rank} --attempt {culprit.attempt or facts.attempt}"
    nodes = [loss.node for loss in facts.losses[:2]] or [_node(facts, root_cause)]
    for node in filter(None, nodes):
        yield f"hpc-elastic logs {run} --node {quote(node)}"
        if snapshot.scheduler == "slurm" and facts.losses:
            yield f"scontrol show node {quote(node)}"
    has_begun = snapshot.allocations or snapshot.is_over or _is_before_agents(snapshot)
    has_logs = has_begun and not has_no_logs(snapshot)
    if culprit is None and not facts.losses and has_logs:
        is_scripts = snapshot.state.value not in ("SUCCEEDED", "CANCELLED")
        yield f"hpc-elastic logs {run}{' --script' if is_scripts else ''}"
    earlier = [each.number for each in snapshot.attempt_history if each.number < (facts.attempt or snapshot.attempts)]
    if earlier and not _is_same_as_before(facts, earlier[-1]):
        yield f"hpc-elastic explain {run} --attempt {earlier[-1]}"
    if not snapshot.is_over and not snapshot.attempts:
        yield f"hpc-elastic cancel {run}"


def _later(snapshot: Snapshot) -> Iterable[str]:
    if RESULT_AWAITED in (snapshot.note or ""):
        yield "ask again in a minute: by then it is known how the run ended"


def _is_same_as_before(facts: ExplainFacts, earlier: int) -> bool:
    """Return whether the attempt before failed in the same words, so that it needs no look of its own."""
    lines = [text_of(root_cause_of_attempt(facts.snapshot, number), "line") for number in (earlier, facts.attempt)]
    return lines[0] != "" and lines[0] == lines[1]


def _notes(facts: ExplainFacts, *, is_guess: bool) -> Iterable[str]:
    if is_guess and len(facts.failures) > 1:
        yield (
            "a guess: no root cause was recorded, so this is the likeliest of "
            f"{len(facts.failures)} failures, by its kind and then by the nodes' clocks"
        )
    elif is_guess:
        yield "a guess: no root cause was recorded, and this is the only failure that is known"
    note = facts.snapshot.note
    is_cause = note == facts.snapshot.wait.endless or (facts.attempt is None and RESULT_AWAITED in (note or ""))
    if note and not is_cause:
        yield note
    yield from (each for each in facts.notes if each not in (note or ""))
    if facts.taken_nodes:
        yield (
            f"Slurm has taken {name_some(facts.taken_nodes)} from the job: set DOWN, by itself or by an administrator, "
            f"or the job was made smaller; `scontrol show node {facts.taken_nodes[0]}` says which"
        )
    if not facts.snapshot.is_over and facts.snapshot.job_state in STOPPED:
        yield f"Slurm has stopped the job ({facts.snapshot.job_state}): nothing of it runs until it is resumed"
    if facts.snapshot.changed_line:
        yield facts.snapshot.changed_line
    if facts.snapshot.left_out and facts.snapshot.attempt_history:
        yield f"the others began without {describe_left_out(facts.snapshot.left_out)}"


# Values of records, which may be of any shape.


def _names(text: str, rank: int) -> bool:
    return re.search(rf"\branks? (?:[\d,-]*,)?{rank}\b", text) is not None


def _limit(limit: int | None) -> int | None:
    return None if limit is None or limit >= NO_LIMIT else limit


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]} [...]"


def _utc(timestamp: float) -> str | None:
    if not timestamp:
        return None
    return datetime.fromtimestamp(timestamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
