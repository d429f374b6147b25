"""`python -m tests.simulation --seed N`: plays one simulated run again; without a seed, many."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.simulation.draws.kinds import DRAWN_ANYHOW, KINDS, LONG, SCENARIOS
from tests.simulation.garbage import collect, collect_between_runs
from tests.simulation.plant import Plant
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import Scenario
from tests.simulation.shrink import shrink
from tests.simulation.story import tell
from tests.simulation.world import SimulatedRun


def main(words: Sequence[str] | None = None, plant: Plant | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one, and tell what happens")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed or --shrink: print every event")
    parser.add_argument(
        "--shrink", type=int, metavar="SEED", help="find the smallest schedule of it that still fails, and tell it"
    )
    for kind in sorted(KINDS.keys() - {DRAWN_ANYHOW}):
        parser.add_argument(f"--{kind}", action="store_true", help=f"scenarios {SCENARIOS[kind]}")
    parser.add_argument(
        "--every",
        action="store_true",
        help="of every kind: of each a tenth as many as without a kind, and of those that take long a hundredth",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed, without --seed")
    parser.add_argument("--count", type=int, default=10_000, help="how many, without --seed")
    arguments = parser.parse_args(words)
    name = next((name for name in KINDS if getattr(arguments, name.replace("-", "_"), False)), DRAWN_ANYHOW)
    make = KINDS[name]
    if arguments.shrink is not None:
        scenario = shrink(make(arguments.shrink), plant)
        print(repr(scenario))
        return _play_one(scenario, plant, verbose=arguments.verbose)
    if arguments.seed is not None:
        return _play_one(make(arguments.seed), plant, verbose=arguments.verbose)
    if not arguments.every:
        return _play_many(range(arguments.first, arguments.first + arguments.count), name, plant)
    codes = []
    for each in KINDS:
        part = 1 if each == DRAWN_ANYHOW else 100 if each in LONG else 10
        print(f"{each}: ", end="", flush=True)
        seeds = range(arguments.first, arguments.first + arguments.count // part)
        codes.append(_play_many(seeds, each, plant))
    return max(codes)


def _play_one(scenario: Scenario, plant: Plant | None, *, verbose: bool) -> int:
    print(scenario.describe())
    run = SimulatedRun(scenario, plant)
    error: Exception | None = None
    try:
        run.play()
    except BrokenRuleError as broken:
        error = broken
    except Exception as crash:  # of a machine: to be seen after the events that led to it
        traceback.print_exc()
        error = crash
    if not verbose:
        print("\n".join(["", *tell(run)]))
    else:
        for moment, who, what in run.events:
            print(f"{moment:10.3f} {who:6} {what}")
        for result in run.disk.results:
            print(f"{result.state.value}: {result.reason}, exit code {result.exit_code}: {result.cause}")
    print(f"trace {run.trace_hash}")
    if error is not None:
        print(f"broken: {type(error).__name__}: {error}")
    return 1 if error is not None else 0


def _play_many(seeds: range, name: str, plant: Plant | None) -> int:
    broken = 0
    kind = "" if name == DRAWN_ANYHOW else f"--{name} "
    reasons: Counter[str] = Counter()
    for seed in seeds:
        text, reason = _outcome(SimulatedRun(KINDS[name](seed), plant))
        collect()
        if text:
            broken += 1
            again = f"play it again with `python -m tests.simulation -v {kind}--seed {seed}`"
            print(f"seed {seed}: {text}; {again}", flush=True)
        else:
            reasons[reason] += 1
    print(", ".join(f"{count} {reason}" for reason, count in reasons.most_common()))
    print(f"{len(seeds)} runs, {broken} broke a rule")
    return 1 if broken else 0


def _outcome(run: SimulatedRun) -> tuple[str, str]:
    """What is wrong with a run, "" if nothing is, and how it ends."""
    try:
        run.play()
    except BrokenRuleError as error:
        return str(error), ""
    except Exception as error:
        return f"{type(error).__name__}: {error}", ""
    return "", run.disk.results[0].reason if run.disk.results else "no result"


if __name__ == "__main__":
    collect_between_runs()
    sys.exit(main())
