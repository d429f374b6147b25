"""What the tests' own way to the command does for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.rundir.layout import RunLayout
from tests.integration.conftest import Door, Run
from tests.integration.forked_commands import may_be_forked, run_forked
from tests.without_torch import hide_compiler, hide_torch

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_ID = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}")
# A first step of a training; it says whether that has imported torch's compiler, distributed tensors and meta kernels.
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
parts = ("torch._dynamo.eval_frame", "torch.distributed.tensor.placement_types", "torch._prims")
print([part in sys.modules for part in parts])
del model
dist.destroy_process_group()
"""
# Uses the compiler, imported in three ways, a distributed tensor, and a kernel in Python of the device `meta`.
COMPILES = """
import torch, torch.distributed.tensor
import torch._dynamo.config
from torch._dynamo import list_backends
print(torch._dynamo.config.verbose, "inductor" in list_backends(), torch.distributed.tensor.DTensor.__name__)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
ones = torch.ones(2, device="meta")
print(torch.vdot(ones, ones).device, torch.Generator().manual_seed(1).initial_seed())
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


@pytest.mark.long
def test_a_forked_command_is_what_a_started_one_is(tmp_path: Path) -> None:
    """Its exit code and all that it says, in the folder and the environment of who asks; the next one is another."""
    door = Door(tmp_path, {**os.environ, "XDG_STATE_HOME": str(tmp_path), "SBATCH_TIMELIMIT": "7"})
    door.write("job.yaml", "site: generic-slurm\ntime: 10m\nentrypoint: {script: 'gr\u00fc\u00dfe.py'}\n")
    door.write("bad.yaml", "entrypint: {command: /bin/true}\n")
    told = []
    for words in (["check", "job.yaml"], ["check", "bad.yaml"], ["status", "x"], ["schema"]):
        command = [*door.command, *words]
        assert may_be_forked(command, door.environ)
        forked = run_forked(command, cwd=tmp_path, environ=door.environ, timeout_s=60)
        started = subprocess.run(command, cwd=tmp_path, env=door.environ, capture_output=True, text=True)
        both = [(each.returncode, RUN_ID.sub("", each.stdout), each.stderr) for each in (forked, started)]
        assert both[0] == both[1]
        told.append(both[0])
    assert len({code for code, *_ in told}) > 2, told
    assert "gr\u00fc\u00dfe.py" in "".join(told[0][1:])


@pytest.mark.long
def test_a_forked_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")  # whose writer never comes
    door = Door(tmp_path, os.environ)
    with pytest.raises(subprocess.TimeoutExpired):
        door.run("check", "job.yaml", timeout_s=0.5)


def test_a_command_is_started_where_python_would_start_otherwise(tmp_path: Path) -> None:
    command = Door(tmp_path, {}).command
    assert may_be_forked([*command, "status"], {**os.environ, "PYTHONPATH": "/other"})
    assert not may_be_forked([*command, "status"], {**os.environ, "PYTHONUTF8": "1"})
    assert not may_be_forked(["unshare", "--uts", *command, "status"], os.environ)


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
    assert run_without_compiler(STEP, str(tmp_path / "meet"), str(tmp_path / "saved")) == "[False, False, False]\n"


@pytest.mark.long
def test_a_script_that_compiles_has_the_compiler() -> None:
    assert run_without_compiler(COMPILES) == "False True DTensor\n2.0\nmeta 1\n"


def test_what_an_agent_left_behind_counts_for_the_runs_of_its_own_test_alone(tmp_path: Path) -> None:
    """Other tests kill agents at the same time, and their fork servers live a moment longer."""
    (elsewhere := tmp_path.parent / f"{tmp_path.name}-other" / "project").mkdir(parents=True)
    (project := tmp_path / "project").mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    sleeps = "import time; print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", sleeps, "hpc_elastic.worker.fork_server", "--parent", str(ended.pid)]
    servers = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) for folder in (project, elsewhere)]
    try:
        for server in servers:
            assert server.stdout is not None
            server.stdout.readline()
        assert [*Run(job_id="", layout=RunLayout(str(tmp_path / "runs" / "job"))).agents()] == [servers[0].pid]
    finally:
        for server in servers:
            server.kill()
            server.communicate()
