"""What we promise on each release of Slurm, side by side: does it hold, and what does it take; JSON with --json.

    python -m benchmarks.slurm_versions [-n 3] [--slurm 22.05 24.11] [--only scancel] [--json FILE]

Needs root and what tests/slurm_sandbox needs for each release. On four nodes that the command boots for itself, with
workers that only stamp their first step: exit codes, `result.json`, the words of `status` and Slurm's own record are
held against what is promised; a promise that is broken stands in the table in place of the seconds. A Slurm that this
machine cannot run is said, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.machine import describe
from benchmarks.versions.scenarios import ROWS, SCENARIOS, Scenario
from benchmarks.versions.tables import version_conditions, version_notes, version_table
from benchmarks.versions.turn import NODES, Turn
from tests.slurm_sandbox.cluster import Cluster
from tests.slurm_sandbox.versions import SUPPORTED, why_impossible

LEAVES_WITHIN_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=3, help="how often each scenario on each Slurm")
    parser.add_argument("--slurm", nargs="*", default=[*SUPPORTED], metavar="VERSION", help="these releases alone")
    parser.add_argument("--only", nargs="*", metavar="SCENARIO", help=", ".join(one.__name__ for one in SCENARIOS))
    parser.add_argument("--json", metavar="FILE", help="write the figures there too, beside those of other releases")
    arguments = parser.parse_args()
    chosen = [one for one in SCENARIOS if not arguments.only or one.__name__ in arguments.only]
    report: dict[str, Any] = {}
    for version in arguments.slurm:
        for found in measure(version, chosen, arguments.n):
            report = add(version, found, Path(arguments.json) if arguments.json else None, report)
    print("\n".join([*version_table(report), "", *version_notes(report), "", version_conditions(report)]))
    if any(report["versions"][version]["broken"] for version in arguments.slurm):
        sys.exit("not every promise was held")


def add(version: str, found: dict[str, Any], path: Path | None, report: dict[str, Any]) -> dict[str, Any]:
    """The report with what was found of one Slurm; a file is read and written anew, so that others can write to it."""
    before = json.loads(path.read_text()) if path and path.exists() else report
    versions = {**before.get("versions", {}), version: found}
    ordered = {name: versions[name] for name in sorted(versions)}
    after = {"machine": describe(), "rows": ROWS, "versions": ordered}
    if path:
        path.write_text(json.dumps(after, indent=1) + "\n")
    return after


def measure(version: str, scenarios: Sequence[Scenario], number: int) -> Iterator[dict[str, Any]]:
    """What one Slurm does in all scenarios, which take turns: so far, after each turn of all."""
    found: dict[str, Any] = {"slurm": None, "missing": why_impossible(version), "n": 0, "broken": 0, "rows": {}}
    if found["missing"]:
        print(f"Slurm {version} is left out: {found['missing']}", file=sys.stderr)
        yield found
        return
    found["busy_cores_before"] = busy_cores(seconds=3)
    slurm = Cluster.start(NODES, owner=os.getpid(), version=version)
    turns: list[Turn] = []
    try:
        found["slurm"] = slurm.run("sinfo", "--version").stdout.strip()
        with tempfile.TemporaryDirectory(prefix="hpc-elastic-bench-") as folder:
            for time_of in range(1, number + 1):
                for scenario in scenarios:
                    turns.append(Turn(slurm, Path(folder) / f"{scenario.__name__}-{time_of}"))
                    play(scenario, turns[-1], version)
                tried = [row for row in ROWS if any(row in turn.seconds | turn.broken for turn in turns)]
                rows = {row: figures(turns, row) for row in tried}
                yield {**found, "n": time_of, "broken": sum(len(turn.broken) for turn in turns), "rows": rows}
    finally:
        slurm.down()


def play(scenario: Scenario, turn: Turn, version: str) -> None:
    """Plays a scenario once; a job that it leaves behind is a broken promise too."""
    began = time.monotonic()
    scenario(turn)
    left = turn.slurm.leftovers(within_s=0 if turn.broken else LEAVES_WITHIN_S)
    if left and not turn.broken:
        turn.broken = dict.fromkeys(turn.seconds, f"no job is left behind, found {left}")
    told = {row: round(seconds, 2) for row, seconds in turn.seconds.items()}
    print(f"{version} {scenario.__name__}: {told} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for row, words in turn.broken.items():
        print(f"{version} {row}: BROKEN: {words}", file=sys.stderr, flush=True)


def figures(turns: Sequence[Turn], row: str) -> dict[str, Any]:
    """The seconds of a row, and the words of each promise that was broken."""
    seconds = sorted(turn.seconds[row] for turn in turns if row in turn.seconds and row not in turn.broken)
    broken = [turn.broken[row] for turn in turns if row in turn.broken]
    found: dict[str, Any] = {"n": len(seconds) + len(broken), "broken": broken}
    if seconds:
        named = {"median_s": statistics.median(seconds), "least_s": seconds[0], "most_s": seconds[-1]}
        found |= {name: round(value, 3) for name, value in named.items()}
    return found


if __name__ == "__main__":
    main()
