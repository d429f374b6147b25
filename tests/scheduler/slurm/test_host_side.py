from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.host_side import (
    HOST_PROCESS_VARIABLE,
    HOST_SIDE_VARIABLE,
    ask_host_side,
    enter,
    open_signals,
    run_from_node,
)

LAST = f"{HOST_PROCESS_VARIABLE}=7 8\0".encode()


def test_an_agent_takes_over_variables_of_any_content(tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(b"A=x=y\nz\0EMPTY=\0BAD=\xff\0" + LAST)
    environ = {"A": "of the image", "KEPT": "1"}
    enter(str(tmp_path), environ)
    assert environ == {
        "A": "x=y\nz",
        "EMPTY": "",
        "BAD": "\udcff",
        "KEPT": "1",
        HOST_PROCESS_VARIABLE: "7 8",
        HOST_SIDE_VARIABLE: str(tmp_path),
    }


@pytest.mark.parametrize("content", [b"", b"A=1\0B=", b"A=1\0" + LAST[:-1]])
def test_an_environment_that_a_full_disk_has_cut_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(content)
    environ: dict[str, str] = {}
    with pytest.raises(OSError, match="it is not complete; the disk of the node may be full"):
        enter(str(tmp_path), environ)
    assert environ == {}


def test_a_shell_outside_that_has_died_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "requests")  # nobody reads it
    with pytest.raises(SchedulerError, match="cannot run squeue outside of the image: the shell that has started"):
        ask_host_side(str(tmp_path), ["squeue"], timeout_s=20)
    assert os.listdir(tmp_path) == ["requests"]


def test_a_folder_that_is_gone_is_an_error_of_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_SIDE_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(SchedulerError, match="cannot run squeue outside of the image: No such file or directory"):
        run_from_node(["squeue"], environ={}, timeout_s=20)


def test_outside_of_an_image_a_command_runs_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOST_SIDE_VARIABLE, raising=False)
    assert run_from_node(["echo", "a b"], environ=os.environ, timeout_s=20).stdout == "a b\n"


def test_the_pipe_of_terms_is_opened_without_waiting_where_the_shell_outside_has_made_one(tmp_path: Path) -> None:
    environ = {HOST_SIDE_VARIABLE: str(tmp_path)}
    assert open_signals(environ) is None  # by a template that makes none
    assert open_signals({}) is None
    os.mkfifo(tmp_path / "terms")
    pipe = open_signals(environ)
    assert pipe is not None
    assert not os.get_blocking(pipe)
    os.close(pipe)
