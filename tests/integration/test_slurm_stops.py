"""How people stop runs on the real Slurm: `cancel` and `scancel`, pending and running."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.lifecycle import MISSES_TERM_S
from tests.integration.conftest import Door
from tests.integration.slurm_jobs import (
    COUNTS_SIGNALS,
    DIES,
    STUBBORN,
    WAITS,
    agent_pid,
    assert_left_slurm,
    assert_over,
    have_told,
    only_run,
    script_output,
    sleepers,
    start,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_slurm_survival import is_srun_stopped
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = pytest.mark.slurm

LATER = "sbatch: {begin: now+1hour}"
# Saves when it hears of the notice, and leaves; in the next allocation there is nothing left to do.
SAVES_ON_NOTICE = """
import os, pathlib, sys, time
from hpc_elastic.worker import notice_received
saved = pathlib.Path("saved" + os.environ["RANK"])
if saved.exists():
    sys.exit(0)
print("waiting", os.environ["RANK"], flush=True)
while True:
    time.sleep(0.02)
    if notice := notice_received():
        saved.write_text(notice.reason)
        sys.exit(75)
"""


@pytest.mark.every_slurm
def test_who_follows_the_logs_of_a_pending_run_is_told_when_it_is_expected_to_start(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_job(slurm_door, WAITS, nodes="2", more=LATER)
    run = slurm_door.submit("job.yaml")
    following = slurm_door.start("logs", run.job_id, "--follow")
    assert following.stderr is not None
    told = [following.stderr.readline(), following.stderr.readline()]
    starts = slurm.job(run.job_id)["StartTime"][:16].replace("T", " ")
    slurm_door.run("cancel", run.job_id)
    following.communicate(timeout=60)
    assert told[0] == "--- PENDING (BeginTime) ---\n"
    assert told[1] == f"--- job {run.job_id} is expected to start at {starts} ---\n"


def test_cancel_of_a_pending_run_takes_it_out_of_the_queue(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, more=LATER)
    run = slurm_door.submit("job.yaml")
    assert slurm.job(run.job_id)["JobState"] == "PENDING"
    assert "PENDING" in slurm_door.run("status", run.job_id, exit_code=None).stdout
    assert "CANCELLED" in slurm_door.run("cancel", run.job_id).stdout
    assert run.job_id not in slurm.job_ids()
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["written_by"], result["attempts"]) == ("stop_requested", "login", 0)


@pytest.mark.variant(of="test_cancel_of_a_pending_run_takes_it_out_of_the_queue")
def test_cancel_of_a_run_that_waits_for_nodes(slurm_door: Door, slurm: Cluster) -> None:
    busy = slurm.submit("--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait_for_job(busy, "RUNNING")
    write_job(slurm_door)
    run = slurm_door.submit("job.yaml")
    slurm_door.run("cancel", run.job_id)
    slurm.run("scancel", busy)
    assert assert_over(run, "CANCELLED", 10)["written_by"] == "login"


@pytest.mark.mirrored
def test_cancel_of_a_running_run_gives_the_workers_their_grace(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, ranks=4, nodes="2")
    done = slurm_door.run("cancel", run.job_id)
    assert "ended: CANCELLED, cancelled by" in done.stdout
    result = assert_over(run, "CANCELLED", 10)
    assert result["reason"] == "stop_requested"
    assert result["failures"] == {}
    assert [run.stdout(1, rank) for rank in range(4)] == [f"waiting {rank}\ngot SIGTERM\nsaved\n" for rank in range(4)]
    assert_left_slurm(slurm, run, "FAILED", "10:0")
    again = slurm_door.run("cancel", run.job_id)
    assert "is over already: CANCELLED" in again.stdout
    assert result["cause"] in script_output(run)


def test_cancel_kills_what_ignores_term(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, STUBBORN, ranks=4, nodes="2", more="signals: {grace: 1s, restart_grace: 1s}")
    assert len(sleepers(slurm, *slurm.nodes)) == 8
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)
    assert not sleepers(slurm, *slurm.nodes)


@pytest.mark.variant(of="test_scancel_of_a_pending_job_is_found_by_status")
@pytest.mark.mirrored
def test_status_makes_the_result_if_a_pending_job_was_scancelled(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, more=LATER)
    run = slurm_door.submit("job.yaml")
    slurm.run("scancel", run.job_id)
    assert not run.is_over()
    assert "CANCELLED" in slurm_door.run("status", run.job_id, exit_code=None).stdout
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["written_by"], result["attempts"]) == ("terminated", "login", 0)


@pytest.mark.mirrored
def test_submit_wait_returns_if_a_pending_job_is_scancelled(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, more="sbatch: {begin: now+1hour, comment: waits}")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    slurm.run("scancel", *slurm.job_ids())
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 10, output + errors


@pytest.mark.every_slurm
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(DIES, id="dies-of-term"),
        *variants(WAITS, of="test_scancel_of_a_running_job_is_a_stop_and_no_failure", ids=["handles-term"]),
    ],
)
def test_scancel_of_a_running_job_is_a_stop_and_no_failure(slurm_door: Door, slurm: Cluster, script: str) -> None:
    run = start(slurm_door, script, ranks=4, nodes="2")
    if script is WAITS:  # a worker that is younger gets a second TERM, for it may have missed the one of Slurm
        told = [Path(run.layout.stdout(1, rank)) for rank in range(4)]
        old = max(path.stat().st_mtime for path in told) + MISSES_TERM_S
        wait_until(lambda: time.time() > old, "no worker has just started")
    slurm.run("scancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["restarts"], result["attempts"]) == ("terminated", 0, 1), run.story()
    assert result["failures"] == {}
    assert not list(run.path.glob("attempts/*/ranks/*/error.json"))
    if script is WAITS:
        said = [run.stdout(1, rank) for rank in range(4)]
        assert said == [f"waiting {rank}\ngot SIGTERM\nsaved\n" for rank in range(4)]
    slurm.wait_for_job(run.job_id, "CANCELLED")


@pytest.mark.variant(of="test_scancel_of_a_running_job_is_a_stop_and_no_failure")
def test_a_term_to_one_agent_alone_is_one_term_for_every_worker(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, ranks=4, nodes="2")
    os.kill(agent_pid(run, "node2"), signal.SIGTERM)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["failures"]) == ("terminated", {}), run.story()
    assert [run.stdout(1, rank) for rank in range(4)] == [f"waiting {rank}\ngot SIGTERM\nsaved\n" for rank in range(4)]


@pytest.mark.variant(of="test_cancel_kills_what_ignores_term")
@pytest.mark.mirrored
def test_scancel_while_one_rank_ignores_term_leaves_nothing(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, STUBBORN, more="signals: {grace: 2s, restart_grace: 1s}")
    slurm.run("scancel", run.job_id)
    assert_over(run, "CANCELLED", 10)
    wait_until(lambda: not sleepers(slurm, *slurm.nodes), "nothing is left", within_s=30)
    slurm.wait_for_job(run.job_id, "CANCELLED")


def test_who_sends_a_term_again_by_scancel_cuts_the_grace_short(slurm_door: Door, slurm: Cluster) -> None:
    """No KILL of Slurm's follows `scancel --signal=TERM`, and the job goes on until its time limit."""
    run = start(slurm_door, STUBBORN, ranks=4, nodes="2", more="signals: {grace: 2m, restart_grace: 1s}")

    def is_over_now() -> bool:
        slurm.run("scancel", "--signal=TERM", run.job_id, check=False)
        return run.is_over()

    wait_until(is_over_now, "the run is over", within_s=60, otherwise=run.story)  # less than the grace
    assert_over(run, "CANCELLED", 10)
    wait_until(lambda: not sleepers(slurm, *slurm.nodes), "nothing is left", within_s=30)


@pytest.mark.variant(of="test_cancel_of_a_running_run_gives_the_workers_their_grace")
def test_cancel_between_attempts_ends_the_run(slurm_door: Door) -> None:
    write_job(slurm_door, "raise SystemExit(3)", more="restart: {max_restarts: 5, backoff: {first: 60s, max: 60s}}")
    run = slurm_door.submit("job.yaml")
    wait_until(lambda: list(run.path.glob("attempts/0001/nodes/*.json")), "the first attempt is over")
    slurm_door.run("cancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert result["attempts"] == 1


@pytest.mark.variant(of="test_cancel_of_a_running_run_gives_the_workers_their_grace")
@pytest.mark.every_slurm
def test_scancel_between_attempts_ends_the_run(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, DIES, nodes="2", more="restart: {max_restarts: 5, backoff: {first: 60s, max: 60s}}")
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 4)
    os.kill(run.worker_pid(1), signal.SIGKILL)
    wait_until(lambda: len(list(run.path.glob("attempts/0001/nodes/*.json"))) == 2, "the first attempt is over")
    slurm.run("scancel", run.job_id)
    assert assert_over(run, "CANCELLED", 10)["reason"] == "terminated"


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
@pytest.mark.mirrored
def test_stop_lets_the_workers_save_and_ends_the_run_without_scancel(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, SAVES_ON_NOTICE, ranks=4, nodes="2")
    waiting = slurm_door.start("logs", run.job_id, "--rank", "all", "--follow")
    told = slurm_door.run("stop", "--lead", "300s", run.job_id)
    assert told.stdout.startswith("probe ended: CANCELLED, stopped by ")
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["restarts"], result["failures"]) == ("stop_requested", 0, {})
    assert [(slurm_door.folder / f"saved{rank}").read_text() for rank in range(4)] == ["operator"] * 4
    output, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, output.count("waiting")) == (0, 4), output + errors
    assert "CANCELLED" in slurm_door.run("status", run.job_id, exit_code=None).stdout
    assert_left_slurm(slurm, run, "FAILED", "10:0")


@pytest.mark.mirrored
def test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, SAVES_ON_NOTICE, nodes="2")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    run = only_run(slurm_door, slurm.job_ids()[0])
    wait_for_ranks(run, 4)
    told = slurm_door.run("stop", "--requeue", "--lead", "300s", run.job_id)
    assert told.stdout.startswith("probe: this allocation has ended, and the run is ")
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output + errors + run.story()
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0)
    claim = run.read(run.layout.claim(2))
    assert "asked for another start of the job" in claim["reason"]
    assert [(slurm_door.folder / f"saved{rank}").read_text() for rank in range(4)] == ["operator"] * 4


def test_workers_get_a_users_signal_once_where_slurm_tells_every_process(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, COUNTS_SIGNALS, ranks=2, nodes="2", workers="1")
    as_the_workers = "got SIGUSR1, as the workers did"
    for times in (1, 2):
        slurm.run("scancel", "--signal=USR1", run.job_id)
        wait_until(partial(have_told, run, as_the_workers, 2 * times), "no agent passes it on", otherwise=run.story)
    os.kill(agent_pid(run, "node1"), signal.SIGUSR1)
    wait_until(partial(have_told, run, "got SIGUSR1: sent to rank 0", 1), "one agent does", otherwise=run.story)
    run.wait_for_output("got USR1\n" * 3, rank=0)
    (slurm_door.folder / "go").touch()
    assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank).count("got USR1") for rank in (0, 1)] == [3, 2]
    assert "sent to" not in (run.path / "agents" / "node2.out").read_text()


@pytest.mark.variant(of="test_workers_get_a_users_signal_once_where_slurm_tells_every_process")
@pytest.mark.mirrored
def test_signals_to_the_batch_script_or_to_all_of_the_job_do_not_end_it(slurm_door: Door, slurm: Cluster) -> None:
    """HUP and USR1 end a shell that knows nothing of them, and Slurm ends the job with its batch script."""
    run = start(slurm_door, COUNTS_SIGNALS, ranks=2, nodes="2", workers="1")
    for options in (["--batch", "--signal=HUP"], ["--batch", "--signal=USR1"], ["--full", "--signal=USR1"]):
        slurm.run("scancel", *options, run.job_id)
    for rank in (0, 1):
        run.wait_for_output("got USR1", rank=rank)
    assert "RUNNING" in slurm_door.run("status", run.job_id).stdout
    (slurm_door.folder / "go").touch()
    assert_over(run, "SUCCEEDED", 0)
    assert_left_slurm(slurm, run, "COMPLETED", "0:0")


@pytest.mark.mirrored
def test_signals_to_all_of_the_job_reach_workers_while_srun_is_stopped(slurm_door: Door, slurm: Cluster) -> None:
    """Slurm signals the script and its children (22.05 to 26.05), and a stopped srun tells the step nothing."""
    run = start(slurm_door, COUNTS_SIGNALS, ranks=2, nodes="2", workers="1")
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped", otherwise=run.story)
    for times in (1, 2):
        slurm.run("scancel", "--full", "--signal=USR1", run.job_id)
        for rank in (0, 1):
            run.wait_for_output("got USR1\n" * times, rank=rank)
    (slurm_door.folder / "go").touch()
    assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank).count("got USR1") for rank in (0, 1)] == [2, 2]
    assert_left_slurm(slurm, run, "COMPLETED", "0:0")


@pytest.mark.variant(of="test_signals_to_all_of_the_job_reach_workers_while_srun_is_stopped")
@pytest.mark.mirrored
@pytest.mark.parametrize(
    "name", ["TERM", *variants("HUP", "INT", of="test_signals_to_all_of_the_job_reach_workers_while_srun_is_stopped")]
)
def test_a_stop_of_all_of_the_job_comes_while_srun_is_stopped(slurm_door: Door, slurm: Cluster, name: str) -> None:
    run = start(slurm_door, WAITS, ranks=2, nodes="2", workers="1")
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped", otherwise=run.story)
    slurm.run("scancel", "--full", f"--signal={name}", run.job_id)
    assert assert_over(run, "CANCELLED", 10)["reason"] == "terminated"
    assert_left_slurm(slurm, run, "FAILED", "10:0")
