"""What `saved_state` trains: a small model and a ballast, with the whole of it in memory after each step, or not.

    training.py FOLDER MEBIBYTES WHERE DEVICE

WHERE is `memory`, `disk` (rank 0 writes a file at each step, and all load it) or `nowhere`, DEVICE `cpu` or `cuda`.
FOLDER/crash makes the last rank raise, FOLDER/stop ends it. Each rank appends a line with a name, the attempt and a
time to FOLDER/moments.RANK.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_elastic import memory

TENSORS = 100
PAUSE_S = 0.02


def main() -> None:
    folder, mebibytes, where, device = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_default_device(device)
    weight = torch.zeros(64)
    ballast = {f"w{number}": torch.ones(mebibytes * 2**18 // TENSORS) for number in range(TENSORS)}
    state, step = memory.load() if where == "memory" else _load(folder / "state.pt", where)
    if state is not None:
        weight = state["weight"].to(device)
        ballast = {name: tensor.to(device) for name, tensor in state["ballast"].items()}
    done, over = step or 0, torch.zeros(1)
    attempt = os.environ.get("HPC_ELASTIC_ATTEMPT") or os.environ["TORCHELASTIC_RESTART_COUNT"]
    with (folder / f"moments.{rank}").open("a", buffering=1) as file:
        while not over[0]:
            gradient = torch.ones(64)
            dist.all_reduce(gradient)
            weight.sub_(gradient / world_size)
            done += 1
            file.write(f"stepped {attempt} {time.clock_gettime(time.CLOCK_BOOTTIME)} {done}\n")
            _save(folder / "state.pt", where, rank, done, {"weight": weight, "ballast": ballast})
            over[0] = (folder / "stop").exists()
            dist.all_reduce(over)
            if rank == world_size - 1 and (folder / "crash").exists():
                (folder / "crash").unlink()
                file.write(f"raised {attempt} {time.clock_gettime(time.CLOCK_BOOTTIME)} {done}\n")
                raise RuntimeError("as the benchmark says")
            time.sleep(PAUSE_S)
    dist.destroy_process_group()


def _load(path: Path, where: str) -> tuple[Any, int | None]:
    if where != "disk" or not path.exists():
        return None, None
    state = torch.load(path)
    return state, state["step"]


def _save(path: Path, where: str, rank: int, step: int, state: dict[str, Any]) -> None:
    if where == "memory":
        memory.save(step, state)
    elif where == "disk" and rank == 0 and step % 100 == 1:
        torch.save({**state, "step": step}, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main()
