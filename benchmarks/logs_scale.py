"""How long `logs`, `explain` and `status` take on a run of 10,000 ranks, in both shapes of logs: a table, and JSON.

    python -m benchmarks.logs_scale [--ranks 10000] [--lines 20] [-n 5] [--json FILE]

It makes a failed run directory with eight ranks a node, each of which has printed some lines, most of them the same
as the others'. The commands take turns. The file-system cache is warm. The bar is 2 s each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpc_elastic.codec import to_json
from hpc_elastic.rundir import store
from hpc_elastic.rundir.node_log import format_head, format_time
from hpc_elastic.rundir.records import LogMark, RunState
from tests.observe.builders import RunBuilder

LIMIT_S = 2.0
RANKS_A_NODE = 8
SECOND = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND
COMMANDS = {
    "status": ("status",),
    "explain": ("explain",),
    "logs": ("logs",),
    "logs --failed": ("logs", "--failed"),
    "logs --dedupe": ("logs", "--dedupe"),
    "logs --grep": ("logs", "--grep", "step 7 of rank 12"),
    "logs --rank all --tail 10": ("logs", "--rank", "all", "--tail", "10"),
}


def main() -> None:
    """Make both runs, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=20, help="lines of each rank")
    parser.add_argument("-n", type=int, default=5, help="how often each")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {shape: Path(folder) / shape for shape in ("rank", "node")}
        for shape, path in runs.items():
            make_run(path, shape, ranks=arguments.ranks, lines=arguments.lines)
        found = measure(runs, arguments.n, {**os.environ, "XDG_STATE_HOME": folder})
    print("| logs per | command | median s | most s |\n|---|---|---|---|")
    for shape, figures in found.items():
        for command, times in figures.items():
            print(f"| {shape} | {command} | {statistics.median(times):.2f} | {max(times):.2f} |")
    if arguments.json:
        report = {"ranks": arguments.ranks, "lines": arguments.lines, "n": arguments.n, "seconds": found}
        Path(arguments.json).write_text(json.dumps(report))


def make_run(path: Path, shape: str, *, ranks: int, lines: int) -> None:
    """Make the run directory of a failed run; the output of each rank took a second for each of its lines."""
    nodes = [f"node{number + 1}" for number in range(-(-ranks // RANKS_A_NODE))]
    run = RunBuilder(path).submit().allocate(nodes=tuple(nodes)).open_attempt(1)
    enlarge(run, nodes)
    plan = json.loads(Path(run.layout.plan).read_text())
    plan["logs"]["per"] = shape
    Path(run.layout.plan).write_text(json.dumps(plan))
    for number, node in enumerate(nodes):
        texts = {rank: printed(rank, lines) for rank in range(number * RANKS_A_NODE, (number + 1) * RANKS_A_NODE)}
        run.end_node(1, node)
        if shape == "node":
            write_node_log(run, node, texts, lines)
        else:
            write_rank_logs(run, node, texts, lines)
    run.write_error(1, 3, message="ValueError: no such batch", callstack="Traceback\nValueError: no such batch")
    run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", cause="rank 3: ValueError", nodes=nodes)


def enlarge(run: RunBuilder, nodes: list[str]) -> None:
    """Put these nodes with their ranks into the roster and the claim of the first attempt."""
    claim, world = store.read_json(run.layout.claim(1)), store.read_json(run.layout.world(1))
    claim["members"] = nodes
    node, rank = world["nodes"][0], world["ranks"][0]
    world["nodes"] = [
        node | {"node": name, "node_id": number, "first_rank": number * RANKS_A_NODE, "workers": RANKS_A_NODE}
        for number, name in enumerate(nodes)
    ]
    world["ranks"] = [
        rank | {"rank": number * RANKS_A_NODE + local, "node": name, "local_rank": local}
        for number, name in enumerate(nodes)
        for local in range(RANKS_A_NODE)
    ]
    Path(run.layout.claim(1)).write_text(json.dumps(claim))
    Path(run.layout.world(1)).write_text(json.dumps(world))


def printed(rank: int, lines: int) -> list[bytes]:
    """Return the lines of a rank: all but each tenth are the same for all ranks."""
    return [
        b"step %d of rank %d\n" % (number, rank) if number % 10 == 7 else b"epoch %d begins on all ranks\n" % number
        for number in range(lines)
    ]


def write_node_log(run: RunBuilder, node: str, texts: dict[int, list[bytes]], lines: int) -> None:
    """Write a node's log."""
    path = Path(run.layout.node_log(1, node))
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        for number in range(lines):
            moment = format_time(BEGIN_NS + number * SECOND)
            for rank, text in texts.items():
                file.write(format_head(moment, rank, is_stderr=False) + text[number])


def write_rank_logs(run: RunBuilder, node: str, texts: dict[int, list[bytes]], lines: int) -> None:
    """Write the logs of a node's ranks, and the marks of their sizes."""
    for rank, text in texts.items():
        Path(run.layout.rank(1, rank)).mkdir(parents=True)
        Path(run.layout.stdout(1, rank)).write_bytes(b"".join(text))
        Path(run.layout.stderr(1, rank)).touch()
    sizes = dict.fromkeys(texts, 0)
    marks = []
    for number in range(lines):
        for rank, text in texts.items():
            sizes[rank] += len(text[number])
        ends = {f"{rank}.stdout": size for rank, size in sizes.items()}
        marks.append(to_json(LogMark(time_ns=BEGIN_NS + number * SECOND, ends=ends)))
    store.append_lines(run.layout.log_marks(1, node), marks)


def measure(runs: dict[str, Path], count: int, environ: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds that each command took, in turns."""
    found: dict[str, dict[str, list[float]]] = {shape: {name: [] for name in COMMANDS} for shape in runs}
    for _ in range(count):
        for shape, path in runs.items():
            for name, words in COMMANDS.items():
                command = [sys.executable, "-m", "hpc_elastic", *words, str(path)]
                began = time.monotonic()
                done = subprocess.run(
                    command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
                )
                found[shape][name].append(time.monotonic() - began)
                if "Traceback" in done.stderr or "error:" in done.stderr:
                    raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return found


if __name__ == "__main__":
    main()
