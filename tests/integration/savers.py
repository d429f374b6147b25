"""Trainings whose state is in memory and that end when they are told to, and what they have written down."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until
from tests.soak import saver


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
    """Start a training that ends when it is told to; return its run, and the folder of its files."""
    folder = door.folder / name
    folder.mkdir()
    arguments = json.dumps([str(folder), *options])
    door.write(
        "job.yaml",
        f"name: saves\nsite: {site}\nnodes: {nodes}\nworkers_per_node: {workers}\ntime: {time}\n"
        f"resources: {{cpus_per_worker: 1}}\nenv: {{OMP_NUM_THREADS: 1}}\n"
        f"entrypoint: {{script: {saver.__file__}, args: {arguments}}}\n{more}\n",
    )
    return door.submit("job.yaml"), folder


def begun(folder: Path, attempt: int) -> dict[int, int]:
    """The step from which each rank of an attempt went on."""
    path = folder / "begun"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["rank"]: line["first"] for line in lines if line["attempt"] == attempt}


def saved(folder: Path, rank: int) -> list[tuple[int, int]]:
    """The attempt and step of each save of a rank."""
    path = folder / f"saved.{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(attempt), int(step)) for attempt, step in map(str.split, lines)]


def wait_until_saved(run: Run, folder: Path, attempt: int, ranks: int, more: int = 5) -> None:
    def have_saved() -> bool:
        return all(sum(each == attempt for each, _ in saved(folder, rank)) >= more for rank in range(ranks))

    wait_until(have_saved, f"all have saved in attempt {attempt}", within_s=120, otherwise=run.story)


def finish(run: Run, folder: Path, ranks: int) -> None:
    end = folder / "end.new"
    end.write_text(str(max(saved(folder, rank)[-1][1] for rank in range(ranks)) + 100))
    end.rename(folder / "end")


def saved_in(folder: Path, rank: int, attempt: int) -> int:
    return max(step for each, step in saved(folder, rank) if each == attempt)
