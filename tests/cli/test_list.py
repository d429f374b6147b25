"""The table of runs: newest first, one question to Slurm for all of them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path

import pytest

from hpc_elastic.api.known_runs import known_runs
from hpc_elastic.cli.main import main
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path, read_entries
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import TIME, RunBuilder

Capture = pytest.CaptureFixture[str]


def indexed(root: Path, name: str, job_id: str) -> RunBuilder:
    run = RunBuilder(root / f"{name}-{job_id}", name=name).submit(job_id)
    entry = IndexEntry(
        run=f"{name}-{job_id}",
        name=name,
        job_id=job_id,
        site="generic-slurm",
        scheduler="slurm",
        run_dir=run.layout.root,
        submitted=TIME,
    )
    append_entry(index_path(os.environ), entry)
    return run


def test_list_asks_slurm_once_for_all_unfinished_runs(tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    indexed(tmp_path, "old", "40").end()
    indexed(tmp_path, "mine", "41")
    indexed(tmp_path, "mine", "42").allocate()
    fake_slurm.script("squeue", 'echo "41|41|PENDING|0|0||Priority|"; echo "42|42|RUNNING|0|0|node1||"')
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["mine", "RUNNING", "42"],
        ["mine", "PENDING", "41"],
        ["old", "SUCCEEDED", "40"],
    ]
    assert len(fake_slurm.calls("squeue")) == 1


def test_list_gives_a_run_its_result_if_it_was_cancelled_while_pending(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    run = indexed(tmp_path, "mine", "42")
    fake_slurm.say("CANCELLED")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["mine", "CANCELLED"]
    assert Path(run.layout.result).exists()


def test_list_of_finished_runs_asks_nobody(tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    indexed(tmp_path, "old", "40").end()
    assert main(["list", "--json"]) == 0
    assert [item["state"] for item in json.loads(capsys.readouterr().out)] == ["SUCCEEDED"]
    assert fake_slurm.calls("") == []


def test_list_shows_what_the_directories_say_if_slurm_is_silent(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    indexed(tmp_path, "mine", "42").allocate()
    fake_slurm.no_controller()
    assert main(["list"]) == 0
    captured = capsys.readouterr()
    assert "RUNNING" in captured.out
    assert "states are from the run directories alone" in captured.err


def test_number_limits_the_list(tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    for number in range(5):
        indexed(tmp_path, "run", str(number)).end()
    assert main(["list", "-n", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_newest_run_of_a_name_is_found_and_vanished_ones_are_passed_over(tmp_path: Path) -> None:
    path = index_path(os.environ)
    indexed(tmp_path, "mine", "1")
    indexed(tmp_path, "mine", "2")
    gone = indexed(tmp_path, "mine", "3")
    shutil.rmtree(gone.layout.root)
    assert [entry.job_id for entry in read_entries(path)] == ["2", "1"]
    assert [entry.job_id for entry in known_runs("mine")] == ["2", "1"]
    assert list(known_runs("3")) == list(known_runs("min")) == []


def test_torn_and_foreign_lines_of_the_index_are_passed_over(tmp_path: Path) -> None:
    path = index_path(os.environ)
    indexed(tmp_path, "mine", "1")
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"run": "torn", "na\n[1, 2]\n{"run": "other version"}\n\n')
    indexed(tmp_path, "mine", "2")
    assert [entry.job_id for entry in read_entries(path)] == ["2", "1"]


@pytest.mark.parametrize("state_home", ["", "relative/path"])
def test_index_is_below_home_if_the_state_folder_is_not_absolute(state_home: str, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": state_home, "HOME": str(tmp_path)}
    assert index_path(environ) == f"{tmp_path}/.local/state/hpc_elastic/runs.jsonl"


@pytest.mark.parametrize(
    "environ", [{}, {"HOME": ""}, {"HOME": "/nonexistent"}, {"HOME": "home"}, {"HOME": "/"}], ids=str
)
def test_index_is_below_the_home_of_the_password_database_if_there_is_no_other(environ: dict[str, str]) -> None:
    own = pwd.getpwuid(os.getuid()).pw_dir
    assert index_path(environ) == f"{own}/.local/state/hpc_elastic/runs.jsonl"
