"""Runs whose worker trains on a GPU: what its failures are called, and that the next attempt has the GPU again.

They need no Slurm: `python -m pytest -m gpu tests/integration/test_gpu_runs.py` on a machine with a GPU.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hpc_elastic.agent.health import gpus as health
from hpc_elastic.agent.node.gpu_usage import GpuTool
from hpc_elastic.agent.node.gpus import ask_tool, count_gpus
from tests.gpu import require_gpu
from tests.integration.conftest import Door, Run

pytestmark = [pytest.mark.gpu, pytest.mark.local]

JOB = """
name: gpu
site: local
nodes: 1
workers_per_node: 1
time: 10m
entrypoint: {script: train.py}
restart: {max_restarts: 1, no_progress_limit: 3, backoff: {first: 0s}}
signals: {grace: 5s, restart_grace: 2s}
"""
# Trains with NCCL, saves each step, and in the first attempt does at the fifth step what the test says.
TRAIN = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from hpc_elastic import memory
from hpc_elastic.worker import heartbeat

def fail():
    FAIL

dist.init_process_group("nccl")
torch.cuda.set_device(0)
torch.manual_seed(7)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state, step = memory.load()
if state is not None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
parallel = DistributedDataParallel(model, device_ids=[0])
step = step or 0
print("begins at", step, flush=True)
while step < 10:
    optimizer.zero_grad()
    loss = (parallel(torch.ones(64, 512, device="cuda")) - 1).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    heartbeat(step)
    memory.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if step == 5 and os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
        fail()
print("loss", round(loss.item(), 6), flush=True)
dist.destroy_process_group()
"""
# What scripts do on GPUs today: a compiled model whose steps are CUDA graphs, mixed precision with a scaler, and
# processes that load batches into pinned memory.
COMPILED = """
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from hpc_elastic import memory
from hpc_elastic.worker import heartbeat

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        return torch.full((256,), index / 640)

def main():
    dist.init_process_group("nccl")
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    state, step = memory.load()
    if state is not None:
        for name, part in (("model", model), ("optimizer", optimizer), ("scaler", scaler)):
            part.load_state_dict(state[name])
    step = step or 0
    print("begins at", step, flush=True)
    compiled = torch.compile(model, mode="reduce-overhead")
    for batch in DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True):
        if step == 10:
            break
        batch = batch.cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = (compiled(batch) - batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
        heartbeat(step)
        parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        memory.save(step, {name: part.state_dict() for name, part in parts.items()})
        if step == 5 and os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
            raise RuntimeError("as the test says")
    print("loss", round(loss.item(), 4), "at", step, flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
FAULTS = {
    "asks for more memory than the GPU has": ("torch.empty(1 << 46, device='cuda')", "cuda_out_of_memory"),
    "an index out of range in a kernel": (
        "torch.ones(4, device='cuda')[torch.tensor([9], device='cuda')].cpu()",
        "cuda_illegal_access",
    ),
    "a GPU that the node does not have": ("torch.ones(1, device='cuda:63')", "cuda_no_device"),
    "is killed while a kernel runs": (
        "torch.cuda._sleep(1 << 40); import signal; os.kill(os.getpid(), signal.SIGKILL)",
        "signal",
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _gpu() -> None:
    require_gpu()


def submit(door: Door, fail: str, *more: str, job: str = JOB) -> Run:
    """Submit a run that does this in its first attempt."""
    door.may_hide_torch = False
    door.write("train.py", TRAIN.replace("FAIL", fail))
    door.write("job.yaml", job)
    return door.submit("job.yaml", *more)


def claims(run: Run) -> list[Any]:
    """Return those of the attempts, in their order."""
    return [json.loads(path.read_text()) for path in sorted(run.path.glob("attempts/*/claim.json"))]


@pytest.mark.parametrize("what", FAULTS)
def test_a_failure_on_a_gpu_is_called_by_its_name_and_the_next_attempt_trains_on_it(door: Door, what: str) -> None:
    fail, failure_class = FAULTS[what]
    run = submit(door, fail)
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), f"{result}\n{run.story()}"
    cause = claims(run)[1]["root_cause"]
    assert cause is not None, run.story()
    assert cause["class"] == failure_class, f"{cause}\n{run.story()}"
    begin = int(run.stdout(2, 0).split("begins at ")[1].split()[0])
    assert begin >= 4, "the state on the GPU outlives the worker, but for a save that was still being copied"
    assert "loss " in run.stdout(2, 0)
    run.assert_nothing_left()


def test_a_kernel_that_never_ends_is_a_stall_and_the_next_attempt_has_the_gpu(door: Door) -> None:
    run = submit(door, "torch.cuda._sleep(1 << 50); torch.cuda.synchronize()", job=JOB + "stall_timeout: 4s\n")
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), f"{result}\n{run.story()}"
    cause = claims(run)[1]["root_cause"]
    assert cause["class"] == "stalled", run.story()
    assert "synchronize (train.py:" in run.read(run.layout.error(1, 0))["message"]["message"]
    run.assert_nothing_left()


def test_a_compiled_model_with_cuda_graphs_and_pinned_batches_goes_on_in_the_next_attempt(door: Door) -> None:
    door.may_hide_torch = False
    door.write("train.py", COMPILED)
    door.write("job.yaml", JOB)
    run = door.submit("job.yaml")
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), f"{result}\n{run.story()}"
    cause = claims(run)[1]["root_cause"]
    assert (cause["class"], cause["line"].split(": ", 1)[1]) == ("exception", "RuntimeError: as the test says"), cause
    assert int(run.stdout(2, 0).split("begins at ")[1].split()[0]) >= 4, run.story()
    assert " at 10" in run.stdout(2, 0), run.story()
    run.assert_nothing_left()


def test_a_job_that_asks_for_one_gpu_has_it_also_where_workers_are_bound_near_to_it(door: Door) -> None:
    job = JOB + "resources: {gpus_per_node: 1}\nbinding: nearest\n"
    run = submit(door, "print('sees', torch.cuda.device_count(), 'GPU', flush=True)", job=job)
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 1), f"{result}\n{run.story()}"
    assert "sees 1 GPU" in run.stdout(1, 0), run.story()
    status = door.run("status", run.layout.root).stdout
    assert "SUCCEEDED" in status, status


def test_the_vendors_tool_answers_what_the_agent_asks_it() -> None:
    said: list[str] = []
    (gpu, *_) = GpuTool(said.append).ask()
    assert gpu.memory_total is not None
    assert gpu.memory_used is not None
    assert 0 <= gpu.memory_used < gpu.memory_total
    assert gpu.busy_percent is not None
    gpus = count_gpus(os.environ)
    assert gpus.count is not None
    assert gpus.count >= 1
    for command, parse in ((health.RETIRED, health.parse_gpus), (health.REMAPPED, health.parse_remapped)):
        returncode, stdout = ask_tool(command, 30)
        assert returncode == 0, stdout
        assert parse is not health.parse_gpus or parse(stdout), stdout
    assert said == []
