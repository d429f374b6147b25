"""What `saved_steps` trains: a model whose weights depend on each step, whose state is in memory after each of them.

    saver.py FOLDER [--replicated] [--ddp] [--step-ms MILLISECONDS]

FOLDER/end has the step after which it ends; FOLDER/saved.RANK gets each step that a rank has saved, FOLDER/begun a line
for each rank and attempt, and FOLDER/weights.RANK a digest in the end. Gradients are averaged parameter by parameter,
or by DistributedDataParallel (`--ddp`) with buckets that stay as they are: usually it arranges them anew after its
first step, in another order, and then gloo adds the gradients of more than two ranks in another order too. A step takes
`--step-ms` longer than its work, until FOLDER/end is there.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import memory

SIZE = 128
BALLAST = 2_000_000  # numbers of 4 bytes: else a random kill would hardly ever come in the middle of a save


def main() -> None:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    attempt = int(os.environ["HPC_ELASTIC_ATTEMPT"])
    step_s = int(options[options.index("--step-ms") + 1]) / 1000 if "--step-ms" in options else 0.0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, SIZE))
    forward = DistributedDataParallel(model, find_unused_parameters=True) if "--ddp" in options else model
    optimizer = torch.optim.AdamW(model.parameters())
    own = torch.zeros(BALLAST) + rank * ("--replicated" not in options)  # what differs between ranks, if anything may
    state, step = memory.load()
    first = 0 if step is None else step
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        own = state["own"]
    _append(folder / "begun", json.dumps({"attempt": attempt, "rank": rank, "first": first}))
    done = first
    while not (is_told := (folder / "end").exists()) or done != int((folder / "end").read_text()):
        done += 1
        time.sleep(0.0 if is_told else step_s)  # what a larger model would compute
        batch = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(done * 1000 + rank))
        optimizer.zero_grad()
        forward(batch).square().mean().backward()
        if "--ddp" not in options:
            _average(parameter.grad for parameter in model.parameters())
        optimizer.step()
        own.add_(1)
        states: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "own": own}
        memory.save(done, states, replicated="--replicated" in options)
        _append(folder / f"saved.{rank}", f"{attempt} {done}")
    digest = hashlib.sha256()
    for tensor in (*model.state_dict().values(), own):
        digest.update(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
    (folder / f"weights.{rank}").write_text(digest.hexdigest())
    del forward  # torch 2.13 may wait for ever where DistributedDataParallel ends after its group
    dist.destroy_process_group()


def _average(gradients: Iterable[torch.Tensor | None]) -> None:
    for gradient in gradients:
        assert gradient is not None
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    main()
