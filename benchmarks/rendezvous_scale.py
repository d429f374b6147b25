"""One round and the idle work of a head with thousands of members, and torch's rendezvous beside it; JSON with --json.

    python -m benchmarks.rendezvous_scale [--nodes 16 ... 4096] [--idle 4096 16384] [--peer 16 64] [-n 11] [--json FILE]

The head is the real one in a process of its own, the agents are real members behind real, authenticated TCP
connections, all in one other process, which only pretends to have workers and writes no node records; both processes
together have two cores. A round is what a failed worker brings about, from the report of the failure until every node
has its processes again: stop, stopped, claim on disk, assign, started. Idle means that members do nothing but beat;
the CPU time is that of the head's process alone. Head and agents are started anew for each number of nodes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import Elsewhere
from benchmarks.scale.pair import Pair, PairError, head_and_agents

CORES = 2
LEASES_S = (3.0, 10.0)
ROUNDS_LEASE_S = 10.0
SETTLES_S = 2.0
WINDOWS = 3  # in which an idle head is watched
DESCRIPTORS_BESIDE = 64  # that a process needs beside one for each member
MIB = 1024 * 1024
PEER_ROUNDS = 3
PEER_BOUND_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[16, 64, 256, 1024, 4096], help="for the rounds")
    parser.add_argument("--idle", type=int, nargs="*", default=[4096, 16384], help="members of an idle head")
    parser.add_argument("--peer", type=int, nargs="*", default=[16, 64], help="nodes for torch; 128 takes minutes")
    parser.add_argument("-n", type=int, default=11, help="rounds of each")
    parser.add_argument("--workers", type=int, default=1, help="on each node")
    parser.add_argument("--seconds", type=float, default=8, help=f"an idle head is watched {WINDOWS} times as long")
    parser.add_argument("--profile", metavar="FOLDER", help="leave a cProfile of each head there")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    most = allow_descriptors()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    failed: list[str] = []
    idle = [(nodes, lease_s) for nodes in arguments.idle for lease_s in LEASES_S]
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "workers_per_node": arguments.workers,
        "rounds": list(measure_each(measure_rounds, [(nodes,) for nodes in arguments.nodes], most, arguments, failed)),
        "idle": list(measure_each(measure_idle, idle, most, arguments, failed)),
        "failed": failed,
    }
    report["growth_exponent"] = growth_exponent([(row["nodes"], row["round_s"]) for row in report["rounds"]])
    report["torch"] = [measure_peer(nodes, report["rounds"]) for nodes in arguments.peer]
    print_tables(report)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    if failed:
        sys.exit("\n".join(failed))


def allow_descriptors() -> int:
    """Raises the soft limit of this process and its children to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def measure_each(
    measure: Callable[..., dict[str, Any]],
    cases: Sequence[tuple[Any, ...]],
    most: int,
    arguments: argparse.Namespace,
    failed: list[str],
) -> Iterator[dict[str, Any]]:
    """A row for each case that this machine's limit of descriptors allows; what did not hold goes to `failed`."""
    for case in cases:
        if case[0] + DESCRIPTORS_BESIDE > most:
            print(f"{case[0]} nodes are left out: a process may have {most} descriptors (ulimit -Hn)", file=sys.stderr)
            continue
        try:
            row = measure(*case, arguments)
        except PairError as error:
            failed.append(f"{measure.__name__}{case}: {error}")
            print(failed[-1], file=sys.stderr)
            continue
        print(row, file=sys.stderr)
        yield row


def measure_rounds(nodes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One head: everybody connects, then one round after the other."""
    with Elsewhere() as elsewhere, start(nodes, ROUNDS_LEASE_S, arguments) as pair:
        rows = []
        for _ in range(arguments.n):
            before = pair.agents.ask("usage")
            row = pair.head.ask("round")
            after = pair.agents.ask("usage")
            row["agents_cpu_s"] = after["cpu_s"] - before["cpu_s"]
            row["messages"] = (after["messages"] - before["messages"]) / (nodes - 1)
            rows.append(row)
    medians = {name: round(statistics.median(row[name] for row in rows), 5) for name in rows[0]}
    rounds = [row["round_s"] for row in rows]
    return {
        "nodes": nodes,
        "n": len(rows),
        "connect_s": round(pair.connect_s, 3),
        "first_attempt_s": round(pair.first_attempt_s, 3),
        **medians,
        "fastest_round_s": round(min(rounds), 5),
        "slowest_round_s": round(max(rounds), 5),
        "cores_busy_elsewhere": elsewhere.cores,
    }


def measure_idle(nodes: int, lease_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """One head, whose members do nothing but beat; its CPU time and memory."""
    with Elsewhere() as elsewhere, start(nodes, lease_s, arguments, spread_s=lease_s / 3) as pair:
        time.sleep(SETTLES_S + lease_s / 3)
        windows = [watch(pair, arguments.seconds) for _ in range(WINDOWS)]
        usage = pair.head.ask("usage")
    percent = [cpu_s / passed_s * 100 for cpu_s, passed_s, _ in windows]
    return {
        "nodes": nodes,
        "lease_s": lease_s,
        "n": len(windows),
        "cpu_percent": round(statistics.median(percent), 1),
        "least_cpu_percent": round(min(percent), 1),
        "most_cpu_percent": round(max(percent), 1),
        "beats_per_s": round(sum(window[2] for window in windows) / sum(window[1] for window in windows)),
        "resident_mib": round(usage["resident"] / MIB, 1),
        "kib_per_member": round((usage["resident"] - usage["alone"]) / nodes / 1024, 1),
        "cores_busy_elsewhere": elsewhere.cores,
    }


def start(
    nodes: int, lease_s: float, arguments: argparse.Namespace, *, spread_s: float = 0.0
) -> AbstractContextManager[Pair]:
    profile = str(Path(arguments.profile, f"head-{nodes}-{lease_s:g}.prof")) if arguments.profile else None
    return head_and_agents(nodes=nodes, lease_s=lease_s, workers=arguments.workers, spread_s=spread_s, profile=profile)


def watch(pair: Pair, seconds: float) -> tuple[float, float, int]:
    """The head's CPU seconds, the seconds that passed, and the beats, all meanwhile."""
    head, agents, began = pair.head.ask("usage"), pair.agents.ask("usage"), time.monotonic()
    time.sleep(seconds)
    cpu_s, passed_s = pair.head.ask("usage")["cpu_s"] - head["cpu_s"], time.monotonic() - began
    return cpu_s, passed_s, pair.agents.ask("usage")["beats"] - agents["beats"]


def measure_peer(nodes: int, ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Torch's rounds, and how many of our rounds with as many nodes one of them takes."""
    command = [sys.executable, "-m", "benchmarks.torch_rendezvous", str(nodes), str(PEER_ROUNDS)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PEER_BOUND_S)
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    seconds = [float(line) for line in output.split()]
    median = statistics.median(seconds) if seconds else math.nan
    (our_s,) = [row["round_s"] for row in ours if row["nodes"] == nodes] or [math.nan]
    figures = {"round_s": median, "fastest_round_s": min(seconds, default=math.nan), "times_ours": median / our_s}
    told = {name: None if math.isnan(value) else round(value, 2) for name, value in figures.items()}
    return {"nodes": nodes, "n": len(seconds), **told}


def growth_exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of a line through the logarithms, by least squares."""
    if len(points) < 2:
        return None
    x, y = zip(*((math.log(nodes), math.log(seconds)) for nodes, seconds in points), strict=True)
    return round(statistics.linear_regression(x, y).slope, 3)


def print_tables(report: dict[str, Any]) -> None:
    """As they stand in docs/benchmarks/README.md."""
    torch = {row["nodes"]: row for row in report["torch"]}
    print(
        "| nodes | round, ms | slowest | head's CPU, ms | agents' CPU, ms | all connected, s | torch, s | times ours |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in report["rounds"]:
        peer = torch.get(row["nodes"], {"round_s": "", "times_ours": ""})
        ms = [round(row[name] * 1000, 1) for name in ("round_s", "slowest_round_s", "head_cpu_s", "agents_cpu_s")]
        cells = [row["nodes"], *ms, row["connect_s"], peer["round_s"], peer["times_ours"]]
        print(f"| {' | '.join(map(str, cells))} |")
    print(f"\ngrowth exponent {report['growth_exponent']}\n")
    print("| members | lease, s | % of a core | least to most | beats a second | resident MiB | KiB a member |")
    print("|---|---|---|---|---|---|---|")
    for row in report["idle"]:
        spread = f"{row['least_cpu_percent']} to {row['most_cpu_percent']}"
        cells = [row["nodes"], row["lease_s"], row["cpu_percent"], spread, row["beats_per_s"], row["resident_mib"]]
        print(f"| {' | '.join(map(str, [*cells, row['kib_per_member']]))} |")
    busy = max((row["cores_busy_elsewhere"] for row in report["rounds"] + report["idle"]), default=0)
    print(f"\ncores busy elsewhere, at most: {busy}")


if __name__ == "__main__":
    main()
