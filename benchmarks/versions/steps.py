"""What `slurm_versions` runs on each rank: a stamp for its first step, then a wait until somebody says how to end."""

from __future__ import annotations

import os
import pathlib
import sys
import time

PAUSE_S = 0.05


def main(stamps: pathlib.Path) -> None:
    attempt, rank = os.environ["HPC_ELASTIC_ATTEMPT"], os.environ["RANK"]
    stamp = stamps / f"{attempt}-{rank}"
    stamp.with_suffix(".new").write_text(f"{os.environ['WORLD_SIZE']} {time.time()}")
    os.replace(stamp.with_suffix(".new"), stamp)
    print(f"step of rank {rank} in attempt {attempt}", flush=True)
    while not (stamps / "stop").exists():
        time.sleep(PAUSE_S)
    print(f"rank {rank} is done", flush=True)
    sys.exit(int((stamps / "stop").read_text() or 0))


if __name__ == "__main__":
    main(pathlib.Path(os.environ["STAMPS"]))
