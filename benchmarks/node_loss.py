"""How long a run stands still when a node is lost, on a real Slurm and beside torchrun: a table, and JSON with --json.

    python -m benchmarks.node_loss [-n 10] [--peer 1] [--json FILE]        needs root and Debian's slurm-wlm

On four nodes with one worker each, that the command boots for itself: from the fault to the first step of the last of
the three ranks that are left. In each of these runs the three ranks are then restarted once more because one of them
is killed, and the time from the start of the first of their processes to the last one's first step is one worker start:
what `import torch` and the process group take, whatever starts them. The bar is for what the loss takes beside that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.loss import ours, torchrun
from tests.slurm_sandbox.cluster import Cluster

# By name: what breaks, and how many seconds the ranks may stand still beside one worker start.
CASES: dict[str, tuple[ours.Fault, float]] = {
    "agent of an ordinary node killed": (ours.kill_agent, 0.5),
    "cable of an ordinary node cut": (ours.cut_cable, 3.5),
    "batch host without power": (ours.power_off_batch_host, 5.0),
}
PEER_CASES: dict[str, torchrun.Fault] = {
    "agent of an ordinary node killed": torchrun.kill_agent,
    "agent of an ordinary node and its worker killed": torchrun.kill_everything,
    "cable of an ordinary node cut": torchrun.cut_cable,
}
LEAVES_WITHIN_S = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=10, help="how often each of ours")
    parser.add_argument("--peer", type=int, default=1, help="how often each under torchrun, which takes minutes")
    parser.add_argument("--only", default="", help="the cases whose name starts so: agent, cable, batch")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    slurm = Cluster.start(ours.NODES, owner=os.getpid())
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(slurm, Path(folder), arguments)
    finally:
        slurm.down()
    print_tables(report)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


def measure(slurm: Cluster, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    busy: list[float] = []
    rows = [
        measure_case(name, fault, bar_s, slurm, folder, arguments.n, busy)
        for name, (fault, bar_s) in CASES.items()
        if arguments.n and name.startswith(arguments.only)
    ]
    peer = [
        measure_peer(name, fault, slurm, folder, arguments.peer)
        for name, fault in PEER_CASES.items()
        if arguments.peer and name.startswith(arguments.only)
    ]
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "lease_s": ours.LEASE_S,
        "ranks_left": ours.LEFT,
        "busy_cores_before": sorted(busy),
        "cases": rows,
        "torchrun": peer,
    }


def measure_case(
    name: str, fault: ours.Fault, bar_s: float, slurm: Cluster, folder: Path, number: int, busy: list[float]
) -> dict[str, Any]:
    losses = []
    for turn in range(number):
        busy.append(busy_cores())
        losses.append(ours.lose(slurm, new_folder(folder, f"{fault.__name__}-{turn}"), fault))
        print(f"{name}: {losses[-1]}", file=sys.stderr)
        slurm.leftovers(within_s=LEAVES_WITHIN_S)
    return {"case": name, "bar_s": bar_s, **figures(losses)}


def measure_peer(name: str, fault: torchrun.Fault, slurm: Cluster, folder: Path, number: int) -> dict[str, Any]:
    seconds: list[float | None] = []
    for turn in range(number):
        seconds.append(torchrun.lose(slurm, new_folder(folder, f"torchrun-{fault.__name__}-{turn}"), fault))
        print(f"torchrun, {name}: {seconds[-1]}", file=sys.stderr)
        slurm.run("scancel", "--user=root")
        slurm.leftovers(within_s=LEAVES_WITHIN_S)
    return {"case": name, "seconds": [value and round(value, 2) for value in seconds]}


def new_folder(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def figures(losses: Sequence[ours.Loss]) -> dict[str, Any]:
    """Medians; and of the stand-still the extremes, and what is left of the median without one worker start."""
    rows = [asdict(loss) for loss in losses]
    medians = {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}
    stood_still = sorted(loss.recovered_s for loss in losses)
    return {
        "n": len(losses),
        **medians,
        "beside_worker_start_s": round(medians["recovered_s"] - medians["worker_start_s"], 3),
        "least_recovered_s": round(stood_still[0], 3),
        "most_recovered_s": round(stood_still[-1], 3),
        "all": [{name: round(value, 3) for name, value in row.items()} for row in rows],
    }


def print_tables(report: dict[str, Any]) -> None:
    """As they stand in docs/benchmarks/README.md."""
    columns = {
        "next step": "recovered_s",
        "at most": "most_recovered_s",
        "one worker start": "worker_start_s",
        "beside": "beside_worker_start_s",
        "bar": "bar_s",
        "noticed": "noticed_s",
        "attempt opened": "opened_s",
        "first process": "started_s",
    }
    print(f"| lost | n | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 2) + "|")
    for row in report["cases"]:
        print(f"| {row['case']} | {row['n']} | {' | '.join(f'{row[key]:.2f}' for key in columns.values())} |")
    print("\n| under torchrun | next step |\n|---|---|")
    for row in report["torchrun"]:
        told = [f"not within {torchrun.PATIENCE_S}" if one is None else str(one) for one in row["seconds"]]
        print(f"| {row['case']} | {', '.join(told)} |")
    busy = report["busy_cores_before"]
    print(f"\ncores busy before each of ours: {busy[len(busy) // 2] if busy else ''} (median), {max(busy, default='')}")


if __name__ == "__main__":
    main()
