"""What two nodes of the local backend take beside one process with half of the cores: a table, and JSON with --json.

    python -m benchmarks.local_share [-n 10] [--steps 100] [--accumulate 1] [--json FILE]

A model of nanoGPT's shape, which keeps all threads busy, trains the same number of steps in each case; the cases take
turns, and another one is first in each turn. What the steps take is measured in the training, behind some that warm up.

- one process: half of the cores, nothing else beside it; what the others are compared with.
- two processes: two of these side by side that know nothing of each other: what the machine has to give.
- torchrun, two workers: its two workers average their gradients with gloo, as those of two nodes do.
- two nodes: one worker on each of two nodes of the local backend, as it comes.
- two nodes, bound: the same, and each worker is bound to cores of its own.
- two nodes, all cores each: the same with as many threads in each worker as torch takes by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.figures import ratio_of_medians, summary
from benchmarks.machine import describe
from hpc_elastic.agent.node.cpus import cores_of_this_process

TRAINING = Path(__file__).parent / "share" / "training.py"
BAR = 1.2  # times one process
ONE, PAIR, TORCHRUN, NODES, BOUND, ALL = (
    "one process, half of the cores",
    "two processes, half of the cores each",
    "torchrun, two workers, half of the cores each",
    "two nodes",
    "two nodes, each bound to its cores",
    "two nodes, all cores in each",
)
CASES = (ONE, PAIR, TORCHRUN, NODES, BOUND, ALL)
TURN_TAKES_AT_MOST_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=10, help="how many turns")
    parser.add_argument("--steps", type=int, default=100, help="steps that are measured")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step; the gradients are averaged once")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--without", choices=CASES[1:], action="append", default=[], help="a case that is left out")
    arguments = parser.parse_args()
    cases = [case for case in CASES if case not in arguments.without]
    report = measure(arguments.n, arguments.steps, accumulate=arguments.accumulate, cases=cases)
    print("\n".join(table(report)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


def measure(
    turns: int, steps: int, *, accumulate: int = 1, warm_up: int = 10, cases: Sequence[str] = CASES
) -> dict[str, Any]:
    """The report: of each case what the steps took, by turns."""
    cores = cores_of_this_process()
    found: dict[str, list[list[float]]] = {case: [] for case in cases}
    threads: dict[str, int] = {}
    busy = []
    options = ["--steps", str(steps), "--accumulate", str(accumulate), "--warm-up", str(warm_up)]
    for turn in range(turns):
        for case in [*cases[turn % len(cases) :], *cases[: turn % len(cases)]]:
            busy.append(busy_cores())
            with tempfile.TemporaryDirectory() as folder:
                said = train(case, Path(folder), options, cores)
            found[case].append([one["seconds"] for one in said])
            threads[case] = said[0]["threads"]
            print(f"{case}: {max(found[case][-1]):.2f} s", file=sys.stderr)
    return {
        "machine": describe(),
        "cores": cores,
        "steps": steps,
        "accumulate": accumulate,
        "busy_cores_before": sorted(busy),
        "bar": BAR,
        "cases": [row(case, found, threads[case]) for case in cases],
    }


def row(case: str, found: Mapping[str, list[list[float]]], threads: int) -> dict[str, Any]:
    ratio = ratio_of_medians(found[case], found[ONE])
    assert ratio is not None
    return {
        "case": case,
        "threads": threads,
        **summary([value for turn in found[case] for value in turn]),
        "to_one_process": [ratio.value, ratio.low, ratio.high],
        "turns": [[round(value, 3) for value in turn] for turn in found[case]],
    }


def train(case: str, folder: Path, options: list[str], cores: int) -> list[dict[str, Any]]:
    """What each process of the case says of its steps."""
    results = folder / "results"
    results.mkdir()
    command = [str(TRAINING), str(results), *options, *(["--bind"] if case == BOUND else [])]
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if case in (ONE, PAIR):
        alone = {**environ, "OMP_NUM_THREADS": str(max(1, cores // 2))}
        running = [subprocess.Popen([sys.executable, *command], env=alone) for _ in range(1 if case == ONE else 2)]
        codes = [process.wait(TURN_TAKES_AT_MOST_S) for process in running]
    elif case == TORCHRUN:
        alone = {**environ, "OMP_NUM_THREADS": str(max(1, cores // 2))}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        codes = [subprocess.run([*torchrun, *command], env=alone, timeout=TURN_TAKES_AT_MOST_S).returncode]
    else:
        own = {**environ, "XDG_STATE_HOME": str(folder / "state")}
        settings = ["--set", f"env.OMP_NUM_THREADS={cores}"] if case == ALL else []
        ours = [sys.executable, "-m", "hpc_elastic", "run", "--nodes", "2", "--workers-per-node", "1", *settings]
        done = subprocess.run(
            [*ours, *command], cwd=folder, env=own, capture_output=True, text=True, timeout=TURN_TAKES_AT_MOST_S
        )
        codes = [done.returncode]
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
    if any(codes):
        raise SystemExit(f"{case}: exit codes {codes}")
    return [json.loads(file.read_text()) for file in sorted(results.iterdir())]


def table(report: Mapping[str, Any]) -> list[str]:
    """As it stands in docs/benchmarks/README.md."""
    lines = ["| | threads in each | n | median s | least | most | to one process |", "|---|---|---|---|---|---|---|"]
    for case in report["cases"]:
        value, low, high = case["to_one_process"]
        ratio = f"{value:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
        figures = " | ".join(f"{case[name]:.2f}" for name in ("median", "least", "most"))
        lines.append(f"| {case['case']} | {case['threads']} | {case['n']} | {figures} | {ratio} |")
    return lines


if __name__ == "__main__":
    main()
