"""Lays explanations out for people: plain text at any width, and rich where a terminal draws it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.describe import describe_failure
from hpc_elastic.observe.explain import ExplainedAttempt, Explanation
from hpc_elastic.observe.explain_facts import ranks_of
from hpc_elastic.observe.narrate import count, describe_duration, of_limit
from hpc_elastic.observe.snapshot import RESULT_AWAITED
from hpc_elastic.observe.text import NARROW, readable_time, state_style, wrap
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.states import RunState

if TYPE_CHECKING:
    from rich.console import RenderableType

_LABEL_WIDTH = 10
_FIRST_ATTEMPTS, _LAST_ATTEMPTS = 2, 6  # of a long history
_LONGEST_RANKS = 48  # characters
_VICTIM = "failed because of it, not by {themselves}"
_CONSEQUENCE = "failed as a consequence as well"
_NEAR = "failed at about the same time, and may be the cause as well"
_LONGEST_HISTORY = 160  # characters of an attempt's cause


class Row(NamedTuple):
    """A part of an explanation: text that is wrapped, a line to copy, or lines of a file, which stay as they are."""

    label: str
    text: str
    kind: str = "text"  # or "copy", "file"


def explanation_rows(explanation: Explanation) -> list[Row]:
    """Return the parts of an explanation in the order in which a person asks for them."""
    parts = [
        *_what(explanation),
        *_others(explanation),
        *_tried(explanation),
        *_evidence(explanation),
        *_do(explanation),
    ]
    rows, last = [], ""
    for row in parts:
        if row.text:
            rows.append(Row("" if row.label == last else row.label, printable_line(row.text), row.kind))
            last = row.label
    return rows


def headline(explanation: Explanation) -> str:
    """Return the first line: the run's name and state, and which attempt this is about."""
    code = f", exit code {explanation.exit_code}" if explanation.exit_code is not None else ""
    return printable_line(f"{explanation.name or os.path.basename(explanation.run_dir)}: {explanation.state}{code}")


def plain_explanation(explanation: Explanation, width: int) -> str:
    """Return an explanation as text, wrapped between words to `width` columns; paths and commands are never broken."""
    lines = [headline(explanation)]
    is_narrow = width < NARROW
    indent = "  " if is_narrow else " " * _LABEL_WIDTH
    for label, text, kind in explanation_rows(explanation):
        shown = wrap(text, width - len(indent), "") if kind == "text" else [f"  {text}" if kind == "file" else text]
        if is_narrow:
            lines += [label] * bool(label) + [indent + line for line in shown]
        else:
            lines += [f"{label:<{_LABEL_WIDTH}}{shown[0]}".rstrip(), *(indent + line for line in shown[1:])]
    return "\n".join(lines)


def rich_explanation(explanation: Explanation) -> RenderableType:
    """Return an explanation for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    styles = {"file": "dim", "copy": "cyan"}
    for label, text, kind in explanation_rows(explanation):
        shown = f"  {text}" if kind == "file" else text
        grid.add_row(label, Text(shown, style="bold" if label == "cause" else styles.get(kind, "")))
    title = Text(headline(explanation), style=_style(explanation.state))
    return Group(title, grid)


def _style(state: str) -> str:
    return state_style(RunState(state))


def _what(explanation: Explanation) -> Iterator[Row]:
    yield _about(explanation)
    yield Row("cause", explanation.cause)
    for note in explanation.notes:
        yield Row("note", note)
    if explanation.meaning and not explanation.stops:
        detail = f": {explanation.detail}" if explanation.detail and explanation.detail not in explanation.cause else ""
        yield Row("kind", f"{explanation.failure_class}: {explanation.meaning}{detail}")
    yield Row("where", _where(explanation))
    yield Row("when", _when(explanation))
    for stop in explanation.stops:
        because = f": {stop.reason}" if stop.reason else ""
        yield Row("asked", f"{stop.by} asked for the stop at {readable_time(stop.time)}{because}")


def _about(explanation: Explanation) -> Row:
    """Return what a run that goes on does now, and which attempt this is about if it is not the last one."""
    earlier = explanation.attempt is not None and explanation.attempt != explanation.attempts
    is_job_over = any(RESULT_AWAITED in text for text in (explanation.cause, *explanation.notes))
    if explanation.state != "RUNNING" or not explanation.history or is_job_over:
        return Row("about", f"attempt {explanation.attempt} of {explanation.attempts}" if earlier else "")
    latest = explanation.history[-1]
    if explanation.is_between:
        return Row("now", f"attempt {latest.number} has ended, and the next one is not open yet")
    since = f", for {describe_duration(latest.lasted_s)}" if latest.lasted_s is not None else ""
    why = f"; this is why attempt {explanation.attempt} ended" if earlier else ""
    return Row("now", f"it still runs: attempt {latest.number}{since}{why}")


def _where(explanation: Explanation) -> str:
    if explanation.rank is None:
        return ", ".join(explanation.lost_nodes[:6]) or explanation.node
    local = f" (local rank {explanation.local_rank})" if explanation.local_rank is not None else ""
    process = f", process {explanation.pid}" if explanation.pid else ""
    place = f"rank {explanation.rank}{local}{f' on {explanation.node}' if explanation.node else ''}{process}"
    return f"{explanation.frame}; {place}" if explanation.frame else place


def _when(explanation: Explanation) -> str:
    if explanation.time is None:
        return ""
    into = explanation.into_attempt_s
    how_long = describe_duration(into) if into is not None and into >= 1 else "less than a second"
    after = f", {how_long} into attempt {explanation.attempt}" if into is not None else ""
    return f"{readable_time(explanation.time)}{after}"


def _others(explanation: Explanation) -> Iterator[Row]:
    own = {explanation.rank} if explanation.rank is not None else set()
    failed = [rank for rank in ranks_of(explanation.failed) if rank not in own]
    candidates = [rank for rank in ranks_of(explanation.candidates) if rank not in own]
    victims = [rank for rank in ranks_of(explanation.victims) if rank not in own]
    stopped = [rank for rank in ranks_of(explanation.stopped) if rank not in own]
    alike = [rank for rank in candidates if rank in failed]
    later = [rank for rank in failed if rank not in candidates]
    others = [rank for rank in candidates if rank not in failed]
    is_same = "failed in the same way" in explanation.cause and "may be the cause as well" not in explanation.cause
    if explanation.reason == "exit_timeout" and others == stopped:
        others = []  # the cause names them
    sentences = [
        (alike, "failed in the same way, at about the same time" if is_same else _NEAR),
        (later, "failed by {themselves} as well, later"),
        (others, "may be the cause as well"),
        (victims, _CONSEQUENCE if "it is a consequence" in explanation.cause else _VICTIM),
        (stopped, "had not failed and {were} stopped"),
    ]
    told = "; ".join(_sentence(ranks, words) for ranks, words in sentences if ranks)
    first = explanation.observed_first
    heard = f"; the head heard of rank {first} first" if first is not None and first not in own and told else ""
    yield Row("others", f"{told}{heard}")
    if explanation.failure_class == FailureClass.UNKILLABLE.value and explanation.failures:
        yield Row("others", f"before that, {describe_failure(explanation.failures[0])}")
    if explanation.lost_nodes and explanation.rank is not None:
        yield Row("others", f"lost in the same attempt: {', '.join(explanation.lost_nodes[:6])}")


def _sentence(ranks: Sequence[int], words: str) -> str:
    is_one = len(ranks) == 1
    words = words.format(themselves="itself" if is_one else "themselves", were="was" if is_one else "were")
    return f"{_named(ranks)} {words}"


def _named(ranks: Sequence[int]) -> str:
    from hpc_elastic.rank_set import format_ranks

    text = format_ranks(ranks)
    if len(text) > _LONGEST_RANKS:
        text = f"{text[:_LONGEST_RANKS].rpartition(',')[0]},..."
    many = f"{len(ranks)} ranks, " if len(ranks) > 8 else ""
    return f"rank {text}" if len(ranks) == 1 else f"{many}ranks {text}" if not many else f"{len(ranks)} ranks ({text})"


def _tried(explanation: Explanation) -> Iterator[Row]:
    spent = [
        count(explanation.attempts, "attempt"),
        f"restarts {of_limit(explanation.restarts, explanation.max_restarts)}",
    ]
    if explanation.node_losses:
        spent.append(f"node losses {of_limit(explanation.node_losses, explanation.max_node_losses)}")
    if explanation.attempts == 1 and explanation.max_restarts == 0:
        spent = ["1 attempt, and restart.max_restarts allows no other"]
    if explanation.attempts:
        yield Row("tried", ", ".join(spent))
    groups = _grouped(explanation.history) if len(explanation.history) > 1 else []
    is_long = len(groups) > _FIRST_ATTEMPTS + _LAST_ATTEMPTS
    for group in groups[:_FIRST_ATTEMPTS] if is_long else groups:
        yield Row("tried", _attempts(group, explanation))
    if is_long:
        left = groups[_FIRST_ATTEMPTS:-_LAST_ATTEMPTS]
        yield Row("tried", f"({count(sum(map(len, left)), 'attempt')} left out)")
        for group in groups[-_LAST_ATTEMPTS:]:
            yield Row("tried", _attempts(group, explanation))


def _grouped(history: Iterable[ExplainedAttempt]) -> list[list[ExplainedAttempt]]:
    """Return the attempts in groups: those that follow each other and ended in the same way."""
    groups: list[list[ExplainedAttempt]] = []
    for attempt in history:
        if groups and attempt.cause and groups[-1][-1].cause == attempt.cause:
            groups[-1].append(attempt)
        else:
            groups.append([attempt])
    return groups


def _attempts(group: Sequence[ExplainedAttempt], explanation: Explanation) -> str:
    """Return a line about attempts that ended in the same way; what was told above is not told again."""
    first, last = group[0], group[-1]
    is_told = any(attempt.number == explanation.attempt for attempt in group) and last.cause in explanation.cause
    cause = "the cause above" if last.cause and is_told else last.cause or "runs"
    if len(cause) > _LONGEST_HISTORY:
        cause = f"{cause[:_LONGEST_HISTORY]} [...]"
    if len(group) > 1:
        return f"each of attempts {first.number}-{last.number}: {cause}"
    lasted = f" ({describe_duration(first.lasted_s)})" if first.lasted_s is not None else ""
    return f"attempt {first.number}{lasted}: {cause}"


def _evidence(explanation: Explanation) -> Iterator[Row]:
    for sentence in explanation.stacks:
        yield Row("stacks", sentence)
    for sentence in explanation.collectives:
        yield Row("recorder", sentence)
    for excerpt in explanation.excerpts:
        yield Row("evidence", f"{excerpt.title}:")
        for line in excerpt.lines:
            yield Row("evidence", line.expandtabs(4), "file")
    for path in explanation.files:
        yield Row("files", path, "copy")


def _do(explanation: Explanation) -> Iterator[Row]:
    for advice in explanation.advice:
        yield Row("do", f"{advice[0].upper()}{advice[1:]}.")
    for command in explanation.next:
        yield Row("next", command, "copy")
