"""This checkout beside another commit of it: the same benchmarks, in turns, so that none of them has the quieter hour.

    python -m benchmarks.against REVISION [PROGRAM ...] [--turns 8] [--json FILE]

The commit is checked out in a temporary folder, and both run with the packages of this environment. In each turn every
program runs once in both checkouts, small, and who is first changes from turn to turn. Of each figure the medians are
shown and their ratio with its interval of 95 % confidence: it is worse if all of that lies above 1.05, not worse if all
of it lies below, and open else, which more turns decide. The exit code is 1 if a figure is worse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Ratio, ratio_of_medians

REPOSITORY = Path(__file__).parents[1]
MARGIN = 1.05
OPEN, WORSE, NOT_WORSE = "open", "worse", "not worse"


def _of_command_line(report: Any) -> Iterator[tuple[str, list[float]]]:
    for row in report["commands"]:
        if row["command"].startswith("hpc-elastic"):
            yield f"{row['command']}, ms", [row["median_ms"]]


def _of_agent_cost(report: Any) -> Iterator[tuple[str, list[float]]]:
    for row in report["processes"]:
        if not row["process"].startswith("torchrun"):
            yield f"{row['process']}, MiB", [row["proportional_mib"]]
    agents = [row["cpu_percent"] for row in report["processes"] if row["process"].endswith(("'s agent", "'s guard"))]
    yield "agents and guards, % of a core", [sum(agents)]


def _of_node_loss(report: Any) -> Iterator[tuple[str, list[float]]]:
    for row in report["cases"]:
        yield f"{row['case']}, s", [each["recovered_s"] for each in row["all"]]


def _of_recovery(report: Any) -> Iterator[tuple[str, list[float]]]:
    for case, by_launcher in report["recovery"].items():
        yield f"{case}, s", [value for turn in by_launcher["hpc_elastic"]["turns"] for value in turn]


@dataclass(frozen=True)
class Program:
    """A benchmark: the arguments with which one turn of it is short, and its figures, of which lower is better."""

    arguments: tuple[str, ...]
    figures: Callable[[Any], Iterator[tuple[str, list[float]]]]


PROGRAMS = {
    "command_line": Program(("-n", "5"), _of_command_line),
    "agent_cost": Program(("--seconds", "10"), _of_agent_cost),
    "node_loss": Program(("-n", "1", "--peer", "0"), _of_node_loss),
    "recovery": Program(
        ("-n", "1", "--peer-n", "0", "--repeats", "3", "--only", "recovery", "--launchers", "ours"), _of_recovery
    ),
}


@dataclass
class Series:
    """One figure: what was measured in each turn, of the other commit and of this checkout."""

    before: list[list[float]] = field(default_factory=list)
    now: list[list[float]] = field(default_factory=list)

    def ratio(self) -> Ratio | None:
        """The median of this checkout by that of the other commit; None if there are no values of one."""
        return ratio_of_medians(self.now, self.before)

    def verdict(self) -> str:
        """Whether it is worse by more than 5 %."""
        ratio = self.ratio()
        if ratio is None or ratio.low is None or ratio.high is None:
            return OPEN
        return WORSE if ratio.low > MARGIN else NOT_WORSE if ratio.high <= MARGIN else OPEN


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", metavar="REVISION", help="the commit to compare with, as git names it")
    parser.add_argument("programs", metavar="PROGRAM", nargs="*", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--turns", type=int, default=8, help="how often each in both checkouts")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args(given)
    names = arguments.programs or list(PROGRAMS)
    if unknown := sorted(set(names) - PROGRAMS.keys()):
        parser.error(f"no benchmark {', '.join(unknown)} that can be compared; there are {', '.join(PROGRAMS)}")
    with checked_out(arguments.revision) as before:
        series = measure(names, before, arguments.turns)
    print_table(series)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(as_report(arguments.revision, series), indent=2) + "\n")
    return int(any(each.verdict() == WORSE for each in series.values()))


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A checkout of a commit in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-before-") as folder:
        checkout = Path(folder) / "checkout"
        git = ("git", "-C", str(REPOSITORY), "worktree")
        done = subprocess.run(
            [*git, "add", "--quiet", "--detach", str(checkout), revision], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"git cannot check out {revision}: {done.stderr.strip()}")
        try:
            yield checkout
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def measure(names: list[str], before: Path, turns: int) -> dict[str, Series]:
    """All figures of these programs, by `program: figure`."""
    found: dict[str, Series] = {}
    for turn in range(turns):
        for name in names:
            checkouts = [before, REPOSITORY] if turn % 2 == 0 else [REPOSITORY, before]
            figures = {checkout: run(name, checkout) for checkout in checkouts}
            for figure in figures[REPOSITORY].keys() & figures[before].keys():
                series = found.setdefault(f"{name}: {figure}", Series())
                series.before.append(figures[before][figure])
                series.now.append(figures[REPOSITORY][figure])
        print(f"turn {turn + 1} of {turns} is over", file=sys.stderr)
    return found


def run(name: str, checkout: Path) -> Mapping[str, list[float]]:
    """The figures of one small run of a program, in a checkout."""
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", *program.arguments, "--json", str(path)]
        environ = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} in {checkout} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return dict(program.figures(json.loads(path.read_text())))


def as_report(revision: str, series: Mapping[str, Series]) -> dict[str, Any]:
    """The figures for a program: each with what was measured in every turn."""
    return {
        "against": revision,
        "figures": {
            name: {"before": each.before, "now": each.now, "ratio": str(each.ratio()), "verdict": each.verdict()}
            for name, each in series.items()
        },
    }


def print_table(series: Mapping[str, Series]) -> None:
    """Print a line for each figure."""
    print(f"{'figure':<58} {'before':>9} {'now':>9}  {'ratio':<24} verdict")
    for name, each in sorted(series.items()):
        before, now = (_median(turns) for turns in (each.before, each.now))
        print(f"{name:<58} {before:>9} {now:>9}  {each.ratio() or ''!s:<24} {each.verdict()}")


def _median(turns: list[list[float]]) -> str:
    values = [value for turn in turns for value in turn]
    return f"{statistics.median(values):.4g}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
