"""Trains with so much memory that it fits into its cgroup only without the states that it keeps in memory.

    greedy_trainer.py FOLDER SHARING

From step 8 on its ranks, of which SHARING are in one cgroup, take what is free there, and what states take, but for
`LEFT`: in each attempt as much as in the first. FOLDER/disk.RANK has the step of a rank's own checkpoint, FOLDER/begun
a line for each rank and attempt.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

from hpc_elastic import memory
from hpc_elastic.cgroup_memory import find_levels, parse_cgroup, parse_mounts, read_room

STEPS = 14
GREEDY_FROM = 8
RANKS = 2
STATE = 40 << 20
LEFT = 60 << 20  # for what differs between attempts


def main() -> None:
    folder, rank, attempt = Path(sys.argv[1]), int(os.environ["RANK"]), os.environ["HPC_ELASTIC_ATTEMPT"]
    loaded, step = memory.load()
    disk = folder / f"disk.{rank}"
    first = step if step is not None else min(map(on_disk, [folder / f"disk.{each}" for each in range(RANKS)]))
    del loaded
    with open(folder / "begun", "a") as file:
        file.write(
            json.dumps({"attempt": int(attempt), "rank": rank, "first": first, "memory": step is not None}) + "\n"
        )
    weights, kept = os.urandom(STATE), b""
    for done in range(first + 1, STEPS + 1):
        memory.save(done, {"weights": weights})
        if done % 5 == 0:
            write(disk, str(done))
        meet(folder / f"{attempt}.{done}", rank)
        if done >= GREEDY_FROM and not kept:
            share = folder / f"share.{rank}"
            if not share.exists():
                write(share, str((without_states() - LEFT) // int(sys.argv[2])))
            meet(folder / f"{attempt}.{done}.share", rank)
            kept = os.urandom(1 << 20) * (int(share.read_text()) >> 20)


def meet(path: Path, rank: int) -> None:
    """Wait for the other ranks, as a collective would; whoever is gone has been killed, and so are all others then."""
    write(path.with_name(f"{path.name}.{rank}"), "")
    while not all(path.with_name(f"{path.name}.{each}").exists() for each in range(RANKS)):
        time.sleep(0.005)


def write(path: Path, text: str) -> None:
    path.with_name(f".{path.name}").write_text(text)
    path.with_name(f".{path.name}").rename(path)


def on_disk(path: Path) -> int:
    """Return the step of a checkpoint, 0 if there is none: all ranks go on at the one that all have."""
    return int(path.read_text()) if path.exists() else 0


def without_states() -> int:
    """Return how many bytes are free, and would be without states; copies are made meanwhile, and must count once."""
    while True:
        states, free = shared(), read_room().free
        if shared() == states:
            return free + states


def shared() -> int:
    """Return the bytes of memory files in the cgroup: those of the states."""
    mount = parse_mounts(Path("/proc/self/mountinfo").read_text())[0]
    cgroup = parse_cgroup(Path("/proc/self/cgroup").read_text(), mount.version)
    level = find_levels(mount, cgroup or "")[0]
    found = re.search(r"(?m)^(?:total_)?shmem (\d+)$", Path(level, "memory.stat").read_text())
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
