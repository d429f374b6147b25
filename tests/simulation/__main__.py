"""`python -m tests.simulation --seed N`: plays one simulated run again; without a seed, many."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.rules import BrokenRuleError
from tests.simulation.scenario import Scenario
from tests.simulation.world import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one")
    parser.add_argument("--count", type=int, default=10_000, help="how many, without --seed")
    arguments = parser.parse_args()
    seeds = range(arguments.count) if arguments.seed is None else [arguments.seed]
    broken = 0
    for seed in seeds:
        try:
            run = play(seed)
        except BrokenRuleError as error:
            broken += 1
            print(f"seed {seed}: {error}\n  {Scenario.draw(seed)}")
        else:
            if arguments.seed is not None:
                print(f"seed {seed}: {run.scenario}\n{run.disk.results}")
    print(f"{len(seeds)} runs, {broken} broke a rule")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
