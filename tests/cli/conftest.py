"""A working directory, an index of its own, and a Slurm made of small programs on PATH."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

JOB = """\
name: digits
nodes: 2
workers_per_node: 2
time: 10m
entrypoint: {script: train.py}
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a job file, as working directory; nothing of the real user is read or written."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "HPC_ELASTIC_")):
            monkeypatch.delenv(name)
    return folder


class FakeSlurm:
    """Fake `sbatch`, `squeue`, `scancel` and `sinfo`, which follow files in a folder and record how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self._program("sbatch", f'echo "sbatch $*" >>{folder}/calls; . {folder}/sbatch')
        self._program("squeue", f'echo "squeue $*" >>{folder}/calls; . {folder}/squeue')
        self._program("scancel", f'echo "scancel $*" >>{folder}/calls; . {folder}/scancel')
        self._program("sinfo", f'echo "sinfo $*" >>{folder}/calls; . {folder}/sinfo')
        self._program("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
        self.script("sbatch", "echo 42")
        self.script("sinfo", "echo debug")
        self.script("scancel", f"echo CANCELLED 0 None >{folder}/state")
        self.script(
            "squeue",
            f'read -r state code reason <{folder}/state; echo "42|42|$state|0|$code||$reason|"',
        )
        self.say("PENDING", reason="Resources")

    def script(self, program: str, body: str) -> None:
        """Set the shell text that the program runs from now on."""
        (self.folder / program).write_text(body + "\n")

    def say(self, state: str, *, wait_status: int = 0, reason: str = "None") -> None:
        """Set squeue's answer about job 42 from now on."""
        (self.folder / "state").write_text(f"{state} {wait_status} {reason}\n")

    def calls(self, program: str) -> list[str]:
        """Return the command line of each call of a program."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(program)]

    def no_controller(self) -> None:
        """Make every program fail as if no controller answers."""
        words = "Unable to contact slurm controller (connect failure)"
        self.script("sbatch", f'echo "sbatch: error: Batch job submission failed: {words}" >&2; exit 1')
        for program in ("squeue", "scancel", "sinfo"):
            self.script(program, f'echo "slurm_load_jobs error: {words}" >&2; exit 1')

    def no_slurm(self) -> None:
        """Make `sinfo` fail as on a machine with Slurm's commands and without a cluster."""
        words = "error: fetch_config: DNS SRV lookup failed\\nsinfo: fatal: Could not establish a configuration source"
        self.script("sinfo", f'printf "sinfo: {words}\\n" >&2; exit 1')

    def _program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.programs}:{os.environ['PATH']}")
    return fake
