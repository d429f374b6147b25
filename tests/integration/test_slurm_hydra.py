"""A sweep of Hydra's on the real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.test_local_hydra import PYTHON, multirun, tasks
from tests.slurm_sandbox.cluster import Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-hydra; `make .venv-hydra/.installed` makes it"),
]


@pytest.mark.variant(of="test_a_sweep_is_an_array_and_a_job_that_fails_starts_again")
def test_a_sweep_is_one_array_of_slurm(
    slurm_door: Door, slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["hydra.launcher.site=generic-slurm", "hydra.launcher.nodes=2", "hydra.launcher.comment=sweep"]
    done = multirun(slurm_door, tmp_path, monkeypatch, "+x=1,2,3", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [(tmp_path / str(x)).read_text() for x in (1, 2, 3)]
    array = ids[0].removesuffix("_0")
    assert ids == [f"{array}_{task}" for task in range(3)]
    assert slurm.job(ids[0])["Comment"] == "sweep"
    runs = tasks(slurm_door)
    assert [run.result()["attempts"] for run in runs] == [1, 2, 1]
    for run in runs:
        run.assert_nothing_left(within_s=40)
        run.assert_records_valid()
