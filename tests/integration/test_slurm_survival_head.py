"""Lost heads and batch hosts on the real Slurm: another agent takes over, and the digits train to their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.digits_runs import Training, is_alive, wait_until_dead, workers_on
from tests.integration.slurm_jobs import WAITS, agent_outputs, agent_pid, frozen, only_run, write_job
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

Note = Callable[[str, object], None]


def assert_ended_by_its_agents(door: Door, slurm: Cluster, training: Training) -> None:
    """Without its batch script the job does not end by itself; what we say of it is right all the same."""
    slurm.wait_for_job(training.run.job_id, "CANCELLED", "COMPLETING")
    shown = door.run("status", training.run.job_id).stdout
    assert "SUCCEEDED" in shown
    slurm.boot("node1")
    slurm.wait_for_job(training.run.job_id, "CANCELLED")
    assert "SUCCEEDED" in door.run("status", training.run.job_id).stdout


def allocations(run: Run) -> list[int]:
    """Of each attempt, the allocation that it was in."""
    return [run.read(run.layout.claim(attempt))["allocation"] for attempt in run.attempts()]


@pytest.mark.mirrored
def test_the_batch_host_loses_power_while_it_trains(slurm_door: Door, slurm: Cluster, record_property: Note) -> None:
    Training.write_job(slurm_door, nodes="{min: 2, max: 4}")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is there")
    training = Training(run=only_run(slurm_door, slurm.job_ids()[0]), folder=slurm_door.folder)
    training.wait_until_held(1, 4)
    fault = time.time()
    slurm.kill("node1")
    training.wait_until_held(2, 3)
    record_property("batch host off", training.times_since(fault, 2))
    result = training.finish(4, 3)
    assert training.nodes(2) == ["node2", "node3", "node4"]
    assert result["written_by"] == training.run.read(training.run.layout.claim(2))["head"] == "node2"
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, output + errors
    assert_ended_by_its_agents(slurm_door, slurm, training)


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_the_batch_host_loses_power_during_a_restart(slurm_door: Door, slurm: Cluster, record_property: Note) -> None:
    training = Training.start(slurm_door, more="restart: {backoff: {first: 60s, max: 60s}}")
    os.kill(training.run.worker_pid(2), signal.SIGKILL)
    first = training.run.path / "attempts" / "0001" / "nodes"
    wait_until(lambda: len(list(first.glob("*.json"))) == 4, "all workers have stopped", otherwise=training.story)
    fault = time.time()
    slurm.kill("node1")
    training.wait_until_held(2, 3)
    record_property("batch host off in a restart", training.times_since(fault, 2))
    training.finish(4, 3)
    assert_ended_by_its_agents(slurm_door, slurm, training)


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
@pytest.mark.mirrored
def test_the_batch_host_is_back_before_slurm_misses_it_and_the_job_is_requeued(
    slurm_door: Door, slurm: Cluster
) -> None:
    training = Training.submit(slurm_door)
    slurm.wait_for_job(training.run.job_id, "RUNNING")
    age = time.monotonic()
    training.wait_until_held(1, 4)
    wait_until(lambda: time.monotonic() > age + 12, "Slurm has no patience with a new job any more")
    slurm.kill("node1")
    off = time.monotonic()
    wait_until(lambda: time.monotonic() > off + 2, "two seconds without power")
    slurm.boot("node1")
    wait_until(
        lambda: slurm.job(training.run.job_id).get("Restarts") == "1",
        "Slurm requeues the job",
        within_s=90,
        otherwise=slurm.controller_log,
    )
    assert not training.run.is_over(), training.story()
    # One more if the others had a head already when Slurm stopped them.
    wait_until(lambda: allocations(training.run)[-1] == 2, "the next allocation trains", otherwise=training.story)
    attempt = len(allocations(training.run))
    training.wait_until_held(attempt, 4)
    assert training.run.read(training.run.layout.allocation(2))["restart_count"] == 1
    assert training.run.read(training.run.layout.claim(attempt))["predecessor"] == attempt - 1
    training.go()
    result = training.run.wait_until_over()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", attempt, 0), training.story()
    assert {record["first_step"] for record in training.records(attempt)} == {21}
    training.assert_completed(slurm)
    training.run.assert_nothing_left()
    training.run.assert_records_valid(killed=slurm.nodes)


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
def test_a_frozen_head_is_succeeded_and_is_a_member_when_it_wakes(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door, rejoin="immediately")
    workers = workers_on(training.run, *slurm.nodes)
    with frozen(agent_pid(training.run, "node1")):
        fault = time.time()
        record_property("guards", f"killed the workers after {wait_until_dead(workers, within_s=10):.2f} s")
        training.wait_until_held(2, 3)
        record_property("frozen head", training.times_since(fault, 2))
    training.wait_until_held(3, 4)
    result = training.finish(4, 3, 4)
    assert training.nodes(2) == ["node2", "node3", "node4"]
    assert set(training.nodes(3)) == set(slurm.nodes)
    assert training.run.read(training.run.layout.claim(3))["head"] == "node2"
    assert result["written_by"] == "node2"
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_cut_off_node_kills_its_workers_and_joins_again_when_its_cable_is_healed")
def test_one_half_of_a_partition_goes_on_and_the_other_half_joins_it_again(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door, rejoin="immediately")
    run = training.run
    before = workers_on(run, *slurm.nodes)
    with slurm.partitioned(["node1", "node2"], ["node3", "node4"]):
        cut = time.time()
        wait_until(lambda: len(run.attempts()) > 1, "one half goes on", otherwise=training.story)
        assert not [pid for pid in before if is_alive(pid)]
        training.wait_until_held(2, 2)
        record_property("partition", training.times_since(cut, 2))
        half = set(training.nodes(2))
        assert half in ({"node1", "node2"}, {"node3", "node4"})
        others = sorted({*slurm.nodes} - half)
        wait_until(lambda: time.time() > cut + 10, "the halves have had time to think of more")
        assert not workers_on(run, *others)
        assert run.attempts() == [1, 2]
        assert not run.is_over()
        told = [(run.path / "agents" / f"{node}.out").read_text() for node in others]
        assert all("head" in text for text in told), training.story()
    healed = time.time()

    def all_are_back() -> bool:
        with contextlib.suppress(FileNotFoundError):  # between the folder, the claim and the roster
            return sorted(training.nodes(run.attempts()[-1])) == list(slurm.nodes)
        return False

    wait_until(all_are_back, "the other half is back, one node after the other perhaps", otherwise=training.story)
    last = run.attempts()[-1]
    training.wait_until_held(last, 4)
    record_property("healed partition", training.times_since(healed, last))
    assert training.nodes(last)[:2] == training.nodes(2)  # who stayed keeps its rank
    training.finish(4, 2, *[None] * (last - 3), 4)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_the_batch_host_loses_power_as_the_time_limit_stops_the_workers_and_the_job_starts_again(
    slurm_door: Door, slurm: Cluster
) -> None:
    """The head that takes over finds the job's time nearly over, and ends this start before its own member is there."""
    slow = WAITS.replace("time.sleep(1)", "time.sleep(5)")  # so that node1 does not end this start itself
    write_job(slurm_door, slow, nodes="{min: 2, max: 4}", workers="1", more="signals: {lead: 45s, grace: 8s}")
    job = slurm_door.folder / "job.yaml"
    job.write_text(job.read_text().replace("time: 10m", "time: 2m"))  # the new head is to know it without a question
    run = slurm_door.submit("job.yaml")
    with slurm.configured(SlurmdTimeout=300):
        run.wait_for_output("got SIGTERM", rank=0, within_s=150)
        slurm.kill("node1")
        seen_to = "the node of the batch script was lost: "
        wait_until(lambda: seen_to in agent_outputs(run), "an agent sees to the job", within_s=60, otherwise=run.story)
        slurm.boot("node1")

        def state() -> str:
            return str(json.loads(slurm_door.run("status", run.job_id, "--json").stdout)["state"])

        wait_until(lambda: state() == "CANCELLED" or len(run.attempts()) == 2, "the run goes on", within_s=120)
        assert state() != "CANCELLED", run.story()
    slurm_door.run("cancel", run.job_id)
