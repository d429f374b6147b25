from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import FileSystemError, SchedulerError
from hpc_elastic.processes import find_process, has_variable, living_processes, send_signal
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.local.scheduler import LocalScheduler
from hpc_elastic.scheduler.local.step import JOB_ID_VARIABLE
from hpc_elastic.scheduler.protocol import JobState
from tests.plans import make_run_plan
from tests.slurm_sandbox.sandbox import wait_until

OWN_JOB_ID = 'start=$(cut -d")" -f2- /proc/$$/stat | cut -d" " -f21); id=local-$$-$start\n'

Submit = Callable[[str], str]


@pytest.fixture
def scheduler() -> LocalScheduler:
    return LocalScheduler(kill_wait_s=10)


@pytest.fixture
def submit(tmp_path: Path, scheduler: LocalScheduler) -> Submit:
    """Submits a script with these lines; the run directory has a space in its path."""

    def submit_lines(lines: str) -> str:
        root = tmp_path / "a run"
        root.mkdir(exist_ok=True)
        (root / "job.sh").write_text(lines)
        return scheduler.submit(make_run_plan(root), str(root / "job.sh"))

    return submit_lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a run"


def wait_for(scheduler: LocalScheduler, job_id: str, state: JobState) -> None:
    wait_until(lambda: scheduler.query([job_id])[job_id].state is state, f"{job_id} is {state}", within_s=20)


def output_of(root: Path, job_id: str) -> str:
    return Path(RunLayout(root).script_output(job_id)).read_text()


def said(root: Path, job_id: str, word: str) -> None:
    wait_until(lambda: word in output_of(root, job_id), f"the script has said {word!r}", within_s=20)


def test_folders_of_checkpoints_are_no_tasks_that_wait(submit: Submit, scheduler: LocalScheduler, root: Path) -> None:
    (root / "100").mkdir(parents=True)
    job_id = submit("echo started; exec sleep 605")
    said(root, job_id, "started")
    scheduler.cancel(job_id)
    assert os.listdir(root / "100") == []


def test_gives_the_job_id_that_the_script_computes(submit: Submit, scheduler: LocalScheduler, root: Path) -> None:
    job_id = submit(OWN_JOB_ID + 'echo "id=$id"; pwd; cat; echo error >&2')
    wait_for(scheduler, job_id, JobState.COMPLETED)
    assert output_of(root, job_id) == f"id={job_id}\n{root}\nerror\n"
    assert sorted(os.listdir(root)) == ["job.sh", f"{job_id}.out"]


def test_output_is_in_place_before_the_script_starts(submit: Submit, scheduler: LocalScheduler, root: Path) -> None:
    job_id = submit(OWN_JOB_ID + 'test -e "$id.out" && echo there')
    wait_for(scheduler, job_id, JobState.COMPLETED)
    assert output_of(root, job_id) == "there\n"


def test_starts_the_script_in_a_session_of_its_own(submit: Submit, scheduler: LocalScheduler, root: Path) -> None:
    job_id = submit("echo started; exec sleep 600")
    said(root, job_id, "started")
    process = find_process(int(job_id.split("-")[1]))
    assert process is not None
    assert process.session == process.pid
    scheduler.cancel(job_id)


@pytest.mark.parametrize(
    ("lines", "state", "exit_code"),
    [
        ("exit 0", JobState.COMPLETED, "0:0"),
        ("exit 3", JobState.FAILED, "3:0"),
        ("kill -KILL $$", JobState.FAILED, "0:9"),
    ],
)
def test_query_knows_the_exit_code_of_its_child(
    submit: Submit, scheduler: LocalScheduler, lines: str, state: JobState, exit_code: str
) -> None:
    job_id = submit(lines)
    wait_for(scheduler, job_id, state)
    assert scheduler.query([job_id])[job_id].exit_code == exit_code


def test_a_later_question_collects_the_process_of_a_job_that_is_over(
    submit: Submit, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = LocalScheduler._start

    def start_and_await_the_end(scheduler: LocalScheduler, *arguments: Any) -> str:
        job_id = start(scheduler, *arguments)
        os.waitid(os.P_PID, int(job_id.split("-")[1]), os.WEXITED | os.WNOWAIT)
        return job_id

    monkeypatch.setattr(LocalScheduler, "_start", start_and_await_the_end)  # nor does the submission collect it
    job_id = submit("exit 3")
    pid = int(job_id.split("-")[1])
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "it has ended")
    LocalScheduler().query(["local-1-1"])
    assert not Path(f"/proc/{pid}").exists()
    assert scheduler.query([job_id])[job_id].exit_code == "3:0"


def test_job_outlives_its_submitter(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo started; exec sleep 600")
    program = (
        "import sys; from hpc_elastic.scheduler.local.scheduler import LocalScheduler\n"
        "print(LocalScheduler().submit(None, sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(script)], capture_output=True, text=True, check=True)
    job_id = done.stdout.strip()
    scheduler = LocalScheduler(run_dir=str(tmp_path))
    assert scheduler.query([job_id])[job_id].state is JobState.RUNNING
    scheduler.cancel(job_id)
    assert scheduler.query([job_id])[job_id].state is JobState.GONE
    (tmp_path / "exit_code").write_text("10\n")
    status = scheduler.query([job_id])[job_id]
    assert (status.state, status.exit_code) == (JobState.FAILED, "10:0")


def test_job_does_not_inherit_another_jobs_identity(
    submit: Submit, scheduler: LocalScheduler, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("MINE", "kept")
    job_id = submit("env")
    wait_for(scheduler, job_id, JobState.COMPLETED)
    assert {"MINE=kept"} == {"RANK=3", "SLURM_JOB_ID=7", "MINE=kept"} & set(output_of(root, job_id).splitlines())


def test_query_says_gone_if_the_number_belongs_to_another_process(scheduler: LocalScheduler) -> None:
    mine = find_process(os.getpid())
    assert mine is not None
    ids = [f"local-{mine.pid}-{mine.start - 1}", "local-1-0", "4711", "local-x-1"]
    assert [scheduler.query([job_id])[job_id].state for job_id in ids] == [JobState.GONE] * 4


def test_query_says_completing_if_only_the_script_is_dead(
    submit: Submit, scheduler: LocalScheduler, root: Path
) -> None:
    job_id = submit("sleep 600 & echo started; wait")
    said(root, job_id, "started")
    os.kill(int(job_id.split("-")[1]), signal.SIGKILL)
    wait_for(scheduler, job_id, JobState.COMPLETING)
    scheduler.cancel(job_id)
    assert scheduler.query([job_id])[job_id].state is JobState.FAILED


def test_cancel_lets_the_session_end_by_itself(submit: Submit, scheduler: LocalScheduler, root: Path) -> None:
    job_id = submit("trap 'echo term; exit 10' TERM; sleep 600 & echo started; wait")
    said(root, job_id, "started")
    scheduler.cancel(job_id)
    status = scheduler.query([job_id])[job_id]
    assert (status.state, status.exit_code) == (JobState.FAILED, "10:0")
    assert output_of(root, job_id) == "started\nterm\n"


def test_cancel_kills_what_does_not_end(submit: Submit, root: Path) -> None:
    """One ignores TERM, one has a session of its own, one is a lost grandchild with the job's id."""
    job_id = submit(
        OWN_JOB_ID + "trap '' TERM\n"
        "sleep 601 &\n"
        "setsid sleep 602 &\n"
        f"({JOB_ID_VARIABLE}=$id setsid bash -c 'trap \"\" TERM; sleep 603 & sleep 604' &)\n"
        "while [ $(pgrep -c -f '^sleep 60[1234]$') -lt 4 ]; do :; done; echo started; wait"
    )
    said(root, job_id, "started")
    LocalScheduler(kill_wait_s=0.05).cancel(job_id)
    assert LocalScheduler().query([job_id])[job_id].state is JobState.GONE
    left = [process for process in living_processes() if has_variable(process, "PWD", str(root))]
    assert left == []


def test_cancel_is_fine_if_the_job_is_over(submit: Submit, scheduler: LocalScheduler) -> None:
    job_id = submit("true")
    wait_for(scheduler, job_id, JobState.COMPLETED)
    scheduler.cancel(job_id)
    scheduler.cancel("local-1-0")


def test_submit_rejects_a_script_in_no_directory(scheduler: LocalScheduler, tmp_path: Path) -> None:
    with pytest.raises(FileSystemError, match=r"cannot write .*/nowhere: No such file or directory"):
        scheduler.submit(make_run_plan(tmp_path), str(tmp_path / "nowhere" / "job.sh"))


def test_submit_says_that_there_is_no_bash_and_leaves_nothing(
    submit: Submit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(SchedulerError, match=r"cannot start bash .*No such file or directory"):
        submit("true")
    assert [path.name for path in root.iterdir()] == ["job.sh"]


def test_signal_does_not_reach_a_namesake() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = find_process(child.pid)
        assert process is not None
        earlier = type(process)(
            pid=process.pid, parent=process.parent, session=process.session, start=process.start - 1, is_alive=True
        )
        send_signal(earlier, signal.SIGKILL)
        send_signal(process, signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("call", ["open", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_directory_that_refuses_the_scripts_output_is_named_and_nothing_is_started(
    number: int, call: str, submit: Submit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *more: object) -> int:
        if str(root) in path:
            raise OSError(number, os.strerror(number), path)
        return int(really(path, *more) or 0)

    def own_children() -> set[int]:
        return {child.pid for child in living_processes() if child.parent == os.getpid() and child.is_alive}

    before = own_children()  # of other tests
    really = getattr(os, call)
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(FileSystemError) as caught:
        submit("echo began; touch began\n")
    assert caught.value.message.startswith(f"cannot write {root}")
    assert caught.value.message.endswith(os.strerror(number))
    assert "--run-dir" in str(caught.value.tip)
    assert [path.name for path in root.iterdir()] == ["job.sh"]
    wait_until(lambda: own_children() <= before, "the launcher has ended", within_s=20)
