"""What a run has left for another one to begin with, or why there is nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.rundir.kept_records import why_nothing_kept
from hpc_elastic.rundir.layout import RunLayout

RECORD = {"attempt": 1, "step": 2, "place": "0/1 0/1 default", "length": 3, "crc": 0}


def put(path: str, content: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run whose only attempt has left a state."""
    made = RunLayout(tmp_path / "run")
    put(made.claim(1), {})
    put(made.kept_record(1, "00000"), RECORD)
    return made


def test_a_run_that_has_left_a_state_is_one_to_begin_with(layout: RunLayout) -> None:
    assert why_nothing_kept(layout) is None
    os.mkdir(layout.attempt(2))  # a head was about to claim it
    assert why_nothing_kept(layout) is None


def test_a_run_is_refused_if_there_is_no_folder(tmp_path: Path) -> None:
    assert why_nothing_kept(RunLayout(tmp_path / "x")) == f"there is no directory {tmp_path}/x"
    (tmp_path / "file").touch()
    assert why_nothing_kept(RunLayout(tmp_path / "file")) == f"there is no directory {tmp_path}/file"


def test_a_run_is_refused_if_an_attempt_came_after_its_state(layout: RunLayout) -> None:
    put(layout.claim(2), {})
    assert str(why_nothing_kept(layout)).startswith(f"{layout.root} has no training state of its latest attempt, 2: ")


def test_a_run_is_refused_if_its_state_has_no_record(layout: RunLayout) -> None:
    os.unlink(layout.kept_record(1, "00000"))
    assert str(why_nothing_kept(layout)).startswith(f"{layout.root} has no training state of its latest attempt, 1: ")


def test_a_run_whose_state_cannot_be_read_is_refused_in_one_line(layout: RunLayout) -> None:
    os.unlink(layout.kept_record(1, "00000"))
    os.mkdir(layout.kept_record(1, "00000"))
    assert why_nothing_kept(layout) == f"cannot read {layout.kept_record(1, '00000')}: Is a directory"


def test_a_folder_that_is_called_a_number_in_another_script_is_none(layout: RunLayout) -> None:
    os.mkdir(os.path.join(layout.memory, "²"))
    assert why_nothing_kept(layout) is None
