"""Lightning, accelerate and transformers see the world that torchrun's variables tell, on Slurm as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Door

JOB = """
name: surroundings
site: generic-slurm
nodes: 2
workers_per_node: 2
time: 10m
python: {python}
entrypoint: {{script: {script}, args: [{folder}]}}
worker_env: {{slurm: {slurm}}}
preload: [lightning, accelerate, transformers.training_args]
"""


def slurm_variables(mode: str, rank: int) -> dict[str, str]:
    """What a rank sees of Slurm's tasks: nothing, those of its node's agent, or the workers as if they were tasks."""
    if mode == "hide":
        return {}
    if mode == "keep":
        return {"SLURM_PROCID": str(rank // 2), "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_NTASKS": "4"}


@pytest.mark.variant(of="test_slurms_variables_are_those_of")
@pytest.mark.slurm
@pytest.mark.parametrize("mode", ["hide", "keep", "rank"])
def test_nothing_takes_the_job_for_plain_slurm(slurm_door: Door, python: Path, mode: str) -> None:
    script, folder = Path(__file__).with_name("surroundings.py"), slurm_door.folder
    slurm_door.write("job.yaml", JOB.format(python=python, script=script, folder=folder, slurm=mode))
    run = slurm_door.submit("job.yaml", wait=True)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    for rank in range(4):
        node, local_rank = divmod(rank, 2)
        said: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
        assert said["lightning"] == {
            "environment": "TorchElasticEnvironment",
            "ranks": [rank, local_rank, node],
            "world": 4,
            "master": said["master"],
            "requeues": False,
        }
        assert said["rank_zero_only"] == rank
        assert said["accelerate"] == [rank, local_rank, 4, "DistributedType.MULTI_CPU"]
        assert said["transformers"] == [rank, local_rank, 4]
        assert said["slurm"] == slurm_variables(mode, rank)
    run.assert_nothing_left()
