"""What `useful_time` trains: a model with DistributedDataParallel, whose ranks are killed while it does.

    killed.py FOLDER MEBIBYTES WHERE MEAN_S

MEBIBYTES are those of the whole state. WHERE is `memory` (kept after each step) or `disk`: rank 0 writes a file at
Young's interval for failures that come MEAN_S apart, and all load it. FOLDER/stop ends it. Each rank has its process id
in FOLDER/pid.RANK; rank 0 appends a line to FOLDER/steps: a step's number, and when it began, was done, and was saved.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import memory
from hpc_elastic.worker import heartbeat

WIDTH = 512
COPIES = 3  # of each parameter, with the two moments of AdamW
DEVICE_S = 0.1  # of each step, in which a device would compute and the CPUs would not


def main() -> None:
    folder, mebibytes, where, mean_s = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    torch.manual_seed(1)
    layers = max(1, round(mebibytes * 2**20 / (COPIES * 4 * WIDTH * WIDTH)))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    forward = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    keeper = _Memory() if where == "memory" else _Disk(folder / "state.pt", rank, mean_s)
    state, step = keeper.load()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    batch, over = torch.randn(8, WIDTH), torch.zeros(1)
    with (folder / "steps").open("a", buffering=1) as file:
        while not over[0]:
            began = time.monotonic()
            optimizer.zero_grad()
            forward(batch).square().mean().backward()
            optimizer.step()
            time.sleep(DEVICE_S)
            over[0] = (folder / "stop").exists()
            dist.all_reduce(over)
            step, done = step + 1, time.monotonic()
            heartbeat(step)
            keeper.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            if rank == 0:
                file.write(f"{step} {began} {done} {time.monotonic()}\n")
    del forward  # torch 2.13 may wait for ever where DistributedDataParallel ends after its group
    dist.destroy_process_group()


class _Memory:
    """The state after each step, in memory that outlives the rank."""

    def load(self) -> tuple[Any, int]:
        state, step = memory.load()
        return state, step or 0

    def save(self, step: int, state: dict[str, Any]) -> None:
        memory.save(step, state, replicated=True)


class _Disk:
    """A file that rank 0 writes at Young's interval: the root of twice what a save takes, times the mean."""

    def __init__(self, path: Path, rank: int, mean_s: float) -> None:
        self._path, self._rank, self._mean_s = path, rank, mean_s
        self._saved, self._takes_s = time.monotonic(), 0.0

    def load(self) -> tuple[Any, int]:
        if not self._path.exists():
            return None, 0
        state = torch.load(self._path)
        return state, state["step"]

    def save(self, step: int, state: dict[str, Any]) -> None:
        interval_s = math.sqrt(2 * self._takes_s * self._mean_s)  # of no length before the first one
        if self._rank or time.monotonic() - self._saved < interval_s:
            return
        began = time.monotonic()
        torch.save({**state, "step": step}, self._path.with_suffix(".new"))
        self._path.with_suffix(".new").rename(self._path)
        self._saved = time.monotonic()
        self._takes_s = self._saved - began


if __name__ == "__main__":
    main()
