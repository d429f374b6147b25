"""Stopping a run: asked for first, forced second, bounded always."""

from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.processes import find_process
from hpc_elastic.rundir import store
from hpc_elastic.rundir.states import RunState
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder, refuse_writes

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run", grace_s=-14.0).submit()  # with the reaction time: one second


def answer_requests(run: RunBuilder, stopped: threading.Event) -> None:
    """A head that does what it is asked for."""
    while not stopped.wait(0.02):
        if list(store.read_lines(run.layout.requests)):
            run.end(RunState.CANCELLED, exit_code=10, reason="stop_requested", cause="cancelled by ada@login1")
            return


def test_pending_run_leaves_the_queue_and_gets_its_result(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main(["cancel", run.layout.root]) == 0
    assert fake_slurm.calls("scancel") == ["scancel 42"]
    result = json.loads(Path(run.layout.result).read_text())
    assert (result["state"], result["reason"], result["exit_code"]) == ("CANCELLED", "stop_requested", 10)
    assert "digits ended: CANCELLED" in capsys.readouterr().out


@pytest.mark.long
def test_running_run_is_asked_and_the_scheduler_left_alone(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    stopped = threading.Event()
    head = threading.Thread(target=answer_requests, args=(run, stopped))
    head.start()
    try:
        assert main(["cancel", run.layout.root]) == 0
    finally:
        stopped.set()
        head.join()
    assert fake_slurm.calls("scancel") == []
    (request,) = store.read_lines(run.layout.requests)
    assert (request["kind"], request["reason"]) == ("stop", "hpc-elastic cancel")
    assert "cancelled by ada@login1" in capsys.readouterr().out


@pytest.mark.long
def test_run_that_does_not_react_is_cancelled_by_the_scheduler(run: RunBuilder, fake_slurm: FakeSlurm) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    fake_slurm.script(
        "scancel",
        f"""cat >{run.layout.result} <<'EOF'
{{"state": "CANCELLED", "exit_code": 10, "cause": "TERM"}}
EOF""",
    )
    assert main(["cancel", run.layout.root]) == 0
    assert fake_slurm.calls("scancel") == ["scancel 42"]


def test_job_that_waits_to_be_completed_before_it_starts_again_is_cancelled_at_once(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run.allocate().open_attempt(1).end_allocation(1, "node_lost")
    fake_slurm.say("COMPLETING")  # also after the cancel
    fake_slurm.script("scancel", "exit 0")
    assert main(["cancel", run.layout.root]) == 0
    assert fake_slurm.calls("scancel") == ["scancel 42"]
    said = capsys.readouterr()
    assert "digits ended: CANCELLED, the job was cancelled while the run waited to start again" in said.out
    assert "asked digits to stop" not in said.err
    assert json.loads(Path(run.layout.result).read_text())["state"] == "CANCELLED"


@pytest.mark.long
def test_cancel_that_slurm_has_accepted_does_not_wait_for_a_node_that_does_not_answer(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.say("COMPLETING")  # also after the cancel
    fake_slurm.script("scancel", "exit 0")
    assert main(["cancel", run.layout.root]) == 0
    assert fake_slurm.calls("scancel") == ["scancel 42"]
    said = " ".join(capsys.readouterr().out.split())
    assert "digits is cancelled; Slurm still ends job 42 (COMPLETING" in said
    assert "`hpc-elastic status 42` says when it is over" in said
    assert not os.path.exists(run.layout.result)


@pytest.mark.parametrize(("number", "is_cancelled"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_run_whose_disk_is_full_is_cancelled_by_the_scheduler_at_once(
    run: RunBuilder,
    fake_slurm: FakeSlurm,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    is_cancelled: bool,
) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    fake_slurm.script(
        "scancel", f'echo \'{{"state": "CANCELLED", "exit_code": 10, "cause": "TERM"}}\' >{run.layout.result}'
    )
    refuse_writes(monkeypatch, run.layout.root, number)
    assert main(["cancel", run.layout.root]) == (0 if is_cancelled else 5)
    assert fake_slurm.calls("scancel") == ["scancel 42"] * is_cancelled
    said = capsys.readouterr()
    assert f"cannot write {run.layout.requests}: {os.strerror(number)}" in said.out + said.err
    assert ("; only the scheduler is told" in said.out + said.err) == is_cancelled
    assert "asked digits to stop" not in said.out + said.err


@pytest.mark.parametrize(
    ("number", "tip"),
    [
        (errno.EROFS, "call it on a machine where the run directory can be written"),
        (errno.EACCES, f"{pwd.getpwuid(os.getuid()).pw_name} may write it"),
    ],
)
def test_who_may_not_ask_a_run_is_told_who_may_or_where(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: int, tip: str
) -> None:
    def refuse(path: str, flags: int, *arguments: int) -> int:
        if path == run.layout.requests and flags & os.O_WRONLY:
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *arguments)

    run.allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    real_open = os.open
    monkeypatch.setattr(os, "open", refuse)
    assert main(["cancel", run.layout.root]) == 5
    said = capsys.readouterr().err
    assert tip in said
    assert "--run-dir" not in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_request_that_does_not_fit_on_the_disk_is_told_how_to_make_room(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    refuse_writes(monkeypatch, run.layout.root, number)
    assert main(["restart", run.layout.root]) == 5
    said = capsys.readouterr().err
    assert f"cannot write {run.layout.requests}: {os.strerror(number)}" in said
    assert "tip: free some space: the request is a line in this file; `hpc-elastic cancel` works without" in said


@pytest.fixture(params=["slurm", "local"])
def job_id(request: pytest.FixtureRequest) -> Iterator[str]:
    """A job of Slurm, and one of this machine, which is a process that nobody else ends."""
    if request.param == "slurm":
        yield "42"
        return
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as sleeper:
        process = find_process(sleeper.pid)
        assert process is not None
        yield f"local-{process.pid}-{process.start}"
        sleeper.kill()


@pytest.mark.long
def test_cancel_that_ended_the_job_succeeds_though_no_result_can_be_written(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch, job_id: str
) -> None:
    run = RunBuilder(tmp_path / "run", scheduler="local" if job_id.startswith("local") else "slurm")
    run.submit(job_id, host=os.uname().nodename).allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    refuse_writes(monkeypatch, run.layout.root)
    assert main(["cancel", run.layout.root]) == 0
    said = capsys.readouterr()
    assert "digits ended: CANCELLED, the job was cancelled and no agent could write a result" in said.out
    assert f"the result could not be written: cannot write {run.layout.result}: No space left on device" in said.err


@pytest.mark.parametrize(("state", "code"), [(RunState.CANCELLED, 0), (RunState.SUCCEEDED, 5)])
def test_run_that_is_over_is_left_as_it_is(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, state: RunState, code: int
) -> None:
    run.allocate().open_attempt(1).end(state, cause="it ended")
    assert main(["cancel", run.layout.root]) == code
    captured = capsys.readouterr()
    assert f"digits is over already: {state.value}, it ended" in captured.out + captured.err
    assert fake_slurm.calls("") == []
    assert Path(run.layout.requests).read_bytes() == b""


@pytest.mark.long
def test_allocation_of_a_foreground_run_is_never_cancelled(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run = RunBuilder(tmp_path / "foreground", grace_s=-14.0).submit(foreground=True).allocate().open_attempt(1)
    fake_slurm.say("RUNNING")
    assert main(["cancel", run.layout.root]) == 9
    assert "is not ours to cancel" in capsys.readouterr().err
    assert fake_slurm.calls("scancel") == []


def test_controller_that_does_not_answer_is_slurms_error(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_controller()
    assert main(["cancel", run.layout.root]) == 4
    assert "Unable to contact slurm controller" in capsys.readouterr().err


def test_refused_cancel_of_a_pending_run_tells_that_it_ends_when_it_starts_and_status_too(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_controller()
    assert main(["cancel", run.layout.root]) == 4
    assert "if job 42 starts, the run ends at once" in " ".join(capsys.readouterr().err.split())
    assert main(["status", run.layout.root]) == 0
    assert "a stop is asked for: the run ends as soon as its job starts" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_refused_cancel_of_a_run_that_runs_tells_that_its_agents_are_asked(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run.allocate().open_attempt(1)
    fake_slurm.no_controller()
    assert main(["cancel", run.layout.root]) == 4
    assert "the run ends as soon as its agents read it" in " ".join(capsys.readouterr().err.split())


def test_a_job_of_another_cluster_with_the_same_id_is_not_cancelled(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    """The clusters share the folder, and the run was submitted on a login node of the other one."""
    fake_slurm.script(
        "squeue",
        'case "$*" in *WorkDir*) echo "nightly|/home/ada|";; *) echo "42|42|PENDING|0|0||Priority|";; esac',
    )
    assert main(["cancel", run.layout.root]) == 9
    assert "job 42 of the Slurm that is asked here is another one" in capsys.readouterr().err
    assert fake_slurm.calls("scancel") == []
