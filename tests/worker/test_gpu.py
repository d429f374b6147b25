"""Forks on a machine with a GPU: CUDA and NCCL work in each, and a server that has woken CUDA itself says so.

Nothing of ours needs to be installed there, only torch and pytest: `python -m pytest -m gpu tests/worker/test_gpu.py`
in a checkout.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hpc_elastic
from tests.gpu import require_gpu
from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

pytestmark = pytest.mark.gpu

# One rank trains a few steps on the first GPU; what it prints is the same for every process that does this.
TRAIN = """
import json, sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(7)
distributed.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.cuda.set_device(0)
ones = torch.full((1024,), 3.0, device="cuda")
distributed.all_reduce(ones)
model = DistributedDataParallel(torch.nn.Linear(64, 8).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, wanted = torch.randn(32, 64, device="cuda"), torch.randn(32, 8, device="cuda")
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
    losses.append(round(loss.item(), 4))
distributed.destroy_process_group()
print(json.dumps({"reduced": ones.sum().item(), "losses": losses, "backend": "nccl"}))
"""
WAKES_CUDA = "import torch\ntorch.zeros(1, device='cuda')\n"
# A state whose tensors the next kernels overwrite, and one that has grown; both as they were when they were saved.
SAVE = """
import json, os, sys
import torch
from hpc_elastic.state_memory import ATTEMPT, LIMIT, create_memory, map_control, read_slots, slot_offset
from hpc_elastic.worker.rank_state import RankState
from hpc_elastic.worker.state_encoding import decode_state

descriptor = create_memory(0)
numbers = map_control(descriptor)
numbers[LIMIT], numbers[ATTEMPT] = 1 << 30, 1
rank, found = RankState(descriptor, descriptor), []
for step, rows in enumerate((1000, 1000, 8000), start=1):
    tensor = torch.full((rows, 1000), float(step), device="cuda")
    torch.cuda._sleep(1 << 32)  # cycles, so some seconds: the copies have to wait for it, and save does not
    rank.save(step, {"w": tensor, "t": tensor.t(), "half": tensor.half(), "b": torch.ones(3)}, is_replicated=False)
    is_early = step not in [state.step for state in read_slots(numbers)]
    tensor.zero_()
    rank._await_commit()
    state = read_slots(numbers)[0]
    data = bytearray(os.pread(descriptor, state.length, slot_offset(state.slot)))
    loaded = decode_state(memoryview(data))
    found.append([state.step, is_early, *(bool((loaded[name] == step).all()) for name in ("w", "t", "half"))])
for slot in range(4):
    rank._free(slot)
torch.cuda.synchronize()  # tells of an error that the end of the pinning has left
assert rank._devices._pinned == {}
print(json.dumps(found))
"""


@pytest.fixture(autouse=True, scope="module")
def _gpu() -> None:
    require_gpu()


def test_cuda_and_nccl_work_in_one_fork_after_another_as_in_a_fresh_python(runner: Runner) -> None:
    script = runner.write("train.py", TRAIN)
    plain = runner.run([sys.executable, str(script), str(runner.directory / "store-plain")])
    assert plain.exit_code == 0, plain.stderr
    expected = json.loads(plain.stdout)
    assert expected["reduced"] == 3 * 1024
    assert expected["losses"][-1] < expected["losses"][0]
    with fork_server(runner.directory, runner.environment) as server:
        assert server.ready["torch"] is not None
        assert server.ready["unsafe"] is None
        for number in range(3):
            out, err = runner.directory / f"out{number}", runner.directory / f"err{number}"
            answer = server.fork_worker(
                "script",
                str(script),
                str(runner.directory / f"store{number}"),
                directory=runner.directory,
                environment=runner.environment,
                stdout=out,
                stderr=err,
            )
            assert collect(answer["pid"]) == 0, err.read_text()
            assert json.loads(out.read_text()) == expected
        opened = [os.readlink(path) for path in glob.glob(f"/proc/{server.process.pid}/fd/*")]
        assert not [path for path in opened if path.startswith("/dev/nvidia")], "the server itself has touched CUDA"


def test_a_server_whose_preload_has_touched_cuda_says_that_it_is_unsafe(runner: Runner) -> None:
    runner.write("site/wakes_cuda.py", WAKES_CUDA)
    environment = {**runner.environment, "PYTHONPATH": str(runner.directory / "site")}
    with fork_server(runner.directory, environment, "--preload", "wakes_cuda") as server:
        assert server.ready["failed_preloads"] == []
        assert "CUDA" in server.ready["unsafe"]


def test_a_state_on_a_device_is_saved_as_it_was_although_the_next_kernel_overwrites_it(runner: Runner) -> None:
    """And save returns before the copies are there, which wait for all that the device was given before.

    The first save may wait: CUDA loads a kernel, such as that of a transposed copy, when it is used first.
    """
    script = runner.write("save.py", SAVE)
    ran = runner.run([sys.executable, str(script)], PYTHONPATH=str(Path(hpc_elastic.__file__).parents[1]))
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [[step, *same] for step, _, *same in found] == [[step, True, True, True] for step in (1, 2, 3)]
    assert [is_early for _, is_early, *_ in found[1:]] == [True, True]
