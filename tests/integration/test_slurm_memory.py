"""Training states in memory on the real Slurm: a crash costs no step, and a node that holds none sends all to disk."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_over, events
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.soak import saver

pytestmark = pytest.mark.slurm


def train(door: Door, *options: str, nodes: str, workers: int, more: str = "") -> tuple[Run, Path]:
    """Start a training that ends when it is told to; return its run, and the folder of its files."""
    folder = door.folder / "state"
    folder.mkdir()
    arguments = json.dumps([str(folder), *options])
    door.write(
        "job.yaml",
        f"name: saves\nsite: generic-slurm\nnodes: {nodes}\nworkers_per_node: {workers}\ntime: 10m\n"
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


@pytest.mark.every_slurm
@pytest.mark.parametrize("options", [(), ("--replicated",)], ids=["sharded", "replicated"])
def test_a_killed_rank_costs_no_step_that_all_had_saved(
    slurm_door: Door, slurm: Cluster, options: tuple[str, ...]
) -> None:
    run, folder = train(slurm_door, *options, nodes="2", workers=2)
    wait_until_saved(run, folder, 1, 4)
    os.kill(run.worker_pid(3), signal.SIGKILL)
    wait_until_saved(run, folder, 2, 4)
    last = min(saved_in(folder, rank, 1) for rank in range(4))
    assert set(begun(folder, 2)) == {0, 1, 2, 3}
    (first,) = set(begun(folder, 2).values())
    assert last <= first <= last + 1
    finish(run, folder, 4)
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["attempts"] == 2
    chosen = [event["message"] for event in events(run) if event["name"] == "state.chosen"]
    assert chosen == [f"attempt 2: all ranks can go on at step {first}, which is in memory"]
    assert chosen[0].split(": ", 1)[1] in slurm_door.run("logs", "--node", "node1", str(run.path)).stdout


def saved_in(folder: Path, rank: int, attempt: int) -> int:
    return max(step for each, step in saved(folder, rank) if each == attempt)


def test_all_ranks_load_from_disk_if_a_spare_without_a_state_takes_a_place(slurm_door: Door, slurm: Cluster) -> None:
    run, folder = train(slurm_door, nodes="3", workers=1, more="spares: 1\nelastic: {lease: 3s}")
    wait_until_saved(run, folder, 1, 3)
    slurm.kill("node2")
    wait_until_saved(run, folder, 2, 3)
    assert begun(folder, 2) == {0: 0, 1: 0, 2: 0}
    slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=no power")
    pid = run.worker_pid(2, 2)
    os.kill(pid, signal.SIGKILL)  # from now on the spare holds one too
    wait_until_saved(run, folder, 3, 3)
    (first,) = set(begun(folder, 3).values())
    assert first >= min(saved_in(folder, rank, 2) for rank in range(3))
    finish(run, folder, 3)
    assert assert_over(run, "SUCCEEDED", 0, killed=["node2"])["attempts"] == 3
    slurm.boot("node2")
    chosen = [event["message"] for event in events(run) if event["name"] == "state.chosen"]
    assert chosen == [
        "attempt 2: all ranks load from disk: node4 holds no state in memory",
        f"attempt 3: all ranks can go on at step {first}, which is in memory",
    ]
