"""A worker that crashes in each of the first attempts, each time in another way, and then succeeds.

    python crasher.py FOLDER CYCLES HELD [--gloo] [--states]

HELD is `51,1001`: in these attempts every rank leaves a file FOLDER/held/ATTEMPT-RANK and goes no further until
there is FOLDER/released/ATTEMPT, so that somebody can look at the run while it stands still. With --gloo the ranks
are a process group that does an all-reduce first; without it nothing but the standard library is imported.
With --states each rank loads its state from memory and saves two steps, and none crashes before all have saved; one
that goes on at another step than the last one leaves a line in FOLDER/lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

LOOKS_AGAIN_S = 0.01
STATE_BYTES = 1 << 20


def main(folder: Path, cycles: int, held: set[int], *, with_gloo: bool, with_states: bool) -> None:
    attempt, rank, world_size = (int(os.environ[name]) for name in ("HPC_ELASTIC_ATTEMPT", "RANK", "WORLD_SIZE"))
    if with_gloo:
        all_reduce(world_size)
    if with_states:
        save_two_steps(folder, attempt, rank)
        wait_until_all_have_saved(folder, attempt, world_size)
    if attempt in held:
        (folder / "held" / f"{attempt}-{rank}").touch()
        while not (folder / "released" / str(attempt)).exists():
            time.sleep(LOOKS_AGAIN_S)
    if rank == 0:
        (folder / "progress").write_text(f"{attempt}\n")
    if attempt > cycles:
        return
    if attempt % world_size != rank:
        while True:
            signal.pause()  # what stops it is the restart
    if attempt % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt % 3 == 1:
        os._exit(3)
    raise RuntimeError(f"crash {attempt}")


def save_two_steps(folder: Path, attempt: int, rank: int) -> None:
    from hpc_elastic import memory

    state, step = memory.load()
    last = 2 * (attempt - 1)
    if (step or 0) != last or (state is not None and state["own"] != bytes([rank]) * STATE_BYTES):
        with (folder / "lost").open("a") as lost:
            lost.write(f"attempt {attempt}: rank {rank} begins with step {step}, and all had saved {last}\n")
    for number in (last + 1, last + 2):
        memory.save(number, {"own": bytes([rank]) * STATE_BYTES, "step": number})
    (folder / f"saved.{rank}.new").write_text(str(attempt))
    (folder / f"saved.{rank}.new").replace(folder / f"saved.{rank}")


def wait_until_all_have_saved(folder: Path, attempt: int, world_size: int) -> None:
    files = [folder / f"saved.{rank}" for rank in range(world_size)]
    while not all(file.exists() and int(file.read_text()) >= attempt for file in files):
        time.sleep(LOOKS_AGAIN_S)


def all_reduce(world_size: int) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    ones = torch.ones(1)
    distributed.all_reduce(ones)
    assert int(ones.item()) == world_size


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        set(map(int, sys.argv[3].split(","))),
        with_gloo="--gloo" in sys.argv,
        with_states="--states" in sys.argv,
    )
