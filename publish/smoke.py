"""Installs a wheel in new environments and tries it: a training, and the command of a login node without torch."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

_TRAINING = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == 4, total
if not os.path.exists("failed"):
    dist.barrier()
    if dist.get_rank() == 1:
        open("failed", "w").close()
        raise RuntimeError("once")
dist.destroy_process_group()
"""
_JOB = "name: smoke\nnodes: 2\nworkers_per_node: 2\ntime: 10m\nentrypoint: {script: train.py}\n"
# What people do on a login node: all of it must go without torch.
LOGIN_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("check", "job.yaml"),
    ("check", "job.yaml", "--explain"),
    ("render", "job.yaml", "--site", "perlmutter", "--set", "sbatch.account=abc", "--set", "sbatch.constraint=gpu"),
    ("init", "train.py", "-o", "-"),
    ("schema",),
    ("schema", "--record", "result.json"),
    ("sites", "list"),
    ("templates", "list"),
    ("doctor", "--site", "local", "--nodes", "0"),
    ("binding", "--here"),
    ("completion", "bash"),
    ("submit", "job.yaml", "--site", "local", "--wait"),
    ("status",),
    ("explain",),
    ("watch",),
    ("list",),
    ("logs",),
    ("nodes",),
    ("submit", "job.yaml", "--site", "local", "--set", "name=long", "--set", "entrypoint.args=[600]"),
    ("cancel", "long"),
)


def try_training(folder: Path, wheel: Path, constraints: Path) -> Path:
    """Install the wheel as users do, and train with a crash; return the environment's Python."""
    python = _environment(folder, wheel, constraints, without=())
    (folder / "train.py").write_text(_TRAINING)
    (folder / "job.yaml").write_text(_JOB)
    hpc_elastic(python, folder, "submit", "job.yaml", "--site", "local", "--wait")
    assert "restarts       1 of 3" in hpc_elastic(python, folder, "status")
    manual = python.parents[1] / "share/man/man1/hpc-elastic.1"
    assert manual.is_file(), f"the wheel brings no {manual}"
    return python


def try_login(folder: Path, wheel: Path, constraints: Path) -> None:
    """Install the wheel without torch, and do what people do on a login node."""
    python = _environment(folder, wheel, constraints, without=("torch",))
    do_login_commands(python, folder)


def do_login_commands(python: Path, folder: Path) -> None:
    """Run each command of a login node in a folder, with a Python that has no torch."""
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in found.stderr, found.stderr
    (folder / "train.py").write_text("import sys, time\ntime.sleep(int(sys.argv[-1]) if len(sys.argv) > 1 else 0)\n")
    (folder / "job.yaml").write_text(_JOB)
    for words in LOGIN_COMMANDS:
        hpc_elastic(python, folder, *words)


def hpc_elastic(python: Path, folder: Path, *words: str) -> str:
    """Run the command in a folder, as a user who has no runs, and return what it prints."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLURM_", "HPC_ELASTIC_"))
    }
    command = [str(python.parent / "hpc-elastic"), *words]
    environment = {**kept, "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def requirements(wheel: Path, *, without: tuple[str, ...]) -> list[str]:
    """Return what a wheel requires where no extra is asked for, but for some packages."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        listed = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return [line for line in listed if "extra ==" not in line and not line.startswith(without)]


def _environment(folder: Path, wheel: Path, constraints: Path, *, without: tuple[str, ...]) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    needed = requirements(wheel, without=without)
    if without:
        subprocess.run([*pip, "--constraint", str(constraints), *needed], check=True)
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    else:
        subprocess.run([*pip, "--constraint", str(constraints), str(wheel)], check=True)
    return python
