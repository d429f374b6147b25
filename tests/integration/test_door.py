"""What the tests' own way to the command does for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.without_torch import hide_compiler, hide_torch

REPOSITORY = Path(__file__).resolve().parents[2]
# A first step of a training; it says whether that has imported torch's compiler and distributed tensors.
STEP = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, 4, generator=torch.Generator().manual_seed(1))).sum().backward()
optimizer.step()
optimizer.zero_grad()
torch.save(optimizer.state_dict(), sys.argv[2])
print(["torch._dynamo.eval_frame" in sys.modules, "torch.distributed.tensor.placement_types" in sys.modules])
del model
dist.destroy_process_group()
"""
# Uses the compiler, imported in three ways, and a distributed tensor.
COMPILES = """
import torch, torch.distributed.tensor
import torch._dynamo.config
from torch._dynamo import list_backends
print(torch._dynamo.config.verbose, "inductor" in list_backends(), torch.distributed.tensor.DTensor.__name__)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


@pytest.mark.parametrize(("script", "is_hidden"), [("trainer", True), ("saver", False)])
def test_runs_of_a_script_in_plain_python_find_no_torch(tmp_path: Path, script: str, is_hidden: bool) -> None:
    """Each of their nodes would import it twice; that half of what such a run takes is easily overlooked."""
    project = tmp_path / "project"
    project.mkdir()
    door = Door(project, {"PATH": "/usr/bin"})
    door.write("job.yaml", f"entrypoint: {{script: {REPOSITORY}/tests/soak/{script}.py, args: [{project}]}}\n")
    environ = door._environ_of((*door.command, "submit", "job.yaml"))
    without_torch = hide_torch(door.environ, tmp_path / "without-torch")
    assert environ == (without_torch if is_hidden else hide_compiler(door.environ))


def run_without_compiler(text: str, *arguments: str) -> str:
    pytest.importorskip("torch", reason="there is no torch")
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments], env=hide_compiler(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_first_training_step_needs_no_compiler(tmp_path: Path) -> None:
    """That would take longer than all else that it imports, in hundreds of ranks."""
    assert run_without_compiler(STEP, str(tmp_path / "meet"), str(tmp_path / "saved")) == "[False, False]\n"


@pytest.mark.long
def test_a_script_that_compiles_has_the_compiler() -> None:
    assert run_without_compiler(COMPILES) == "False True DTensor\n2.0\n"
