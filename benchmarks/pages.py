"""Writes the figures of the JSON files into the pages: what stands between two marks is made from them.

python -m benchmarks.pages
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.restart.tables import bar_table, bars, conditions, headline, tables
from benchmarks.versions.tables import version_conditions, version_notes, version_table

REPOSITORY = Path(__file__).parents[1]
FIGURES = REPOSITORY / "docs/benchmarks"
PAGES = ("README.md", "docs/benchmarks/README.md")


def main() -> None:
    for name in PAGES:
        path = REPOSITORY / name
        path.write_text(fill_all(path.read_text(), contents()))


def contents() -> dict[str, list[str]]:
    """What belongs between the marks, by their name."""
    report, agent_cost, versions = read("recovery.json"), read("agent_cost.json"), read("slurm_versions.json")
    found = {f"recovery {name}": table for name, table in tables(report).items()}
    found["recovery bars"] = list(bar_table(bars(report, agent_cost)))
    found["recovery conditions"] = [conditions(report)]
    found["slurm versions"] = [*version_table(versions), "", *version_notes(versions)]
    found["slurm versions conditions"] = [version_conditions(versions)]
    found["agent cost"] = list(agent_table(agent_cost["processes"]))
    if (line := headline(report)) is not None:
        found["recovery headline"] = [line]
    return found


def read(name: str) -> Any:
    path = FIGURES / name
    return json.loads(path.read_text())


def agent_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = ("resident_mib", "proportional_mib", "cpu_percent", "wakeups_per_s")
    head = ["| process | resident MiB | proportional MiB | CPU % | wake-ups a second |", "|---|---|---|---|---|"]
    return head + [f"| {row['process']} | {' | '.join(str(row[name]) for name in columns)} |" for row in rows]


def fill_all(text: str, found: Mapping[str, Sequence[str]]) -> str:
    """A page with everything between its marks made anew."""
    for name, lines in found.items():
        if f"<!-- {name} -->" in text:
            text = fill(text, name, lines)
    return text


def fill(text: str, name: str, lines: Sequence[str]) -> str:
    """A page with other lines between `<!-- name -->` and `<!-- end of name -->`.

    Raises:
        ValueError: the marks are not both there, once each.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected one {begin.strip()} and one {end} after it")
    before, _, rest = text.partition(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]


if __name__ == "__main__":
    main()
