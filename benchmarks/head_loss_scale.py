"""A head that is killed with thousands of agents around: until the next attempt is at work; JSON with --json.

    python -m benchmarks.head_loss_scale [--nodes 64 512 4096] [--lease 10] [-n 3] [--json FILE]

Every agent but its workers is real: drivers, authenticated connections, run directory. The first head is a process of
its own, which is killed; so is the next one, whose event loop is watched; all others share a third. So the seconds
are those of thousands of agents on one core, which on a cluster have a core each. Counted from the kill until all
others are at work in the next attempt: how often an agent dials, what all of them read from the run directory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import Elsewhere
from benchmarks.rendezvous_scale import DESCRIPTORS_BESIDE, allow_descriptors
from benchmarks.scale.pair import PairError, Side
from benchmarks.scale.participants import Allotment, host

MIB = 1024 * 1024
LOOKS_EVERY_S = 0.1
AT_WORK_WITHIN_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--lease", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("-n", type=int, default=3, help="heads that are killed, of each number of nodes")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    most = allow_descriptors()
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for nodes in arguments.nodes:
        if 2 * nodes + DESCRIPTORS_BESIDE > most:
            failed.append(f"{nodes} nodes: a process may have {most} descriptors (ulimit -Hn)")
            continue
        try:
            rows.append(measure(nodes, arguments.lease, arguments.n))
        except PairError as error:
            failed.append(f"{nodes} nodes: {error}")
    report = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "lease_s": arguments.lease,
        "rows": rows,
        "failed": failed,
    }
    print_table(report)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    if failed:
        sys.exit("\n".join(failed))


def measure(nodes: int, lease_s: float, n: int) -> dict[str, Any]:
    """One row: `n` heads killed, each of an allocation of its own."""
    with Elsewhere() as elsewhere:
        losses = [lose_head(nodes, lease_s) for _ in range(n)]
    row = {name: round(statistics.median(loss[name] for loss in losses), 3) for name in losses[0]}
    slowest = round(max(loss["recovery_s"] for loss in losses), 3)
    return {"nodes": nodes, "n": n, **row, "slowest_s": slowest, "cores_busy_elsewhere": elsewhere.cores}


def lose_head(nodes: int, lease_s: float) -> dict[str, float]:
    """Starts an allocation, kills its head, and waits until all others are at work again."""
    sides: list[Side] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for numbers in ([0], [1], range(2, nodes)):
                allotment = Allotment(nodes=nodes, lease_s=lease_s, run_dir=folder, numbers=tuple(numbers))
                sides.append(Side(host, allotment))
            head, successor, others = sides
            began = time.monotonic()
            for side in sides:
                side.ask("start")
            _wait_for_attempt(sides, 1)
            connect_s = time.monotonic() - began
            before = [side.ask("usage") for side in (successor, others)]
            killed = time.monotonic()
            head.process.kill()
            block_s = _wait_for_attempt([successor, others], 2)
            recovery_s = time.monotonic() - killed
            after = [side.ask("usage") for side in (successor, others)]
        finally:
            for side in sides:
                side.process.kill()
                side.end()
    dials = [
        now - then
        for past, present in zip(before, after, strict=True)
        for then, now in zip(past["dials"], present["dials"], strict=True)
    ]
    return {
        "first_attempt_s": connect_s,
        "recovery_s": recovery_s,
        "dials_a_node": statistics.mean(dials),
        "most_dials": max(dials),
        "read_mib": sum(a["read_bytes"] - b["read_bytes"] for b, a in zip(before, after, strict=True)) / MIB,
        "heads_longest_block_s": block_s,
        "cpu_s": sum(a["cpu_s"] - b["cpu_s"] for b, a in zip(before, after, strict=True)),
    }


def _wait_for_attempt(sides: list[Side], attempt: int) -> float:
    """Waits until all agents of these processes are at work; returns the longest block of the first one's loop.

    Raises:
        PairError: an agent left, or they are not at work in time.
    """
    block_s: float = 0.0
    until = time.monotonic() + AT_WORK_WITHIN_S
    while True:
        usages = [side.ask("usage") for side in sides]
        block_s = max(block_s, float(usages[0]["longest_block_s"]))
        if wrong := [word for usage in usages for word in (*usage["left"], *usage["failed"])]:
            raise PairError(f"an agent left: {wrong[0]}")
        if all(found == attempt for usage in usages for found in usage["attempts"]):
            return block_s
        if time.monotonic() > until:
            missing = sum(found != attempt for usage in usages for found in usage["attempts"])
            raise PairError(f"{missing} agents are not at work in attempt {attempt} after {AT_WORK_WITHIN_S:g} s")
        time.sleep(LOOKS_EVERY_S)


def print_table(report: dict[str, Any]) -> None:
    """As it stands in docs/benchmarks/README.md."""
    print(
        "| nodes | n | at work again, s | slowest | dials a node | most | MiB read by all | head's longest block, s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    names = ("nodes", "n", "recovery_s", "slowest_s", "dials_a_node", "most_dials", "read_mib", "heads_longest_block_s")
    for row in report["rows"]:
        print(f"| {' | '.join(str(row[name]) for name in names)} |")
    print(f"\nlease {report['lease_s']:g} s, {report['cores']} cores")


if __name__ == "__main__":
    main()
