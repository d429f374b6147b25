"""What states of a model on a GPU cost: each training step that keeps one, and a restart; beside torchrun, with NCCL.

    python -m benchmarks.gpu_state [--mebibytes 4096] [-n 10] [--turns 3] [--crashes 8] [--json FILE]     needs a GPU

- steps: of a model with AdamW whose state has this size; after each step nothing is kept, or the state in memory
  (`memory.save`), or all of it is copied to the CPU (`tensor.cpu()`), as a script does that writes files beside the
  training. The three take turns, each of `-n` steps, and the device is waited for at the end of a turn only.
- restart: from a rank that raises to its next step; see `saved_state`. One GPU has one rank.

`--device cpu` is for machines without a GPU: it shows that the program works.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.figures import ratio_of_medians, summary
from benchmarks.machine import describe
from benchmarks.state.restarts import Setting, measure_restarts, restart_table
from hpc_elastic import memory
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.state_memory import map_control, read_slots
from hpc_elastic.worker import rank_state
from tests.membership.script import an_assign

WIDTH = 4096
COPIES = 3  # of each parameter, with the two moments of AdamW
COMMITTED_WITHIN_S = 60.0
KEPT = ("nothing", "memory.save", "tensor.cpu()")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=4096, help="of the rank's state")
    parser.add_argument("--rows", type=int, default=16384, help="of a batch, on which the length of a step depends")
    parser.add_argument("-n", type=int, default=10, help="how many steps in a turn")
    parser.add_argument("--turns", type=int, default=3, help="of each case")
    parser.add_argument("--crashes", type=int, default=8, help="in each run of ours; torchrun has a quarter of them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model's layers")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    setting = Setting(nodes=1, mebibytes=arguments.mebibytes, device=arguments.device)
    report: dict[str, Any] = {
        "machine": describe(),
        "device": device_name(arguments.device),
        "busy_cores_before": busy_cores(seconds=3),
        "mebibytes": arguments.mebibytes,
        "steps": measure_steps(setting, arguments.width, arguments.rows, arguments.turns, arguments.n),
    }
    print("\n".join(steps_table(report)), flush=True)
    report["restart"] = measure_restarts(setting, arguments.turns, arguments.crashes)
    print("\n".join(restart_table(report["restart"])))
    print(f"A restart with the state in memory takes {report['restart']['to torchrun']} of torchrun's.")
    print(f"{report['machine']}; {report['busy_cores_before']} cores busy before.")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def device_name(device: str) -> str:
    """Return what the device calls itself."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else device


def measure_steps(setting: Setting, width: int, rows: int, turns: int, count: int) -> dict[str, Any]:
    """Return the seconds of a step by what is kept after it, of the calls that keep it, and of the first save.

    The first save makes and pins the memory of one slot, the second that of the other; they are in no turn.
    """
    import torch

    def wait() -> None:
        if setting.device == "cuda":
            torch.cuda.synchronize()

    states = RankStates(print)
    files = states.begin(an_assign())[0]
    rank_state.begin(files.own, files.node)
    numbers = map_control(files.own)
    layers = max(1, round(setting.mebibytes * 2**20 / (COPIES * 4 * width * width)))
    with torch.device(setting.device):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
        batch = torch.randn(rows, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    number = 0

    def train() -> None:
        nonlocal number
        optimizer.zero_grad()
        with torch.autocast(setting.device, torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        number += 1

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}

    keep: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "memory.save": lambda: memory.save(number, state()),
        "tensor.cpu()": lambda: to_cpu(state()),
    }
    first = []
    for _ in range(3):  # the third writes where the first did
        train()
        wait()
        began = time.perf_counter()
        keep["memory.save"]()
        wait_for_commit(numbers, number)
        first.append(round(time.perf_counter() - began, 4))
    steps: dict[str, list[list[float]]] = {name: [] for name in KEPT}
    calls: dict[str, list[float]] = {name: [] for name in KEPT}
    for turn in range(turns):
        for name in KEPT if turn % 2 == 0 else KEPT[::-1]:
            train()
            wait()
            began = time.perf_counter()
            for _ in range(count):
                train()
                called = time.perf_counter()
                keep[name]()
                calls[name].append(time.perf_counter() - called)
            wait()
            steps[name].append([(time.perf_counter() - began) / count])
            if name == "memory.save":
                wait_for_commit(numbers, number)
    states.close()
    return {
        "state_mebibytes": round(sum(map(bytes_of, state().values())) / 2**20),
        "saves_until_there": first,
        "step_s": {name: summary([each for (each,) in steps[name]]) for name in KEPT},
        "call_s": {name: summary(calls[name], digits=5) for name in KEPT},
        "times_nothing": {name: str(ratio_of_medians(steps[name], steps["nothing"])) for name in KEPT[1:]},
    }


def wait_for_commit(numbers: memoryview, step: int) -> None:
    """Wait until the rank's memory holds the state of a step.

    Raises:
        TimeoutError: it did not within a minute.
    """
    until = time.monotonic() + COMMITTED_WITHIN_S
    while step not in [slot.step for slot in read_slots(numbers)]:
        if time.monotonic() > until:
            raise TimeoutError(f"the state of step {step} is not in memory after {COMMITTED_WITHIN_S:g} s")
        time.sleep(0.0005)


def to_cpu(state: Any) -> Any:
    """Return a copy of a state on the CPU."""
    if isinstance(state, Mapping):
        return {key: to_cpu(value) for key, value in state.items()}
    return state.detach().to("cpu", copy=True)


def bytes_of(state: Any) -> int:
    """Return how many bytes the tensors of a state have."""
    return sum(map(bytes_of, state.values())) if isinstance(state, Mapping) else int(state.nbytes)


def steps_table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures of the steps as a table."""
    steps = report["steps"]
    lines = [f"{report['device']}, {steps['state_mebibytes']} MiB of state", ""]
    lines += ["| after each step | turns | step, s | the call, s | times a step without |", "|---|---|---|---|---|"]
    for name in KEPT:
        step, call = steps["step_s"][name], steps["call_s"][name]
        times = steps["times_nothing"].get(name, "")
        lines.append(f"| {name} | {step['n']} | {step['median']} | {call['median']} | {times} |")
    return [*lines, f"The first three saves took {steps['saves_until_there']} s until the state was there.", ""]


if __name__ == "__main__":
    main()
