"""What a check came to: a verdict, what was found and expected, what to do, and the key of the site file; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """The verdict of a check; `skip`: it was not made, and that is no fault."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the table.

    `nodes` are those that it is about, none if it is about the cluster. `key` is a key of the site file.
    """

    check: str
    verdict: Severity
    found: str
    expected: str = ""
    action: str = ""
    key: str = ""
    nodes: tuple[str, ...] = ()


def worst(results: Iterable[CheckResult]) -> Severity:
    """Return the worst verdict of some checks, ok if there are none."""
    return max((each.verdict for each in results), key=_ORDER.index, default=Severity.OK)


def name_nodes(nodes: Sequence[str], total: int) -> str:
    """Return some nodes in words: `all 4 nodes`, `node1, node2`, `node1, node2, node3 and 5 more`."""
    if len(nodes) == total and total > 1:
        return f"all {total} nodes"
    shown = ", ".join(nodes[:3])
    return shown if len(nodes) <= 3 else f"{shown} and {len(nodes) - 3} more"


def by_text(texts: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the nodes of each text, the text of most nodes first."""
    grouped: dict[str, list[str]] = {}
    for node, text in texts.items():
        grouped.setdefault(text, []).append(node)
    return [(text, tuple(nodes)) for text, nodes in sorted(grouped.items(), key=lambda item: -len(item[1]))]


def passed(check: str, found: str) -> CheckResult:
    """Return the line of a check that found nothing wrong."""
    return CheckResult(check=check, verdict=Severity.OK, found=found)
