"""Keeps what `explain` says of each fault as a golden text, and compares what must be the same in every run.

The goldens in `tests/faults/explain` are to be read: `python -m tests.faults --write-explanations` writes them anew,
for a look at the difference with git. Paths, process ids, ports and times are replaced before the text is laid out.

Which ranks fail as victims, and which are stopped before they do, is a race in every run; so are tracebacks of torch
and of Python, which change with their versions. These parts are in the goldens and are not compared. Of a fault that
several ranks may be blamed for, ranks and nodes are not compared either, nor is the line of the one that is told where
each waited at its own; of one that may end in several ways only which rows there are. Of a line that is clipped, what
is left of it: a longer path of the folder leaves less.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_elastic.failures.ends import UNKNOWN_USE
from hpc_elastic.observe.explain import ExplainedAttempt, Explanation
from hpc_elastic.observe.explain_facts import Excerpt, FailureFacts, StopWish
from hpc_elastic.observe.present_explanation import plain_explanation
from tests.faults.fault import Fault, Silent

GOLDENS = Path(__file__).with_name("explain")
WIDTH = 80
_CHECKOUT = Path(__file__).resolve().parents[2]
_MOMENT = "2026-01-02T03:04:05.000000Z"
_FIXED: Mapping[str, Any] = {
    "pid": 4711,
    "lasted_s": 1.0,
    "into_attempt_s": 1.0,
    "time": _MOMENT,
    "opened": _MOMENT,
    "by": "ada@login",
}
_REPLACED = (
    (r"0x[0-9a-f]{4,}", "0x0"),
    (r"\b(pid(?:\(s\))?|process) \d{3,}", r"\1 4711"),
    (r"\b\d+( survived KILL)", r"4711\1"),
    (r"(: line \d+:) +\d+( (?:Killed|Segmentation fault|Aborted)\b)", r"\1 4711\2"),
    (r"(127\.0\.0\.\d|\])(\]?:)\d+", r"\1\g<2>20000"),
    (r"\bport: \d+|\bport \d+", "port 20000"),
    (r"\[[WEI]\d{4} [\d:.]+", "[W0102 03:04:05.0"),
    (r"torch_\d+_\d+", "torch_1_1"),
    (r"\bfd=\d+", "fd=4"),
    (r"\bafter step \d+|\bat step \d+", "after step 12"),
    (r"\bfor \d+ s\b", "for 2 s"),
    (r"\b\w+@[\w.-]+ asked|\bby \w+@[\w.-]+$", lambda match: re.sub(r"\w+@[\w.-]+", "ada@login", match[0])),
    (r"\b[\d.]+ (of [\d.]+ [MG]iB free)", r"0 \1"),
    (r"\b(waiting \d+ms for) send (operation)", r"\1 recv \2"),  # gloo finds either first
)
_CLIPPED = " [...]"  # the end of a line that is longer than `explain` shows
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def laid_out(found: Mapping[str, Any], project: Path) -> str:
    """Return the explanation as its reader would see it, without what differs in each run.

    Args:
        found: the object of `explain --json`.
        project: the run's project folder.
    """
    names = {
        str(found["run_dir"]): "/project/RUN",
        str(project): "/project",
        str(project.parent): "/home",
        str(Path(sys.executable).parent): "/python/bin",
        str(sys.prefix): "/python",
        str(sys.base_prefix): "/python",
        str(_CHECKOUT): "/checkout",
    }
    if found["job_id"]:
        names[str(found["job_id"])] = "local-1"
    fixed = _fixed({key: value for key, value in found.items() if key != "format_version"}, names)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fixed.items()}
    values["failures"] = tuple(FailureFacts(**each) for each in fixed["failures"])
    values["history"] = tuple(ExplainedAttempt(**each) for each in fixed["history"])
    values["stops"] = tuple(StopWish(**each) for each in fixed["stops"])
    values["excerpts"] = tuple(Excerpt(**{**each, "lines": tuple(each["lines"])}) for each in fixed["excerpts"])
    explanation = Explanation(**values)
    return _TIME.sub("2026-01-02 03:04:05", plain_explanation(explanation, WIDTH)) + "\n"


def write_golden(fault: Fault, text: str) -> None:
    """Keep a text as the fault's golden."""
    GOLDENS.mkdir(exist_ok=True)
    _golden(fault).write_text(text, encoding="utf-8")


# A test beside this one may fill its memory; of many kills in a few seconds the kernel names ten cgroups.
_OF_OTHERS = re.compile(
    r": the kernel of the node killed \d+ process(es)? for memory meanwhile, none of them in this cgroup"
)
_UNKNOWN_USE = re.compile(rf"(killer: ){UNKNOWN_USE}$")
_USE = re.compile(r"(killer: )\d+ of \d+ MiB in use$")


def differences(fault: Fault, text: str) -> Iterator[str]:
    """Yield a complaint if a text is not as the fault's golden in what must be the same in every run."""
    if not _golden(fault).exists():
        yield f"{_golden(fault)} is missing: write it with --write-explanations, and read it"
        return
    old, new = (comparable(fault, of) for of in (_golden(fault).read_text(encoding="utf-8"), text))
    if any(_UNKNOWN_USE.search(row) for row in new):
        old, new = ([_UNKNOWN_USE.sub(r"\1", _USE.sub(r"\1", row)) for row in rows] for rows in (old, new))
    old = [_clipped(row, new) for row in old]
    if old != new:
        lines = list(difflib.unified_diff(old, new, "golden", "now", n=0, lineterm=""))[2:]
        yield "\n      ".join(["explain says otherwise than its golden:", *lines])


def _clipped(row: str, new: list[str]) -> str:
    """Return a golden's row, or the one of now that is clipped and has nothing that is not in it."""
    begins = (other for other in new if other.endswith(_CLIPPED) and row.startswith(other[: -len(_CLIPPED)]))
    return next(begins, row)


def comparable(fault: Fault, text: str) -> list[str]:
    """Return the rows of a text that must be the same in every run, each as one line that begins with its label."""
    rows = [row for row in _rows(text) if not row.startswith(("others", "files"))]
    rows = [_OF_OTHERS.sub("", row.partition("; at about the same time")[0]) for row in rows]
    if len(fault.end.classes) > 1:
        return sorted({row.split(" ", 1)[0] for row in rows} - {"evidence", "files", "stacks"})
    if "DataLoader worker" in text:  # torch may notice the end of its process in two ways
        rows = [_without_exception(row) for row in rows if not row.startswith(("where", "evidence", "do "))]
    if isinstance(fault.end.culprit, tuple) and "they waited at different lines" in " ".join(rows):
        rows = [row for row in rows if not row.startswith(("where", "evidence"))]
    if isinstance(fault.end.culprit, (tuple, Silent)):
        rows = [_without_ranks(row) for row in rows]
    return rows


def _rows(text: str) -> Iterator[str]:
    """Yield each row as one line; of evidence only the innermost of the project's own lines.

    The outer lines are missing where an exception's own traceback ends at the handler that raised another one, as a
    `finally` does whose `destroy_process_group()` fails now and then.
    """
    label, parts = "", list[str]()
    for line in [*text.splitlines(), "end"]:
        if line[:1].strip():
            if parts:
                yield " ".join(parts)
            label, parts = line.split(" ", 1)[0], [" ".join(line.split())]
        elif label == "evidence" or line.startswith(" " * 12):
            if '"/project/' in line:
                parts[1:] = [line.strip()]
        else:
            parts.append(line.strip())


def _without_exception(row: str) -> str:
    return re.sub(r": \w+:? .*DataLoader worker.*", ": DataLoader worker", row)


def _without_ranks(row: str) -> str:
    row = re.sub(r"\branks? [\d,-]+", "rank N", row)
    return re.sub(r"--rank \d+|local\d|failed in the same way|; rank N\b.*", "", row)


def _fixed(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _fixed(inner, names, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fixed(inner, names, key) for inner in value]
    if key in _FIXED and value is not None:
        return _FIXED[key]
    return _replaced(value, names) if isinstance(value, str) else value


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for name, stands_for in names.items():
        text = text.replace(name, stands_for)
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    return text


def _golden(fault: Fault) -> Path:
    return GOLDENS / f"{fault.name}.txt"
