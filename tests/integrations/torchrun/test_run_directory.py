"""The directory that all nodes of a step share, whoever comes first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.integrations.torchrun.run_directory import EnteredRun, enter_run, is_over_for, leave_run
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from tests.plans import make_run_plan


def enter(root: Path, node: str = "node1") -> EnteredRun:
    def make_plan(name: str, run_dir: str) -> LaunchPlan:
        return make_run_plan(run_dir, run=name)

    return enter_run(str(root), "torchrun-17-0", node=node, job_id="17", make_plan=make_plan)


def test_the_second_node_finds_what_the_first_has_made(tmp_path: Path) -> None:
    first, second = enter(tmp_path), enter(tmp_path, "node2")
    assert first == second
    assert (len(first.secret), first.plan.run) == (32, "torchrun-17-0")
    layout = RunLayout(str(tmp_path / "torchrun-17-0"))
    assert stat.S_IMODE(os.stat(layout.secret).st_mode) == 0o600
    assert Path(layout.requests).read_bytes() == b""


def test_after_the_end_of_a_run_the_next_one_has_another_directory(tmp_path: Path) -> None:
    Path(RunLayout(enter(tmp_path).plan.run_dir).result).write_text("{}")
    assert [enter(tmp_path, node).plan.run for node in ("node1", "node2")] == ["torchrun-17-0-2"] * 2


def test_a_node_remembers_the_end_that_its_file_system_does_not_show_yet(tmp_path: Path) -> None:
    leave_run(RunLayout(enter(tmp_path).plan.run_dir), "node1")
    assert enter(tmp_path, "node1").plan.run == "torchrun-17-0-2"
    assert enter(tmp_path, "node2").plan.run == "torchrun-17-0"


def test_the_run_is_not_over_for_who_leaves_because_others_or_a_new_start_go_on() -> None:
    codes = [ExitCode.NODE_LOST, ExitCode.NODES_MISSING, ExitCode.REQUEUE]
    assert [code for code in ExitCode if not is_over_for(code)] == [code for code in ExitCode if code in codes]


def test_a_secret_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    Path(RunLayout(enter(tmp_path).plan.run_dir).secret).write_bytes(b"short")
    with pytest.raises(RunDirectoryError, match="holds 5 bytes, not 32"):
        enter(tmp_path)


def test_a_run_directory_that_is_moved_away_is_not_made_again_until_another_run_begins_there(tmp_path: Path) -> None:
    layout = RunLayout(enter(tmp_path).plan.run_dir)
    os.rename(layout.root, tmp_path / "moved")
    with pytest.raises(RunDirectoryError, match="is gone: it was moved or removed"):
        leave_run(layout, "node1")
    assert os.listdir(tmp_path) == ["moved"]
    assert enter(tmp_path).plan.run == "torchrun-17-0"
    leave_run(layout, "node1")
