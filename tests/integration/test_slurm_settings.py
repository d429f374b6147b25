"""What a cluster's own settings and its administrators do to a run, and what the run's user is told of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import (
    agent_outputs,
    agent_pid,
    assert_over,
    only_run,
    script_output,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_slurm_requeue import TRAINS_ON
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import why_impossible
from tests.without_torch import hide_torch

pytestmark = pytest.mark.slurm

# Rank 1 takes more and more memory once there is a file `eat`.
EATS = """
import os, pathlib, time
print("waiting", os.environ["RANK"], flush=True)
eaten = []
while True:
    if os.environ["RANK"] == "1" and pathlib.Path("eat").exists():
        eaten.append(bytearray(os.urandom(1 << 20)) * 40)
    time.sleep(0.05)
"""
ON_LOSS = "requeue: {on: [preempted, time_limit, node_loss]}"
LONG_AGO_S = 32  # no kill of a script takes as long as that, after its node was set DOWN


@pytest.fixture(scope="module")
def prolog_fails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with which the prolog of the strict Slurm fails."""
    return tmp_path_factory.mktemp("strict") / "fails"


@pytest.fixture(scope="module")
def strict(prolog_fails: Path) -> Iterator[Cluster]:
    """A Slurm that kills steps for their memory, and with a prolog on its controller."""
    if reason := why_impossible():
        pytest.skip(reason)
    prolog = prolog_fails.with_name("prolog.sh")
    prolog.write_text(f"#!/bin/sh\n[ ! -e {prolog_fails} ]\n")
    prolog.chmod(0o755)
    settings = {
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
        "JobAcctGatherParams": "OverMemoryKill",
        "PrologSlurmctld": str(prolog),
    }
    cluster = Cluster.start(2, owner=os.getpid(), settings=settings)
    yield cluster
    cluster.down()


@pytest.fixture
def strict_door(strict: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """The command on its login node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    door = Door(folder, {**strict.environment, "XDG_STATE_HOME": str(tmp_path / "state")})
    yield door
    door.close()
    assert not strict.leftovers(within_s=15)


@pytest.mark.xdist_group("strict")
def test_a_step_that_slurm_kills_for_its_memory_is_no_cancelled_one(strict_door: Door) -> None:
    write_job(strict_door, EATS, nodes="2", workers="1", more=f"sbatch: {{mem: 300M}}\n{ON_LOSS}")
    run = strict_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    strict_door.write("eat", "")
    result = assert_over(run, "FAILED", 7, killed=["node1", "node2"])
    assert result["reason"] == "out_of_memory", run.story()
    assert "went over the job's memory on node2 (" in result["cause"]
    told = json.loads(strict_door.run("explain", str(run.path), "--json").stdout)
    assert (told["failure_class"], told["node"]) == ("out_of_memory", "node2"), told
    assert told["meaning"].startswith("more memory than the job may have")


@pytest.mark.xdist_group("strict")
@pytest.mark.variant(of="test_starts_of_a_job_that_had_no_agent_are_a_note")
def test_who_waits_is_told_of_a_prolog_that_fails_again_and_again(
    strict_door: Door, strict: Cluster, prolog_fails: Path
) -> None:
    """Slurm requeues the job each time, and says only that its earliest start is later (BeginTime)."""
    write_job(strict_door, TRAINS_ON, nodes="2", workers="1")
    prolog_fails.touch()
    try:
        waiting = strict_door.start("submit", "job.yaml", "--wait")
        wait_until(strict.job_ids, "the job is in the queue")
        (job_id,) = strict.job_ids()
        run = only_run(strict_door, job_id)
        wait_until(
            lambda: (
                "no agent has come of it"
                in (json.loads(strict_door.run("status", job_id, "--json").stdout)["note"] or "")
            ),
            "it is told",
            within_s=90,
            otherwise=lambda: (strict.job(job_id), strict.controller_log()),
        )
    finally:
        prolog_fails.unlink()
    strict_door.write("finish", "")
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output + errors
    assert f"Slurm has begun to start job {job_id} 2 times, and no agent has come of it: " in errors
    assert_over(run, "SUCCEEDED", 0)


@pytest.mark.mirrored
def test_a_waiting_job_that_cannot_end_before_its_deadline_has_not_reached_its_time_limit(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1")
    busy = slurm.submit("--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait_for_job(busy, "RUNNING")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(lambda: len(slurm.job_ids()) == 2, "the job is in the queue")
    (job_id,) = {*slurm.job_ids()} - {busy}
    slurm.run("scontrol", "update", f"JobId={job_id}", "Deadline=now+60")
    wait_until(lambda: slurm.job_ids() == [busy], "Slurm has removed the job", otherwise=lambda: slurm.job(job_id))
    slurm.run("scancel", busy)
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 7, output + errors
    assert "FAILED (exit code 7): Slurm removed the waiting job: its deadline left no time for its start" in errors


@pytest.mark.mirrored
def test_a_node_that_an_administrator_sets_down_is_told_as_taken_from_the_job(slurm_door: Door, slurm: Cluster) -> None:
    """Slurm kills its agent: the others only see that the connection is closed."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 2}", workers="1")
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=broken fan")
    wait_for_ranks(run, 1, attempt=2)
    told = json.loads(slurm_door.run("explain", str(run.path), "--json").stdout)
    assert (told["failure_class"], told["node"]) == ("node_lost", "node2"), told
    assert any("Slurm has taken node2 from the job" in note for note in told["notes"]), told
    slurm_door.write("finish", "")
    assert_over(run, "SUCCEEDED", 0, killed=["node2"])


@pytest.mark.variant(of="test_a_node_that_an_administrator_sets_down_is_told_as_taken_from_the_job")
@pytest.mark.mirrored
def test_a_script_whose_node_an_administrator_sets_down_is_no_cancelled_one(slurm_door: Door, slurm: Cluster) -> None:
    """Slurm 22.05 and 24.11 kill the script, and the job ends with it; 26.05 lets the others go on."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 2}", workers="1")
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm.run("scontrol", "update", f"NodeName={slurm.job(run.job_id)['BatchHost']}", "State=DOWN", "Reason=fan")
    slurm_door.write("finish", "")

    def result() -> tuple[str, str]:
        shown = json.loads(slurm_door.run("status", str(run.path), "--json").stdout)
        return shown["state"], shown["reason"]

    ends = [("FAILED", "node_lost"), ("SUCCEEDED", "succeeded")]
    wait_until(lambda: run.is_over() or result() in ends, "it is over", within_s=120, otherwise=run.story)
    assert result() in ends[slurm.version == "26.05" :], run.story()


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_a_run_whose_scripts_node_is_set_down_goes_on_in_another_job(slurm_door: Door, slurm: Cluster) -> None:
    """Where Slurm ends the job with its script (22.05 and 24.11); 26.05 lets the others go on in this one."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 2}", workers="1", more=ON_LOSS)
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    wait_for_ranks(run, 2)
    host = slurm.job(job_id)["BatchHost"]
    slurm.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=fan")

    def goes_on() -> bool:
        """Whether ranks wait in a later attempt than the first; another agent may have opened one in the first job."""
        outputs = sorted(run.path.glob("attempts/000[2-9]/ranks/00000/stdout.log"))
        has_job = slurm.version == "26.05" or (run.path / "allocations" / "0002.json").exists()
        return has_job and bool(outputs) and "waiting" in outputs[-1].read_text()

    wait_until(goes_on, "the run goes on", within_s=90, otherwise=run.story)
    slurm_door.write("finish", "")
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output + errors + run.story()
    assert host not in run.result()["nodes"]
    if slurm.version != "26.05":
        first, second = (run.read(run.layout.allocation(number)) for number in (1, 2))
        assert first["job_id"] == job_id != second["job_id"]
        assert f"{host}, the node of the batch script, was set DOWN" in agent_outputs(run)


def make_writers_wait(path: str) -> Callable[[], None]:
    """Put a pipe in the place of a file, which makes whoever opens it for writing wait; return what lets it go on."""
    os.makedirs(os.path.dirname(path))
    os.mkfifo(path)
    pipe = os.open(path, os.O_PATH)

    def go_on() -> None:
        os.unlink(path)  # the agent follows the file by its name, and a pipe is none
        os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(pipe)

    return go_on


@pytest.mark.every_slurm(but=("26.05",))  # it lets the other nodes of such a job go on
@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_a_run_goes_on_whose_job_ends_with_its_scripts_node_as_the_next_attempt_starts(
    slurm_door: Door, slurm: Cluster
) -> None:
    """The TERM comes after the successor has opened an attempt, and before it has started the workers, who miss it."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 2}", workers="1", more=ON_LOSS)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    host = slurm.job(run.job_id)["BatchHost"]
    go_on = make_writers_wait(run.layout.stdout(2, 0))
    os.kill(agent_pid(run, host), signal.SIGKILL)  # first, or the TERM may come before there is a successor
    opened = ": attempt 2: 1 rank on 1 node"
    wait_until(lambda: opened in agent_outputs(run), "attempt 2 is opened", otherwise=run.story)
    slurm.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=fan")
    wait_until(lambda: "got SIGTERM" in agent_outputs(run), "the TERM is there", otherwise=run.story)
    go_on()
    wait_until(lambda: (run.path / "allocations" / "0002.json").exists(), "another job runs", otherwise=run.story)
    wait_for_ranks(run, 2, attempt=3)
    slurm_door.write("finish", "")
    assert assert_over(run, "SUCCEEDED", 0, killed=[host])["attempts"] == 3


@pytest.mark.variant(
    of="test_a_run_whose_job_a_person_cancels_is_over_if_its_script_is_killed_before_the_agents_have_left"
)
@pytest.mark.every_slurm
def test_a_run_whose_script_a_person_kills_is_over_and_has_lost_no_node(slurm_door: Door, slurm: Cluster) -> None:
    """Slurm ends the job for the same reason as when it sets the script's node DOWN, and kills the agents, or not."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 2}", workers="1", more=ON_LOSS)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    host = slurm.job(run.job_id)["BatchHost"]
    os.kill(agent_pid(run, host), signal.SIGKILL)
    wait_for_ranks(run, 1, attempt=2)
    slurm.run("scancel", "--batch", "--signal=KILL", run.job_id)
    wait_until(lambda: slurm.job(run.job_id)["JobState"] == "FAILED", "the job is over", otherwise=run.story)
    run.assert_nothing_left(within_s=40)
    assert slurm.job_ids() == []
    told = []

    def is_over() -> bool:
        """Whether an observer says so, who gives an agent the time to write the result."""
        told.append(json.loads(slurm_door.run("status", str(run.path), "--json").stdout))
        return bool(told[-1]["state"] != "RUNNING")

    wait_until(is_over, "the run is over", within_s=120, otherwise=run.story)
    status = told[-1]
    assert status["state"] in ("CANCELLED", "UNKNOWN"), status
    explained = slurm_door.run("explain", str(run.path)).stdout
    assert "DOWN" not in status["cause"] + explained, explained


@pytest.mark.mirrored
@pytest.mark.variant(
    of="test_a_run_whose_job_a_person_cancels_is_over_if_its_script_is_killed_before_the_agents_have_left"
)
def test_a_run_whose_script_a_person_kills_long_after_a_loss_is_over_and_has_lost_no_node_since(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Slurm has resized the job for that loss, and releases the node of the script before those of living agents."""
    write_job(slurm_door, TRAINS_ON, nodes="{min: 1, max: 3}", workers="1", more=ON_LOSS)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 3)
    host = slurm.job(run.job_id)["BatchHost"]
    lost = next(node for node in ("node1", "node2", "node3") if node != host)
    slurm.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=for a test")
    wait_for_ranks(run, 2, attempt=2)
    os.kill(agent_pid(run, host), signal.SIGKILL)
    wait_for_ranks(run, 1, attempt=3)
    lost_at = datetime.fromisoformat(slurm.job(run.job_id)["ResizeTime"]).timestamp()
    wait_until(lambda: time.time() > lost_at + LONG_AGO_S, "the loss was long ago", within_s=60)
    slurm.run("scancel", "--batch", "--signal=KILL", run.job_id)
    wait_until(lambda: slurm.job(run.job_id)["JobState"] == "FAILED", "the job is over", otherwise=run.story)
    run.assert_nothing_left(within_s=40)
    assert slurm.job_ids() == []


@pytest.mark.mirrored
def test_a_run_in_an_allocation_that_slurm_ends_for_a_failed_node_is_no_cancelled_one(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Without --no-kill Slurm ends all of an allocation that loses a node."""
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1")
    slurm_door.environ = hide_torch(slurm_door.environ, slurm_door.folder.parent / "without-torch")
    running = slurm_door.start_program("salloc", "--nodes=2", "--time=5", *slurm_door.command, "run", "job.yaml")
    wait_until(lambda: list(slurm_door.folder.glob("hpc-elastic-runs/*/submission.json")), "it is submitted")
    run = only_run(slurm_door, "")
    wait_for_ranks(run, 2)
    slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=broken fan")
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 7, output + errors
    assert assert_over(run, "FAILED", 7, killed=["node2"])["reason"] == "node_lost", run.story()


@pytest.mark.variant(of="test_the_job_starts_again_without_a_node_that_is_not_fit_to_take_part")
@pytest.mark.mirrored
def test_a_node_whose_task_prolog_fails_is_left_out_at_the_next_start(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    prolog = tmp_path / "task-prolog.sh"
    prolog.write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" != node2 ] || exit 6\n')
    prolog.chmod(0o755)
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1", more=ON_LOSS)
    with slurm.configured(TaskProlog=prolog):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
    assert "node2 has never started its agent: srun: Exited with exit code 6" in script_output(run), run.story()
    slurm_door.write("finish", "")
    assert "node2" not in assert_over(run, "SUCCEEDED", 0)["nodes"]
