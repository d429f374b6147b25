"""The table of `doctor` for people, and its object for programs; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from hpc_elastic.doctor.results import CheckResult, Severity, worst
from hpc_elastic.printable import printable_line

_VERDICT, _CHECK = 5, 13  # columns, with the space behind
_COLOURS = {Severity.OK: "32", Severity.SKIP: "2", Severity.WARN: "33", Severity.FAIL: "1;31"}
_WORDS = {Severity.FAIL: "failed", Severity.WARN: "to look at", Severity.OK: "ok", Severity.SKIP: "not tried"}
_NARROWEST = 40


def table(groups: Mapping[str, Sequence[CheckResult]], width: int, *, has_colours: bool) -> str:
    """Return the results as lines of at most `width` columns, as far as words allow, by group."""
    lines: list[str] = []
    for title, results in groups.items():
        if results:
            lines += [*([""] if lines else []), printable_line(title)]
            lines += [line for each in results for line in _lines(each, max(width, _NARROWEST), has_colours)]
    everything = [each for results in groups.values() for each in results]
    counts = Counter(each.verdict for each in everything)
    lines += ["", ", ".join(f"{counts[verdict]} {word}" for verdict, word in _WORDS.items() if counts[verdict])]
    return "\n".join(lines)


def _lines(result: CheckResult, width: int, has_colours: bool) -> Iterator[str]:
    indent = " " * (_VERDICT + _CHECK)
    room = width - len(indent)
    word = result.verdict.value
    shown = f"\x1b[{_COLOURS[result.verdict]}m{word}\x1b[0m" if has_colours else word
    first, *rest = _wrap(printable_line(result.found), room)
    yield f"{shown}{' ' * (_VERDICT - len(word))}{result.check:<{_CHECK}}{first}".rstrip()
    yield from (f"{indent}{line}" for line in rest)
    if result.verdict is Severity.OK:
        return
    for label, text in (("want", result.expected), ("do", result.action), ("key", result.key)):
        if text:
            for number, line in enumerate(_wrap(printable_line(text), room - 6)):
                yield f"{indent}{f'{label}:' if number == 0 else '':<6}{line}"


def _wrap(text: str, width: int) -> list[str]:
    """Return a text as lines of at most `width` columns: words that are longer, such as paths, are cut."""
    return wrap(text, width, break_on_hyphens=False) or [""]


def to_object(
    groups: Mapping[str, Sequence[CheckResult]], *, site: str, job_id: str | None, nodes: Sequence[str]
) -> dict[str, Any]:
    """Return what `--json` prints."""
    everything = [each for results in groups.values() for each in results]
    return {
        "format_version": 1,
        "site": site,
        "job_id": job_id,
        "nodes": list(nodes),
        "verdict": worst(everything).value,
        "checks": [
            {
                "check": each.check,
                "verdict": each.verdict.value,
                "found": each.found,
                "expected": each.expected,
                "action": each.action,
                "key": each.key,
                "nodes": list(each.nodes),
            }
            for each in everything
        ],
    }
