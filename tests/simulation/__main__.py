"""`python -m tests.simulation --seed N`: plays one simulated run again; without a seed, many."""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

from tests.simulation.kinds import DRAWN_ANYHOW, KINDS
from tests.simulation.plant import Plant
from tests.simulation.rules import BrokenRuleError
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
    parser.add_argument("--blamed", action="store_true", help="scenarios in which a node is lost in start after start")
    parser.add_argument("--unfit", action="store_true", help="scenarios of nodes without which the run cannot begin")
    parser.add_argument("--starts", action="store_true", help="scenarios in which the job starts twice")
    parser.add_argument("--machines", action="store_true", help="scenarios of machines that fail in odd ways")
    parser.add_argument("--spares", action="store_true", help="scenarios of worlds that die beside their spares")
    parser.add_argument("--alone", action="store_true", help="scenarios in which one thing goes wrong")
    parser.add_argument("--health", action="store_true", help="scenarios in which nodes are unhealthy")
    parser.add_argument("--flapping", action="store_true", help="scenarios in which a node is lost again and again")
    parser.add_argument("--saves", action="store_true", help="scenarios in which ranks save while others are lost")
    parser.add_argument("--notices", action="store_true", help="scenarios in which notices are given")
    parser.add_argument("--states", action="store_true", help="scenarios in which ranks save their states in memory")
    parser.add_argument("--asked-saves", action="store_true", help="scenarios in which people ask for saves")
    parser.add_argument("--requeues", action="store_true", help="scenarios in which the next allocation goes on")
    parser.add_argument("--foretold", action="store_true", help="scenarios of which all that comes is foretold")
    parser.add_argument("--failures", action="store_true", help="scenarios in which workers fail again and again")
    parser.add_argument("--limits", action="store_true", help="scenarios in which the scheduler ends the job")
    parser.add_argument("--large", action="store_true", help="scenarios of large worlds that lose their head")
    parser.add_argument("--search", action="store_true", help="scenarios in which a node cannot reach the first head")
    parser.add_argument("--disks", action="store_true", help="scenarios in which a run directory refuses for a while")
    parser.add_argument("--deaf", action="store_true", help="scenarios in which a lost member was deaf before")
    parser.add_argument("--goodbyes", action="store_true", help="scenarios in which a member grows deaf")
    parser.add_argument(
        "--quorum", action="store_true", help="scenarios in which a node that is needed is away for a while"
    )
    parser.add_argument("--farewells", action="store_true", help="scenarios in which deaf members say goodbye")
    parser.add_argument("--stand-ins", action="store_true", help="scenarios of spares that take another role's place")
    parser.add_argument("--relayed", action="store_true", help="scenarios of states that others write at the end")
    parser.add_argument("--closings", action="store_true", help="scenarios of losses as a run ends")
    parser.add_argument("--avoided", action="store_true", help="scenarios of blames that the next start hears of")
    parser.add_argument("--between", action="store_true", help="scenarios of losses between two attempts")
    parser.add_argument("--bad-nodes", action="store_true", help="scenarios of bad nodes of several roles")
    parser.add_argument("--last-losses", action="store_true", help="scenarios of losses while the last workers stop")
    parser.add_argument("--cut-saves", action="store_true", help="scenarios in which a save is cut short")
    parser.add_argument("--unstarted", action="store_true", help="scenarios of ignored workers that do not start")
    parser.add_argument("--silent-ends", action="store_true", help="scenarios of starts that end without a word")
    parser.add_argument("--called-off", action="store_true", help="scenarios of a TERM while an agent has no head")
    parser.add_argument("--drained", action="store_true", help="scenarios of drained nodes under a new head")
    parser.add_argument("--waits", action="store_true", help="scenarios in which people ask while nodes are awaited")
    parser.add_argument("--absent", action="store_true", help="scenarios in which nodes do not come, or are unfit")
    parser.add_argument(
        "--restarted", action="store_true", help="scenarios in which the start before is busy, or fails"
    )
    parser.add_argument("--resumed", action="store_true", help="scenarios in which another job goes on with the run")
    parser.add_argument("--host", action="store_true", help="scenarios in which the script's machine is lost late")
    parser.add_argument("--parted", action="store_true", help="scenarios in which the network is cut as a run ends")
    parser.add_argument("--second-notices", action="store_true", help="scenarios in which several notices are given")
    parser.add_argument("--unsure", action="store_true", help="scenarios in which a claim is made and seems to fail")
    parser.add_argument("--busy", action="store_true", help="scenarios of disks that are busy with what can wait")
    parser.add_argument("--sick", action="store_true", help="scenarios in which an unhealthy node is lost")
    parser.add_argument("--checks", action="store_true", help="scenarios of health checks while roles restart")
    parser.add_argument("--requests", action="store_true", help="scenarios in which a person asks for something")
    parser.add_argument("--firsts", action="store_true", help="scenarios in which a node does not come at first")
    parser.add_argument("--unopened", action="store_true", help="scenarios of heads that are lost before any attempt")
    parser.add_argument("--untold", action="store_true", help="scenarios of heads that are lost as an attempt opens")
    parser.add_argument("--roles", action="store_true", help="scenarios of several roles whose workers fail")
    parser.add_argument("--moved", action="store_true", help="scenarios in which a time limit is moved at the last")
    parser.add_argument("--taken", action="store_true", help="scenarios in which ranks take a notice, and exit 75")
    parser.add_argument("--terms", action="store_true", help="scenarios in which a TERM comes that is explained late")
    parser.add_argument("--interrupts", action="store_true", help="scenarios of a person's Ctrl-C without a scheduler")
    parser.add_argument("--stacks", action="store_true", help="scenarios in which people ask where the ranks are")
    parser.add_argument("--overtaken", action="store_true", help="scenarios of a head that ends a run too late")
    parser.add_argument("--cut-stops", action="store_true", help="scenarios of losses while workers are stopped")
    parser.add_argument("--pauses", action="store_true", help="scenarios of long pauses before restarts")
    parser.add_argument("--slow-heads", action="store_true", help="scenarios of a first head that stands still")
    parser.add_argument("--timeouts", action="store_true", help="scenarios in which ranks time out in a collective")
    parser.add_argument("--wrapped", action="store_true", help="scenarios in which programs of wrappers fail")
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
    kind = "" if name == DRAWN_ANYHOW else f"--{name} "
    return _play_many(range(arguments.first, arguments.first + arguments.count), make, plant, kind)


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


def _play_many(seeds: range, make: Callable[[int], Scenario], plant: Plant | None, kind: str) -> int:
    broken = 0
    reasons: Counter[str] = Counter()
    for seed in seeds:
        run = SimulatedRun(make(seed), plant)
        try:
            run.play()
        except Exception as error:
            broken += 1
            text = str(error) if isinstance(error, BrokenRuleError) else f"{type(error).__name__}: {error}"
            print(
                f"seed {seed}: {text}; play it again with `python -m tests.simulation -v {kind}--seed {seed}`",
                flush=True,
            )
        else:
            reasons[run.disk.results[0].reason if run.disk.results else "no result"] += 1
    print(", ".join(f"{count} {reason}" for reason, count in reasons.most_common()))
    print(f"{len(seeds)} runs, {broken} broke a rule")
    return 1 if broken else 0


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what is loaded by now lives as long as the process: no collection has to go through it
    gc.set_threshold(700, 10, 100)  # the oldest is what the run that is played has, and then it is garbage as a whole
    sys.exit(main())
