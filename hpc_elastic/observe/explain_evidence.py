"""Chooses the parts of files that an explanation shows as evidence: of an error file, a traceback, an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.observe.explain_facts import Excerpt, text_of
from hpc_elastic.observe.rank_output import output_path, read_end
from hpc_elastic.printable import without_colours
from hpc_elastic.rundir.layout import RunLayout

TRACEBACK_LINES = 14
_STDERR_LINES, _STDOUT_LINES, _LOG_LINES = 10, 4, 8
_LONGEST_LINE = 400  # characters
_THREAD = "(most recent call first):"


def excerpts_of_rank(
    layout: RunLayout, attempt: int, rank: int, error: Mapping[str, Any], message: str
) -> Iterator[Excerpt]:
    """Yield the parts of a failed rank's error file and output that show how it ended.

    Args:
        layout: the run's.
        attempt: the attempt in which it was started.
        rank: the rank.
        error: its error file; empty if there is none.
        message: what is said of its failure.
    """
    path = layout.error(attempt, rank)
    callstack = callstack_of(error)
    is_stack = _THREAD in callstack  # of a rank that did not go on: the innermost call is the first
    is_ours = text_of(error, "class") == FailureClass.START_FAILED.value  # of the program that should start it
    has_traceback = "\n" in callstack.strip() and not is_stack and not is_ours
    if is_stack:
        yield from excerpt(f"the stack of rank {rank}, innermost call first", path, _main_thread(callstack), 14)
    elif has_traceback:
        yield from excerpt(f"the end of rank {rank}'s traceback", path, callstack, TRACEBACK_LINES)
    stored = error.get("stderr_tail")
    tail = stored if isinstance(stored, str) and stored.strip() else ""
    source = path if tail else output_path(layout, attempt, rank, is_stderr=True)
    tail = tail or read_end(layout, attempt, rank, is_stderr=True)
    if not (has_traceback and _last_line(callstack) in tail):
        is_told = not has_traceback and text_of(error, "class") != FailureClass.EXIT_CODE.value
        shown = _up_to(message.partition("\n")[0], tail) if is_told else tail
        title = "the end" if shown == tail else "a part"
        yield from excerpt(f"{title} of rank {rank}'s standard error", source, shown, _STDERR_LINES)
    if not tail.strip() and text_of(error, "class") == FailureClass.EXIT_CODE.value:  # it may have said why there
        source = output_path(layout, attempt, rank, is_stderr=False)
        printed = read_end(layout, attempt, rank, is_stderr=False)
        yield from excerpt(f"the end of rank {rank}'s standard output", source, printed, _STDOUT_LINES)


def _up_to(message: str, tail: str) -> str:
    """Return an output up to the line with a message, if more follows it than an excerpt has lines.

    A launcher that was the command says at length, after the traceback of its rank, that a rank has failed.
    """
    lines = [line for line in tail.splitlines() if line.strip()]
    named = [number for number, line in enumerate(lines) if message and message in line]
    is_hidden = bool(named) and named[-1] < len(lines) - _STDERR_LINES
    return "\n".join(lines[: named[-1] + 1]) if is_hidden else tail


def callstack_of(error: Mapping[str, Any]) -> str:
    """Return the traceback, or the stack, in an error file; empty if it has none."""
    message = error.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return callstack if isinstance(callstack, str) else ""


def excerpt(title: str, path: str, text: str, most: int = _LOG_LINES) -> Iterator[Excerpt]:
    """Yield the last lines of a text that are not blank, `most` of them at most; nothing if there is none."""
    lines = [_without_overwritten(line).rstrip() for line in without_colours(text).split("\n")]
    shown = [line for line in lines if line][-most:]
    if shown:
        clipped = (line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} [...]" for line in shown)
        yield Excerpt(title=title, path=path, lines=tuple(clipped))


def _without_overwritten(line: str) -> str:
    """Return a line without what a progress bar has overwritten in it.

    A single carriage return between two texts is more likely one in a message, and what stands before it evidence.
    """
    kept = line.rstrip("\r")
    first, _, last = kept.rpartition("\r")
    is_bar = "\r" in first or "%" in first or not first.strip()
    return last if is_bar else kept


def _main_thread(stack: str) -> str:
    """Return the main thread's calls in what faulthandler wrote, without those of this package around the script."""
    lines = [line.strip() for line in stack.rpartition(_THREAD)[2].splitlines() if line.strip()]
    while lines and ("/hpc_elastic/" in lines[-1] or "<frozen runpy>" in lines[-1]):
        lines.pop()
    return "\n".join(lines[:TRACEBACK_LINES])


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
