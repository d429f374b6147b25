"""Finds in the end of a program's output the exception that ended it, or the line that says most of its end.

Theory of operation. A worker may be a shell, a launcher or another wrapper whose own end says only that its program
failed; and a program may print more after the traceback that ended it: lines of loggers at exit, a progress bar, the
steps of a cleanup. A traceback that torch's excepthook printed belongs to an exception that ended a process, whatever
follows it. Any other one may be of a handler that went on, so it counts only close to the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.failures.traceback_text import (
    CAUSE,
    CONTEXT,
    LAUNCHERS_ERROR,
    Raised,
    parse_launched,
    parse_tracebacks,
)

Chain = tuple[Raised, ...]
NOISE_LINES = 3  # lines that may follow the traceback that ended a program: warnings of its teardown
WRAPPERS_LINES = 10  # lines that a wrapper may add, which has no traceback of its own
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]?[@-~]|\x1b\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)")
_BAR = re.compile(r"\d{1,3}%\|.{0,300}\]")  # of tqdm
# The summary that wandb prints at the exit, often 20 lines and more, and where a run within this one has its files.
_SUMMARY = re.compile(r"^(?:wandb:(?! ERROR)|(?:\[hpc-elastic [\d:]{8}\] )?see: )")
_BORDERS = "│┃╭╮╰╯┏┓┗┛─━ "  # of a box that rich draws, around the errors of typer, say
_HEAD_BEHIND_BAR = re.compile(r"(?m)^(.*\]) ?((?:\[rank\d{1,9}\]: )?Traceback \(most recent call last\):)$")
_HEAD = "Traceback (most recent call last)"
_RANK = re.compile(r"^\[rank\d{1,9}\]: ")
_BOX_HEAD = re.compile(r"^╭─.*Traceback \(most recent call last\).*╮$")  # rich.traceback
_BOX_FRAME = re.compile(r"^│ (\S.{0,4095}?):(\d{1,9}) in (.{1,500}?) *│$")
_BOX_SOURCE = re.compile(r"^│ ❱ *\d+ (?:│ *)*(.*?) *│$")
_WARNING = re.compile(r"^\S.{0,4096}:\d{1,9}: \w{0,100}Warning: |^(?:\[rank\d{1,9}\]:)?\[W\d{3,4} ")
# What Lmod says of a module and Python of its own start, before hints, its state and an empty stack.
_FOLLOWED_BY_HINTS = re.compile(r"Lmod has detected the following error:|Fatal Python error: ")
_HINT_LINES = 15
_INFORMS = re.compile(r".{0,60}\b(?:INFO|DEBUG)\b")
_LOGS_ERROR = re.compile(r".{0,60}\b(?:ERROR|CRITICAL|FATAL)\b")
_FAREWELL_LINES = 50
_ERROR = re.compile(r"(?i)^\W*(?:[\w./:-]+\W+){0,4}(?:error|fatal|critical)\b")
# Tracebacks of exceptions that Python passes over, by what stands before them: of a destructor or an atexit function
# (sys.unraisablehook; Python 3.14 says what it was doing), and of a logger that could not write its line.
_ONE_TRACEBACK = rf"{re.escape(_HEAD)}:\n(?: .*\n)+\S.*(?:\n|\Z)"
_PASSED_OVER = re.compile(
    r"(?m)^(?:Exception ignored (?:in|while)\b.*|--- Logging error ---)\n"
    rf"{_ONE_TRACEBACK}(?:\n(?:{re.escape(CAUSE)}|{re.escape(CONTEXT)})\n\n{_ONE_TRACEBACK})*"
    r"(?:Call stack:\n(?: .*\n)*Message: .*\nArguments: .*(?:\n|\Z))?"
)
# They say of another process only that it failed.
_RELAYS = ("CalledProcessError", LAUNCHERS_ERROR, "ProcessExitedException", "BrokenProcessPool")
_LOADER_LEFT = re.compile(
    r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly$"
)  # torch/utils/data/dataloader.py


def clean_output(text: str) -> str:
    """Return a program's output without colours and carriage returns, and tracebacks in the form of Python's.

    Those are written otherwise by rich, which draws a box, and by loggers that write a line of JSON. Left out are those
    of exceptions that Python passes over, such as a destructor's, which end no program.
    """
    lines: list[str] = []
    text = without_colours(text).replace("\r\n", "\n").replace("\r", "\n")
    is_box = False
    for printed in _HEAD_BEHIND_BAR.sub(_split_behind_bar, text).split("\n"):
        line = _RANK.sub("", printed)
        rank = printed[: len(printed) - len(line)]  # torch's excepthook puts it before the lines of any other one
        if _BOX_HEAD.match(line):
            is_box = True
            lines.append(f"{rank}Traceback (most recent call last):")
        elif not is_box:
            lines += _logged_traceback(line).split("\n") if line[:1] == "{" and _HEAD in line else [printed]
        elif line.startswith("╰─"):
            is_box = False
        elif frame := _BOX_FRAME.match(line):
            lines.append(f'{rank}  File "{frame[1]}", line {frame[2]}, in {frame[3]}')
        elif source := _BOX_SOURCE.match(line):
            lines.append(f"{rank}    {source[1]}")
    return _PASSED_OVER.sub("", "\n".join(lines))


def without_colours(text: str) -> str:
    """Return a text without what sets a terminal's colours and the like."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _logged_traceback(line: str) -> str:
    """Return the traceback in a line of JSON, such as those of structlog; the line itself if it is none."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        return line
    values = record.values() if isinstance(record, dict) else ()
    return next((value.rstrip("\n") for value in values if isinstance(value, str) and _HEAD in value), line)


def _split_behind_bar(found: re.Match[str]) -> str:
    return f"{found[1]}\n{found[2]}" if _BAR.search(found[1]) else found[0]


def find_chain(tail: str, *, noise: int, is_victims: Callable[[Chain], bool]) -> Chain:
    """Return the exceptions that ended a program, as the end of its output shows them; () if it shows none.

    Args:
        tail: the end of its standard error.
        noise: how many lines may follow a traceback that need not have ended a process.
        is_victims: returns whether a chain is a consequence of another rank's failure.
    """
    chains = parse_tracebacks(clean_output(tail))
    while chains and _is_relay(chains[-1][-1]):
        own, relay = chains[:-1], chains[-1]
        if not own and (quoted := parse_launched(relay[-1])):
            return quoted
        if relay[-1].short_type == LAUNCHERS_ERROR and own:  # of a torchrun inside, which has several workers
            return next((chain for chain in own if not is_victims(chain)), own[0])
        child = find_ended(own, is_victims=is_victims) or _last_if_near(own, WRAPPERS_LINES)
        return child or _last_if_near(chains, noise)
    return find_ended(chains, is_victims=is_victims) or _last_if_near(chains, noise)


def find_child(tail: str, own: Chain, *, is_victims: Callable[[Chain], bool]) -> Chain:
    """Return the exceptions that ended a program which a worker ran, if they explain the worker's own; else ().

    They do if the own exception says only that a process failed, or if a process of the rank's group ended of one while
    the worker itself was in no group.
    """
    chains = parse_tracebacks(clean_output(tail))
    others = [chain for chain in chains if not _are_same(chain[-1], own[-1])]
    if any(chain[-1].ended_process for chain in chains if chain not in others):
        return ()
    found = find_ended(others, is_victims=is_victims)
    if not found and _is_relay(own[-1]):
        found = _last_if_near(others, WRAPPERS_LINES) or parse_launched(own[-1])
    return found


def find_ended(chains: Sequence[Chain], *, is_victims: Callable[[Chain], bool]) -> Chain:
    """Return the last of the chains that have ended a process, of those that are no consequence if there is one."""
    ended = [chain for chain in chains if chain[-1].ended_process]
    own = [chain for chain in ended if not is_victims(chain)] or ended
    return own[-1] if own else ()


def _last_if_near(chains: Sequence[Chain], noise: int) -> Chain:
    """Return the last chain if no more lines follow it than that."""
    if not chains:
        return ()
    last = chains[-1][-1]
    # Indented lines go on with a message; the exceptions in a group follow it; a quoted traceback is part of it.
    after = [line for line in last.text.split("\n")[1:] if line.strip() and line[0] not in " \t"]
    count = sum(_BAR.search(line) is None and _SUMMARY.match(line) is None for line in after)
    is_whole = last.is_group or "Traceback" in last.text
    return chains[-1] if count <= noise or is_whole else ()


def _is_relay(raised: Raised) -> bool:
    """Return whether an exception says of another process only that it failed, and not by which signal it ended."""
    if raised.short_type == "RuntimeError":
        return _LOADER_LEFT.match(raised.text) is not None
    is_signal = raised.short_type == "ProcessExitedException" and " signal " in raised.text
    return raised.short_type in _RELAYS and not is_signal


def _are_same(one: Raised, other: Raised) -> bool:
    first, second = (without_colours(each.text).strip().partition("\n")[0].rstrip() for each in (one, other))
    return one.short_type == other.short_type and first == second


def says_error(line: str) -> bool:
    """Return whether a line of output calls itself an error, such as `ERROR: no data` or `train: fatal: no data`."""
    return _ERROR.match(line) is not None


def last_line(text: str) -> str:
    """Return the last line of a program's output that may say why it ended; "" if there is none.

    Warnings with the line of source that Python shows below them, progress bars and summaries do not say it.
    """
    return next(reversed(_telling_lines(text)), "")


def find_reason(text: str) -> str:
    """Return the line of a program's output that most likely says why it exited; "" if there is none.

    That is the last one, but for what has more lines behind it that do not say it: Lmod's and Python's own errors, and
    an error before the farewells of a logger, such as `INFO: closed`.
    """
    lines = _telling_lines(text)
    told = next((line for line in reversed(lines[-_HINT_LINES:]) if _FOLLOWED_BY_HINTS.match(line)), "")
    if told or not lines or not _INFORMS.match(lines[-1]):
        return told or next(reversed(lines), "")
    near = reversed(lines[-_FAREWELL_LINES:])
    return next((line for line in near if says_error(line) or _LOGS_ERROR.match(line)), lines[-1])


def _telling_lines(text: str) -> list[str]:
    lines = [line for line in clean_output(text).splitlines() if line.strip()]
    telling = []
    for before, line in zip(["", *lines], lines, strict=False):
        is_source = line.startswith("  ") and _WARNING.match(before) is not None
        if is_source or _WARNING.match(line) or _BAR.search(line) or _SUMMARY.match(line):
            continue
        telling.append(line.strip(_BORDERS))
    return [line for line in telling if line]
