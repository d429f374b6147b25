"""Programs that submit functions to the real Slurm, and get their values although nodes are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpc_elastic
from hpc_elastic.rundir.states import RunState
from tests.integration.conftest import Door
from tests.integration.conftest import Run as Records
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


def train(steps: int) -> dict[str, Any]:
    """Trains in step with all ranks; the first attempt waits at its end, to be disturbed."""
    import os
    import signal

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.ones(2, 4) * (dist.get_rank() + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print("trained", flush=True)
        signal.pause()
    found = {"rank": dist.get_rank(), "of": dist.get_world_size(), "weight": model.module.weight.detach().clone()}
    dist.destroy_process_group()
    return found


def test_a_function_returns_from_every_rank_that_is_left_when_a_node_is_lost(
    slurm_door: Door, slurm: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(slurm_door.folder)
    run = hpc_elastic.submit(train, 3, nodes={"min": 3, "max": 4}, elastic={"lease": "3s"}, time="10m")
    wait_until(lambda: [run.logs(rank) for rank in range(4)] == ["trained\n"] * 4, "all have trained", within_s=90)
    slurm.kill("node3")
    result = run.result(120)
    slurm.boot("node3")
    assert (result.state, result.nodes) == (RunState.SUCCEEDED, ("node1", "node2", "node4"))
    values = run.results()
    assert [(value["rank"], value["of"]) for value in values] == [(0, 3), (1, 3), (2, 3)]
    assert all(value["weight"].equal(values[0]["weight"]) for value in values)
    assert run.status().node_losses == 1
    Records.at(Path(run.run_dir)).assert_records_valid()
