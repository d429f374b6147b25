"""What the server imports is what a first training step imports."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

# A training script's first steps; it says what they have imported.
TRAINING = """
import sys
before = set(sys.modules)
import json, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 1))
model = DistributedDataParallel(network)
dataset = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
    optimizer = kind(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for x, y in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    schedule.step()
dist.all_reduce(torch.ones(1))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
torch.load("checkpoint.pt")
dist.barrier()
dist.destroy_process_group()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.local
def test_first_training_steps_in_a_fork_import_nothing(runner: Runner) -> None:
    pytest.importorskip("torch")
    script = str(runner.write("script.py", TRAINING))
    out, err = runner.directory / "out", runner.directory / "err"
    environment = {**runner.environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with fork_server(runner.directory, environment) as server:
        assert (server.ready["unsafe"], server.ready["failed_preloads"]) == (None, [])
        assert len(os.listdir(f"/proc/{server.process.pid}/task")) == 1
        answer = server.fork_worker(
            "script", script, directory=runner.directory, environment=environment, stdout=out, stderr=err
        )
        assert collect(answer["pid"]) == 0, err.read_text()
    assert json.loads(out.read_text()) == []
