"""Where the runs of submitit's log folder are, how they are found again, and how they are planned."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2
import pytest
from submitit.core import utils

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.integrations.submitit.executor import HpcElasticExecutor, runs_folder
from hpc_elastic.integrations.submitit.paths import link_run, run_link
from hpc_elastic.rundir.layout import RunLayout
from tests.another_user import another_user, folder_of_everybody

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


def test_runs_are_beside_the_folder_that_a_log_folder_leads_to(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "exp").mkdir(parents=True)
    (tmp_path / "log").symlink_to("scratch/exp")
    assert runs_folder(tmp_path / "log") == tmp_path / "scratch" / "exp.hpc-elastic-runs"


@pytest.mark.parametrize("runs", ["log.hpc-elastic-runs", "scratch/exp.hpc-elastic-runs"])
@pytest.mark.parametrize("folder", ["log", "log/%j"])
def test_a_job_is_found_again_if_its_log_folder_is_a_link(tmp_path: Path, runs: str, folder: str) -> None:
    (tmp_path / "scratch" / "exp").mkdir(parents=True)
    (tmp_path / "log").symlink_to("scratch/exp")
    run = _make_run(tmp_path / runs / "run")
    paths = utils.JobPaths(tmp_path / folder, job_id="1234")
    link_run(paths, RunLayout(str(run)), f"{run}.pkl")
    assert run_link(paths).samefile(run)
    assert paths.submitted_pickle.read_text() == "run"


def test_a_job_takes_the_place_of_an_earlier_one_of_its_id(tmp_path: Path) -> None:
    paths = utils.JobPaths(tmp_path / "log", job_id="1234")
    for name in ("first", "second"):
        run = _make_run(tmp_path / "log.hpc-elastic-runs" / name)
        link_run(paths, RunLayout(str(run)), f"{run}.pkl")
    assert run_link(paths).resolve().name == paths.submitted_pickle.read_text() == "second"
    assert len(os.listdir(tmp_path / "log")) == 2


def _make_run(directory: Path) -> Path:
    directory.mkdir(parents=True)
    Path(f"{directory}.pkl").write_text(directory.name)
    return directory


@pytest.mark.parametrize("folder", ["log", "log/%j", "log/deeper", "gone/%j"])
def test_nothing_is_submitted_if_the_log_folder_cannot_be_one(tmp_path: Path, folder: str) -> None:
    (tmp_path / "log").write_text("a file")
    (tmp_path / "gone").symlink_to("nowhere")
    executor = HpcElasticExecutor(tmp_path / folder)
    executor.update_parameters(site="local")
    with pytest.raises(RunDirectoryError, match="is no directory"):
        executor.submit(list)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "log"]


def test_nothing_is_submitted_if_the_log_folder_is_somebody_elses() -> None:
    with folder_of_everybody() as folder:
        (folder / "log").mkdir(mode=0o555)
        executor = HpcElasticExecutor(folder / "log")
        executor.update_parameters(site="local")
        with another_user(), pytest.raises(RunDirectoryError, match="cannot write to"):
            executor.submit(list)
        assert [path.name for path in folder.rglob("*")] == ["log"]


def test_runs_of_an_array_share_the_template_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executor = HpcElasticExecutor(tmp_path / "log", max_pickle_size_gb=0)
    executor.update_parameters(site="local")
    parsed: list[str] = []
    parse = jinja2.Environment.parse

    def parse_and_count(self: jinja2.Environment, source: str) -> jinja2.nodes.Template:
        parsed.append(source)
        return parse(self, source)

    monkeypatch.setattr(jinja2.Environment, "parse", parse_and_count)
    counts = []
    for size in (1, 9):
        parsed.clear()
        with pytest.raises(RuntimeError, match="max_pickle_size_gb"):  # by then all of them are planned
            executor.submit_array([list] * size)
        counts.append(len(parsed))
    assert counts[0] == counts[1] > 0
