"""`python -m tests.soak --faults 200 --first 0`: run after run with random faults, until so many were done."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.integration.conftest import Door
from tests.soak.campaign import Outcome, Scenario, play
from tests.soak.faults import Kind

FAULTS_A_RUN = 6
MOST_BROKEN = 10


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed; the next run has the next one")
    parser.add_argument("--seed", type=int, help="the run of this seed alone")
    parser.add_argument("--lease", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="NAME", help="only these faults, by enum names")
    parser.add_argument("--folder", help="where failed runs are kept; default: a new temporary folder")
    arguments = parser.parse_args(words)
    kinds = [Kind[name] for name in arguments.kinds]
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="soak-"))
    outcomes: list[Outcome] = []
    done = broken = 0
    seed = arguments.first if arguments.seed is None else arguments.seed
    while done < arguments.faults and broken < MOST_BROKEN:
        scenario = Scenario.draw(seed, FAULTS_A_RUN, lease_s=arguments.lease, kinds=kinds)
        outcome = _play(folder / f"seed-{seed}", scenario)
        if outcome is None:
            broken += 1
        else:
            outcomes.append(outcome)
            done += len(outcome.done)
        if arguments.seed is not None:
            break
        seed += 1
    print(_summary(outcomes), flush=True)
    where = f"; see {folder}" if broken else ""
    print(f"{done} faults in {len(outcomes)} runs; {broken} runs broke a rule{where}")
    return 1 if broken else 0


def _play(folder: Path, scenario: Scenario) -> Outcome | None:
    """None if a rule was broken; then the folder stays, with the story in it."""
    (folder / "project").mkdir(parents=True)
    door = Door(folder / "project", {**os.environ, "XDG_STATE_HOME": str(folder / "state")})
    began = time.monotonic()
    try:
        outcome = play(door, scenario)
    except AssertionError as error:
        (folder / "story.txt").write_text(str(error))
        print(f"seed {scenario.seed}: BROKEN after {time.monotonic() - began:.0f} s: {str(error)[:600]}", flush=True)
        return None
    what = (
        "digits"
        if scenario.is_digits
        else f"min {scenario.min_nodes}, {scenario.spares} spare, {scenario.workers} a node"
    )
    print(
        f"seed {scenario.seed} ({what}): {outcome.state}, {outcome.attempts} attempts in {outcome.seconds:.0f} s: "
        + ", ".join(map(str, outcome.done)),
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _summary(outcomes: Sequence[Outcome]) -> str:
    """How many of each kind, and how long until all ranks were at work again, where nothing came between."""
    counts = Counter(one.kind for outcome in outcomes for one in outcome.done)
    lines = []
    for kind in Kind:
        took = [seconds for outcome in outcomes for one, seconds in outcome.recoveries if one is kind]
        line = f"{counts[kind]:4} {kind.value}"
        if took:
            line += f"; at work again: median {statistics.median(took):.2f} s, most {max(took):.2f} s, n={len(took)}"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
