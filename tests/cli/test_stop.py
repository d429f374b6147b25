"""`hpc-elastic stop`: the workers are told through the run directory, and Slurm is asked for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.api.run import Run
from hpc_elastic.cli.main import main
from hpc_elastic.errors import UsageError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.states import RunState
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, fake_slurm: FakeSlurm) -> RunBuilder:
    fake_slurm.say("RUNNING")
    return RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)


def stopped(run: RunBuilder) -> Callable[[], object]:
    return lambda: run.end(RunState.CANCELLED, exit_code=10, reason="stop_requested", cause="stopped by ada@login1")


@contextmanager
def a_head(run: RunBuilder, act: Callable[[], object]) -> Iterator[None]:
    """A head that acts once it has been asked."""
    is_over = threading.Event()

    def wait() -> None:
        while not is_over.wait(0.02):
            if list(store.read_lines(run.layout.requests)):
                act()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize(("options", "lead_s"), [([], 120.0), (["--lead", "10m"], 600.0)])
def test_the_workers_are_told_and_slurm_is_left_alone(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, options: list[str], lead_s: float
) -> None:
    with a_head(run, stopped(run)):
        assert main(["stop", *options, run.layout.root]) == 0
    (request,) = store.read_lines(run.layout.requests)
    told = {key: request[key] for key in ("kind", "reason", "seconds_left", "requeue", "allocation")}
    assert told == {
        "kind": "stop",
        "reason": "hpc-elastic stop",
        "seconds_left": lead_s,
        "requeue": False,
        "allocation": 1,
    }
    assert fake_slurm.calls("scancel") == []
    captured = capsys.readouterr()
    assert captured.out == "digits ended: CANCELLED, stopped by ada@login1\n"
    assert captured.err == f"told the workers of digits; they have {lead_s:g} s to save, then TERM and 60 s\n"


def test_a_requeue_returns_when_the_job_waits_to_start_again(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    with a_head(run, lambda: fake_slurm.say("PENDING", reason="BeginTime")):
        assert main(["stop", "--requeue", run.layout.root]) == 0
    (request,) = store.read_lines(run.layout.requests)
    assert request["requeue"] is True
    assert capsys.readouterr().out == "digits: this allocation has ended, and the run is REQUEUED, job 42\n"


@pytest.mark.long
def test_a_requeue_that_slurm_refuses_is_told_with_its_cause(run: RunBuilder, capsys: Capture) -> None:
    refused = "ada@login1 asked for another start of the job; Slurm does not start the job again: disabled"
    with a_head(run, lambda: run.end(RunState.FAILED, exit_code=7, reason="requeue_requested", cause=refused)):
        assert main(["stop", "--requeue", run.layout.root]) == 5
    assert f"digits ended: FAILED, {refused}" in capsys.readouterr().err


def test_a_requeue_is_refused_where_nothing_would_start_the_job_again(tmp_path: Path, capsys: Capture) -> None:
    run = RunBuilder(tmp_path / "here", scheduler="local").submit().allocate().open_attempt(1)
    with pytest.raises(UsageError, match="nothing starts a job of this machine again"):
        Run(run.layout.root).stop(requeue=True)
    foreground = RunBuilder(tmp_path / "foreground").submit(foreground=True).allocate().open_attempt(1)
    with pytest.raises(UsageError, match="which is not started again"):
        Run(foreground.layout.root).stop(requeue=True)
    assert [Path(each.layout.requests).read_bytes() for each in (run, foreground)] == [b"", b""]


def test_a_run_that_waits_in_the_queue_has_nobody_to_tell(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.say("PENDING", reason="Resources")
    assert main(["stop", run.layout.root]) == 5
    error = capsys.readouterr().err
    assert "digits is REQUEUED, and none of its workers runs" in error
    assert "hpc-elastic cancel" in error
    assert Path(run.layout.requests).read_bytes() == b""


def test_a_requeue_before_the_next_start_is_at_work_is_refused(run: RunBuilder, capsys: Capture) -> None:
    ended = {"kind": "requeue", "by": "node1", "time": "", "reason": "preempted", "allocation": 1}
    store.append_line(run.layout.requests, ended)
    assert main(["stop", "--requeue", run.layout.root]) == 5
    assert "allocation 1 of digits has ended, and in the next one no agent is at work yet" in capsys.readouterr().err
    assert len(list(store.read_lines(run.layout.requests))) == 1


@pytest.mark.long
def test_a_run_that_does_not_react_is_said_to_go_on(tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    fake_slurm.say("RUNNING")
    run = RunBuilder(tmp_path / "deaf", grace_s=-14.9).submit().allocate().open_attempt(1)
    assert main(["stop", "--lead", "0s", run.layout.root]) == 9
    assert "digits is still RUNNING" in capsys.readouterr().err
    assert fake_slurm.calls("scancel") == []


def test_a_time_that_is_none_is_refused(run: RunBuilder, capsys: Capture) -> None:
    assert main(["stop", "--lead", "soon", run.layout.root]) == 2
    assert "--lead: expected a duration" in capsys.readouterr().err


def test_a_run_that_is_over_is_left_as_it_is(run: RunBuilder, capsys: Capture) -> None:
    run.end(RunState.SUCCEEDED, cause="every rank exited 0")
    assert main(["stop", run.layout.root]) == 5
    assert "digits is over already" in capsys.readouterr().err
    assert Run(run.layout.root).stop().state is RunState.SUCCEEDED
    assert Path(run.layout.requests).read_bytes() == b""
