"""Trainings whose state is in memory and that end when they are told to, and what they have written down."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from hpc_elastic.state_memory import MEMORY_NAME, map_control, read_slots
from tests.integration.conftest import Door, Run, whole_lines
from tests.slurm_sandbox.cluster import wait_until
from tests.soak import saver

STEP_MS = 100  # beside which a step computes for 4 ms or more on each rank, as long as a test waits for something else


def train(
    door: Door,
    *options: str,
    nodes: str,
    workers: int,
    more: str = "",
    time: str = "10m",
    site: str = "generic-slurm",
    name: str = "state",
) -> tuple[Run, Path]:
    """Start a training that ends when it is told to; return its run, and the folder of its files.

    It waits in each step, unless the options say for how long: else it would take all processors while a test waits.
    """
    folder = door.folder / name
    folder.mkdir()
    pace = () if "--step-ms" in options else ("--step-ms", str(STEP_MS))
    arguments = json.dumps([str(folder), *pace, *options])
    door.write(
        "job.yaml",
        f"name: saves\nsite: {site}\nnodes: {nodes}\nworkers_per_node: {workers}\ntime: {time}\n"
        f"resources: {{cpus_per_worker: 1}}\nenv: {{OMP_NUM_THREADS: 1}}\n"
        f"entrypoint: {{script: {saver.__file__}, args: {arguments}}}\n{more}\n",
    )
    return door.submit("job.yaml"), folder


def begun(folder: Path, attempt: int) -> dict[int, int]:
    """The step from which each rank of an attempt went on."""
    lines = [json.loads(line) for line in whole_lines(folder / "begun")]
    return {line["rank"]: line["first"] for line in lines if line["attempt"] == attempt}


def saved(folder: Path, rank: int) -> list[tuple[int, int]]:
    """The attempt and step of each save of a rank."""
    return [(int(attempt), int(step)) for attempt, step in map(str.split, whole_lines(folder / f"saved.{rank}"))]


def wait_until_saved(run: Run, folder: Path, attempt: int, ranks: int, more: int = 5) -> None:
    def have_saved() -> bool:
        return all(sum(each == attempt for each, _ in saved(folder, rank)) >= more for rank in range(ranks))

    wait_until(have_saved, f"all have saved in attempt {attempt}", within_s=120, otherwise=run.story)


def finish(run: Run, folder: Path, ranks: int, *, step_ms: int = STEP_MS) -> None:
    """Let a training end, at a step that no rank has come to when it is told: 3 s later at least, if nobody told it."""
    end = folder / "end.new"
    end.write_text(str(max(saved(folder, rank)[-1][1] for rank in range(ranks)) + -(-3000 // step_ms)))
    end.rename(folder / "end")


def saved_in(folder: Path, rank: int, attempt: int) -> int:
    return max(step for each, step in saved(folder, rank) if each == attempt)


def keeper_of(agent: int) -> int | None:
    """The process id of an agent's keeper."""
    for children in Path(f"/proc/{agent}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"hpc_elastic.agent.keeper.process" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    return None


def memories_of(pid: int) -> dict[int, Path]:
    """The memories of training states that a process has, by their inodes."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if MEMORY_NAME in os.readlink(path):
                found[path.stat().st_ino] = path
    return found


def newest_copy(keeper: int, worker: int) -> int:
    """The newest step that a keeper has of another node's ranks, -1 for none; `worker` is a rank of its own node."""
    own, steps = memories_of(worker), [-1]
    for inode, path in memories_of(keeper).items():
        if inode not in own:
            with open(path, "r+b", buffering=0) as memory:
                steps += [state.step for state in read_slots(map_control(memory.fileno()))]
    return max(steps)


def wait_for_copies(run: Run, folder: Path, keeper: int, worker: int, rank: int) -> int:
    """Wait until at most one save of a rank has no copy at a keeper; return the newest that has one.

    A computer with other work on it may be late with copies by more than that at any moment.
    """
    found = -1

    def keeps_up() -> bool:
        nonlocal found
        last = saved(folder, rank)[-1][1]
        found = newest_copy(keeper, worker)
        return found >= last - 1

    wait_until(keeps_up, "the copies keep up with the saves", otherwise=lambda: f"{found}\n{run.story()}")
    return found
