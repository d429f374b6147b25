"""The digits example on this machine, two nodes with two workers each: the same records as on Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.integration.conftest import DIGITS, Door, Run

pytestmark = pytest.mark.local

# What a run of two nodes with two workers leaves behind on any scheduler; nodes and job ids left out.
FILES = {
    "JOB.out",
    "agents/NODE.out",
    "allocations/0001.json",
    "attempts/0001/claim.json",
    "attempts/0001/nodes/NODE.json",
    "attempts/0001/nodes/NODE.marks.jsonl",
    "attempts/0001/ranks/00000/stderr.log",
    "attempts/0001/ranks/00000/stdout.log",
    "attempts/0001/ranks/00001/stderr.log",
    "attempts/0001/ranks/00001/stdout.log",
    "attempts/0001/ranks/00002/stderr.log",
    "attempts/0001/ranks/00002/stdout.log",
    "attempts/0001/ranks/00003/stderr.log",
    "attempts/0001/ranks/00003/stdout.log",
    "attempts/0001/world.json",
    "budget.json",
    "exit_code",
    "job.sh",
    "job.yaml",
    "nodes/NODE/events.jsonl",
    "nodes/NODE/metrics.jsonl",
    "plan.json",
    "requests.jsonl",
    "result.json",
    "secret",
    "submission.json",
}


def write_job(door: Door, site: str, *arguments: str) -> None:
    listed = ", ".join(json.dumps(argument) for argument in ("--record", str(door.folder / "record"), *arguments))
    door.write(
        "job.yaml",
        f"""
name: digits
site: {site}
nodes: 2
workers_per_node: 2
time: 10m
entrypoint:
  script: {DIGITS / "train.py"}
  args: [{listed}, --checkpoint, "${{HPC_ELASTIC_RUN_DIR}}/checkpoint.pt"]
env: {{OMP_NUM_THREADS: 1}}
""",
    )


def files(run: Run) -> set[str]:
    """The names of a run's files, where scheduler and node stand in them made the same.

    Samples are left out: only a run of more than ten seconds has some.
    """
    found = set()
    for path in run.path.rglob("*"):
        if path.is_file() and path.name not in ("checkpoint.pt", "samples.jsonl"):
            name = path.relative_to(run.path).as_posix()
            name = re.sub(r"^(slurm|local)-[^/]*\.out$", "JOB.out", name)
            found.add(re.sub(r"\b(local|node)\d+\b", "NODE", name))
    return found


def keys(run: Run) -> dict[str, list[str]]:
    """The keys of every record, by its name."""
    found = {}
    for path in run.path.rglob("*.json"):
        name = re.sub(r"\b(local|node)\d+\b", "NODE", path.relative_to(run.path).as_posix())
        found[name] = sorted(json.loads(path.read_text()))
    return found


def assert_trained(run: Run) -> None:
    result = run.result()
    assert (result["state"], result["exit_code"], result["attempts"]) == ("SUCCEEDED", 0, 1), run.story()
    assert float(run.stdout(1, 0).split("accuracy on held-out digits: ")[1].split("%")[0]) >= 95
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_digits_train_on_this_machine_with_the_records_of_a_run(door: Door) -> None:
    write_job(door, "local")
    run = door.submit("job.yaml", wait=True)
    assert_trained(run)
    assert files(run) == FILES
    secret = Path(run.layout.secret)
    assert (secret.stat().st_mode & 0o777, len(secret.read_bytes())) == (0o600, 32)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert run.read(run.layout.world(1))["run"] == run.path.name


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_digits_that_are_kept_in_memory_go_on_at_the_step_that_failed(door: Door) -> None:
    write_job(door, "local", "--keep-in-memory", "--epochs", "2", "--accuracy", "0.1", "--fail-at-step", "26")
    run = door.submit("job.yaml", wait=True)
    result = run.result()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), run.story()
    records = [json.loads(path.read_text()) for path in (door.folder / "record").glob("restart1-*.json")]
    assert [record["first_step"] for record in records] == [26] * 4, "the last checkpoint on disk is that of step 20"
    assert len({record["parameter_hash"] for record in records}) == 1


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
@pytest.mark.slurm
def test_both_schedulers_leave_the_same_records(slurm_door: Door) -> None:
    write_job(slurm_door, "local")
    here = slurm_door.submit("job.yaml", wait=True)
    write_job(slurm_door, "generic-slurm")
    there = slurm_door.submit("job.yaml", wait=True)
    assert_trained(here)
    assert_trained(there)
    assert files(here) == FILES
    assert files(there) == {*FILES, "agents/launch_agent"}  # only where there is an srun
    assert keys(here) == keys(there)


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_training_goes_on_from_its_checkpoint_if_a_rank_is_killed(door: Door) -> None:
    write_job(door, "local", "--pause", "0.01")
    run = door.submit("job.yaml")
    run.wait_for_output("epoch 2/12")
    os.kill(run.worker_pid(3), signal.SIGKILL)
    result = run.wait_until_over()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1), run.story()
    error = run.read(run.layout.error(1, 3))
    assert (error["signal"], error["node"], error["local_rank"]) == ("SIGKILL", "local1", 1)
    written = [json.loads((door.folder / "record" / f"restart1-rank{rank:05d}.json").read_text()) for rank in range(4)]
    assert {record["first_step"] for record in written} != {1}
    assert len({record["first_step"] for record in written}) == 1
    assert len({record["parameter_hash"] for record in written}) == 1
    run.assert_nothing_left()
    run.assert_records_valid()
