"""`hpc-elastic run` inside allocations that exist already: salloc, and somebody's own batch script."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest

from hpc_elastic.observe.facts import SILENT_S
from tests.integration.conftest import Door
from tests.integration.slurm_jobs import DIES, assert_over, only_run, wait_for_ranks, write_job
from tests.integration.test_slurm_requeue import TRAINS_ON
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants
from tests.without_torch import hide_torch

pytestmark = pytest.mark.slurm

WHO = """
import os, sys
print(os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
"""


@pytest.fixture(autouse=True)
def no_torch(slurm_door: Door) -> None:
    """No script here is about it."""
    slurm_door.environ = hide_torch(slurm_door.environ, slurm_door.folder.parent / "without-torch")


def salloc(door: Door, nodes: int, *arguments: str) -> tuple[str, ...]:
    return ("salloc", f"--nodes={nodes}", "--cpus-per-task=2", "--time=5", *door.command, *arguments)


@pytest.mark.mirrored
def test_run_of_a_job_file_inside_salloc(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WHO, nodes="2")
    done = slurm.run(*salloc(slurm_door, 2, "run", "job.yaml"), environment=slurm_door.environ, cwd=slurm_door.folder)
    assert done.stdout == "0 4 []\n"
    run = only_run(slurm_door, "")
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["nodes"] == ["node1", "node2"]
    assert [run.stdout(1, rank) for rank in range(4)] == [f"{rank} 4 []\n" for rank in range(4)]


def test_run_may_use_fewer_nodes_than_allocated(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", WHO)
    command = salloc(slurm_door, 3, "run", "--nodes", "2", "--workers-per-node", "2", "train.py", "--epochs", "3")
    done = slurm.run(*command, environment=slurm_door.environ, cwd=slurm_door.folder)
    assert done.stdout == "0 4 ['--epochs', '3']\n"
    assert assert_over(only_run(slurm_door, ""), "SUCCEEDED", 0)["nodes"] == ["node1", "node2"]


@pytest.mark.variant(of="test_run_ends_with_the_exit_code_of_its_workers")
def test_run_fails_as_its_workers_do(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", "raise ValueError('no data')")
    command = salloc(slurm_door, 2, "run", "--max-restarts", "0", "train.py")
    done = slurm.run(*command, environment=slurm_door.environ, cwd=slurm_door.folder, check=False)
    assert done.returncode == 1, done.stderr
    assert "failed with exit code 1: ValueError: no data" in done.stderr
    assert_over(only_run(slurm_door, ""), "FAILED", 1)


def write_old_script(door: Door, line: str) -> None:
    """A batch script as people have them, whose one `srun torchrun ...` line was replaced."""
    door.write(
        "old.sh",
        f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=5
#SBATCH --output=old.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1) MASTER_PORT=29500
echo "before"
{line}
code=$?
echo "after $code"
exit $code
""",
    )


def command_line(door: Door, *arguments: str) -> str:
    return shlex.join([*door.command, *arguments])


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(WHO, 0, id="well"),
        *variants(("raise SystemExit(7)", 1), of="test_run_replaces_the_srun_line_of_an_old_script", ids=["badly"]),
    ],
)
def test_run_replaces_the_srun_line_of_an_old_script(slurm_door: Door, slurm: Cluster, script: str, code: int) -> None:
    slurm_door.write("train.py", script)
    arguments = ("run", "--nodes", "2", "--workers-per-node", "2", "--max-restarts", "0", "train.py", "--lr", "1e-3")
    write_old_script(slurm_door, command_line(slurm_door, *arguments))
    done = slurm.run("sbatch", "--parsable", "old.sh", environment=slurm_door.environ, cwd=slurm_door.folder)
    job_id = done.stdout.strip()
    job = slurm.wait_for_job(job_id, "FAILED" if code else "COMPLETED")  # `sbatch --wait` looks every 10 s
    output = (slurm_door.folder / "old.out").read_text()
    assert job["ExitCode"] == f"{code}:0", output
    assert f"after {code}" in output
    run = only_run(slurm_door, job_id)
    assert_over(run, "FAILED" if code else "SUCCEEDED", code)
    if not code:
        assert [run.stdout(1, rank) for rank in range(4)] == [f"{rank} 4 ['--lr', '1e-3']\n" for rank in range(4)]
        assert "0 4 ['--lr', '1e-3']" in output
    assert run.read(run.layout.allocation(1))["job_id"] == job_id


def test_runs_of_an_old_script_that_is_an_array_have_its_tasks_ids(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", WHO)
    line = command_line(slurm_door, "run", "--nodes", "1", "--workers-per-node", "1", "train.py", "task")
    write_old_script(slurm_door, f"{line} $SLURM_ARRAY_TASK_ID")
    done = slurm.run(
        *("sbatch", "--parsable", "--array=0-1", "--nodes=1", "--output=old.%a", "old.sh"),
        environment=slurm_door.environ,
        cwd=slurm_door.folder,
    )
    for task in (0, 1):
        job_id = f"{done.stdout.strip()}_{task}"
        slurm.wait_for_job(job_id, "COMPLETED")
        found = slurm_door.run("logs", job_id).stdout
        assert found == f"0 1 ['task', '{task}']\n", (slurm_door.folder / f"old.{task}").read_text()


@pytest.mark.mirrored
def test_scancel_of_an_old_script_cancels_its_run(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", DIES)
    write_old_script(slurm_door, command_line(slurm_door, "run", "--workers-per-node", "2", "train.py"))
    job_id = slurm.run("sbatch", "--parsable", "old.sh", environment=slurm_door.environ, cwd=slurm_door.folder)
    run_folder = slurm_door.folder / "hpc-elastic-runs"
    wait_until(lambda: run_folder.exists() and list(run_folder.iterdir()), "there is a run")
    run = only_run(slurm_door, job_id.stdout.strip())
    wait_for_ranks(run, 4)
    slurm.run("scancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert result["failures"] == {}


@pytest.mark.mirrored
def test_cancel_of_a_run_inside_salloc_leaves_the_allocation(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", DIES)
    line = command_line(slurm_door, "run", "--workers-per-node", "2", "train.py") + '; echo "ended $?"; srun hostname'
    inside = slurm_door.start_program("salloc", "--nodes=2", "--time=5", "bash", "-c", line)
    run_folder = slurm_door.folder / "hpc-elastic-runs"
    wait_until(lambda: run_folder.exists() and list(run_folder.iterdir()), "there is a run")
    run = only_run(slurm_door, "")
    wait_for_ranks(run, 4)
    slurm_door.run("cancel", str(run.path))
    output, errors = inside.communicate(timeout=60)
    assert "ended 10" in output, errors
    assert {"node1", "node2"} <= set(output.split())
    assert_over(run, "CANCELLED", 10)


@pytest.mark.mirrored
@pytest.mark.variant(of="test_run_beside_a_step_that_holds_the_nodes_ends_soon_after_its_allocation_is_cancelled")
def test_run_beside_a_step_that_holds_the_nodes_says_why_it_waits(slurm_door: Door, slurm: Cluster) -> None:
    """srun says nothing itself for two minutes; an interrupt does not wait for it."""
    slurm_door.write("train.py", WHO)
    holds = "srun --nodes=2 --ntasks=2 sh -c 'echo > held; sleep 300' & until [ -e held ]; do sleep 0.1; done"
    waits = (
        f"{command_line(slurm_door, 'run', 'train.py')} & until [ -e told ]; do sleep 0.1; done; kill -INT $!; wait $!"
    )
    line = f'{holds}; {waits}; echo "ended $?"; scancel "$SLURM_JOB_ID.0"'
    inside = slurm_door.start_program("salloc", "--nodes=2", "--time=5", "bash", "-c", line)
    wait_until(lambda: list(slurm_door.folder.glob("hpc-elastic-runs/*/submission.json")), "it is submitted")
    run = only_run(slurm_door, "")
    job_id = run.read(run.layout.submission)["job_id"]
    told = f"srun has started no agent yet: another step of job {job_id} may hold its CPUs"
    wait_until(lambda: told in " ".join(slurm_door.run("status").stdout.split()), "status says so")
    slurm_door.write("told", "")
    output, errors = inside.communicate(timeout=60)
    assert "ended 10" in output, errors
    assert told in errors


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_run_beside_a_step_that_holds_the_nodes_ends_soon_after_its_allocation_is_cancelled")
def test_run_whose_agents_load_python_for_long_does_not_blame_another_step(slurm_door: Door, slurm: Cluster) -> None:
    """As on a slow file system: Slurm has started the agents, and they have not said a word yet."""
    waits = f'[ -z "${{SLURM_STEP_ID-}}" ] || until [ -e {slurm_door.folder}/loaded ]; do sleep 0.1; done'
    python = slurm_door.write("python", f'#!/bin/bash\n{waits}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    write_job(slurm_door, WHO, nodes="2", more=f"python: {python}")
    inside = slurm_door.start_program(*salloc(slurm_door, 2, "run", "job.yaml"))
    wait_until(lambda: list(slurm_door.folder.glob("hpc-elastic-runs/*/agents/node2.out")), "the agents are started")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + SILENT_S + 2, "they would have been called late", within_s=20)
    told = " ".join(slurm_door.run("status").stdout.split())
    slurm_door.write("loaded", "")
    _, errors = inside.communicate(timeout=60)
    assert "srun has started no agent yet" not in told + errors
    assert_over(only_run(slurm_door, ""), "SUCCEEDED", 0)


@pytest.mark.mirrored
@pytest.mark.parametrize(
    "has_waited",
    [
        pytest.param(True, id="srun waits"),
        *variants(
            False,
            of="test_run_beside_a_step_that_holds_the_nodes_ends_soon_after_its_allocation_is_cancelled",
            ids=["srun begins"],
        ),
    ],
)
def test_run_beside_a_step_that_holds_the_nodes_ends_soon_after_its_allocation_is_cancelled(
    has_waited: bool, slurm_door: Door, slurm: Cluster
) -> None:
    """srun 22.05 notices that a minute later or more, and then it gives an error of its own."""
    slurm_door.write("train.py", WHO)
    holds = "srun --nodes=2 --ntasks=2 sh -c 'echo > held; sleep 300' & until [ -e held ]; do sleep 0.1; done"
    line = f'{holds}; {command_line(slurm_door, "run", "train.py")}; echo "ended $?"'
    inside = slurm_door.start_program("salloc", "--nodes=2", "--time=5", "bash", "-c", line)
    wait_until(lambda: list(slurm_door.folder.glob("hpc-elastic-runs/*/submission.json")), "it is submitted")
    run = only_run(slurm_door, "")
    job_id = run.read(run.layout.submission)["job_id"]
    output = Path(run.layout.script_output(job_id))
    wait_until(lambda: "starting an agent on each" in output.read_text(), "srun is called")
    if has_waited:
        waits = "srun has started no agent yet"
        wait_until(lambda: waits in " ".join(slurm_door.run("status").stdout.split()), "status says that it waits")
    slurm.run("scancel", job_id)
    told, errors = inside.communicate(timeout=45)
    assert "ended 10" in told, errors
    assert "CANCELLED (exit code 10): the job was cancelled before any agent started" in errors
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["attempts"]) == ("terminated", 0)


@pytest.mark.mirrored
def test_run_whose_allocation_is_left_is_explained_by_that(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("train.py", TRAINS_ON)
    line = f"{command_line(slurm_door, 'run', 'train.py')} & until [ -e left ]; do sleep 0.1; done"
    inside = slurm_door.start_program("salloc", "--nodes=2", "--time=5", "bash", "-c", line)
    wait_until(lambda: list(slurm_door.folder.glob("hpc-elastic-runs/*/submission.json")), "it is submitted")
    run = only_run(slurm_door, "")
    wait_for_ranks(run, 2)
    slurm_door.write("left", "")
    inside.communicate(timeout=60)
    assert_over(run, "CANCELLED", 10)
    told = " ".join(slurm_door.run("explain").stdout.split())
    assert "Keep the allocation until the run is over: it ended because its shell was left" in told
