"""Arrays of runs on the real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.arrays import SWEEP, status, submit, wait_for_states, write_job
from tests.integration.conftest import Door
from tests.slurm_sandbox.cluster import Cluster, wait_until

SITE = "generic-slurm"
OK = ("SUCCEEDED", 0)


@pytest.mark.every_slurm
def test_an_array_is_one_slurm_job_and_ends_as_its_first_failure(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE)
    array = submit(slurm_door, "--wait", exit_code=1)
    array.assert_over(OK, OK, ("FAILED", 1), OK)
    for number, run in enumerate(array.runs):
        claim = run.read(run.layout.allocation(1))
        assert (claim["job_id"], claim["array_task"]) == (f"{array.job_id}_{number}", number)
        assert "hpc_elastic: run directory" in Path(run.layout.script_output(run.job_id)).read_text()
        assert run.stdout(1, 0).split() == [f"--lr={1 + number // 2}", str(number % 2), f"{array.path.name}_{number}"]
    # The last task to start has the array's own number: it must not be taken for all.
    assert status(slurm_door, array.job_id)["exit_code"] == 1
    assert slurm.wait_for_job(array.runs[3].job_id, "COMPLETED")["ExitCode"] == "0:0"
    assert slurm.wait_for_job(array.runs[2].job_id, "FAILED")["ExitCode"] == "1:0"


@pytest.mark.variant(of="test_an_array_is_one_slurm_job_and_ends_as_its_first_failure")
def test_the_folder_of_an_array_may_have_any_name(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE)
    array = submit(slurm_door, "--wait", "--run-dir", "it's 100% %j %a $HOME", exit_code=1)
    array.assert_over(OK, OK, ("FAILED", 1), OK)
    assert Path(array.runs[0].layout.script_output(array.runs[0].job_id)).exists()


@pytest.mark.mirrored
def test_cancel_of_an_array_stops_what_runs_with_grace_and_what_waits_at_once(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE, waits=True)
    array = submit(slurm_door, "--array-limit", "2")
    array.wait_for_waiting(0, 1)
    wait_for_states(slurm_door, array, RUNNING=2, PENDING=2)
    done = slurm_door.run("cancel", array.job_id)
    assert "probe ended: 4 CANCELLED" in done.stdout
    array.assert_over(*[("CANCELLED", 10)] * 4)
    assert [run.result()["written_by"] for run in array.runs] == ["node1", "node1", "login", "login"]


@pytest.mark.every_slurm
def test_an_array_that_scancel_ended_while_it_waited_has_its_results(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE)
    array = submit(slurm_door, "--set", "sbatch.hold=true")
    slurm.run("scancel", array.job_id)
    wait_for_states(slurm_door, array, CANCELLED=4)
    array.assert_over(*[("CANCELLED", 10)] * 4)


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
@pytest.mark.mirrored
def test_one_task_is_requeued_and_goes_on_in_its_own_run(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE, waits=True)
    array = submit(slurm_door)
    array.wait_for_waiting(0, 1, 2, 3)
    run = array.runs[3]  # its own number in Slurm is the array's
    (slurm_door.folder / "wait").unlink()
    slurm.run("scontrol", "requeue", run.job_id)
    wait_for_states(slurm_door, array, RUNNING=3, REQUEUED=1)

    def story() -> str:
        return slurm.run("scontrol", "show", "job", run.job_id).stdout + slurm.run("sinfo", "-N").stdout + run.story()

    # In Slurm's own time: where a person sets an earlier one, the node may refuse the job, which then has failed.
    wait_until(Path(run.layout.allocation(2)).exists, "the task starts again", within_s=90, otherwise=story)
    run.wait_until_over()
    claim = run.read(run.layout.allocation(2))
    assert (claim["job_id"], claim["restart_count"]) == (run.job_id, 1)
    assert run.result()["state"] == "SUCCEEDED"
    slurm_door.run("cancel", array.job_id)
    array.assert_over(*[("CANCELLED", 10)] * 3, OK)


@pytest.mark.variant(of="test_a_job_that_is_submitted_from_inside_another_is_its_own")
@pytest.mark.mirrored
def test_a_job_that_a_task_submits_is_not_the_task(slurm: Cluster, slurm_door: Door) -> None:
    """It inherits the task's SLURM_ARRAY_* (22.05)."""
    write_job(slurm_door, SITE)
    slurm_door.write(
        "train.py", "import os, subprocess\nif os.environ['SEED'] == '0':\n    subprocess.run(['sbatch', 'inner.sh'])\n"
    )
    slurm_door.write("inner.yaml", f"site: {SITE}\nnodes: 1\ntime: 5m\nentrypoint: {{command: 'true'}}\n")
    rendered = slurm_door.run("submit", "inner.yaml", "--json", "--set", "sbatch.hold=true", "--run-dir", "inner")
    held = json.loads(rendered.stdout)["job_id"]
    slurm.run("scancel", held)
    slurm_door.write("inner.sh", "#!/bin/bash\n#SBATCH --nodes=1 --output=/dev/null\nexec bash inner/job.sh\n")
    array = submit(slurm_door, "--wait")
    array.assert_over(OK, OK, OK, OK)
    wait_until((slurm_door.folder / "inner" / "result.json").exists, "the inner runs are over", within_s=60)
    claim = json.loads((slurm_door.folder / "inner" / "allocations" / "0001.json").read_text())
    assert "_" not in claim["job_id"]


@pytest.mark.mirrored
def test_an_array_that_slurm_refuses_leaves_nothing(slurm: Cluster, slurm_door: Door) -> None:
    write_job(slurm_door, SITE)
    done = slurm_door.run("submit", "job.yaml", *SWEEP, "--set", "sbatch.partition=nowhere", exit_code=4)
    assert "invalid partition specified: nowhere" in done.stderr
    assert {path.name for path in slurm_door.folder.iterdir()} == {"job.yaml", "train.py"}
