"""Schedules on the real Slurm in which requests, requeues and the ends of jobs cross each other."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import (
    DIES,
    STUBBORN,
    agent_outputs,
    assert_over,
    events,
    only_run,
    sleepers,
    start,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_slurm_allocations import kill_everything
from tests.integration.test_slurm_requeue import preempting, preempting_by, requeues_of
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.configuration import CONTROLLER

pytestmark = pytest.mark.slurm


@pytest.mark.variant(of="test_a_drained_node_is_replaced_by_the_spare_that_is_left_and_costs_nothing")
def test_a_drain_of_a_requeued_run_holds(slurm_door: Door) -> None:
    more = "signals: {grace: 60s, restart_grace: 2s}"
    run = start(slurm_door, DIES, ranks=2, nodes="{min: 1, max: 2}", workers="1", more=more)
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    shown = json.loads(slurm_door.run("status", run.job_id, "--json").stdout)
    assert (shown["state"], shown["notice"]) == ("REQUEUED", None)
    drained = run.read(run.layout.claim(1))["head"]
    done = slurm_door.run("drain", "--node", drained, run.job_id)
    assert done.stdout == f"probe: {drained} will get no workers when the job has started again\n"
    wait_for_ranks(run, 1, attempt=2)
    assert drained not in run.read(run.layout.claim(2))["members"]
    shown = json.loads(slurm_door.run("status", run.job_id, "--json").stdout)
    assert (shown["lost_nodes"], shown["spares"]) == ([], [])
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
def test_a_stop_with_requeue_in_the_setup_of_a_later_start_is_refused(slurm_door: Door) -> None:
    more = 'setup: ["if [ -e again ]; then touch insetup; sleep 8; fi"]'
    run = start(slurm_door, DIES, ranks=2, nodes="2", workers="1", more=more)
    (slurm_door.folder / "again").touch()
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    wait_until((slurm_door.folder / "insetup").exists, "the next start runs its setup lines", within_s=150)
    refused = slurm_door.run("stop", "--requeue", run.job_id, exit_code=5)
    assert "allocation 1 of probe has ended" in refused.stderr
    wait_for_ranks(run, 2, attempt=2)
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


def test_a_run_that_a_person_has_asked_to_start_again_does_so_if_it_is_preempted_before(
    slurm_door: Door, slurm: Cluster
) -> None:
    with preempting_by(slurm, "CANCEL", 0):
        run = start(slurm_door, DIES, ranks=2, nodes="2", workers="1", more="requeue: {on: [time_limit]}")
        stopping = slurm_door.start("stop", "--requeue", "--lead", "300s", run.job_id)
        wait_until(lambda: any(event["name"] == "notice.given" for event in events(run)), "the workers are told")
        with preempting(slurm):
            output, errors = stopping.communicate(timeout=100)
        assert (stopping.returncode, requeues_of(run)) == (0, [(1, "requeue_requested")]), output + errors + run.story()
        slurm_door.run("cancel", run.job_id)
        assert_over(run, "CANCELLED", 10)


def test_a_scancel_of_a_requeued_job_ends_the_run_at_once(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, DIES, ranks=2, nodes="2", workers="1")
    following = slurm_door.start("logs", run.job_id, "--follow")
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    slurm.run("scancel", run.job_id)
    # Slurm may still be at the end of the job's first start, and cancels the second one then.
    wait_until(lambda: "CANCELLED" in slurm_door.run("status", run.job_id, exit_code=None).stdout, "it is cancelled")
    assert assert_over(run, "CANCELLED", 10)["cause"] == "the job was cancelled while the run waited to start again"
    output, errors = following.communicate(timeout=30)
    assert following.returncode == 0, output + errors


@contextlib.contextmanager
def without_controller(slurm: Cluster, how: str) -> Iterator[None]:
    """Have no controller that answers: one that accepts connections, or none at all."""
    if how == "frozen":
        with slurm.frozen_slurmctld():
            yield
        return
    slurm.end_slurmctld()
    slurm.kill(CONTROLLER)
    try:
        yield
    finally:
        slurm.boot(CONTROLLER)


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
@pytest.mark.parametrize("how", ["frozen", "off"])
def test_a_job_starts_again_although_the_controller_is_away_for_a_minute_when_it_is_asked(
    slurm_door: Door, slurm: Cluster, how: str
) -> None:
    with slurm.configured(UnkillableStepTimeout=300):  # else a step that cannot report its end drains its node
        run = start(slurm_door, DIES, ranks=2, nodes="2", workers="1")
        stopping = slurm_door.start("stop", "--requeue", "--lead", "3s", run.job_id)
        wait_until(lambda: any(event["name"] == "notice.given" for event in events(run)), "the workers are told")
        with without_controller(slurm, how):
            wait_until(lambda: requeues_of(run) == [(1, "requeue_requested")], "the requeue is recorded", within_s=40)
            away = time.monotonic()
            wait_until(lambda: time.monotonic() > away + 60, "a minute without a controller", within_s=70)
            assert not run.is_over(), run.story()
            shown = slurm_door.run("status", run.job_id, exit_code=None).stdout
            assert "FAILED" not in shown, shown
        wait_for_ranks(run, 2, attempt=2)
        stopping.communicate(timeout=100)
        slurm_door.run("cancel", run.job_id)
        assert_over(run, "CANCELLED", 10)


UNTIL_TOLD = """
import os, sys, time
print("waiting", os.environ["RANK"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("done", flush=True)
"""


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
@pytest.mark.parametrize("how", ["frozen", "off"])
def test_a_run_that_ends_while_the_controller_is_away_has_succeeded_for_all_who_watch_it(
    slurm_door: Door, slurm: Cluster, how: str
) -> None:
    with slurm.configured(UnkillableStepTimeout=300):  # else a step that cannot report its end drains its node
        write_job(slurm_door, UNTIL_TOLD, nodes="2", workers="1")
        waiting = slurm_door.start("submit", "job.yaml", "--wait")
        wait_until(slurm.job_ids, "the job is in the queue")
        run = only_run(slurm_door, slurm.job_ids()[0])
        wait_for_ranks(run, 2)
        following = slurm_door.start("logs", run.job_id, "--rank", "all", "--follow")
        with without_controller(slurm, how):
            shown = json.loads(slurm_door.run("status", run.job_id, "--json").stdout)
            assert (shown["state"], bool(shown["note"])) == ("RUNNING", True), shown
            slurm_door.write("go", "")
            assert run.wait_until_over()["state"] == "SUCCEEDED"
            assert "SUCCEEDED" in slurm_door.run("status", run.job_id).stdout
            output, errors = following.communicate(timeout=60)
            assert (following.returncode, output.count("done")) == (0, 2), output + errors
            output, errors = waiting.communicate(timeout=60)
            assert waiting.returncode == 0, output + errors
        assert_over(run, "SUCCEEDED", 0)
        slurm.wait_for_job(run.job_id, "COMPLETED")


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
def test_ranks_that_ignore_notice_and_term_delay_no_requeue_which_two_persons_ask_for(
    slurm_door: Door, slurm: Cluster
) -> None:
    more = "signals: {grace: 2s, restart_grace: 1s}\nrequeue: {max: 1}"
    run = start(slurm_door, STUBBORN, ranks=2, nodes="2", workers="1", more=more)
    two = [slurm_door.start("stop", "--requeue", "--lead", "1s", run.job_id) for _ in range(2)]
    for stopping in two:
        output, errors = stopping.communicate(timeout=60)
        assert stopping.returncode == 0, output + errors
        assert output == f"probe: this allocation has ended, and the run is REQUEUED, job {run.job_id}\n"
    assert requeues_of(run) == [(1, "requeue_requested")]
    assert "is REQUEUED" in slurm_door.run("restart", run.job_id, exit_code=5).stderr
    wait_for_ranks(run, 2, attempt=2)
    with preempting(slurm):
        result = assert_over(run, "FAILED", 7)
    assert result["cause"].endswith("the one requeue of requeue.max is used up")
    assert not sleepers(slurm, *slurm.nodes)


FAILS = 'import sys\nprint("waiting", flush=True)\nsys.exit("no")\n'


@pytest.mark.variant(of="test_stop_with_requeue_saves_and_goes_on_in_the_next_allocation")
def test_a_failure_is_paid_for_though_the_allocation_ends_in_the_pause_before_its_restart(
    slurm_door: Door, slurm: Cluster
) -> None:
    more = "restart: {max_restarts: 5, backoff: {first: 60s, max: 60s}, no_progress_limit: 9}\nrequeue: {max: 5}"
    write_job(slurm_door, FAILS, nodes="2", workers="1", more=more)
    run = slurm_door.submit("job.yaml")

    def is_over(attempt: int) -> bool:
        return len(list(run.path.glob(f"attempts/{attempt:04}/nodes/*.json"))) == 2

    wait_until(lambda: is_over(1), "the first attempt is over", within_s=90, otherwise=run.story)
    slurm_door.run("stop", "--requeue", run.job_id)
    wait_until(lambda: is_over(2), "the second attempt is over", within_s=90, otherwise=run.story)
    with preempting_by(slurm, "CANCEL", 0), preempting(slurm) as urgent:
        slurm.wait_for_job(urgent, "RUNNING")
    wait_until(lambda: is_over(3), "the third attempt is over", within_s=90, otherwise=run.story)
    assert [run.read(run.layout.claim(number))["spend"]["restarts"] for number in (1, 2, 3)] == [0, 1, 2]
    assert requeues_of(run) == [(1, "requeue_requested"), (2, "preempted")]
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


STEPS = """
import time
from hpc_elastic.worker import heartbeat
heartbeat(7)
print("step 7", flush=True)
time.sleep(600)
"""


@pytest.mark.variant(of="test_a_run_whose_starts_end_silently_again_and_again_ends_for_good")
@pytest.mark.mirrored
def test_a_job_that_dies_without_a_word_each_time_is_not_started_for_ever(slurm_door: Door, slurm: Cluster) -> None:
    """As one does that takes the node of its batch script down, after which Slurm starts it again by itself."""
    more = "restart: {no_progress_limit: 2}\nrequeue: {max: 2}"
    write_job(slurm_door, STEPS, nodes="2", workers="1", more=more)
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is there")
    run = only_run(slurm_door, slurm.job_ids()[0])
    for attempt in (1, 2):
        _wait_until_steps_are_told(run, attempt)
        kill_everything(slurm, run)
        wait_until(
            lambda: slurm.job(run.job_id)["Restarts"] == str(len(run.attempts())),
            "Slurm starts the job again",
            within_s=90,
            otherwise=slurm.controller_log,
        )
    result = assert_over(run, "FAILED", 8)
    assert (result["reason"], result["attempts"], result["restarts"]) == ("no_progress", 2, 0), run.story()
    assert "allocation 2 ended without a word" in result["cause"]
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 8, output + errors
    assert "without a word" in " ".join(slurm_door.run("status", str(run.path)).stdout.split())
    assert slurm.job(run.job_id)["Restarts"] == "2"


def _wait_until_steps_are_told(run: Run, attempt: int) -> None:
    def are_told() -> bool:
        return any(event["name"] == "steps.done" and event["attempt"] == attempt for event in events(run))

    wait_until(are_told, f"a step of attempt {attempt} is recorded", within_s=180, otherwise=run.story)


# Slurm's commands as where no controller answers, as long as a file is there.
SILENT_COMMAND = """#!/bin/bash
if [[ -e {folder}/silent ]]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
exec {command} "$@"
"""


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_a_preemption_that_cancels_goes_on_though_nobody_says_for_a_while_what_the_term_means(
    slurm_door: Door, slurm: Cluster
) -> None:
    """The agents leave without having heard that Slurm takes the nodes and starts nothing again."""
    folder, path = slurm_door.folder, slurm_door.environ["PATH"]
    (folder / "bin").mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        command = shutil.which(name, path=path)
        slurm_door.write(f"bin/{name}", SILENT_COMMAND.format(folder=folder, command=command)).chmod(0o700)
    silent = folder / "silent"
    with preempting_by(slurm, "CANCEL", 60):
        slurm_door.environ["PATH"] = f"{folder}/bin:{path}"
        run = start(slurm_door, DIES, ranks=2, nodes="2", workers="1")
        slurm_door.environ["PATH"] = path
        silent.touch()
        with preempting(slurm):
            wait_until(lambda: "does not say whether" in agent_outputs(run), "the agents have left", within_s=60)
            time.sleep(3)  # the script asks, too
            silent.unlink()
            wait_until(
                lambda: requeues_of(run) == [(1, "preempted")], "it is started again", within_s=60, otherwise=run.story
            )
        wait_for_ranks(run, 2, attempt=2)
        slurm_door.run("cancel", run.job_id)
        assert_over(run, "CANCELLED", 10)
