"""Runs one program as plain Python does, in a spawned worker and in a forked one, and reads what each left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any

from tests.worker.forking import LAUNCH, Server, collect

# What no two processes share, and what is below a script in a stack that somebody prints.
UNLIKE = [
    (re.compile(rf'^  File "{re.escape(str(LAUNCH.parent))}/.*\n(    .*\n)*', re.MULTILINE), ""),
    (re.compile(r"\b0x[0-9a-f]{6,}"), "0xADDRESS"),
    (re.compile(r"^object refcount : \d+$", re.MULTILINE), ""),
    # What torch brings: of a crash, and what it says once, when it is imported where there is no numpy.
    (re.compile(r"^\nExtension modules: .*\n", re.MULTILINE), ""),
    (re.compile(r"^.*Failed to initialize NumPy: .*\n  .*\n", re.MULTILINE), ""),
    (re.compile(r"(?<=pytorch-errorfile-)\w+"), ""),
]
P, S, F = "python", "spawn", "fork"
WAYS = (P, S, F)

WORKER = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "HPC_ELASTIC_ATTEMPT": "2",
    "HPC_ELASTIC_NODE": "node7",
    "MASTER_ADDR": "127.0.0.1",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The program to run: `target` is a script's path or, for the kind `module`, a module's name."""

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = "script"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a process has left: its exit code (negative: a signal), texts, notes of `state.py`, and files."""

    exit_code: int
    stdout: str
    stderr: str
    states: list[dict[str, Any]]
    files: list[str]


def base_environment() -> dict[str, str]:
    """Return the environment that a server and its workers share, without anything of this test run's Python."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


class Place:
    """The folder in which one way of running goes on, its two outputs beside it."""

    def __init__(self, way: str, above: Path, python: Sequence[str] = (sys.executable,)) -> None:
        self.way = way
        self._python = python
        self.directory = above / way[0]  # of equal length: where a line of output is full must not differ
        self.directory.mkdir()
        self.outputs = [above / f"{way[0]}.{name}" for name in ("stdout", "stderr")]

    def start(self, run: Run, common: Mapping[str, str], server: Server) -> int:
        """Starts the program; returns its pid, a child of this process."""
        own = {"TMPDIR": str(self.directory), "TORCHELASTIC_ERROR_FILE": f"{self.directory}.error.json"}
        environment = {**common, **WORKER, **own, "AGENT_PID": str(os.getpid()), **run.environment}
        if self.way == F:
            stdout, stderr = self.outputs
            answer = server.fork_worker(
                run.kind,
                run.target,
                *run.arguments,
                directory=self.directory,
                environment=environment,
                stdout=stdout,
                stderr=stderr,
            )
            assert "pid" in answer, answer
            return int(answer["pid"])
        with open(self.outputs[0], "ab") as out, open(self.outputs[1], "ab") as err:
            process = subprocess.Popen(
                self._command(run),
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        process.returncode = 0  # it is not this object that collects it
        return process.pid

    def _command(self, run: Run) -> list[str]:
        if self.way == P:
            return [*self._python, *(["-m"] if run.kind == "module" else []), run.target, *run.arguments]
        bootstrap = [str(LAUNCH), "hpc_elastic.worker.bootstrap", "--parent", str(os.getpid())]
        return [*self._python, *bootstrap, f"--{run.kind}", run.target, "--", *run.arguments]

    def collect(self, pid: int) -> Outcome:
        """Waits for the end and reads what is there then."""
        exit_code = collect(pid)
        stdout, stderr = (self._plain(path.read_bytes().decode(errors="backslashreplace")) for path in self.outputs)
        notes = self.directory / "states"
        states = self._plain(notes.read_text("utf-8")) if notes.exists() else ""
        found = ((path.relative_to(self.directory), path.lstat()) for path in self.directory.rglob("*"))
        files = sorted(
            f"{self._plain(str(path))} {status.st_size if S_ISREG(status.st_mode) else 'no file'}"
            for path, status in found
        )
        return Outcome(
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            states=[json.loads(line) for line in states.splitlines()],
            files=[name for name in files if not name.startswith("states ")],
        )

    def _plain(self, text: str) -> str:
        """Return the text without this way's folder and without what differs from process to process."""
        above = str(self.directory.parent)
        text = text.replace(json.dumps(above)[1:-1], above).replace(f"{above}/{self.way[0]}", "PLACE")
        for pattern, replacement in UNLIKE:
            text = pattern.sub(replacement, text)
        return text
