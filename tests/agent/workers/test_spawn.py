"""Starting real worker processes: all of a node's, or none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.system.processes import Marks, find_workers
from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.spawn import SpawnedWorker, StartFailedError, WorkerOrder, spawn_workers
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from tests.agent.conftest import SLEEP, SPAWNER, marks_of
from tests.nfs_client import NfsClient


def an_order(root: Path, source: str, *, rank: int = 0) -> WorkerOrder:
    return WorkerOrder(
        rank=rank,
        local_rank=rank,
        attempt=1,
        kind="command",
        target=sys.executable,
        arguments=["-c", source],
        environment={**os.environ, **marks_of(root)},
        directory=str(root),
    )


def end_of(worker: SpawnedWorker) -> int:
    os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOWAIT)
    return worker.collect()


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "exitcode"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(255)", 255),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_exit_code_is_negative_for_a_signal(tmp_path: Path, source: str, exitcode: int) -> None:
    (worker,) = spawn_workers([an_order(tmp_path, source)], RunLayout(tmp_path), SPAWNER)
    assert end_of(worker) == exitcode


@pytest.mark.parametrize(
    ("variables", "printed"),
    [({}, "step 1"), ({"PYTHONUNBUFFERED": ""}, "")],
    ids=["by default", "unless it is asked to"],
)
def test_a_worker_holds_no_output_back(tmp_path: Path, variables: dict[str, str], printed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('step', 1, end='')\nos.kill(os.getpid(), 9)\n")
    order = replace(an_order(tmp_path, ""), kind="script", target=str(script), arguments=[])
    environment = {name: value for name, value in order.environment.items() if name != "PYTHONUNBUFFERED"}
    order = replace(order, environment={**environment, **variables})
    (worker,) = spawn_workers([order], RunLayout(tmp_path), SPAWNER)
    assert end_of(worker) == -9
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == printed


@pytest.mark.long
def test_a_worker_has_its_own_session_files_and_folder(tmp_path: Path) -> None:
    source = "import os, sys; print(os.getsid(0) == os.getpid(), os.getcwd()); print(sys.stdin.read(), file=sys.stderr)"
    (worker,) = spawn_workers([an_order(tmp_path, source)], RunLayout(tmp_path), SPAWNER)
    assert end_of(worker) == 0
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == f"True {tmp_path}\n"
    assert Path(RunLayout(tmp_path).stderr(1, 0)).read_text() == "\n"


@pytest.mark.long
def test_a_worker_inherits_no_file_of_the_agents(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file:
        os.set_inheritable(file.fileno(), False)
        source = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:4])"
        (worker,) = spawn_workers([an_order(tmp_path, source)], RunLayout(tmp_path), SPAWNER)
        end_of(worker)
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == "[0, 1, 2, 3]\n"  # 3: the listing itself


def test_none_is_left_if_one_cannot_be_started(tmp_path: Path) -> None:
    orders = [an_order(tmp_path, SLEEP), replace(an_order(tmp_path, "", rank=1), directory=str(tmp_path / "gone"))]
    with pytest.raises(StartFailedError, match=f"^No such file or directory: {tmp_path}/gone$") as caught:
        spawn_workers(orders, RunLayout(tmp_path), SPAWNER)
    assert (caught.value.order.rank, caught.value.is_passing) == (1, True)
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))


def test_no_worker_is_left_that_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("hpc_elastic.agent.system.children.os.pidfd_open", no_descriptor)
    with pytest.raises(StartFailedError, match="Too many open files"):
        spawn_workers([an_order(tmp_path, SLEEP)], RunLayout(tmp_path), SPAWNER)
    monkeypatch.undo()
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))


def test_a_stream_that_is_not_redirected_is_the_agents_own(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = "import sys; print('to out'); print('to err', file=sys.stderr)"
    order = replace(an_order(tmp_path, source), destinations=LogDestinations(redirected=Std.OUT))
    (worker,) = spawn_workers([order], RunLayout(tmp_path), SPAWNER)
    assert end_of(worker) == 0
    assert capfdbinary.readouterr() == (b"", b"to err\n")
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == "to out\n"
    assert not Path(RunLayout(tmp_path).stderr(1, 0)).exists()


@pytest.mark.long
def test_a_stream_that_is_dropped_is_nowhere(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source = "import sys; print('to out'); print('to err', file=sys.stderr)"
    destinations = LogDestinations(redirected=Std.ERR, dropped=Std.OUT)
    (worker,) = spawn_workers(
        [replace(an_order(tmp_path, source), destinations=destinations)], RunLayout(tmp_path), SPAWNER
    )
    assert end_of(worker) == 0
    assert capfdbinary.readouterr() == (b"", b"")
    assert Path(RunLayout(tmp_path).stderr(1, 0)).read_text() == "to err\n"
    assert not Path(RunLayout(tmp_path).stdout(1, 0)).exists()


@pytest.mark.long
def test_a_worker_finds_the_checkpoint_that_the_last_one_looked_for_in_vain_on_an_nfs_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    run_dir, project = tmp_path / "run", tmp_path / "project"
    with client.written_elsewhere():
        run_dir.mkdir()
        project.mkdir()
    checkpoints = (run_dir / "checkpoint", project / "checkpoint")
    assert not any(path.exists() for path in checkpoints)
    with client.written_elsewhere():
        for path in checkpoints:
            path.touch()
    assert not any(path.exists() for path in checkpoints)
    (worker,) = spawn_workers([replace(an_order(project, "pass"), directory=str(project))], RunLayout(run_dir), SPAWNER)
    assert end_of(worker) == 0
    assert all(path.exists() for path in checkpoints)


def test_output_of_an_earlier_try_stays(tmp_path: Path) -> None:
    for _ in range(2):
        (worker,) = spawn_workers([an_order(tmp_path, "print('again')")], RunLayout(tmp_path), SPAWNER)
        assert end_of(worker) == 0
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == "again\nagain\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "tail"),
    [
        ("print('KeyError: 17')", "KeyError: 17\n"),
        ("import sys; print('step 4'); print('KeyError: 17', file=sys.stderr)", "KeyError: 17\n"),
    ],
    ids=["joined", "apart"],
)
def test_the_last_words_of_a_command_that_joins_its_streams_are_in_standard_output(
    tmp_path: Path, source: str, tail: str
) -> None:
    order, layout = an_order(tmp_path, source), RunLayout(tmp_path)
    (worker,) = spawn_workers([order], layout, SPAWNER)
    end_of(worker)
    assert order.stderr_tail(layout) == tail
    script = replace(order, kind="script")
    assert script.stderr_tail(layout) == ("" if "stderr" not in source else tail)
