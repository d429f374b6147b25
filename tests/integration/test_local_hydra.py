"""Hydra's sweeps with our launcher, on this machine, in the environment that `make test` makes for them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.submitit_plugin import declare_plugin
from tests.without_torch import hide_torch

PYTHON = Path(__file__).parents[2] / ".venv-hydra" / "bin" / "python"
pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-hydra; `make .venv-hydra/.installed` makes it"),
]

APP = """
import os, sys
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=None)
def app(config):
    attempt = os.environ["HPC_ELASTIC_ATTEMPT"]
    print("x is", config.x, "in attempt", attempt, "of rank", os.environ["RANK"], flush=True)
    if config.x == 2 and attempt == "1":
        raise ValueError("only the first time")
    if config.x == 13:
        raise ValueError("unlucky")
    Path(f"{config.out}/{config.x}").write_text(HydraConfig.get().job.id)

app()
"""


def multirun(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str
) -> subprocess.CompletedProcess[str]:
    """A sweep of APP, as a user starts it; its runs go below `multirun`, and find no torch."""
    declare_plugin(tmp_path / "plugin", monkeypatch)
    path = hide_torch(os.environ, tmp_path / "without-torch")["PYTHONPATH"]
    door.write("app.py", APP)
    fixed = ["hydra/launcher=hpc_elastic", "hydra.sweep.dir=multirun"]
    if not any(override.startswith("hydra.launcher.site=") for override in overrides):
        fixed.append("hydra.launcher.site=local")
    return subprocess.run(
        [str(PYTHON), "app.py", "--multirun", *fixed, f"+out={tmp_path}", *overrides],
        cwd=door.folder,
        env={**door.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )


def tasks(door: Door) -> list[Run]:
    """The runs of the sweep's jobs."""
    submissions = sorted((door.folder / "multirun").rglob("submission.json"))
    return [Run.at(path.parent) for path in submissions]


def test_a_sweep_is_an_array_and_a_job_that_fails_starts_again(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["hydra.launcher.restart={max_restarts: 1}", "hydra.launcher.timeout_min=10"]
    done = multirun(door, tmp_path, monkeypatch, "+x=1,2", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error importing" not in done.stderr, done.stderr
    ids = [(tmp_path / str(x)).read_text() for x in (1, 2)]
    assert [job_id.rpartition("_")[2] for job_id in ids] == ["0", "1"]
    runs = tasks(door)
    assert [run.job_id for run in runs] == ids
    assert [run.result()["attempts"] for run in runs] == [1, 2]
    assert [json.loads((run.path / "plan.json").read_text())["time_s"] for run in runs] == [600, 600]
    for run in runs:
        run.assert_nothing_left()
        run.assert_records_valid()


@pytest.mark.variant(of="test_a_sweep_is_an_array_and_a_job_that_fails_starts_again")
def test_a_sweep_with_a_job_that_fails_for_good_fails_with_its_traceback(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["hydra.launcher.restart={max_restarts: 0}", "hydra.launcher.nodes={min: 1, max: 1}"]
    done = multirun(door, tmp_path, monkeypatch, "+x=13", *settings)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: unlucky" in done.stderr
    assert [run.result()["state"] for run in tasks(door)] == ["FAILED"]


def test_a_setting_that_means_nothing_is_refused(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = multirun(door, tmp_path, monkeypatch, "+x=1", "hydra.launcher.restart={max_restart: 0}")
    assert done.returncode == 1
    assert "restart.max_restart: unknown key" in done.stderr
    assert tasks(door) == []
