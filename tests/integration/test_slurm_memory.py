"""Training states in memory on the real Slurm: a crash costs no step, and a node that holds none sends all to disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from tests.integration.conftest import Door, Run
from tests.integration.savers import begun, finish, saved_in, train, wait_until_saved
from tests.integration.slurm_jobs import assert_over, events
from tests.integration.test_local_saves import USES, answer_of, hanging, wait_until_nothing_is_left
from tests.integration.test_slurm_requeue import preempting
from tests.slurm_sandbox.cluster import Cluster
from tests.tiers import variants

pytestmark = pytest.mark.slurm


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.mirrored
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


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_save_whose_head_is_powered_off_is_given_up_and_the_next_one_is_complete(
    slurm_door: Door, slurm: Cluster
) -> None:
    disk = hanging(slurm_door, "node2")
    more = f"{USES}\nelastic: {{lease: 3s}}"
    run, folder = train(slurm_door, nodes="{min: 2, max: 3}", workers=1, more=more)
    wait_until_saved(run, folder, 1, 3)
    asked = slurm_door.start("save", run.job_id)
    disk.wait_until_struck()
    with slurm.configured(SlurmdTimeout=300):
        slurm.kill("node1")
        code, _, stderr = answer_of(asked)
        assert code == 5
        assert "attempt 1 has ended, and the head that was asked does not answer" in stderr
        wait_until_saved(run, folder, 2, 2)
        disk.answers.touch()
        wait_until_nothing_is_left(run)
        answer = json.loads(slurm_door.run("save", run.job_id, "--json").stdout)
        assert os.path.exists(os.path.join(answer["folder"], "manifest.json"))
        finish(run, folder, 2)
        assert_over(run, "SUCCEEDED", 0, killed=("node1",))


@pytest.mark.variant(of="test_another_run_goes_on_from_a_state_that_is_saved_while_the_first_goes_on")
def test_a_state_is_saved_on_request_also_by_the_head_that_took_over(slurm_door: Door, slurm: Cluster) -> None:
    run, folder = train(slurm_door, "--replicated", nodes="{min: 2, max: 3}", workers=1, more="elastic: {lease: 3s}")
    wait_until_saved(run, folder, 1, 3)
    first = json.loads(slurm_door.run("save", run.job_id, "--json").stdout)
    with slurm.configured(SlurmdTimeout=300):
        slurm.kill("node1")
        wait_until_saved(run, folder, 2, 2)
        assert min(begun(folder, 2).values()) >= first["steps"][0]
        second = json.loads(slurm_door.run("save", run.job_id, "--json").stdout)
        assert second["steps"][0] > first["steps"][0]
        assert os.path.exists(os.path.join(second["folder"], "manifest.json"))
        finish(run, folder, 2)
        run.wait_until_over()
        slurm.wait_for_job(run.job_id, "CANCELLED", "COMPLETING")  # ended by an agent; node1 has not answered yet
        slurm.boot("node1")
    assert assert_over(run, "SUCCEEDED", 0, killed=["node1"])["attempts"] == 2


@pytest.mark.variant(of="test_all_ranks_load_from_disk_if_the_same_failure_comes_after_a_load_from_memory")
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
        "attempt 2: all ranks load from disk: node4 holds no state of its ranks in memory",
        f"attempt 3: all ranks can go on at step {first}, which is in memory",
    ]


def requeued(slurm: Cluster, door: Door, run: Run) -> None:
    slurm.run("scontrol", "requeue", run.job_id)


def preempted(slurm: Cluster, door: Door, run: Run) -> None:
    with preempting(slurm) as urgent:
        slurm.wait_for_job(urgent, "RUNNING")


def stopped_by_a_person(slurm: Cluster, door: Door, run: Run) -> None:
    door.run("stop", "--requeue", "--lead", "1s", run.job_id)


def out_of_time(slurm: Cluster, door: Door, run: Run) -> None:
    """Nothing to do: the job's time limit comes."""


@pytest.mark.mirrored
@pytest.mark.parametrize(
    ("end", "options"),
    [
        pytest.param(preempted, ("--replicated",), id="preempted-replicated"),
        *variants(
            (requeued, ()),
            (stopped_by_a_person, ()),
            (out_of_time, ()),
            of="test_the_next_allocation_goes_on_at_the_last_step_that_all_had_saved",
            ids=["requeued", "stopped by a person", "out of time"],
        ),
    ],
)
def test_the_next_allocation_goes_on_at_the_last_step_that_all_had_saved(
    slurm_door: Door, slurm: Cluster, end: Callable[[Cluster, Door, Run], None], options: tuple[str, ...]
) -> None:
    """A training without any handler of its own."""
    limited = "signals: {lead: 30s, grace: 30s, restart_grace: 2s}" if end is out_of_time else ""
    run, folder = train(
        slurm_door, *options, nodes="2", workers=2, more=limited, time="1m" if end is out_of_time else "10m"
    )
    wait_until_saved(run, folder, 1, 4)
    end(slurm, slurm_door, run)
    wait_until_saved(run, folder, 2, 4)
    last = min(saved_in(folder, rank, 1) for rank in range(4))
    (first,) = set(begun(folder, 2).values())
    assert last <= first <= last + 1, run.story()
    finish(run, folder, 4)
    assert assert_over(run, "SUCCEEDED", 0)["attempts"] == 2
    chosen = [event["message"] for event in events(run) if event["name"] == "state.chosen"]
    assert chosen == [f"attempt 2: all ranks can go on at step {first}, which was kept when the last allocation ended"]
    kept = [event["message"] for event in events(run) if event["name"] == "state.kept"]
    assert len(kept) == (1 if options else 2)
    assert all(line.startswith(f"kept step {first} for the next allocation: ") for line in kept)
    logs = slurm_door.run("logs", "--node", "node1", str(run.path)).stdout
    assert chosen[0].split(": ", 1)[1] in logs
    assert slurm_door.run("status", str(run.path)).stdout.startswith("saves"), run.story()
    assert not Path(run.layout.memory).exists()


@contextlib.contextmanager
def held_back(slurm: Cluster, run: Run) -> Iterator[None]:
    """End this start of the job, and have it started again after the block."""
    slurm.run("scontrol", "requeuehold", run.job_id)
    slurm.wait_for_job(run.job_id, "PENDING")
    yield
    slurm.run("scontrol", "release", run.job_id)


@pytest.mark.variant(of="test_all_ranks_load_from_disk_if_the_same_failure_comes_after_a_load_from_memory")
def test_all_ranks_load_from_disk_where_what_was_kept_is_damaged(slurm_door: Door, slurm: Cluster) -> None:
    run, folder = train(slurm_door, nodes="2", workers=2)
    wait_until_saved(run, folder, 1, 4)
    with held_back(slurm, run):
        damaged = Path(run.layout.kept_state(1, "00003"))
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
    wait_until_saved(run, folder, 3, 4)
    assert begun(folder, 2) == {}
    assert begun(folder, 3) == dict.fromkeys(range(4), 0)
    finish(run, folder, 4)
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (3, 0)
    (failed,) = [event["message"] for event in events(run) if event["name"] == "attempt.failed"]
    assert failed.endswith(f"cannot be loaded: {damaged} is damaged"), failed


@pytest.mark.variant(of="test_all_ranks_load_from_disk_if_the_same_failure_comes_after_a_load_from_memory")
def test_all_ranks_load_from_disk_where_a_part_of_what_was_kept_is_missing(slurm_door: Door, slurm: Cluster) -> None:
    run, folder = train(slurm_door, nodes="2", workers=2)
    wait_until_saved(run, folder, 1, 4)
    with held_back(slurm, run):
        Path(run.layout.kept_record(1, "00002")).unlink()
    wait_until_saved(run, folder, 2, 4)
    assert begun(folder, 2) == dict.fromkeys(range(4), 0)
    finish(run, folder, 4)
    assert assert_over(run, "SUCCEEDED", 0)["attempts"] == 2
    (chosen,) = [event["message"] for event in events(run) if event["name"] == "state.chosen"]
    assert chosen.endswith("what was kept when the last allocation ended is not all there, or is that of other ranks")
