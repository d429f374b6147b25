"""One run over several starts on the real Slurm: requeued, and submitted again by hand."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.digits_runs import NODES
from tests.integration.slurm_jobs import (
    agent_outputs,
    assert_over,
    only_run,
    script_output,
    start,
    wait_for_ranks,
    write_job,
)
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

# Rank 0 counts steps in a file, as a trainer writes checkpoints; all end when somebody says so.
COUNTS = """
import os, pathlib, time
rank, saved = os.environ["RANK"], pathlib.Path("step")
step = int(saved.read_text()) if saved.exists() else 0
print("waiting, resumed at", step, "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while not os.path.exists("finish"):
    if rank == "0":
        step += 1
        pathlib.Path("step.new").write_text(str(step))
        os.replace("step.new", saved)
    time.sleep(0.05)
"""


def saved_step(door: Door) -> int:
    path = door.folder / "step"
    return int(path.read_text()) if path.exists() else 0


def sbatch(slurm: Cluster, run: Run) -> str:
    """What a person does by hand; the job's id."""
    return slurm.run("sbatch", "--parsable", "job.sh", cwd=run.path).stdout.strip()


def kill_everything(slurm: Cluster, run: Run) -> None:
    """As if every node had lost its power: no agent, guard, script or worker says goodbye."""
    for node in slurm.nodes:
        slurm.kill(node)
    run.assert_nothing_left()
    for node in slurm.nodes:
        slurm.boot(node)


@pytest.mark.every_slurm
def test_a_requeued_job_goes_on_in_the_next_allocation(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, COUNTS, ranks=4, nodes="2")
    wait_until(lambda: saved_step(slurm_door) > 5, "it has made steps")
    slurm.run("scontrol", "requeue", run.job_id)
    wait_for_ranks(run, 4, attempt=2)
    assert not run.is_over()
    assert int(run.stdout(2, 0).split()[3]) > 5
    assert {run.stdout(2, rank).split()[5] for rank in range(4)} == {"1"}
    assert not list(run.path.glob("attempts/0001/ranks/*/error.json")), run.story()
    first, second = (run.read(run.layout.allocation(number)) for number in (1, 2))
    assert (first["job_id"], first["restart_count"]) == (run.job_id, 0)
    assert (second["job_id"], second["restart_count"]) == (run.job_id, 1)
    claim = run.read(run.layout.claim(2))
    assert (claim["allocation"], claim["predecessor"], claim["spend"]["restarts"]) == (2, 1, 0)
    assert "RUNNING" in slurm_door.run("status", run.job_id).stdout
    slurm_door.write("finish", "")
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0)
    assert script_output(run).count("the scheduler has requeued the job") == 1
    slurm.wait_for_job(run.job_id, "COMPLETED")


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
@pytest.mark.mirrored
def test_a_run_that_is_requeued_while_it_waits_by_submit_wait(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, COUNTS, nodes="2")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(lambda: saved_step(slurm_door) > 0, "it trains")
    (job_id,) = slurm.job_ids()
    slurm.run("scontrol", "requeue", job_id)
    wait_for_ranks(only_run(slurm_door, job_id), 4, attempt=2)
    assert waiting.poll() is None
    slurm_door.write("finish", "")
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, output + errors


@pytest.mark.variant(of="test_a_script_by_hand_claims_the_next_allocation_if_the_first_died_unwritten")
def test_sbatch_by_hand_goes_on_if_the_first_job_died_unwritten(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, COUNTS)
    wait_until(lambda: saved_step(slurm_door) > 5, "it has made steps")
    kill_everything(slurm, run)
    slurm.run("scancel", run.job_id)
    slurm.wait_for_job(run.job_id, "CANCELLED")
    assert not run.is_over()
    second = sbatch(slurm, run)
    wait_for_ranks(run, attempt=2)
    assert int(run.stdout(2, 0).split()[3]) > 5
    assert run.read(run.layout.allocation(2))["job_id"] == second
    assert run.read(run.layout.claim(2))["predecessor"] == 1
    shown = slurm_door.run("status", str(run.path)).stdout
    assert "RUNNING" in shown
    assert second in shown
    slurm_door.write("finish", "")
    assert assert_over(run, "SUCCEEDED", 0)["attempts"] == 2
    slurm.wait_for_job(second, "COMPLETED")


def test_a_second_job_of_a_run_that_is_alive_is_refused(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, COUNTS, more="sbatch: {oversubscribe: true}", nodes="2", ranks=4)
    second = sbatch(slurm, run)
    job = slurm.wait_for_job(second, "FAILED")
    assert job["ExitCode"] == "5:0"
    assert f"allocation 1 of this run, job {run.job_id}, is still alive" in script_output(run, second)
    assert "Traceback" not in agent_outputs(run)
    assert not run.is_over()
    assert len(list((run.path / "allocations").iterdir())) == 1
    slurm_door.write("finish", "")
    assert_over(run, "SUCCEEDED", 0)


@pytest.mark.variant(of="test_a_run_takes_as_many_nodes_of_its_range_as_are_free")
@pytest.mark.every_slurm
def test_a_waiting_job_that_is_made_smaller_than_nodes_min_trains_with_no_fewer_and_says_why(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_job(slurm_door, COUNTS, nodes="{min: 2, max: 3}", more="sbatch: {hold: true}")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(lambda: slurm.job_ids(), "it waits")
    (job_id,) = slurm.job_ids()
    slurm.run("scontrol", "update", f"JobId={job_id}", "NumNodes=1")
    slurm.run("scontrol", "release", job_id)
    cause = "the job has 1 node (node1), and the run needs at least 2 (nodes.min)"
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 6, output + errors
    assert cause in output + errors
    run = only_run(slurm_door, job_id)
    result = assert_over(run, "FAILED", 6)
    assert (result["reason"], result["cause"], run.attempts()) == ("nodes_missing", cause, [])
    assert cause in script_output(run)
    told = slurm_door.run("explain", job_id).stdout
    assert "scontrol update NumNodes" in " ".join(told.split()), told


def test_a_run_that_is_over_refuses_to_start_again(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, "", nodes="1", workers="1")
    run = slurm_door.submit("job.yaml", wait=True)
    before = run.result()
    second = sbatch(slurm, run)
    assert slurm.wait_for_job(second, "FAILED")["ExitCode"] == "5:0"
    assert "this run is over" in script_output(run, second)
    by_hand = slurm.run("bash", "job.sh", cwd=run.path, check=False)
    assert by_hand.returncode == 5
    assert "this run is over" in by_hand.stderr
    slurm.run("scontrol", "requeue", run.job_id)  # as Slurm does if it never hears that the batch script has ended
    job = slurm.wait_for_job(run.job_id, "COMPLETED")
    assert (job["Restarts"], job["ExitCode"]) == ("1", "0:0")
    assert "this run was over when its job was started again" in script_output(run)
    assert run.result() == before
    assert run.attempts() == [1]


def test_the_job_script_by_hand_needs_an_allocation(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, more="sbatch: {hold: true}")
    run = slurm_door.submit("job.yaml")
    by_hand = slurm.run("bash", "job.sh", cwd=run.path, check=False)
    assert by_hand.returncode == 2
    assert "no Slurm allocation here" in by_hand.stderr
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


@pytest.mark.mirrored
def test_a_job_whose_agents_and_workers_were_all_killed_is_over_and_does_not_start_again(
    slurm_door: Door, slurm: Cluster
) -> None:
    run = start(slurm_door, COUNTS, nodes="2", ranks=4)
    # Frozen first, so that no agent sees the others go, and writes the result.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in [*run.agents(), *run.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "7:0"
    run.assert_nothing_left()
    assert assert_over(run, "UNKNOWN", 7, killed=NODES)["written_by"] == "script"
    assert "UNKNOWN" in slurm_door.run("status", run.layout.root).stdout
    assert slurm.wait_for_job(sbatch(slurm, run), "FAILED")["ExitCode"] == "5:0"
