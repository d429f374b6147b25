"""Runs scripts as plain Python does and as a worker does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LAUNCH = Path(__file__).parents[2] / "hpc_elastic" / "launch.py"


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


class Runner:
    """Starts processes in a folder of their own, with an environment that a test can add to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.error_file = directory / "ranks" / "00003" / "error.json"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))},
            "RANK": "3",
            "LOCAL_RANK": "1",
            "HPC_ELASTIC_ATTEMPT": "2",
            "HPC_ELASTIC_NODE": "node7",
            "TORCHELASTIC_ERROR_FILE": str(self.error_file),
        }

    def write(self, name: str, source: str | bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return path

    def run(self, command: Sequence[str], *, stdin: str = "", **environment: str) -> Outcome:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={**self.environment, **environment},
            input=stdin.encode(),
            capture_output=True,
            timeout=60,
        )
        texts = (text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr))
        return Outcome(done.returncode, *texts)

    def run_worker(
        self, kind: str, target: str, *arguments: str, python: Sequence[str] = (sys.executable,), **environment: str
    ) -> Outcome:
        return self.run(worker_command(kind, target, *arguments, python=python), **environment)

    def run_script(self, source: str, **environment: str) -> Outcome:
        return self.run_worker("--script", str(self.write("script.py", source)), **environment)

    def read_error(self) -> Any:
        return json.loads(self.error_file.read_text("utf-8"))


def worker_command(
    kind: str, target: str, *arguments: str, parent: int = 0, python: Sequence[str] = (sys.executable,)
) -> list[str]:
    bootstrap = [str(LAUNCH), "hpc_elastic.worker.bootstrap", "--parent", str(parent)]
    return [*python, *bootstrap, kind, target, "--", *arguments]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def command_of() -> Callable[..., list[str]]:
    """`worker_command`, for tests that start the process themselves."""
    return worker_command
