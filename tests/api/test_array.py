"""Arrays of prepared runs: as Slurm gets them, with its programs as fakes, and on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.array import array_script, submit_array
from hpc_elastic.api.look_at_array import ArrayWatch
from hpc_elastic.api.prepare import JobSource, PreparedRun
from hpc_elastic.api.submission import make_run_directory
from hpc_elastic.errors import JobError, RunDirectoryError, SchedulerError, UsageError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.processes import find_process
from hpc_elastic.rundir.create import CreatedRunDirectory
from hpc_elastic.rundir.create_array import create_array
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.local.scheduler import LocalScheduler
from hpc_elastic.scheduler.local.tasks import WaitingTasks
from hpc_elastic.scheduler.protocol import JobState
from hpc_elastic.scheduler.slurm.scheduler import SlurmScheduler
from hpc_elastic.site.search import find_site
from tests.cli.conftest import FakeSlurm, fake_slurm, workplace
from tests.plans import make_local_plan, make_plan
from tests.slurm_sandbox.sandbox import wait_until

__all__ = ["fake_slurm", "workplace"]  # fixtures

JOB = "entrypoint: {script: train.py}\n"
# Says that it runs, and waits for a file; the folder's name is the task's number.
WAITS = 'echo "$PWD" >>../started; echo "task $HPC_ELASTIC_LOCAL_ARRAY_TASK"; until [ -e go ]; do sleep 0.02; done\n'


def prepare(folder: Path, count: int, *, script: str = "true\n", **changes: Any) -> list[PreparedRun]:
    source = JobSource(text=JOB, file="job.yaml", directory=str(folder))
    plan = make_plan(name="digits", **changes)
    job = parse_job(JOB, file="job.yaml")
    site = find_site("generic-slurm", job_dir=str(folder), environ={})
    plans = [dataclasses.replace(plan, run_dir=f"{folder}/sweep/{number}") for number in range(count)]
    return [PreparedRun(source=source, job=job, site=site, plan=plan, script=script) for plan in plans]


def prepare_local(folder: Path, count: int, script: str = WAITS) -> list[PreparedRun]:
    plan = make_local_plan()
    return prepare(folder, count, script=script, site=plan.site, scheduler=plan.scheduler, template=plan.template)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_array_is_complete_run_directories_and_one_submission(workplace: Path, fake_slurm: FakeSlurm) -> None:
    varied = [{"lr": "1"}, {"lr": "2"}, {"lr": "3"}]
    submissions = submit_array(prepare(workplace, 3), SlurmScheduler(), limit=2, parameters=varied)
    folder = workplace / "sweep"
    assert fake_slurm.calls("sbatch") == [f"sbatch --parsable {folder}/job.sh"]
    assert names(folder) == {"array.json", "job.yaml", "job.sh", "0", "1", "2"}
    files = {"job.yaml", "plan.json", "job.sh", "submission.json", "secret", "requests.jsonl"}
    for number, submission in enumerate(submissions):
        assert names(folder / str(number)) == files | {"allocations", "agents", "nodes", "attempts"}
        told = json.loads((folder / str(number) / "submission.json").read_text())
        assert (told["job_id"], told["array"], told["array_task"]) == (f"42_{number}", str(folder), number)
        assert (submission.job_id, told["parameters"]) == (told["job_id"], varied[number])
    record = json.loads((folder / "array.json").read_text())
    assert (record["job_id"], record["limit"], record["array"]) == ("42", 2, "sweep")
    assert [task["parameters"] for task in record["tasks"]] == varied
    assert "#SBATCH --array=0-2%2\n" in (folder / "job.sh").read_text()


def test_an_array_whose_folder_is_gone_is_not_waited_for_for_ever(workplace: Path, fake_slurm: FakeSlurm) -> None:
    submit_array(prepare(workplace, 2), SlurmScheduler())
    warnings: list[str] = []
    array_watch = ArrayWatch(ArrayLayout(str(workplace / "sweep")), warn=warnings.append)
    snapshots = array_watch.until_over(patience_s=0.1, pause_s=0.02)
    next(snapshots)
    (workplace / "sweep").rename(workplace / "moved")
    with pytest.raises(RunDirectoryError, match=f"^{workplace}/sweep is gone: it was moved or removed$"):
        list(snapshots)
    assert warnings == [f"{workplace}/sweep/{task} is gone: it was moved or removed" for task in (0, 1)]


@pytest.mark.long  # each look runs programs
def test_an_array_is_waited_for_until_all_tasks_are_over_but_the_one_whose_folder_is_gone(
    workplace: Path, fake_slurm: FakeSlurm
) -> None:
    submit_array(prepare(workplace, 3), SlurmScheduler())
    fake_slurm.script("squeue", "\n".join(f'echo "4{task}|42_{task}|RUNNING|0|0||None|"' for task in range(3)))
    array_watch = ArrayWatch(ArrayLayout(str(workplace / "sweep")), warn=lambda _: None, settle_s=0)
    snapshots = array_watch.until_over(patience_s=0.05, pause_s=0.01)
    next(snapshots)
    shutil.rmtree(workplace / "sweep/1")
    began, looks = time.monotonic(), 0
    while time.monotonic() < began + 0.2 or looks < 5:
        assert RunState.RUNNING in next(snapshots).counts
        looks += 1
    fake_slurm.script("squeue", "true")
    with pytest.raises(RunDirectoryError, match=f"^{workplace}/sweep/1 is gone: it was moved or removed$"):
        list(snapshots)


def test_a_refused_array_leaves_nothing(workplace: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.script(
        "sbatch", 'echo "sbatch: error: Batch job submission failed: Invalid job array specification" >&2; exit 1'
    )
    before = names(workplace)
    with pytest.raises(SchedulerError, match="Invalid job array specification") as raised:
        submit_array(prepare(workplace, 3), SlurmScheduler())
    assert "MaxArraySize" in (raised.value.tip or "")
    assert names(workplace) == before


def test_an_array_that_cannot_be_recorded_is_kept_with_all_its_files(workplace: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.script("sbatch", "mkdir -p 1/submission.json/in-the-way; echo 42")
    with pytest.raises(RunDirectoryError, match="job 42 was submitted and goes on, but its record is missing"):
        submit_array(prepare(workplace, 3), SlurmScheduler())
    assert fake_slurm.calls("scancel") == []
    folder = workplace / "sweep"
    assert (folder / "array.json").is_file()
    assert [(folder / task / "submission.json").is_file() for task in "012"] == [True, False, True]
    assert all((folder / task / "plan.json").is_file() for task in "012")
    assert list(folder.rglob("*.tmp")) == []


@pytest.mark.parametrize("error", [RunDirectoryError("the disk is full"), KeyboardInterrupt()])
def test_a_run_directory_that_is_not_made_takes_the_others_away(error: BaseException, workplace: Path) -> None:
    runs = prepare(workplace, 2)

    def fail() -> CreatedRunDirectory:
        raise error

    before = names(workplace)
    layout = ArrayLayout(workplace / "sweep")
    with pytest.raises(type(error)):
        create_array(layout, job_yaml="", script="", runs=[lambda: make_run_directory(runs[0]), fail])
    assert names(workplace) == before


def test_an_array_rejects_a_folder_that_is_not_empty(workplace: Path, fake_slurm: FakeSlurm) -> None:
    (workplace / "sweep").mkdir()
    (workplace / "sweep" / "thesis.tex").write_text("chapter 1")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        submit_array(prepare(workplace, 2), SlurmScheduler())
    assert names(workplace / "sweep") == {"thesis.tex"}
    assert fake_slurm.calls("sbatch") == []


def test_an_array_rejects_runs_that_ask_slurm_for_different_things(workplace: Path) -> None:
    one, two = prepare(workplace, 2)
    two = dataclasses.replace(two, plan=dataclasses.replace(two.plan, nodes=NodesPlan(min=4, max=4)))
    with pytest.raises(JobError, match=r"task 0 asks for --nodes=2, task 1 for --nodes=4"):
        submit_array([one, two], SlurmScheduler())
    assert not (workplace / "sweep").exists()


@pytest.mark.parametrize(
    ("runs", "limit", "message"), [((0, 2), None, "expected .*/sweep/1"), ((), None, "no runs"), ((0,), 0, "limit")]
)
def test_an_array_rejects_what_is_none(workplace: Path, runs: tuple[int, ...], limit: int | None, message: str) -> None:
    prepared = prepare(workplace, 3)
    with pytest.raises(UsageError, match=message):
        submit_array([prepared[number] for number in runs], SlurmScheduler(), limit=limit)
    assert not (workplace / "sweep").exists()


def test_a_sites_own_header_is_that_of_its_arrays(workplace: Path) -> None:
    (workplace / "ours.sh.j2").write_text(
        '{% extends "slurm/job.sh.j2" %}\n{% block header %}\n#!/bin/bash -l\n#SBATCH --comment=ours\n'
        "{% for directive in directives %}\n#SBATCH {{ directive }}\n{% endfor %}\n{% endblock %}\n"
        "{% block before %}\n#SBATCH --comment=late\n{% endblock %}\n"
    )
    lines = array_script(prepare(workplace, 2, template="ours.sh.j2")).splitlines()
    assert lines[:3] == ["#!/bin/bash -l", "#SBATCH --comment=ours", "#SBATCH --job-name=digits"]
    assert "#SBATCH --comment=late" not in lines
    assert "#SBATCH --array=0-1" in lines


class LocalArray:
    """An array on this machine, of scripts that say when they start, and wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = LocalScheduler(kill_wait_s=10)
        self.ids: list[str] = []

    def submit(self, count: int, *, limit: int | None = None, script: str = WAITS) -> str:
        runs = prepare_local(self.folder, count, script)
        self.ids = [submission.job_id for submission in submit_array(runs, self.scheduler, limit=limit)]
        return self.ids[0].rpartition("_")[0]

    def states(self) -> list[str]:
        return [self.scheduler.query([job_id])[job_id].state.value for job_id in self.ids]

    def wait_for(self, *states: str) -> None:
        wait_until(lambda: self.states() == list(states), f"the tasks are {states}", within_s=20, otherwise=self.states)

    def release(self, task: int) -> None:
        (self.folder / "sweep" / str(task) / "go").touch()

    def started(self) -> list[str]:
        path = self.folder / "sweep" / "started"
        return [os.path.basename(line) for line in path.read_text().splitlines()] if path.exists() else []

    def output(self, task: int) -> str:
        return (self.folder / "sweep" / str(task) / f"{self.ids[task]}.out").read_text()


@pytest.fixture
def array(workplace: Path) -> Iterator[LocalArray]:
    array = LocalArray(workplace)
    yield array
    if array.ids:
        array.scheduler.cancel(array.ids[0].rpartition("_")[0])


@pytest.mark.long
def test_tasks_on_this_machine_run_one_after_the_other(array: LocalArray) -> None:
    array.submit(3)
    array.wait_for("RUNNING", "PENDING", "PENDING")
    array.release(0)
    array.wait_for("GONE", "RUNNING", "PENDING")
    array.release(1)
    array.wait_for("GONE", "GONE", "RUNNING")
    array.release(2)
    array.wait_for("GONE", "GONE", "GONE")
    assert array.started() == ["0", "1", "2"]
    assert array.output(1) == f"task {array.ids[1]}\n"


@pytest.mark.long
def test_the_limit_is_how_many_tasks_run_at_a_time(array: LocalArray) -> None:
    array.submit(3, limit=2)
    array.wait_for("RUNNING", "RUNNING", "PENDING")
    array.release(1)
    array.wait_for("RUNNING", "GONE", "RUNNING")


def test_a_task_that_is_cancelled_while_it_waits_never_starts(array: LocalArray) -> None:
    array.submit(3)
    array.wait_for("RUNNING", "PENDING", "PENDING")
    array.scheduler.cancel(array.ids[1])
    array.wait_for("RUNNING", "GONE", "PENDING")
    array.release(0)
    array.wait_for("GONE", "GONE", "RUNNING")
    array.release(2)
    array.wait_for("GONE", "GONE", "GONE")
    assert array.started() == ["0", "2"]
    assert array.output(1) == "hpc_elastic: cancelled before it started\n"


@pytest.mark.long
def test_cancelling_a_task_that_runs_leaves_the_others(array: LocalArray) -> None:
    array.submit(3, limit=2)
    array.wait_for("RUNNING", "RUNNING", "PENDING")
    array.scheduler.cancel(array.ids[0])
    array.wait_for("GONE", "RUNNING", "RUNNING")


def test_no_task_starts_after_the_waiting_ones_were_cancelled(array: LocalArray) -> None:
    job_id = array.submit(3)
    array.wait_for("RUNNING", "PENDING", "PENDING")
    array.scheduler.cancel_pending(job_id)
    array.wait_for("RUNNING", "GONE", "GONE")
    array.release(0)
    wait_until(lambda: array.scheduler.query([job_id])[job_id].state is JobState.COMPLETED, "the array is over")
    assert array.started() == ["0"]


def test_cancelling_an_array_on_this_machine_ends_all(array: LocalArray) -> None:
    job_id = array.submit(4, limit=2)
    array.wait_for("RUNNING", "RUNNING", "PENDING", "PENDING")
    wait_until(lambda: sorted(array.started()) == ["0", "1"], "both scripts are at their first line")
    array.scheduler.cancel(job_id)
    assert array.states() == ["GONE"] * 4
    assert sorted(array.started()) == ["0", "1"]
    # They were withdrawn before the others ended, which makes room for the next one.
    assert [array.output(task) for task in (2, 3)] == ["hpc_elastic: cancelled before it started\n"] * 2


def test_tasks_wait_before_the_arrays_script_has_come_to_its_folder(array: LocalArray, tmp_path: Path) -> None:
    """A query right after the submission must not say that the job is gone."""
    away = tmp_path / "away"
    away.mkdir()
    script = subprocess.Popen(["sleep", "60"], cwd=away)
    try:
        process = find_process(script.pid)
        assert process is not None
        waiting = WaitingTasks.of("local-1-1", process)
        assert waiting is not None
        assert not waiting.is_in_place
        assert not waiting.has(0)
        assert list(waiting.all()) == []
    finally:
        script.kill()
        script.wait()
    array.submit(1)
    assert array.states()[0] in ("PENDING", "RUNNING")
    array.release(0)


def test_a_setup_line_of_a_task_sees_no_arguments(array: LocalArray) -> None:
    array.submit(1, script='echo "$# arguments in ${PWD##*/}"\n')
    array.wait_for("GONE")
    assert array.output(0) == "0 arguments in 0\n"
