"""Trains a small model with DistributedDataParallel on two ranks, and keeps its state in memory.

    memory_trainer.py RESULT KILLS [--fails-at STEP]

In each of the first KILLS attempts one rank kills itself: at a step, in the middle of a save. RESULT gets the weights
of rank 0 in the end, as text. With two ranks a sum does not depend on the order of the ranks.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import memory

STEPS = 60
SAVES_BETWEEN_KILLS = 4


def main() -> None:
    result, kills = Path(sys.argv[1]), int(sys.argv[2])
    fails_at = int(sys.argv[4]) if sys.argv[3:4] == ["--fails-at"] else None
    attempt = int(os.environ["HPC_ELASTIC_ATTEMPT"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    state, step = memory.load()
    first = 0 if step is None else step
    if state is not None:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        memory.set_random_state(state["random"])
    else:
        torch.manual_seed(100 + rank)
    print(json.dumps({"attempt": attempt, "rank": rank, "first": first}), flush=True)
    dice = random.Random(f"{attempt}")
    dies = attempt <= kills and dice.randrange(2) == rank
    dies_at, in_save = first + SAVES_BETWEEN_KILLS, dice.random() < 0.5
    for done in range(first + 1, STEPS + 1):
        if done == fails_at:
            dist.barrier()  # all have saved the step before: else the first to fail would stop one that still saves
            raise ValueError("this step never works")
        optimizer.zero_grad()
        model(torch.randn(32, 256)).square().mean().backward()
        optimizer.step()
        if dies and done == dies_at:
            _die(in_save=in_save)
        states: dict[str, Any] = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        memory.save(done, {**states, "random": memory.random_state()})
    if rank == 0:
        result.write_text(str([value.hex() for value in model.module.weight.detach().flatten().tolist()]))
    del model  # torch 2.13 may wait for ever where DistributedDataParallel ends after its group
    dist.destroy_process_group()


def _die(*, in_save: bool) -> None:
    """Kill this process at once, or as soon as a save has copied some of the state."""
    if not in_save:
        os.kill(os.getpid(), signal.SIGKILL)
    copy, copied = ctypes.memmove, 0

    def copy_and_die(to: int, source: Any, size: int) -> Any:
        nonlocal copied
        copied += 1
        if copied == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return copy(to, source, size)

    ctypes.memmove = copy_and_die  # type: ignore[assignment]  # it has a type of its own in the stubs


if __name__ == "__main__":
    main()
