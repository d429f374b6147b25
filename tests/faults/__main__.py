"""`python -m tests.faults`: makes every fault of the table for real, and counts of how many the truth is told."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.explained import write_golden
from tests.faults.fault import Fault
from tests.faults.play import Outcome, play
from tests.faults.surroundings import CannotBeMadeError
from tests.faults.table import FAULTS

NEEDED = 0.98


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="N", help="only these, by number from 1 or by name")
    parser.add_argument("--quick", action="store_true", help="only those that make test runs")
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD", help="not what needs this: heartbeat")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--write-explanations", action="store_true", help="keep what explain says as the goldens")
    parser.add_argument("--folder", help="where runs with a miss and all explanations are kept; default: a new one")
    arguments = parser.parse_args(words)
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="faults-"))
    chosen = _chosen(arguments.only, arguments.quick, arguments.without)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = [outcome for outcome in pool.map(lambda fault: _play(fault, folder), chosen) if outcome is not None]
    if arguments.write_explanations:
        for outcome in outcomes:
            if outcome.laid_out:
                write_golden(outcome.fault, outcome.laid_out)
    unlike = sum(bool(outcome.unlike) for outcome in outcomes) if not arguments.write_explanations else 0
    right = sum(not outcome.wrong for outcome in outcomes)
    print(_by_class(outcomes))
    print(f"{right} of {len(outcomes)} right; {len(chosen) - len(outcomes)} could not be made; see {folder}")
    print(f"{len(outcomes) - unlike} of {len(outcomes)} are explained as in tests/faults/explain")
    return 0 if outcomes and right >= NEEDED * len(outcomes) and not unlike else 1


def _chosen(only: Sequence[str], is_quick: bool, without: Sequence[str]) -> list[tuple[int, Fault]]:
    numbered = [
        (number, fault)
        for number, fault in enumerate(FAULTS, start=1)
        if not set(fault.needs) & set(without) and (fault.is_quick or not is_quick)
    ]
    unknown = set(only) - {str(number) for number, _ in numbered} - {fault.name for _, fault in numbered}
    if unknown:
        sys.exit(f"no fault is called {', '.join(sorted(unknown))}; numbers go from 1 to {len(FAULTS)}")
    return [(number, fault) for number, fault in numbered if not only or {str(number), fault.name} & set(only)]


def _play(numbered: tuple[int, Fault], folder: Path) -> Outcome | None:
    number, fault = numbered
    place = folder / f"{number:03}"  # tracebacks have it, so it must not be the fault's name
    shutil.rmtree(place, ignore_errors=True)
    label = f"{number:3} {fault.name}"
    try:
        outcome = play(fault, place)
    except CannotBeMadeError as reason:
        print(f"{label}: not made: {reason}", flush=True)
        return None
    except Exception as error:
        outcome = Outcome(fault=fault, wrong=(f"did not run: {error}"[:600],), seconds=0, result={}, claims=[])
    if outcome.explanation:
        (folder / f"{number:03}-{fault.name}.explain.txt").write_text(outcome.explanation)
    line = {"name": fault.name, "wrong": outcome.wrong, "seconds": round(outcome.seconds, 2), "result": outcome.result}
    with open(folder / "outcomes.jsonl", "a") as file:
        file.write(json.dumps({"number": number, **line}) + "\n")
    for complaint in outcome.unlike:
        print(f"{label}: {complaint}", flush=True)
    if not outcome.wrong:
        print(f"{label}: right ({outcome.seconds:.1f} s)", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        return outcome
    print(f"{label}: WRONG ({outcome.seconds:.1f} s)", *outcome.wrong, sep="\n      ", flush=True)
    return outcome


def _by_class(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each class: how many were right, and which were missed."""
    total: Counter[str] = Counter()
    missed: dict[str, list[str]] = {}
    for outcome in outcomes:
        expected = outcome.fault.end.classes[0] if outcome.fault.end.classes else "(no failure)"
        total[expected] += 1
        if outcome.wrong:
            missed.setdefault(expected, []).append(outcome.fault.name)
    lines = []
    for name, count in total.most_common():
        wrong = missed.get(name, [])
        names = f"  missed: {', '.join(wrong)}" if wrong else ""
        lines.append(f"{name:20} {count - len(wrong):3} of {count:3}{names}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
