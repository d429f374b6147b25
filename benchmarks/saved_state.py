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
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.figures import summary
from benchmarks.machine import describe
from benchmarks.state.restarts import Setting, measure_restarts, restart_table
from hpc_elastic import memory
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.worker import rank_state
from tests.membership.script import an_assign

NODES = 4
STEP_S = 0.2
MOST_OF_COPY, MOST_OF_STEP, MOST_LONGER_S = 1.3, 0.08, 0.25


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
        "restart": measure_restarts(
            Setting(nodes=NODES, mebibytes=arguments.mebibytes), arguments.turns, arguments.crashes
        ),
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


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures as two tables and the bars that they are held against."""
    save, restart = report["save"], report["restart"]
    lines = [f"| {report['mebibytes']} MiB | n | median, ms |", "|---|---|---|"]
    lines += [f"| {name} | {each['n']} | {each['median'] * 1e3:.1f} |" for name, each in save.items()]
    lines += ["", *restart_table(restart)]
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
