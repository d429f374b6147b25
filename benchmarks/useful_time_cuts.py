"""How much of its time a training on Slurm spends on new steps, if nodes are cut off again and again.

    python -m benchmarks.useful_time_cuts [--mean 60] [--cuts 5] [--mebibytes 100] [--json FILE]   needs root, Slurm

Four ranks on four nodes of five train with DistributedDataParallel and keep their state in memory after each step, with
a copy on another node; the lease is 3 s. The network of a drawn node of the world is cut at times drawn from an
exponential distribution, and heals 10 s after the training has gone on: with the spare, or without the node. The head's
and the batch script's nodes are cut as any other.

The shares are those of `useful_time`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.machine import describe
from benchmarks.state import killed
from benchmarks.state.shares import shares, steps_in
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import Cluster, wait_until

NODES, SPARES, LEASE_S = 4, 1, 3
HEALS_AFTER_S = 10
BACK_AFTER_S = 10  # until then its agent has joined again
_BACK_WITHIN_S = 120
_JOB = """
name: cuts
site: generic-slurm
nodes: {nodes}
spares: {spares}
workers_per_node: 1
time: 2h
resources: {{cpus_per_worker: 1}}
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
elastic: {{lease: {lease}s}}
state: {{replicas: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mean", type=float, default=60.0, help="seconds between cuts")
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=100, help="of the state")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": describe(), "busy_cores_before": busy_cores(seconds=3), "lease_s": LEASE_S}
    report |= {"mebibytes": arguments.mebibytes, "mean_s": arguments.mean, "cuts": arguments.cuts}
    slurm = Cluster.start(NODES + SPARES, owner=os.getpid())
    try:
        with tempfile.TemporaryDirectory(prefix="hpc-elastic-cuts-") as folder:
            report |= measure(slurm, Path(folder), arguments)
    finally:
        slurm.down()
    print("\n".join(table(report)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def measure(slurm: Cluster, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the shares, and what the run says of itself."""
    run = _submit(slurm, folder, arguments)
    try:
        _cut(slurm, run, folder, arguments)
    finally:
        (folder / "stop").touch()
    result = run.wait_until_over(within_s=_BACK_WITHIN_S)
    if result["state"] != "SUCCEEDED":
        raise SystemExit(f"the run did not succeed: {result}\n{run.story()}")
    meter = result["useful_time"]
    return {
        **shares(folder),
        "attempts": result["attempts"],
        "meter": round(meter["useful_share"], 4),
        "seconds": meter["seconds"],
    }


def _submit(slurm: Cluster, folder: Path, arguments: argparse.Namespace) -> Run:
    script = [str(folder), str(arguments.mebibytes), "memory", str(arguments.mean)]
    job = _JOB.format(nodes=NODES, spares=SPARES, script=killed.__file__, arguments=json.dumps(script), lease=LEASE_S)
    (folder / "job.yaml").write_text(job)
    environ = {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")}
    return Door(folder, environ, command=(sys.executable, "-m", "hpc_elastic")).submit("job.yaml")


def _cut(slurm: Cluster, run: Run, folder: Path, arguments: argparse.Namespace) -> None:
    """Cut the nodes off when it is time, or as soon as the one before is back."""
    dice = random.Random(f"{arguments.mean} {arguments.cuts}")
    _wait_for_steps(run, folder, 4)
    at = time.monotonic()
    for _ in range(arguments.cuts):
        at = max(at + dice.expovariate(1 / arguments.mean), time.monotonic())
        time.sleep(max(0.0, at - time.monotonic()))
        node, done = dice.choice(_nodes_at_work(run)), len(steps_in(folder))
        slurm.cut(node)
        try:
            _wait_for_steps(run, folder, done + 2)
            time.sleep(HEALS_AFTER_S)
        finally:
            slurm.heal(node)
        time.sleep(BACK_AFTER_S)  # two that are away at once are one too many, and the job would start again
    _wait_for_steps(run, folder, len(steps_in(folder)) + 4)


def _nodes_at_work(run: Run) -> list[str]:
    """Return the nodes that have ranks in the latest attempt."""
    world: Mapping[str, Any] = run.read(run.layout.world(max(run.attempts())))
    return sorted({rank["node"] for rank in world["ranks"]})


def _wait_for_steps(run: Run, folder: Path, count: int) -> None:
    wait_until(
        lambda: len(steps_in(folder)) >= count, f"{count} steps are done", within_s=_BACK_WITHIN_S, otherwise=run.story
    )


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures as a table."""
    names = ("useful", "useful_without_saves", "meter")
    cells = [report["mean_s"], report["cuts"], report["wall_s"], *(f"{report[name]:.2%}" for name in names)]
    return [
        "| cuts, mean s | cut | wall, s | useful | without saves | our meter | repeated |",
        "|---|---|---|---|---|---|---|",
        "| " + " | ".join(map(str, [*cells, report["repeated"]])) + " |",
        f"{report['machine']}; {report['busy_cores_before']} cores busy before.",
    ]


if __name__ == "__main__":
    main()
