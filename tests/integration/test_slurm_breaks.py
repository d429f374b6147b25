"""Schedules on the real Slurm in which requests, requeues and the ends of jobs cross each other."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import DIES, assert_over, events, start, wait_for_ranks
from tests.integration.test_slurm_requeue import preempting, preempting_by, requeues_of
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.configuration import CONTROLLER

pytestmark = pytest.mark.slurm


def test_a_drain_of_a_requeued_run_holds(slurm_door: Door) -> None:
    more = "signals: {grace: 60s, restart_grace: 2s}"
    run = start(slurm_door, DIES, ranks=2, nodes="{min: 1, max: 2}", workers="1", more=more)
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    shown = json.loads(slurm_door.run("status", run.job_id, "--json").stdout)
    assert (shown["state"], shown["notice"]) == ("REQUEUED", None)
    drained = run.read(run.layout.claim(1))["head"]
    done = slurm_door.run("drain", "--node", drained, run.job_id)
    attempt = run.attempts()[-1]  # the drain may come before or after the one in which all nodes are
    assert done.stdout == f"probe: attempt {attempt} is opened, without {drained}\n"
    assert drained not in run.read(run.layout.claim(attempt))["members"]
    wait_for_ranks(run, 1, attempt=attempt)
    shown = json.loads(slurm_door.run("status", run.job_id, "--json").stdout)
    assert (shown["lost_nodes"], shown["spares"]) == ([], [])
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


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
    assert "CANCELLED" in slurm_door.run("status", run.job_id, exit_code=None).stdout
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
