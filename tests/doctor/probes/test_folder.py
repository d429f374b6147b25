"""The program that tries a folder, in real folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hpc_elastic.doctor.probes import folder
from hpc_elastic.doctor.probes.folder import find_kind, try_folder


def test_a_folder_that_is_well_has_no_problem_and_keeps_no_file(tmp_path: Path) -> None:
    seen = try_folder(str(tmp_path), ".probe")
    assert seen["problems"] == {}
    took_ms = seen["took_ms"]
    assert isinstance(took_ms, dict)
    assert list(took_ms) == ["write", "exclusive create", "append", "rename"]
    assert seen["kind"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_told_in_the_first_step(tmp_path: Path) -> None:
    seen = try_folder(str(tmp_path / "none"), ".probe")
    assert seen["problems"] == {"write": "No such file or directory"}
    assert seen["free"] is None


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert try_folder(str(tmp_path / "file"), ".probe")["problems"] == {"write": "Not a directory"}


def test_a_file_of_somebody_else_with_that_name_is_told_and_left(tmp_path: Path) -> None:
    (tmp_path / ".probe.1").write_text("theirs")
    assert try_folder(str(tmp_path), ".probe")["problems"] == {"write": "File exists"}
    assert (tmp_path / ".probe.1").read_text() == "theirs"


def test_the_kind_of_the_innermost_mount_counts(tmp_path: Path) -> None:
    place = tmp_path / "a b" / "c"
    place.mkdir(parents=True)
    escaped = str(tmp_path).replace(" ", "\\040")
    (tmp_path / "mountinfo").write_text(
        f"1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {escaped}/a\\040b rw - nfs4 server:/a rw\n"
        f"3 1 0:6 / {escaped}/a rw - tmpfs tmpfs rw\n"
        "a line that is none\n"
    )
    mounts = str(tmp_path / "mountinfo")
    assert find_kind(str(place), mounts) == "nfs4"
    assert find_kind("/", mounts) == "ext4"
    assert find_kind("/", str(tmp_path / "none")) == ""


def test_it_runs_by_path_and_imports_nothing_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", folder.__file__, str(tmp_path), ".probe"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(done.stdout)["problems"] == {}
