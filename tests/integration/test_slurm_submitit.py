"""submitit's API with our executor on the real Slurm: arrays, requeues from a checkpoint, a lost node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.utils import UncompletedJobError

from hpc_elastic.integrations.submitit import HpcElasticJob
from tests.integration.conftest import Run
from tests.integration.submitit_plugin import declare_plugin
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.without_torch import hide_torch

pytestmark = pytest.mark.slurm


@pytest.fixture
def executor(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> submitit.AutoExecutor:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    declare_plugin(tmp_path / "plugin", monkeypatch)
    monkeypatch.setenv("PYTHONPATH", hide_torch(os.environ, tmp_path / "without-torch")["PYTHONPATH"])
    made = submitit.AutoExecutor(folder=tmp_path / "log_test" / "%A", cluster="hpcelastic")
    made.update_parameters(
        timeout_min=10,
        hpcelastic_site="generic-slurm",
        hpcelastic_start="spawn",  # no torch in these functions, which a fork server would import on each node
        hpcelastic_restart={"max_restarts": 0},
        hpcelastic_elastic={"lease": "3s"},
        hpcelastic_signals={"grace": "8s", "restart_grace": "2s"},
    )
    return made


def run_of(job: submitit.Job[Any]) -> Run:
    assert isinstance(job, HpcElasticJob)
    return Run(job_id=job.job_id, layout=job.layout)


def who(number: int) -> tuple[Any, ...]:
    environment = submitit.JobEnvironment()
    return (number, environment.job_id, environment.global_rank, tuple(environment.hostnames))


def test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task(
    executor: submitit.AutoExecutor, slurm: Cluster
) -> None:
    executor.update_parameters(nodes=2, name="probe", hpcelastic_comment="of a test")
    job = executor.submit(who, 7)
    assert slurm.job(job.job_id)["Comment"] == "of"  # as far as the parser of `scontrol show` reads
    assert slurm.job(job.job_id)["JobName"] == "probe"
    nodes = job.results()[0][-1]
    assert len(nodes) == 2
    assert job.results() == [(7, job.job_id, rank, nodes) for rank in range(2)]
    assert job.state == "COMPLETED"
    executor.update_parameters(nodes=1, hpcelastic_array_parallelism=2)
    jobs = executor.map_array(who, [1, 2, 3])
    (array,) = {job.job_id.split("_")[0] for job in jobs}
    assert [job.job_id for job in jobs] == [f"{array}_{task}" for task in range(3)]
    assert [job.result()[:3] for job in jobs] == [(number + 1, f"{array}_{number}", 0) for number in range(3)]
    assert jobs[0].paths.folder == jobs[2].paths.folder
    for each in [job, *jobs]:
        run_of(each).assert_nothing_left(within_s=40)
        run_of(each).assert_records_valid()


class Counter(submitit.helpers.Checkpointable):
    """Counts until a file is there; has a forked child, as a data loader is one."""

    def __init__(self) -> None:
        self.count = 0
        self.starts: list[int] = []

    def __call__(self, finish: str) -> list[int]:
        if (child := os.fork()) == 0:
            while True:
                signal.pause()
        self.starts.append(self.count)
        print("counting from", self.count, flush=True)
        while not Path(finish).exists():
            self.count += 1
            time.sleep(0.01)
        os.kill(child, 0)
        os.kill(child, signal.SIGKILL)
        return [*self.starts, self.count]


def assert_went_on(job: submitit.Job[list[int]], *, requeues: int = 1) -> None:
    """It started again from a checkpoint, in a new allocation, and no failure was counted."""
    starts = [result[:-1] for result in job.results()]
    assert starts == [starts[0]] * len(starts)
    assert len(starts[0]) == requeues + 1, starts
    assert all(earlier < later for earlier, later in zip(starts[0], starts[0][1:], strict=False)), starts
    run = run_of(job)
    result = run.wait_until_over()  # the values are there before the agents have written it
    assert (result["attempts"], result["restarts"]) == (requeues + 1, 0)
    assert len(list((run.path / "allocations").iterdir())) == requeues + 1
    run.assert_nothing_left(within_s=40)


def wait_until_counting(run: Run, attempt: int, *, ranks: int = 2) -> None:
    for rank in range(ranks):
        run.wait_for_output("counting from", attempt=attempt, rank=rank)
    run.wait_until_started(attempt)


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
def test_a_checkpointable_is_requeued_at_submitits_signal_and_goes_on(
    executor: submitit.AutoExecutor, tmp_path: Path
) -> None:
    executor.update_parameters(nodes=2)
    job = executor.submit(Counter(), str(tmp_path / "finish"))
    run = run_of(job)
    wait_until_counting(run, 1)
    assert isinstance(job, HpcElasticJob)
    job._interrupt()
    wait_until_counting(run, 2)
    assert not job.done()
    (tmp_path / "finish").touch()
    assert_went_on(job)
    assert "Requeued job" in run.stdout(1, 0)


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_a_checkpointable_of_an_array_is_requeued_alone(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    jobs = executor.map_array(Counter(), [str(tmp_path / "finish")] * 2)
    for job in jobs:
        wait_until_counting(run_of(job), 1, ranks=1)
    last = jobs[-1]  # whose number is that of the array
    assert isinstance(last, HpcElasticJob)
    last._interrupt()
    wait_until_counting(run_of(last), 2, ranks=1)
    (tmp_path / "finish").touch()
    assert_went_on(last)
    assert_went_on(jobs[0], requeues=0)


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
def test_a_checkpointable_is_saved_when_slurm_preempts_it(
    executor: submitit.AutoExecutor, slurm: Cluster, tmp_path: Path
) -> None:
    executor.update_parameters(nodes=2)
    job = executor.submit(Counter(), str(tmp_path / "finish"))
    wait_until_counting(run_of(job), 1)
    slurm.run("scontrol", "requeue", job.job_id)  # as a preemption with PreemptMode=REQUEUE does
    wait_until_counting(run_of(job), 2)
    (tmp_path / "finish").touch()
    assert_went_on(job)


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
def test_the_time_limit_requeues_a_checkpointable_in_time(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    executor.update_parameters(timeout_min=1, hpcelastic_signal_delay_s=50)
    job = executor.submit(Counter(), str(tmp_path / "finish"))
    wait_until_counting(run_of(job), 2, ranks=1)
    (tmp_path / "finish").touch()
    assert_went_on(job)
    assert "this job is timed-out" in run_of(job).stdout(1, 0)


def wait_for_file(path: str) -> int:
    print("waiting", flush=True)
    while not Path(path).exists():
        time.sleep(0.05)
    return int(os.environ["WORLD_SIZE"])


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_a_lost_node_leaves_the_results_of_the_others(
    executor: submitit.AutoExecutor, slurm: Cluster, tmp_path: Path
) -> None:
    executor.update_parameters(hpcelastic_nodes={"min": 3, "max": 4})
    job = executor.submit(wait_for_file, str(tmp_path / "finish"))
    run = run_of(job)
    for rank in range(4):
        run.wait_for_output("waiting", rank=rank)
    run.wait_until_started()
    slurm.kill("node3")
    for rank in range(3):
        run.wait_for_output("waiting", attempt=2, rank=rank)
    (tmp_path / "finish").touch()
    before = time.monotonic()
    assert job.results() == [3, 3, 3]
    assert job.exception() is None
    assert time.monotonic() - before < 60
    assert job.num_tasks == 4
    with pytest.raises(UncompletedJobError, match=r"task 3 of job .* has no result: .* in attempt 2 with 3 ranks"):
        job.task(3).result()
    slurm.boot("node3")
    run.assert_nothing_left(within_s=40)


@pytest.mark.every_slurm
def test_a_pending_job_can_be_cancelled(executor: submitit.AutoExecutor, slurm: Cluster) -> None:
    executor.update_parameters(hpcelastic_sbatch={"hold": True})
    job = executor.submit(who, 1)
    assert job.state == "PENDING"
    job.cancel()
    assert job.state == "CANCELLED"
    wait_until(lambda: job.job_id not in slurm.job_ids(), "it has left the queue")
    again = executor.submit(who, 1).cancel_at_deletion()
    job_id = again.job_id
    del again
    wait_until(lambda: job_id not in slurm.job_ids(), "the other one has left the queue")
