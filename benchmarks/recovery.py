"""How quick a training is started, restarted and grown, on a real Slurm and beside torchrun: tables, and JSON.

    python -m benchmarks.recovery [-n 10] [--peer-n 10] [--only CASE] [--json FILE]     needs root, slurm-wlm, strace

On nodes that the command boots for itself, with DistributedDataParallel, an optimizer, one worker a node, and a name
server that refuses at once. The launchers take turns. Cases:

    recovery  four nodes: from submission to the first step of all ranks (cold start); from a rank that raises (crash)
              and from one that is killed (kill) to the next step of all ranks
    growth    the same from a rank that raises, on two and on eight nodes, and the agents' own part of it
    calls     file calls and imports of torch on a node, in a training that strace follows; nothing of it is timed

A job of ours has several crashes and kills, one of torchrun's one of each, in its default mode one of either. A try
that takes longer than 60 s counts as not recovered; after five such tries and none that worked (`--give-up`) this is
not tried any more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.machine import describe
from benchmarks.restart import growth, pairs, tracing
from benchmarks.restart.faults import BOUND_S
from benchmarks.restart.launchers import DEFAULT, LAUNCHERS, OURS, SHARING_OFF, Launcher
from benchmarks.restart.report import growth_report, pairs_report
from benchmarks.restart.tables import print_report
from tests.slurm_sandbox.cluster import Cluster

CASES = ("recovery", "growth", "calls")
GROWTH_JOBS = 4  # of each size, with half as many crashes as the others of ours
GROWTH_PEER = 3  # restarts of each size, in one job; with eight nodes one takes ten seconds


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    launchers = [LAUNCHERS[name] for name in arguments.launchers.split(",")]
    report: dict[str, Any] = {
        "machine": describe(),
        "busy_cores_before": busy_cores(seconds=3),
        "n": arguments.n,
        "peer_n": arguments.peer_n,
        "repeats": arguments.repeats,
        "bound_s": BOUND_S,
    }
    began = time.monotonic()
    measurements: dict[str, Callable[[Path], Any]] = {
        "recovery": lambda folder: measure_recovery(folder, launchers, arguments),
        "growth": lambda folder: measure_growth(folder, launchers, arguments),
        "calls": lambda folder: measure_calls(Path(arguments.traces or folder), launchers),
    }
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-bench-") as folder:
        for case in [arguments.only] if arguments.only else CASES:
            own = Path(folder) / case
            own.mkdir()
            report[case] = measurements[case](own)
    report["minutes"] = round((time.monotonic() - began) / 60, 1)
    print_report(report)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=10, help="how many turns")
    parser.add_argument("--peer-n", type=int, help="in how many of them torchrun takes part (default: all)")
    parser.add_argument("--repeats", type=int, default=10, help="crashes, and kills, in each job of ours")
    parser.add_argument(
        "--give-up",
        type=int,
        default=5,
        help="tries that fail, with none that works, before it is tried no more; 0: never",
    )
    parser.add_argument("--only", choices=CASES, help="this case alone")
    parser.add_argument(
        "--launchers",
        default=",".join(name for name, launcher in LAUNCHERS.items() if launcher in (OURS, SHARING_OFF, DEFAULT)),
        help=f"which of {', '.join(LAUNCHERS)}, with commas (default: %(default)s)",
    )
    parser.add_argument("--traces", metavar="FOLDER", help="keep what strace writes in this new folder")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    found = parser.parse_args(arguments)
    if unknown := set(found.launchers.split(",")) - set(LAUNCHERS):
        parser.error(f"--launchers: found {', '.join(sorted(unknown))}, expected some of {', '.join(LAUNCHERS)}")
    if found.peer_n is None:
        found.peer_n = found.n
    return found


def measure_recovery(folder: Path, launchers: Sequence[Launcher], arguments: argparse.Namespace) -> Any:
    numbers = {"number": arguments.n, "peer": arguments.peer_n, "repeats": arguments.repeats}
    numbers["give_up"] = arguments.give_up
    slurm = Cluster.start(pairs.NODES, owner=os.getpid())
    try:
        return pairs_report(pairs.take_turns(slurm, folder, launchers, **numbers), launchers)
    finally:
        slurm.down()


def measure_growth(folder: Path, launchers: Sequence[Launcher], arguments: argparse.Namespace) -> Any:
    """Not in torchrun's default mode, which does not come back from a crash."""
    found = []
    jobs, repeats = min(arguments.n, GROWTH_JOBS), max(1, arguments.repeats // 2)
    slurm = Cluster.start(max(growth.SIZES), owner=os.getpid())
    try:
        for launcher in launchers:
            if launcher.is_ours:
                restarts = growth.grow(slurm, folder, launcher, jobs=jobs, repeats=repeats)
                found.append(growth_report(launcher, restarts))
            elif launcher is not DEFAULT and arguments.peer_n:
                restarts = growth.grow(slurm, folder, launcher, jobs=1, repeats=min(GROWTH_PEER, arguments.peer_n))
                found.append(growth_report(launcher, restarts))
        return found
    finally:
        slurm.down()


def measure_calls(folder: Path, launchers: Sequence[Launcher]) -> Any:
    folder.mkdir(exist_ok=True)
    slurm = Cluster.start(pairs.NODES, owner=os.getpid())
    try:
        return [
            row
            for launcher in launchers
            if launcher is not DEFAULT
            for row in tracing.count(slurm, folder / launcher.name.replace(" ", "-"), launcher)
        ]
    finally:
        slurm.down()


if __name__ == "__main__":
    main()
