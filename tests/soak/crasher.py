"""A worker that crashes in each of the first attempts, each time in another way, and then succeeds.

    python crasher.py FOLDER CYCLES HELD [--gloo]

HELD is `51,1001`: in these attempts every rank leaves a file FOLDER/held/ATTEMPT-RANK and goes no further until
there is FOLDER/released/ATTEMPT, so that somebody can look at the run while it stands still. With --gloo the ranks
are a process group that does an all-reduce first; without it nothing but the standard library is imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

LOOKS_AGAIN_S = 0.01


def main(folder: Path, cycles: int, held: set[int], *, with_gloo: bool) -> None:
    attempt, rank, world_size = (int(os.environ[name]) for name in ("HPC_ELASTIC_ATTEMPT", "RANK", "WORLD_SIZE"))
    if with_gloo:
        all_reduce(world_size)
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


def all_reduce(world_size: int) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    ones = torch.ones(1)
    distributed.all_reduce(ones)
    assert int(ones.item()) == world_size


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), set(map(int, sys.argv[3].split(","))), with_gloo="--gloo" in sys.argv)
