"""The program that writes, forces to disk and reads back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.agent.health import probe

NO_LIMIT = 0


def test_a_good_directory_is_left_as_it_was(tmp_path: Path) -> None:
    assert probe.find_problem(str(tmp_path), "probe", NO_LIMIT, 0.0) == ""
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_told_with_what_is_expected(tmp_path: Path) -> None:
    problem = probe.find_problem(str(tmp_path), "probe", 2**60, 0.0)
    assert problem.startswith(f"{tmp_path} has ")
    assert problem.endswith(f"MiB free, expected at least {2**40} MiB")


def test_other_data_than_was_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda *_: b"other")
    assert (
        probe.find_problem(str(tmp_path), "probe", NO_LIMIT, 0.0)
        == f"{tmp_path} gives back other data than was written"
    )


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data[:1000])))
    assert probe.find_problem(str(tmp_path), "probe", NO_LIMIT, 0.0) == ""


@pytest.mark.parametrize(("number", "tries"), [(errno.ENOSPC, 3), (errno.ESTALE, 3), (errno.EROFS, 1)])
def test_an_error_that_may_pass_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, tries: int
) -> None:
    fsync, left = os.fsync, [0, number, number]

    def fail(descriptor: int) -> None:
        if error := left.pop():
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    found = probe.find_problem(str(tmp_path), "probe", 1, 60.0, again_after_s=0.001)
    assert found == ("" if tries == 3 else f"{tmp_path} cannot be written: Read-only file system")
    assert len(left) == 3 - tries
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_system_is_no_fault_of_one_node_if_all_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    assert probe.find_problem(str(tmp_path), "probe", NO_LIMIT, 0.0) == ""
    assert "No space left" in probe.find_problem(str(tmp_path), "probe", 1, 0.0)


def test_it_runs_without_this_package(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", probe.__file__, str(tmp_path / "none"), "probe", "0", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, f"{tmp_path}/none cannot be written: No such file or directory")
