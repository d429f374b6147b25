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

from hpc_elastic.failures.classes import MEANINGS, Blame, FailureClass, blame_of
from hpc_elastic.observe.explain_facts import (
    Excerpt,
    ExplainFacts,
    FailureFacts,
    StopWish,
    attempt_after,
    number_of,
    root_cause_of_attempt,
    seconds_of,
    text_of,
)
from hpc_elastic.observe.narrate import NO_LIMIT, unix_time
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rank_set import RankSetError, format_ranks, parse_ranks

FORMAT_VERSION = 1
MOST_FAILURES = 20  # in the explanation; the records have all
_LONGEST_CAUSE = 600  # characters
# What to do, by the result's reason, beside or instead of what the class of a failure advises.
_ADVICE = {
    "no_progress": "mend the cause first: the same failure came again and again, so another run will meet it too",
    "nodes_missing": "read why each node did not join; lower nodes.min if the run can do with fewer nodes",
    "node_losses_used_up": "ask the administrator about these nodes; raise restart.max_node_losses if they are usual",
    "node_lost": "lower nodes.min, or ask for spare nodes, so that the next loss does not end the run",
    "setup_failed": "read the end of the script's output: the line that failed is there",
    "terminated": "if it was the time limit or preemption, let the run requeue itself then, or ask for more time",
    "exit_timeout": "look what the ranks that ran on did at the end; raise elastic.exit_timeout if they had work left",
    "no_result": "read the ends of the agents' outputs, and ask whether the nodes were switched off or rebooted",
}
_CLASS_OF_REASON = {
    "node_lost": FailureClass.NODE_LOST,
    "node_losses_used_up": FailureClass.NODE_LOST,
    "agent_failed": FailureClass.AGENT_LOST,
    "unkillable": FailureClass.UNKILLABLE,
    "start_failed": FailureClass.START_FAILED,
    "stop_requested": FailureClass.CANCELLED,
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
    text.
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
    excerpts: tuple[Excerpt, ...]
    files: tuple[str, ...]
    advice: tuple[str, ...]
    next: tuple[str, ...]
    notes: tuple[str, ...]


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the object of `explain --json`; keys are only ever added."""
    return {"format_version": FORMAT_VERSION, **asdict(explanation)}


def explain(facts: ExplainFacts, now: float) -> Explanation:
    """Explain a run; `now` is in Unix seconds."""
    snapshot, culprit = facts.snapshot, facts.culprit
    root_cause = root_cause_of_attempt(snapshot, facts.attempt)
    failure_class = _class(facts, root_cause)
    timestamp = _timestamp(facts, root_cause)
    opened = unix_time(next((each.opened for each in snapshot.attempt_history if each.number == facts.attempt), None))
    failed, victims, stopped = _others(facts, root_cause)
    cause = _cause(facts, root_cause)
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
        cause=cause,
        is_guess=is_guess,
        failure_class=failure_class,
        meaning=_meaning(failure_class).phrase if failure_class in _WORDS else "",
        detail=culprit.detail if culprit else "",
        rank=culprit.rank if culprit else number_of(root_cause, "rank"),
        local_rank=culprit.local_rank if culprit else None,
        pid=culprit.pid or None if culprit else None,
        node=_node(facts, root_cause),
        frame=(culprit.frame if culprit else "") or text_of(root_cause, "frame"),
        time=_utc(timestamp),
        into_attempt_s=timestamp - opened if opened and timestamp >= opened else None,
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
        excerpts=facts.excerpts,
        files=facts.files,
        advice=tuple(_advice(facts, failure_class)),
        next=tuple(_next(facts, root_cause)),
        notes=tuple(_notes(facts, is_guess=is_guess)),
    )


def describe(failure: FailureFacts) -> str:
    """Describe a failure in one line: which rank, on which node, how it ended, and its message."""
    rank = f"rank {failure.rank}{f' on {failure.node}' if failure.node else ''}"
    message = next((line.strip() for line in failure.message.splitlines() if line.strip()), "")
    if failure.failure_class == FailureClass.START_FAILED.value:
        return _clip(f"{rank} could not be started: {message}")
    if failure.failure_class == FailureClass.OUT_OF_MEMORY.value:
        return _clip(f"{rank} was killed by the out-of-memory killer: {failure.detail or message}".rstrip(": "))
    if failure.signal_name:
        return f"{rank} was killed by {failure.signal_name}"
    number = f"exit code {failure.exitcode}" if failure.exitcode is not None else ""
    words = f"{rank} failed{f' with {number}' if number else ''}"
    return _clip(f"{words}: {message}" if message not in ("", number) else words)


# The cause.


def _cause(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> str:
    snapshot, attempt = facts.snapshot, facts.attempt
    if attempt is None:
        return _cause_without_attempt(snapshot)
    later, written = attempt_after(snapshot, attempt), _written(facts)
    line = text_of(root_cause, "line")
    if line:
        return _clip(written if line in written else f"{line}; {written}" if written else line)
    if facts.culprit is not None and not _names(written, facts.culprit.rank):
        found = describe(facts.culprit)
        if later is None and written and snapshot.reason not in _REASONS_OF_WORKERS:
            return _clip(f"{written}; what failed before that: {found}")
        return _clip(f"{found}; the head wrote: {written}" if written else found)
    if not facts.has_ended and not written:
        return f"nothing is known to have failed in attempt {attempt}, which still runs"
    return _clip(written or "no cause was recorded")


def _written(facts: ExplainFacts) -> str:
    """Return the line in which the next attempt's claim, or the result, says why the attempt ended; empty if none."""
    later = attempt_after(facts.snapshot, facts.attempt)
    return (later.reason if later else facts.snapshot.cause if facts.snapshot.is_over else "") or ""


def _cause_without_attempt(snapshot: Snapshot) -> str:
    if snapshot.is_over:
        survived = _survived(snapshot) if snapshot.state.value == "SUCCEEDED" else ""
        return _clip(f"{snapshot.cause or 'no cause was recorded'}{survived}")
    if snapshot.attempts:
        return f"nothing has failed: attempt {snapshot.attempts} runs"
    if snapshot.allocations:
        return "no attempt was opened yet: the agents wait for nodes, or prepare them"
    return f"the run has not started{f': it waits for {snapshot.job_reason}' if snapshot.job_reason else ''}"


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
        begun = unix_time(attempt.opened)
        ended = unix_time(later.opened if later else snapshot.ended) if is_over else now
        record = root_cause_of_attempt(snapshot, attempt.number)
        written = (later.reason if later else snapshot.cause) if is_over else ""
        yield ExplainedAttempt(
            number=attempt.number,
            opened=attempt.opened,
            lasted_s=ended - begun if begun and ended and ended >= begun else None,
            workers=attempt.workers,
            nodes=len(attempt.nodes),
            cause=_clip(text_of(record, "line") or written or ""),
            failure_class=text_of(record, "class") or None,
        )


def _class(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> str | None:
    if found := text_of(root_cause, "class") or (facts.culprit.failure_class if facts.culprit else ""):
        return found
    if facts.losses:
        return FailureClass.NODE_LOST.value
    is_end = facts.snapshot.is_over and attempt_after(facts.snapshot, facts.attempt) is None
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


# What to do.


def _advice(facts: ExplainFacts, failure_class: str | None) -> Iterable[str]:
    if failure_class in _WORDS and (advice := _meaning(failure_class).advice):
        is_shown = any(excerpt.path.endswith("error.json") for excerpt in facts.excerpts)
        is_there = any(path.endswith("error.json") for path in facts.files)
        if "error.json" not in advice or (is_there and not is_shown):
            yield advice
    is_end = facts.snapshot.is_over and attempt_after(facts.snapshot, facts.attempt) is None
    if is_end and (advice := _ADVICE.get(facts.snapshot.reason or "", "")):
        yield advice


def _next(facts: ExplainFacts, root_cause: Mapping[str, Any] | None) -> Iterable[str]:
    snapshot, culprit = facts.snapshot, facts.culprit
    run = quote(snapshot.job_id or snapshot.run_dir)
    if not snapshot.is_over:
        yield f"hpc-elastic logs {run} --follow"
    if culprit is not None:
        yield f"hpc-elastic logs {run} --rank {culprit.rank} --attempt {culprit.attempt or facts.attempt}"
    nodes = [loss.node for loss in facts.losses[:2]] or [_node(facts, root_cause)]
    for node in filter(None, nodes):
        yield f"hpc-elastic logs {run} --node {quote(node)}"
        if snapshot.scheduler == "slurm" and facts.losses:
            yield f"scontrol show node {quote(node)}"
    if culprit is None and not facts.losses and (snapshot.allocations or snapshot.is_over):
        is_scripts = snapshot.state.value not in ("SUCCEEDED", "CANCELLED")
        yield f"hpc-elastic logs {run}{' --script' if is_scripts else ''}"
    earlier = [each.number for each in snapshot.attempt_history if each.number < (facts.attempt or snapshot.attempts)]
    if earlier:
        yield f"hpc-elastic explain {run} --attempt {earlier[-1]}"
    if not snapshot.is_over and not snapshot.attempts:
        yield f"hpc-elastic cancel {run}"


def _notes(facts: ExplainFacts, *, is_guess: bool) -> Iterable[str]:
    if is_guess and len(facts.failures) > 1:
        yield (
            "a guess: no root cause was recorded, so this is the likeliest of "
            f"{len(facts.failures)} failures, by its kind and then by the nodes' clocks"
        )
    elif is_guess:
        yield "a guess: no root cause was recorded, and this is the only failure that is known"
    if facts.snapshot.note:
        yield facts.snapshot.note
    yield from (note for note in facts.notes if note not in (facts.snapshot.note or ""))


# Values of records, which may be of any shape.

_WORDS = frozenset(member.value for member in FailureClass)


def _meaning(word: str | None) -> Any:
    return MEANINGS[FailureClass(word)]


def _names(text: str, rank: int) -> bool:
    return re.search(rf"\branks? (?:[\d,-]*,)?{rank}\b", text) is not None


def ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks of a set in a record; none if it is no set of ranks."""
    try:
        return parse_ranks(text)
    except RankSetError:
        return ()


def _limit(limit: int | None) -> int | None:
    return None if limit is None or limit >= NO_LIMIT else limit


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]} [...]"


def _utc(timestamp: float) -> str | None:
    if not timestamp:
        return None
    return datetime.fromtimestamp(timestamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
