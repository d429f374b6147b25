"""How often the scheduler is asked, and when the login side writes the result that nobody else will."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import FileSystemError
from hpc_elastic.observe.diagnosis import SETTLE_S
from hpc_elastic.observe.watch import PATIENCE_S, QuestionPace, RunWatch, watch
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import WorkerState
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import RunBuilder, refuse_writes
from tests.observe.test_snapshot import SilentScheduler, TellingScheduler
from tests.rundir.test_full_disk import full_disk


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def make_old(layout: RunLayout) -> None:
    """As if nothing had been written for an hour."""
    for folder, _, names in os.walk(layout.root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            past = os.stat(path).st_mtime - 3600
            os.utime(path, (past, past))


def test_pause_grows_while_the_answer_stays_the_same() -> None:
    pace, now, pauses = QuestionPace(), 0.0, []
    for _ in range(9):
        assert pace.is_due(now)
        pace.note(now, "PENDING")
        pause = next(step for step in range(1, 200) if pace.is_due(now + step / 10)) / 10
        pauses.append(pause)
        now += pause
    assert pauses[0] == pytest.approx(1.0)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(10.0)


def test_pause_is_short_again_if_the_answer_changed() -> None:
    pace = QuestionPace()
    for moment in range(0, 1000, 100):
        pace.note(float(moment), "PENDING")
    pace.note(1000.0, "RUNNING")
    assert pace.is_due(1001.0)


def test_scheduler_is_asked_seldom_and_the_directory_often(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit(), Clock()
    scheduler = TellingScheduler(JobState.PENDING)
    run_watch = RunWatch(run.layout, scheduler, clock=clock)
    for _ in range(120):  # one minute of looks
        run_watch.look()
        clock.sleep(0.5)
    assert 8 <= len(scheduler.asked) <= 14


def test_scheduler_is_asked_at_once_if_the_job_was_started_since(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit(), Clock()
    scheduler = TellingScheduler(JobState.PENDING)
    run_watch = RunWatch(run.layout, scheduler, clock=clock)
    assert run_watch.look().state is RunState.PENDING
    run.allocate()
    scheduler.state = JobState.RUNNING
    assert run_watch.look().state is RunState.RUNNING


def test_pending_job_that_was_cancelled_gets_its_result_at_the_first_look(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.CANCELLED)).look()
    assert snapshot.state is RunState.CANCELLED
    result = read(run.layout.result)
    assert (result["written_by"], result["exit_code"], result["reason"]) == ("login", 10, "terminated")
    assert result["cause"] == "the job was cancelled before it started"
    assert Path(run.layout.exit_code).read_text() == "10\n"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_run_whose_result_cannot_be_written_is_over_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *mode)

    run = RunBuilder(tmp_path / "run").submit()
    real_open = os.open
    monkeypatch.setattr(os, "open", refuse)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.CANCELLED)).look()
    assert (snapshot.state, snapshot.exit_code) == (RunState.CANCELLED, 10)
    assert snapshot.cause == "the job was cancelled before it started"
    assert f"cannot write {run.layout.result}: {os.strerror(number)}" in (snapshot.note or "")
    assert not os.path.exists(run.layout.result)


def test_a_script_that_ended_between_the_look_and_the_schedulers_word_is_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()

    class EndingScheduler(TellingScheduler):
        def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
            Path(run.layout.script_output(job_ids[0])).write_text("hpc_elastic: setup line failed (status 1): false\n")
            return super().query(job_ids)

    RunWatch(run.layout, EndingScheduler(JobState.FAILED)).look()
    result = read(run.layout.result)
    assert (result["reason"], result["exit_code"]) == ("setup_failed", 3)
    assert result["cause"].endswith("setup line failed (status 1): false")


def test_silent_agents_get_sixty_seconds(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1), Clock()
    run_watch = RunWatch(run.layout, TellingScheduler(JobState.FAILED), clock=clock)
    states = []
    for _ in range(8):
        states.append(run_watch.look().state)
        clock.sleep(10.0)
    assert states[:6] == [RunState.RUNNING] * 6
    assert states[6:] == [RunState.FAILED] * 2
    assert (read(run.layout.result)["attempts"], read(run.layout.result)["nodes"]) == (1, ["node1", "node2"])


@pytest.mark.parametrize("state", [JobState.NODE_FAIL, JobState.CANCELLED, JobState.TIMEOUT, JobState.FAILED])
@pytest.mark.parametrize("is_named", [True, False], ids=["", "the head died before the roster had its name"])
def test_a_run_whose_ranks_have_all_exited_0_has_succeeded_whatever_ended_its_job(
    tmp_path: Path, state: JobState, is_named: bool
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.open_attempt(2, restarts=1, roles={"default": 2})
    for node in ("node1", "node2"):
        run.end_node(2, node, state=WorkerState.SUCCEEDED)
    if not is_named:
        os.rename(run.layout.world(2), run.layout.proposed_world(2, "node1"))
    make_old(run.layout)
    assert RunWatch(run.layout, TellingScheduler(state)).look().state is RunState.SUCCEEDED
    result = read(run.layout.result)
    assert (result["exit_code"], result["reason"], result["cause"]) == (0, "succeeded", "every rank exited 0")
    assert (result["attempts"], result["restarts"], result["return_values"]) == (2, 1, {})


def test_the_result_of_a_function_whose_ranks_have_all_returned_names_what_they_returned(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    (role,) = run.plan.roles
    function = replace(role, entrypoint=EntrypointPlan(kind="function", target="train"))
    Path(run.layout.plan).write_text(dump_plan(replace(run.plan, roles=(function,))))
    for node in ("node1", "node2"):
        run.end_node(1, node, state=WorkerState.SUCCEEDED)
    make_old(run.layout)
    RunWatch(run.layout, TellingScheduler(JobState.NODE_FAIL)).look()
    values = read(run.layout.result)["return_values"]
    assert values == {str(rank): f"attempts/0001/ranks/{rank:05}/return_value.pkl" for rank in range(4)}


@pytest.mark.parametrize("last", [WorkerState.STOPPED, WorkerState.FAILED, None])
def test_a_run_of_which_one_node_has_not_finished_has_not_succeeded(tmp_path: Path, last: WorkerState | None) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.end_node(1, "node1", state=WorkerState.SUCCEEDED)
    if last is not None:
        run.end_node(1, "node2", state=last)
    make_old(run.layout)
    assert RunWatch(run.layout, TellingScheduler(JobState.NODE_FAIL)).look().state is RunState.FAILED


@pytest.mark.parametrize(("number", "is_over"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_silent_agents_get_no_time_to_write_where_nothing_can_be_written_for_want_of_space(
    tmp_path: Path, number: int, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    refuse_writes(monkeypatch, run.layout.root, number)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.FAILED)).look()
    assert snapshot.state is (RunState.FAILED if is_over else RunState.RUNNING)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_directory_that_refuses_writes_is_the_cause_where_the_agents_could_not_even_say_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.script_output("42")).write_text("hpc_elastic: run directory\n")
    refuse_writes(monkeypatch, run.layout.root, number)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.FAILED)).look()
    assert (snapshot.state, snapshot.exit_code, snapshot.reason) == (RunState.FAILED, 5, "agent_failed")
    assert snapshot.cause == f"cannot write {run.layout.root}: {os.strerror(number)}, and no agent wrote a result"


def test_silent_agents_get_no_time_to_write_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    full_disk(monkeypatch, run.layout.root)
    assert RunWatch(run.layout, TellingScheduler(JobState.FAILED)).look().state is RunState.FAILED


def test_one_look_settles_a_run_where_nothing_was_written_for_long(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    make_old(run.layout)
    assert RunWatch(run.layout, TellingScheduler(JobState.NODE_FAIL)).look().state is RunState.FAILED


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_result_that_cannot_be_written_is_shown_until_it_can(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    said = f"cannot write {run.layout.root}/attempts/0002/.world.node1.json: {os.strerror(number)}"
    Path(run.layout.agent_output("node1")).write_text(complaint(said, ("42", 0)) + "\n")
    make_old(run.layout)
    run_watch = RunWatch(run.layout, TellingScheduler(JobState.FAILED))
    with monkeypatch.context() as patch:
        refuse_writes(patch, run.layout.root, number)
        seen = [run_watch.look(), run_watch.look(), RunWatch(run.layout, TellingScheduler(JobState.FAILED)).look()]
    for snapshot in seen:
        assert (snapshot.state, snapshot.exit_code, snapshot.cause) == (RunState.FAILED, 5, said)
        assert f"could not be written: cannot write {run.layout.result}: {os.strerror(number)}" in str(snapshot.note)
        assert ("free some space" in str(snapshot.note)) == (number != errno.EACCES)
    assert len({snapshot.ended for snapshot in seen}) == 1
    assert not Path(run.layout.result).exists()
    written = run_watch.look()
    assert (written.state, written.cause, written.note) == (RunState.FAILED, said, None)
    assert read(run.layout.result)["cause"] == said


def test_a_job_that_starts_again_is_not_over_though_its_result_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1), Clock()
    make_old(run.layout)
    scheduler = TellingScheduler(JobState.FAILED)
    run_watch = RunWatch(run.layout, scheduler, clock=clock)
    refuse_writes(monkeypatch, run.layout.root)
    assert run_watch.look().state is RunState.FAILED
    scheduler.state = JobState.PENDING
    clock.sleep(11.0)
    assert run_watch.look().state is RunState.REQUEUED


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.NODE_FAIL])
def test_result_of_an_agent_that_came_late_counts(tmp_path: Path, state: JobState) -> None:
    """Also where Slurm says something else: who ends the job of a lost batch host cancels it."""
    run, clock = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1), Clock()
    run_watch = RunWatch(run.layout, TellingScheduler(state), clock=clock)
    assert not run_watch.look().is_over
    run.end()
    clock.sleep(100.0)
    assert run_watch.look().state is RunState.SUCCEEDED
    assert read(run.layout.result)["written_by"] == "node1"


def test_job_that_runs_again_is_not_over(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1), Clock()
    scheduler = TellingScheduler(JobState.GONE)
    run_watch = RunWatch(run.layout, scheduler, clock=clock)
    run_watch.look()
    scheduler.state = JobState.PENDING
    clock.sleep(100.0)
    assert run_watch.look().state is RunState.REQUEUED
    scheduler.state = JobState.FAILED
    clock.sleep(11.0)
    assert run_watch.look().state is RunState.RUNNING  # its sixty seconds begin again


def test_nothing_settles_if_the_scheduler_is_silent(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()
    make_old(run.layout)
    snapshot = RunWatch(run.layout, SilentScheduler()).look()
    assert snapshot.state is RunState.PENDING
    assert not Path(run.layout.result).exists()


HERE = os.uname().nodename
NAMED = {"SLURM_CLUSTERS": "big"}


@pytest.mark.parametrize(
    ("host", "selected_by", "shell", "is_over"),
    [
        (HERE, {}, {}, True),
        ("login1", {}, {}, False),  # another cluster that shares the file system, or another login node of this one
        (HERE, NAMED, {}, True),  # the cluster that is asked is the one of the record
        (HERE, {}, NAMED, True),
        ("login1", {}, NAMED, False),
        ("login1", NAMED, {"SLURM_CLUSTERS": "other"}, True),
        (HERE, {}, {"SLURM_CONF": "/opt/other/slurm.conf"}, False),
        ("login1", NAMED, NAMED, True),
    ],
)
def test_a_job_that_this_slurm_does_not_know_is_over_if_it_is_the_one_that_got_it(
    host: str,
    selected_by: dict[str, str],
    shell: dict[str, str],
    is_over: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result that a look on another cluster writes refuses the start of a job that waits, and ends one that runs."""
    for name in ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SBATCH_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    run = RunBuilder(tmp_path / "run").submit(host=host, selected_by=selected_by)
    make_old(run.layout)
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.GONE)).look()
    assert snapshot.is_over is Path(run.layout.result).exists() is is_over
    if not is_over:
        assert f"does not know job 42; it was submitted on {host}" in (snapshot.note or "")
        run.request_stop()
        assert RunWatch(run.layout, TellingScheduler(JobState.GONE)).look().state is RunState.CANCELLED


def test_another_users_job_that_slurm_does_not_show_is_not_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `PrivateData` has jobs, Slurm shows everybody but operators their own jobs alone."""
    run = RunBuilder(tmp_path / "run").submit(host=HERE)
    make_old(run.layout)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.GONE)).look()
    assert snapshot.state is RunState.PENDING
    assert snapshot.note == (
        "the state is from the run directory alone: Slurm shows you no job 42, which is ada's; it may hide it from you"
    )
    assert not Path(run.layout.result).exists()


def test_what_a_job_of_another_cluster_came_to_is_not_the_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Slurm, or its accounting of years, knows another job by the id of a run that waits or runs elsewhere."""
    for name in ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SBATCH_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho 'nightly|/home/ada|'\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    run = RunBuilder(tmp_path / "run").submit(host="login1")
    make_old(run.layout)
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.COMPLETED)).look()
    assert snapshot.state is RunState.PENDING
    assert "does not know job 42; it was submitted on login1" in (snapshot.note or "")
    assert not Path(run.layout.result).exists()


def test_a_job_whose_submission_is_not_recorded_is_over_when_it_is_gone(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").allocate(job_id="42")
    make_old(run.layout)
    assert RunWatch(run.layout, TellingScheduler(JobState.GONE)).look().is_over


def test_a_job_that_this_slurm_has_known_before_is_over_when_it_is_gone(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit(), Clock()
    scheduler = TellingScheduler(JobState.PENDING)
    run_watch = RunWatch(run.layout, scheduler, clock=clock)
    assert not run_watch.look().is_over
    make_old(run.layout)
    clock.sleep(100.0)
    scheduler.state = JobState.GONE
    assert run_watch.look().is_over


def test_cause_quotes_the_last_line_of_a_script_that_failed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit(host=HERE)
    run.start_script("loading\nhpc_elastic: setup line failed (status 1): module load cuda/99\n\n")
    snapshot = RunWatch(run.layout, TellingScheduler(JobState.GONE)).look()
    assert snapshot.exit_code == 3
    assert snapshot.cause is not None
    assert snapshot.cause.endswith("setup line failed (status 1): module load cuda/99")


@pytest.mark.parametrize(("begun", "why"), [(1, "and Slurm killed it before"), (2, "and no agent wrote a result")])
def test_a_script_that_has_begun_again_was_started_again_which_accounting_does_not_tell(
    begun: int, why: str, tmp_path: Path
) -> None:
    """Some minutes after the end of a job only sacct knows it, and that counts no restarts."""
    run = RunBuilder(tmp_path / "run").submit()
    run.start_script("hpc_elastic: run directory /run\nsetup\n" * begun)
    run.allocate().open_attempt(1).end_allocation(1, "preempted")
    clock = Clock()
    run_watch = RunWatch(run.layout, TellingScheduler(JobState.TIMEOUT), clock=clock)
    run_watch.look()
    clock.sleep(2 * SETTLE_S)
    assert (run_watch.look().cause or "").startswith(f"the time limit ended the job, {why}")


def test_watch_ends_with_the_run(tmp_path: Path) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate(), Clock()
    looks = []
    for snapshot in watch(RunWatch(run.layout, None, clock=clock), sleep=clock.sleep):
        looks.append(snapshot.state)
        if len(looks) == 3:
            run.end()
    assert looks == [RunState.RUNNING] * 3 + [RunState.SUCCEEDED]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
def test_a_watch_outlives_a_file_server_that_fails_for_two_minutes_and_no_other_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate(), Clock()
    looks: list[tuple[float, RunState]] = []
    really_scan = os.scandir

    def scan(path: str) -> Any:
        if 1010 <= clock.now < 1130:
            raise OSError(number, os.strerror(number), path)
        return really_scan(path)

    monkeypatch.setattr(os, "scandir", scan)
    try:
        for snapshot in watch(RunWatch(run.layout, None, clock=clock), sleep=clock.sleep, pause_s=5):
            looks.append((clock.now, snapshot.state))
            if clock.now > 1130:
                run.end()
    except FileSystemError:
        assert number == errno.EACCES
        assert looks == [(1000, RunState.RUNNING), (1005, RunState.RUNNING)]
    else:
        assert number != errno.EACCES
        assert [at for at, _ in looks] == [1000, 1005, 1130, 1135, 1140]
        assert looks[-1][1] is RunState.SUCCEEDED


@pytest.mark.parametrize("is_back", [True, False], ids=["moved for a minute", "removed"])
def test_a_watch_of_a_run_directory_that_is_gone_waits_for_it_and_then_ends_with_an_error(
    is_back: bool, tmp_path: Path
) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate(), Clock()
    root, moved = Path(run.layout.root), tmp_path / "moved"

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if is_back and clock.now == 1060:
            moved.rename(root)

    snapshots = watch(RunWatch(run.layout, None, clock=clock), sleep=sleep, pause_s=5)
    assert next(snapshots).state is RunState.RUNNING
    root.rename(moved)
    if is_back:
        assert [next(snapshots).state, clock.now] == [RunState.RUNNING, 1060]
        run.end()
        assert next(snapshots).state is RunState.SUCCEEDED
    else:
        with pytest.raises(FileSystemError) as caught:
            next(snapshots)
        assert caught.value.message == f"{root} is gone: it was moved or removed"
        assert "move it back" in str(caught.value.tip)
        assert clock.now == 1000 + PATIENCE_S


def test_a_watch_ends_with_the_error_of_a_file_server_that_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = RunBuilder(tmp_path / "run").submit().allocate(), Clock()
    snapshots = watch(RunWatch(run.layout, None, clock=clock), sleep=clock.sleep, pause_s=5)
    next(snapshots)

    def scan(path: str) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(FileSystemError, match="Input/output error"):
        next(snapshots)
    assert clock.now == 1000 + PATIENCE_S
