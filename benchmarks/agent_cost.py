"""Memory and idle work of an agent beside torchrun's, in one run: a table, and JSON with --json.

    python -m benchmarks.agent_cost [--seconds 30] [--json FILE]

Both launch two workers that wait without torch, on this machine. After the workers have started, the launcher's own
process is watched: resident memory (VmRSS), CPU time, and how often it woke up (voluntary context switches of all its
threads). Our guard and store host are processes beside the agent and are reported apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

WAITING = """
import os, pathlib, signal
pathlib.Path(os.environ["STARTED"], os.environ["RANK"]).touch()
signal.pause()
"""
WORKERS = 2
LIMIT_MIB = 32
MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="how long each is watched")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for launcher in (ours, torchrun):
            with launcher(Path(folder) / launcher.__name__) as processes:
                rows += watch(processes, arguments.seconds)
    report = {"python": platform.python_version(), "seconds": arguments.seconds, "processes": rows}
    print_table(rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


@contextmanager
def ours(folder: Path) -> Iterator[dict[str, psutil.Process]]:
    """A run of one node on the local backend; its agent, guard and store host."""
    environ = prepare(folder)
    command = [sys.executable, "-m", "hpc_elastic", "run", "--nodes", "1", "--workers-per-node", str(WORKERS)]
    run = subprocess.Popen(
        [*command, "waiting.py"], cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_started(folder)
        names = {"agent.main": "our agent", "agent.guard": "our guard", "worker.store_host": "our store host"}
        yield {
            name: child
            for child in psutil.Process(run.pid).children(recursive=True)
            for part, name in names.items()
            if any(word == f"hpc_elastic.{part}" for word in child.cmdline())
        }
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()


@contextmanager
def torchrun(folder: Path) -> Iterator[dict[str, psutil.Process]]:
    """The same under torchrun."""
    environ = prepare(folder)
    command = [str(Path(sys.executable).parent / "torchrun"), "--standalone", f"--nproc-per-node={WORKERS}"]
    run = subprocess.Popen(
        [*command, "waiting.py"], cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_started(folder)
        yield {"torchrun's agent": psutil.Process(run.pid)}
    finally:
        run.terminate()
        run.wait()


def prepare(folder: Path) -> dict[str, str]:
    (folder / "started").mkdir(parents=True)
    (folder / "waiting.py").write_text(WAITING)
    return {**os.environ, "STARTED": str(folder / "started"), "XDG_STATE_HOME": str(folder / "state")}


def wait_until_started(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while len(list((folder / "started").iterdir())) < WORKERS:
        if time.monotonic() > deadline:
            raise SystemExit("the workers did not start within 60 s")
        time.sleep(0.05)


def watch(processes: dict[str, psutil.Process], seconds: float) -> list[dict[str, object]]:
    """Figures of each process over the time; the first seconds, in which things settle, do not count."""
    time.sleep(5)
    before = {name: usage(process) for name, process in processes.items()}
    time.sleep(seconds)
    rows = []
    for name, process in processes.items():
        (cpu_before, wakes_before), (cpu, wakes) = before[name], usage(process)
        rows.append(
            {
                "process": name,
                "resident_mib": round(process.memory_info().rss / MIB, 1),
                "cpu_percent": round((cpu - cpu_before) / seconds * 100, 3),
                "wakeups_per_s": round((wakes - wakes_before) / seconds, 2),
                "threads": process.num_threads(),
            }
        )
    return rows


def usage(process: psutil.Process) -> tuple[float, int]:
    """CPU seconds and voluntary context switches, of all threads."""
    times = process.cpu_times()
    switches = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        status = (task / "status").read_text()
        switches += int(status.split("voluntary_ctxt_switches:")[1].split()[0])
    return times.user + times.system, switches


def print_table(rows: list[dict[str, object]]) -> None:
    print(f"{'process':<20} {'resident MiB':>13} {'CPU %':>8} {'wake-ups/s':>11} {'threads':>8}")
    for row in rows:
        print(
            f"{row['process']:<20} {row['resident_mib']:>13} {row['cpu_percent']:>8} "
            f"{row['wakeups_per_s']:>11} {row['threads']:>8}"
        )
    print(f"the limit of the agent without its workers is {LIMIT_MIB} MiB")


if __name__ == "__main__":
    main()
