"""What the README says was tested is what test runs have written down."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import slurm_choice
from tests.tested_on import FILE, REPOSITORY, Record, add, fill_readme, parse_version, read, table

A_RECORD = Record(
    date="2026-11-22",
    slurm="24.11.5",
    python="3.11.7",
    torch="2.13.0",
    kernel="6.1",
    selection="",
    passed=4760,
    skipped=2,
)
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number): pass

def test_that_skips(): pytest.skip("why")
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", *options]
    return subprocess.run(
        [*command, str(folder / "test_it.py")],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: "0"},  # what this session must run is not for that one to run
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_readme_has_the_table_of_the_file() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert fill_readme(readme, read(FILE)) == readme


@pytest.mark.long
def test_a_run_says_on_what_it_passed(tmp_path: Path) -> None:
    path = tmp_path / "tested-on.json"
    done = run(tmp_path, TESTS, "--record-tested", str(path), "-m", "not slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = read(path)
    assert (record.passed, record.skipped, record.slurm, record.selection) == (3, 1, None, "not slurm")
    assert record.python == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.long
def test_processes_of_xdist_count_together(tmp_path: Path) -> None:
    path = tmp_path / "tested-on.json"
    assert run(tmp_path, TESTS, "--record-tested", str(path), "-n", "2").returncode == 0
    assert [record.passed for record in read(path)] == [3]


@pytest.mark.long
def test_a_run_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tested-on.json"
    assert run(tmp_path, f"{TESTS}\ndef test_fails(): assert 0\n", "--record-tested", str(path)).returncode == 1
    assert not path.exists()


def test_the_newest_of_a_kind_counts_and_slurms_are_in_order() -> None:
    newer = dataclasses.replace(A_RECORD, date="2026-11-23", passed=4800)
    older_slurm = dataclasses.replace(A_RECORD, slurm="22.05.8")
    without = dataclasses.replace(A_RECORD, slurm=None, python="3.9.1")
    assert add([A_RECORD, without], [newer, older_slurm]) == [without, older_slurm, newer]


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ({}, "| 24.11.5 | 3.11.7 | 2.13.0 | 6.1 | `make test-all` | 4760 | 2 | 2026-11-22 |"),
        (
            {"slurm": None, "torch": None, "selection": "not local"},
            "| none | 3.11.7 | none | 6.1 | `pytest -m 'not local'` | 4760 | 2 | 2026-11-22 |",
        ),
        ({"selection": "not variant"}, "| 24.11.5 | 3.11.7 | 2.13.0 | 6.1 | `make test` | 4760 | 2 | 2026-11-22 |"),
    ],
)
def test_a_record_is_a_row(change: dict[str, Any], row: str) -> None:
    assert table([dataclasses.replace(A_RECORD, **change)])[2:] == [row]


def test_the_version_is_what_slurmctld_says_of_itself() -> None:
    assert (
        parse_version("Configuration data as of now\nSLURM_CONF = /x\nSLURM_VERSION           = 24.11.5\n") == "24.11.5"
    )
    with pytest.raises(ValueError, match="SLURM_VERSION"):
        parse_version("slurm_load_ctl_conf error: Unable to contact slurm controller\n")
