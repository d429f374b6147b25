"""submitit's own examples with our executor, on this machine."""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

import hpc_elastic
from hpc_elastic.integrations.submitit import HpcElasticExecutor, HpcElasticJob
from hpc_elastic.integrations.submitit import job as job_module
from tests.integration.conftest import Run
from tests.integration.submitit_plugin import declare_plugin
from tests.slurm_sandbox.cluster import wait_until
from tests.without_torch import hide_torch

pytestmark = pytest.mark.local


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SUBMITIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    declare_plugin(tmp_path / "plugin", monkeypatch)
    monkeypatch.setenv("PYTHONPATH", hide_torch(os.environ, tmp_path / "without-torch")["PYTHONPATH"])


@pytest.fixture
def executor(tmp_path: Path) -> submitit.AutoExecutor:
    """As submitit's documentation makes one; the folder's name is from there too."""
    made = submitit.AutoExecutor(folder=tmp_path / "log_test" / "%j", cluster="hpcelastic")
    made.update_parameters(timeout_min=10, hpcelastic_site="local", hpcelastic_restart={"max_restarts": 0})
    made.update_parameters(hpcelastic_start="spawn")  # no torch in these functions, which a fork server would import
    return made


def run_of(job: submitit.Job[Any]) -> Run:
    """The run of a job."""
    assert isinstance(job, HpcElasticJob)
    return Run(job_id=job.job_id, layout=job.layout)


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a process of its runs behind; looked at before its folder goes."""
    before = set(HpcElasticJob.watcher._watches)
    yield
    for job_id in set(HpcElasticJob.watcher._watches) - before:
        layout = HpcElasticJob.watcher._watches[job_id].layout
        hpc_elastic.Run(layout.root).cancel()  # of a test that failed; fine if it is over
        run = Run(job_id=job_id, layout=layout)
        run.assert_nothing_left()
        run.assert_records_valid()


def add(a: int, b: int) -> int:
    print(f"adding {a} and {b}")
    return a + b


def test_the_first_example(executor: submitit.AutoExecutor) -> None:
    job = executor.submit(add, 5, 7)
    assert job.result() == 12
    assert job.state == "COMPLETED"
    assert job.done()
    assert job.exception() is None
    assert "adding 5 and 7\n" in (job.stdout() or "")
    assert job.submission().args == (5, 7)
    assert job.paths.folder.name == job.job_id
    assert job.get_info()["jobState"] == "COMPLETED"


def test_map_array_batch_and_submit_array_are_jobs_of_their_own(executor: submitit.AutoExecutor) -> None:
    jobs: list[submitit.Job[Any]] = [*executor.map_array(add, [1, 2], [10, 20])]
    with executor.batch():
        later = [executor.submit(add, 3, 30)]
        with pytest.raises(AttributeError):
            _ = later[0].job_id
    jobs += [*later, *executor.submit_array([submitit.helpers.FunctionSequence()])]
    assert len({job.job_id for job in jobs}) == 4
    done = list(submitit.helpers.as_completed(jobs, timeout=120, poll_frequency=0.2))
    assert {job.job_id for job in done} == {job.job_id for job in jobs}
    assert [job.result() for job in jobs] == [11, 22, 33, []]


def test_jobs_can_be_awaited(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(tasks_per_node=2)

    async def gather() -> Any:
        job = executor.submit(who)
        # submitit (1.5.4) yields one more at the end, which fails where there are several tasks.
        as_they_come = [await result for result in islice(job.awaitable().results_as_completed(0.1), 2)]
        return as_they_come, await job.awaitable().results(poll_interval=0.1)

    some, everything = asyncio.run(gather())
    assert sorted(some) == everything


def who() -> tuple[Any, ...]:
    environment = submitit.JobEnvironment()
    assert environment.paths.stdout.exists()
    assert environment.hostnames == ["local0", "local1"][: environment.num_nodes]
    return (
        environment.global_rank,
        environment.local_rank,
        environment.node,
        environment.num_tasks,
        environment.job_id,
    )


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_a_job_of_several_nodes_has_a_result_for_every_task(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(nodes=2, tasks_per_node=2)
    job = executor.submit(who)
    job_id = job.job_id
    assert job.results() == [(0, 0, 0, 4, job_id), (1, 1, 0, 4, job_id), (2, 0, 1, 4, job_id), (3, 1, 1, 4, job_id)]
    assert job.num_tasks == 4
    assert job.task(3).result()[0] == 3
    with pytest.raises(AssertionError, match="results"):
        job.result()
    again = pickle.loads(pickle.dumps(job))
    assert again.results() == job.results()
    assert HpcElasticJob(job.paths._folder, job_id, tasks=range(4)).results() == job.results()
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).results())"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(job), capture_output=True, check=True
    )
    assert elsewhere.stdout.decode() == f"{job.results()}\n"


def fail_once(marker: str) -> str:
    attempt = os.environ["HPC_ELASTIC_ATTEMPT"]
    if submitit.JobEnvironment().global_rank == 1 and attempt == "1":
        Path(marker).touch()
        raise ValueError("only the first time")
    wait_until(Path(marker).exists, "rank 1 has failed", within_s=60)
    time.sleep(60 if attempt == "1" else 0)
    return f"attempt {attempt}"


@pytest.mark.variant(of="test_a_job_that_fails_has_the_cause_and_the_remote_traceback")
def test_a_worker_that_raised_in_an_earlier_attempt_does_not_fail_the_job(
    executor: submitit.AutoExecutor, tmp_path: Path
) -> None:
    executor.update_parameters(tasks_per_node=2, hpcelastic_restart={"max_restarts": 1})
    job = executor.submit(fail_once, str(tmp_path / "failed"))
    pickled = Path(HpcElasticJob(job.paths._folder, job.job_id).layout.submitit_result(1, 1))
    wait_until(pickled.exists, "the failure of attempt 1 is on disk", within_s=60, otherwise=run_of(job).story)
    assert job.results() == ["attempt 2", "attempt 2"]
    assert job.exception() is None
    assert job.task(1).result() == "attempt 2"
    assert "attempts/0002" in str(job.task(1).paths.stdout)


def divide(by: int) -> float:
    return 1 / by


def test_a_job_that_fails_has_the_cause_and_the_remote_traceback(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(divide, 0)
    error = job.exception()
    assert isinstance(error, FailedJobError)
    first, *rest = str(error).splitlines()
    assert first.startswith(f"Job {job.job_id} failed: ")
    assert "ZeroDivisionError: division by zero" in first
    assert "    return 1 / by" in rest
    assert job.state == "FAILED"
    with pytest.raises(FailedJobError, match="ZeroDivisionError"):
        job.results()
    with pytest.raises(FailedJobError, match="return 1 / by"):
        job.task(1).result()
    assert "Submitted job triggered an exception" in f"{job.stdout()}{job.stderr()}"


def wait_for_ever() -> None:
    print("waiting", flush=True)
    while True:
        signal.pause()


def large_and_unpicklable() -> Any:
    return [b"x" * 1_000_000, sys._getframe()]


def test_a_value_that_cannot_be_written_leaves_nothing_of_itself(executor: submitit.AutoExecutor) -> None:
    """A full disk stayed full of it, and so the run's own end could not be recorded."""
    job = executor.submit(large_and_unpicklable)
    assert "cannot pickle 'frame' object" in str(job.exception())
    run = run_of(job).layout
    assert [path for path in Path(run.root).rglob("*") if path.is_file() and path.stat().st_size > 500_000] == []


def test_a_function_for_another_python_fails_with_both_versions_and_one_of_a_module_runs(
    executor: submitit.AutoExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytecode was a segmentation fault in Python 3.12 that came from 3.11."""
    here = platform.python_version()
    with monkeypatch.context() as patch:
        patch.setattr(platform, "python_version", lambda: "3.9.1")
        by_value, by_name = executor.submit(lambda: 1), executor.submit(os.getcwd)
    assert f"was pickled by Python 3.9.1, and the workers' Python is {here}" in str(by_value.exception())
    assert by_name.result() == os.getcwd()


def test_a_job_can_be_cancelled(executor: submitit.AutoExecutor) -> None:
    job = executor.submit(wait_for_ever)
    run_of(job).wait_for_output("waiting")
    assert job.state == "RUNNING"
    job.cancel()
    assert job.done()
    assert job.state == "CANCELLED"
    with pytest.raises(UncompletedJobError, match=r"cancelled.*job\.cancel\(\) of submitit"):
        job.result()


class Counter(submitit.helpers.Checkpointable):
    """Counts until it is told to stop; a checkpoint is what it has counted."""

    def __init__(self) -> None:
        self.count = 0
        self.starts: list[int] = []

    def __call__(self, finish: str) -> list[int]:
        self.starts.append(self.count)
        while not Path(finish).exists():
            self.count += 1
            if self.count == self.starts[-1] + 1:
                print("counting from", self.starts[-1], flush=True)
            time.sleep(0.01)
        return [*self.starts, self.count]


def test_a_checkpointable_goes_on_from_its_checkpoint(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    executor.update_parameters(tasks_per_node=2, hpcelastic_restart={"max_restarts": 1})
    job = executor.submit(Counter(), str(tmp_path / "finish"))
    run = run_of(job)
    run.wait_for_output("counting from 0", rank=1)
    run.wait_for_output("counting from 0")
    run.wait_until_started()
    assert isinstance(job, HpcElasticJob)
    job._interrupt()
    run.wait_for_output("counting from", attempt=2, rank=1)
    run.wait_for_output("counting from", attempt=2)
    (tmp_path / "finish").touch()
    results = job.results()
    assert [result[0] for result in results] == [0, 0]
    assert results[0][1] == results[1][1] > 0, "every rank goes on from what rank 0 saved"
    assert results[0][2] >= results[0][1]


def test_an_interrupt_reaches_the_others_if_a_worker_has_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    runs = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(job_module, "_worker_pids", lambda _layout: [ended.pid, runs.pid])
    job: Any = SimpleNamespace(_look=lambda: SimpleNamespace(scheduler="local"), layout=None)
    try:
        HpcElasticJob._interrupt(job)
        assert runs.wait(timeout=30) < 0
    finally:
        runs.kill()


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_the_signal_comes_before_the_time_limit(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    executor.update_parameters(hpcelastic_time="8s", hpcelastic_restart={"max_restarts": 3})
    job = executor.submit(Counter(), str(tmp_path / "finish"))
    run = run_of(job)
    run.wait_for_output("counting from", attempt=2)
    (tmp_path / "finish").touch()
    first, second, *_ = job.result()
    assert (first, second > 0) == (0, True)


@pytest.mark.variant(of="test_a_checkpointable_goes_on_from_its_checkpoint")
def test_a_function_without_checkpoint_ends_at_its_time_limit_and_says_so(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(hpcelastic_time="8s", hpcelastic_restart={"max_restarts": 3})
    job = executor.submit(wait_for_ever)
    error = job.exception()
    assert isinstance(error, UncompletedJobError)
    assert "timed-out and not checkpointable" in str(error)
    assert run_of(job).attempts() == [1]


@pytest.mark.variant(of="test_the_first_example")
def test_a_script_may_empty_its_log_folder_as_submitits_mnist_does(tmp_path: Path) -> None:
    folder = tmp_path / "mnist_logs"
    for turn in range(2):
        if folder.exists():
            for file in folder.iterdir():
                file.unlink()
        executor = submitit.AutoExecutor(folder=folder, cluster="hpcelastic")
        executor.update_parameters(timeout_min=10, hpcelastic_site="local", hpcelastic_start="spawn")
        assert executor.submit(add, turn, 1).result() == turn + 1


def talk() -> None:
    os.write(1, b"said\n")
    os.write(2, b"complained\n")


@pytest.mark.variant(of="test_the_first_example")
def test_stderr_can_go_to_stdout(executor: submitit.AutoExecutor) -> None:
    executor.update_parameters(stderr_to_stdout=True)
    job = executor.submit(talk)
    job.result()
    assert "said\ncomplained\n" in (job.stdout() or "")
    assert "complained" not in (job.stderr() or "")


def reduce() -> float:
    import torch
    import torch.distributed as dist

    environment = submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    dist.init_process_group("gloo")
    value = torch.tensor([float(environment.rank + 1)])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return float(value)


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_the_distributed_example(
    executor: submitit.AutoExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugin"))  # with torch
    executor.update_parameters(nodes=2, tasks_per_node=1)
    assert executor.submit(reduce).results() == [3.0, 3.0]


def test_a_submission_that_is_refused_leaves_nothing(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    executor.update_parameters(hpcelastic_site=str(tmp_path / "no-such-site.yaml"))
    with pytest.raises(Exception, match="no-such-site"):
        executor.submit(add, 1, 2)
    assert [path for path in tmp_path.glob("log_test/**/*") if path.is_file()] == []


def test_a_function_that_is_too_large_is_refused(tmp_path: Path) -> None:
    executor = HpcElasticExecutor(tmp_path / "logs", max_pickle_size_gb=1e-6)
    executor.update_parameters(site="local")
    with pytest.raises(RuntimeError, match="max_pickle_size_gb"):
        executor.submit(len, b"x" * 10_000)
    assert [path for path in tmp_path.glob("logs/**/*") if path.is_file()] == []


def test_a_job_that_is_not_in_the_folder_is_told(tmp_path: Path) -> None:
    job: HpcElasticJob[Any] = HpcElasticJob(tmp_path, "17")
    assert job.state == "UNKNOWN"
    with pytest.raises(UncompletedJobError, match="there is no job 17 in"):
        job.result()
