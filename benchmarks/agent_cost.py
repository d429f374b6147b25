"""Memory and idle work of an agent beside torchrun's, in one run: a table, and JSON with --json.

    python -m benchmarks.agent_cost [--seconds 60] [--json FILE]

Ours is a run on two nodes of the local backend, torchrun's an agent alone; both launch two workers that wait without
torch. After the workers have started, the launcher's own processes are watched: resident memory (VmRSS), the share of
it that is nobody else's too (Pss, where shared pages count by their share), CPU time, and how often they woke up
(voluntary context switches of all threads). Our guard, fork server and store host are processes beside the agent and
are reported apart.
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
from collections.abc import Callable, Iterator
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
LIMIT_CPU_PERCENT = 0.05
MIB = 1024 * 1024
SETTLES_WITHIN_S = 120
PARTS = {"agent.main": "agent", "agent.guard": "guard", "worker.fork_server": "fork server"}
PARTS["worker.store_host"] = "store host"

Processes = dict[str, psutil.Process]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long each is watched")
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
def ours(folder: Path) -> Iterator[Processes]:
    """A run of two nodes on the local backend: what is not a worker, by its name and its node's part in the run."""
    environ = prepare(folder)
    command = [sys.executable, "-m", "hpc_elastic", "run", "--nodes", str(WORKERS), "--workers-per-node", "1"]
    run = subprocess.Popen(
        [*command, "waiting.py"], cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_started(folder)
        yield name_processes(psutil.Process(run.pid), head=str(head_node(folder)))
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()


def name_processes(run: psutil.Process, *, head: str) -> Processes:
    """Agents, guards, fork servers and store hosts; a part's own processes follow the agent that has started them."""
    found: Processes = {}
    for agent in run.children(recursive=True):
        if part_of(agent.cmdline()) != "agent":
            continue
        node = f"local{agent.environ()['HPC_ELASTIC_LOCAL_NODE_ID']}"
        where = "head's" if node == head else "other node's"
        found[f"{where} agent"] = agent
        for child in agent.children(recursive=True):
            if (part := part_of(child.cmdline())) is not None:
                name, number = f"{where} {part}", 2
                while name in found:
                    name, number = f"{where} {part} ({number})", number + 1
                found[name] = child
    return found


def part_of(command: list[str]) -> str | None:
    """What a process of ours is by its command line; None for a worker."""
    return next((name for part, name in PARTS.items() if f"hpc_elastic.{part}" in command), None)


def head_node(folder: Path) -> str:
    """The node whose agent opened the first attempt."""
    (claim,) = folder.glob("hpc-elastic-runs/*/attempts/0001/claim.json")
    return str(json.loads(claim.read_text())["head"])


@contextmanager
def torchrun(folder: Path) -> Iterator[Processes]:
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
    wait_until(lambda: len(list((folder / "started").iterdir())) >= WORKERS, within_s=60)


def wait_until(condition: Callable[[], bool], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the workers did not start, or nothing came to rest, within {within_s:g} s")
        time.sleep(0.05)


def watch(processes: Processes, seconds: float) -> list[dict[str, object]]:
    """Figures of each process over the time, which begins when a fork server has imported all that it will."""
    last = dict.fromkeys(processes, -1.0)

    def is_at_rest() -> bool:
        before = dict(last)
        last.update({name: usage(process)[0] for name, process in processes.items()})
        time.sleep(2)
        return all(last[name] - before[name] < 0.1 for name in processes)

    wait_until(is_at_rest, within_s=SETTLES_WITHIN_S)
    before = {name: usage(process) for name, process in processes.items()}
    time.sleep(seconds)
    rows = []
    for name, process in processes.items():
        (cpu_before, wakes_before), (cpu, wakes) = before[name], usage(process)
        memory = process.memory_full_info()
        rows.append(
            {
                "process": name,
                "resident_mib": round(memory.rss / MIB, 1),
                "proportional_mib": round(memory.pss / MIB, 1),
                "cpu_percent": round((cpu - cpu_before) / seconds * 100, 4),
                "wakeups_per_s": round((wakes - wakes_before) / seconds, 2),
                "threads": process.num_threads(),
            }
        )
    return rows


def usage(process: psutil.Process) -> tuple[float, int]:
    """CPU seconds, of which the kernel counts nanoseconds here, and voluntary context switches, of all threads."""
    seconds, switches = 0.0, 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
        status = (task / "status").read_text()
        switches += int(status.split("voluntary_ctxt_switches:")[1].split()[0])
    return seconds, switches


def print_table(rows: list[dict[str, object]]) -> None:
    columns = ("resident_mib", "proportional_mib", "cpu_percent", "wakeups_per_s", "threads")
    print("| process | resident MiB | proportional MiB | CPU % | wake-ups a second | threads |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['process']} | {' | '.join(str(row[name]) for name in columns)} |")
    print(f"the limits of the agent without its workers are {LIMIT_MIB} MiB and {LIMIT_CPU_PERCENT} % of a core")


if __name__ == "__main__":
    main()
