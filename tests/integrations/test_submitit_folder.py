"""Where the runs of submitit's log folder are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.integrations.submitit.executor import runs_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")


def test_runs_are_beside_the_log_folder(tmp_path: Path) -> None:
    beside = tmp_path / "log.hpc-elastic-runs"
    assert runs_folder(tmp_path / "log") == beside
    beside.mkdir()
    assert runs_folder(tmp_path / "log") == beside


def test_runs_are_in_the_log_folder_if_there_is_no_folder_for_others_beside_it(tmp_path: Path) -> None:
    assert runs_folder(tmp_path / "gone" / "log") == tmp_path / "gone" / "log" / "hpc-elastic-runs"


@as_root
def test_runs_are_in_the_log_folder_if_somebody_else_made_the_one_beside_it(tmp_path: Path) -> None:
    beside = tmp_path / "log.hpc-elastic-runs"
    beside.mkdir()
    os.chown(beside, 65534, -1)
    assert runs_folder(tmp_path / "log") == tmp_path / "log" / "hpc-elastic-runs"
