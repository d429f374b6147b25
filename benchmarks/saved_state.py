"""What training state in memory costs: a save beside a copy of the same bytes, and what it adds to a restart.

    python -m benchmarks.saved_state [-n 30] [--crashes 20] [--mebibytes 100] [--turns 3] [--json FILE]

- save: `memory.save` of 100 tensors, a copy of the same tensors by `memmove`, and one of as many bytes in one piece;
  the three take turns, with a pause of a step's length before each, because training does not save again at once.
- restart: from a rank that raises to the next step of all ranks, on four nodes of the local backend, with the state in
  memory, without a state, and under torchrun with four workers that load it from a file; the runs take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.figures import ratio_of_medians, summary
from benchmarks.machine import describe
from benchmarks.state import training
from hpc_elastic import memory
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.worker import rank_state
from tests.faults.play import prepare_door
from tests.membership.script import an_assign
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak.campaign import kill_everything

NODES = 4
STEP_S = 0.2
MOST_OF_COPY, MOST_OF_STEP, MOST_LONGER_S = 1.3, 0.08, 0.25
CASES = ("in memory", "without a state", "torchrun, from a file")
WHERE = {"in memory": "memory", "without a state": "nowhere"}
_JOB = """
name: state
site: local
nodes: {nodes}
workers_per_node: 1
time: 1h
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 1000, no_progress_limit: 1000, backoff: {{first: 0s}}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=30, help="how many saves")
    parser.add_argument("--crashes", type=int, default=20, help="in each run of ours; torchrun has a quarter of them")
    parser.add_argument("--turns", type=int, default=3, help="runs of each case")
    parser.add_argument("--mebibytes", type=int, default=100, help="of each rank's state")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "machine": describe(),
        "busy_cores_before": busy_cores(seconds=3),
        "mebibytes": arguments.mebibytes,
        "save": measure_saves(arguments.n, arguments.mebibytes),
        "restart": measure_restarts(arguments.turns, arguments.crashes, arguments.mebibytes),
    }
    print("\n".join(table(report)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def measure_saves(count: int, mebibytes: int) -> dict[str, Any]:
    """Return the seconds of a save, of a copy of the same tensors, and of one copy of all their bytes."""
    import torch

    states = RankStates(print)
    files = states.begin(an_assign())[0]
    rank_state.begin(files.own, files.node)
    tensors = {f"w{number}": torch.randn(mebibytes * 2**18 // 100) for number in range(100)}
    size = sum(tensor.nbytes for tensor in tensors.values())
    source, target = torch.randn(size // 4), torch.empty(size // 4)

    def copy_tensors() -> None:
        place = target.data_ptr()
        for tensor in tensors.values():
            ctypes.memmove(place, tensor.data_ptr(), tensor.nbytes)
            place += tensor.nbytes

    step = iter(range(1, count + 3))
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: memory.save(next(step), tensors),
        "copy of the same tensors": copy_tensors,
        "copy in one piece": lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-2, count):  # the first two saves make the slots
        for name, call in calls.items():
            time.sleep(STEP_S)
            began = time.perf_counter()
            call()
            if turn >= 0:
                taken[name].append(time.perf_counter() - began)
    states.close()
    return {name: summary(times, digits=5) for name, times in taken.items()}


def measure_restarts(turns: int, crashes: int, mebibytes: int) -> dict[str, Any]:
    """Return the seconds from a rank that raises to the next step of all ranks."""
    taken: dict[str, list[list[float]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-state-") as folder:
        for turn in range(turns):
            for name in CASES if turn % 2 == 0 else CASES[::-1]:
                own = Path(folder) / f"{turn}-{CASES.index(name)}"
                own.mkdir()
                if name in WHERE:
                    taken[name].append(_crash_ours(own, WHERE[name], crashes, mebibytes))
                else:
                    taken[name].append(_crash_torchrun(own, max(1, crashes // 4), mebibytes))
    found: dict[str, Any] = {
        name: summary([each for turn in series for each in turn]) for name, series in taken.items()
    }
    found["turns"] = taken
    medians = {name: statistics.median(each for turn in taken[name] for each in turn) for name in CASES}
    found["longer_s"] = round(medians["in memory"] - medians["without a state"], 4)
    found["to torchrun"] = str(ratio_of_medians(taken["in memory"], taken["torchrun, from a file"]))
    return found


def _crash_ours(folder: Path, where: str, crashes: int, mebibytes: int) -> list[float]:
    door = prepare_door(folder)
    arguments = json.dumps([str(folder), str(mebibytes), where])
    (door.folder / "job.yaml").write_text(_JOB.format(nodes=NODES, script=training.__file__, arguments=arguments))
    run = door.submit("job.yaml")
    try:
        return _crash_again_and_again(folder, crashes, run.story)
    finally:
        (folder / "stop").touch()
        wait_until(run.is_over, "the run is over", within_s=60)
        kill_everything(run)


def _crash_torchrun(folder: Path, crashes: int, mebibytes: int) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NODES}"]
    command += [f"--max-restarts={crashes + 1}", training.__file__, str(folder), str(mebibytes), "disk"]
    with (folder / "torchrun.out").open("wb") as output:
        # Sharing its own store with the workers, torchrun does not come back from most crashes (see recovery).
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    try:
        return _crash_again_and_again(folder, crashes, lambda: (folder / "torchrun.out").read_text()[-3000:])
    finally:
        (folder / "stop").touch()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _crash_again_and_again(folder: Path, crashes: int, story: Callable[[], str]) -> list[float]:
    taken = []
    for number in range(crashes + 1):
        wait_until(lambda: len(_first_steps(folder, number)) == NODES, "all step", within_s=180, otherwise=story)  # noqa: B023
        firsts = _first_steps(folder, number)
        if number:
            taken.append(max(firsts) - _raised(folder)[number - 1])
        # In step, and with some saves behind them.
        wait_until(lambda: min(_steps(folder)) >= 5 * (number + 1), "some steps", within_s=60, otherwise=story)  # noqa: B023
        if number < crashes:
            (folder / "crash").touch()
    return taken


def _lines(folder: Path, rank: int) -> list[list[str]]:
    path = folder / f"moments.{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _steps(folder: Path) -> list[int]:
    return [sum(line[0] == "stepped" for line in _lines(folder, rank)) for rank in range(NODES)]


def _raised(folder: Path) -> list[float]:
    return [float(line[2]) for line in _lines(folder, NODES - 1) if line[0] == "raised"]


def _first_steps(folder: Path, number: int) -> list[float]:
    """The first step of each rank in an attempt, counted from 0, as far as there is one."""
    found = []
    for rank in range(NODES):
        firsts: dict[str, float] = {}
        for line in _lines(folder, rank):
            if line[0] == "stepped":
                firsts.setdefault(line[1], float(line[2]))
        if len(firsts) > number:
            found.append(list(firsts.values())[number])
    return found


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures as two tables and the bars that they are held against."""
    save, restart = report["save"], report["restart"]
    lines = [f"| {report['mebibytes']} MiB | n | median, ms |", "|---|---|---|"]
    lines += [f"| {name} | {each['n']} | {each['median'] * 1e3:.1f} |" for name, each in save.items()]
    lines += ["", "| crash to next step | n | median, s | most, s |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {restart[name]['n']} | {restart[name]['median']} | {restart[name]['most']} |" for name in CASES
    ]
    median = save["save"]["median"]
    bars = [
        ("a save, times a copy of the same tensors", MOST_OF_COPY, median / save["copy of the same tensors"]["median"]),
        ("a save, times a copy in one piece", MOST_OF_COPY, median / save["copy in one piece"]["median"]),
        (f"a save, of a step of {STEP_S} s", MOST_OF_STEP, median / STEP_S),
        ("restart, s longer than without a state", MOST_LONGER_S, restart["longer_s"]),
    ]
    lines += ["", "| bar | at most | found | |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {most} | {found:.3g} | {'met' if found <= most else 'MISSED'} |" for name, most, found in bars
    ]
    lines += ["", f"A restart with the state in memory takes {restart['to torchrun']} of torchrun's."]
    return [*lines, f"{report['machine']}; {report['busy_cores_before']} cores busy before."]


if __name__ == "__main__":
    main()
