"""Runs of the real command in folders of their own, and what is asked of them afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.observe.schemas import ERROR_FILE, RECORDS
from hpc_elastic.rundir.layout import RunLayout
from tests.integration.forked_commands import may_be_forked, run_forked
from tests.record_schemas import assert_valid
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.without_torch import hide_compiler, hide_torch

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "examples" / "digits"


@dataclass(frozen=True)
class Run:
    """One run, by its directory."""

    job_id: str
    layout: RunLayout

    @classmethod
    def at(cls, path: Path) -> Run:
        """The run in this directory."""
        layout = RunLayout(str(path))
        return cls(job_id=json.loads(Path(layout.submission).read_text())["job_id"], layout=layout)

    @property
    def path(self) -> Path:
        return Path(self.layout.root)

    def read(self, path: str) -> Any:
        return json.loads(Path(path).read_text())

    def result(self) -> Any:
        """Return the contents of `result.json`, which must exist: see `wait`."""
        return self.read(self.layout.result)

    def is_over(self) -> bool:
        return Path(self.layout.result).exists()

    def attempts(self) -> list[int]:
        """Return the numbers of the claimed attempts; a folder without a claim may hold a roster already."""
        return sorted(int(path.parent.name) for path in Path(self.layout.attempts).glob("*/claim.json"))

    def stdout(self, attempt: int, rank: int) -> str:
        path = Path(self.layout.stdout(attempt, rank))
        return path.read_text() if path.exists() else ""

    def story(self) -> str:
        """Return the ends of the run's output files and logs, for the message of a failed test."""
        files = [*self.path.glob("*.out"), *self.path.glob("agents/*.out"), *self.path.glob("attempts/*/ranks/*/*.log")]
        texts = (f"--- {file.relative_to(self.path)}\n{file.read_text(errors='replace')[-3000:]}" for file in files)
        return "\n".join(texts)

    def wait_for_output(self, text: str, *, attempt: int = 1, rank: int = 0, within_s: float = 90) -> None:
        """Waits until a rank has written the text."""
        what = f"rank {rank} of attempt {attempt} writes {text!r}"
        wait_until(lambda: text in self.stdout(attempt, rank), what, within_s=within_s, otherwise=self.story)

    def wait_until_started(self, attempt: int = 1, *, within_s: float = 90) -> None:
        """Waits until every rank has its process and every node's record says so: nothing is half written then."""

        def is_started() -> bool:
            lines = [line for path in self.path.glob("nodes/*/events.jsonl") for line in whole_lines(path)]
            events = [json.loads(line) for line in lines]
            return any((event["name"], event["attempt"]) == ("attempt.started", attempt) for event in events)

        wait_until(is_started, f"attempt {attempt} has started", within_s=within_s, otherwise=self.story)

    def wait_until_over(self, *, within_s: float = 120) -> Any:
        """Waits for the result, and gives it."""
        wait_until(self.is_over, f"run {self.path} is over", within_s=within_s, otherwise=self.story)
        return self.result()

    def processes(self) -> dict[int, str]:
        """The processes on this machine, in every namespace, that carry this run in their environment."""
        mark = os.fsencode(f"HPC_ELASTIC_RUN_DIR={self.layout.root}")
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def agents(self) -> dict[int, str]:
        """The agents and guards of this run that are alive, and fork servers and store hosts whose agent is dead."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                is_ours = "hpc_elastic.agent." in command and f"{self.layout.root} " in f"{command} "
                if is_ours or _is_left_alone(entry, command, self.layout.root):
                    found[int(entry.name)] = command
        return found

    def agent_pid(self, node: str) -> int:
        """The agent of a node of this machine; its guard and store host have other command lines."""
        wanted = f"HPC_ELASTIC_LOCAL_NODE_ID={node.removeprefix('local')}".encode()
        for pid, command in self.agents().items():
            with contextlib.suppress(OSError):  # what an agent forks looks like it at first, and may be gone
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if "hpc_elastic.agent.main" in command and wanted in environ:
                    return pid
        raise AssertionError(f"no agent of {node}: {self.agents()}")

    def worker_pid(self, rank: int, attempt: int = 1) -> int:
        """The process of a rank."""
        wanted = {os.fsencode(f"RANK={rank}"), os.fsencode(f"HPC_ELASTIC_ATTEMPT={attempt}")}
        for pid in self.processes():
            try:
                if wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    return pid
            except OSError:
                continue
        raise AssertionError(f"rank {rank} of attempt {attempt} does not run\n{self.story()}")

    def assert_nothing_left(self, *, within_s: float = 15) -> None:
        """No worker, helper, guard or agent of the run is alive anywhere."""
        wait_until(
            lambda: not self.processes() and not self.agents(),
            "no process of the run is left",
            within_s=within_s,
            otherwise=lambda: {**self.processes(), **self.agents()},
        )

    def assert_records_valid(self, *, killed: Collection[str] = ()) -> None:
        """Every record in the run directory is valid by its schema, and there is no stray temporary file.

        Call it when no process of the run is left: agents still write records after the result.

        Args:
            killed: nodes whose agent was: one may leave a temporary file, and half a line at the end of its own files.
        """
        self.assert_nothing_left()
        checked = 0
        for path in self.path.rglob("*"):
            name = path.relative_to(self.path).as_posix()
            # A worker may be stopped while it writes a checkpoint, or its value, which nobody reads then.
            is_workers = path.name.startswith((".return_value.pkl.", "checkpoint.pt."))
            assert killed or is_workers or not name.endswith(".tmp"), name
            kind = _kind(name)
            if kind is None:
                continue
            text = path.read_text()
            if name.endswith("l") and path.parent.name in killed:
                text = text[: text.rfind("\n") + 1]
            values = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
            for value in values:
                assert_valid(value, kind)
                _check_all_or_nothing(value)
            checked += len(values)
        assert checked > 0


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that goes on growing: of a line that is being written a reader may see a part."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


# Of a test, or of a soak.
_TEST_FOLDER = re.compile(rf"(?:.*?/pytest-\d+/(?:popen-gw\d+/)?|{re.escape(tempfile.gettempdir())}/)[^/]+/")


def _is_left_alone(process: Path, command: str, run_dir: str) -> bool:
    """Return whether the process is a fork server or store host of this process namespace whose agent is dead.

    Of the runs of the same test: others kill agents, too, at the same time.
    """
    parent = re.search(r" hpc_elastic\.worker\.(?:fork_server|store_host) --parent (\d+)", command)
    if parent is None or Path("/proc", parent[1]).exists():
        return False
    try:
        if (process / "ns" / "pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return False
        folders = _TEST_FOLDER.match(f"{(process / 'cwd').readlink()}/"), _TEST_FOLDER.match(run_dir)
        return folders[0] is not None and folders[1] is not None and folders[0][0] == folders[1][0]
    except OSError:
        return False


def _check_all_or_nothing(record: Any) -> None:
    """Check that a result has return values or failures, not both, of its own ranks only."""
    if "return_values" not in record:
        return
    assert not (record["return_values"] and record["failures"]), record
    if record["return_values"] or record["state"] == "SUCCEEDED":
        assert (record["state"], record["failures"]) == ("SUCCEEDED", {}), record
    ranks = record.get("ranks")
    assert ranks is None or {*record["return_values"], *record["failures"]} <= set(map(str, ranks)), record


def _kind(name: str) -> str | None:
    """Return the key in RECORDS for a file below a run directory."""
    for kind in [*RECORDS, ERROR_FILE]:
        pattern = re.escape(kind).replace("NNNN", r"\d{4,}").replace("RRRRR", r"\d{5,}").replace("NODE", "[^/]+")
        if re.fullmatch(pattern, name):
            return kind
    return None


class Door:
    """The command `hpc-elastic` as a user runs it in a folder.

    Args:
        folder: where job files are and runs go.
        environ: the environment of the commands.

    A test whose processes must have all of torch, whatever its scripts name, sets `may_hide_torch` to False.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], *, command: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.environ = dict(environ)
        self.command = command or (sys.executable, "-m", "hpc_elastic")
        self.may_hide_torch = True
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command that runs beside the test, and no longer."""
        return self.start_program(*self.command, *arguments)

    def start_program(self, *command: str) -> subprocess.Popen[str]:
        """Starts another program of the user in the same way."""
        started = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environ_of(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        """Ends what was started and still runs: a test that fails leaves nothing to the next one."""
        for started in self._started:
            started.kill()
            started.communicate()

    def run(
        self, *arguments: str, timeout_s: float = 180, exit_code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command; with `exit_code=None` any exit code will do."""
        command = (*self.command, *arguments)
        environ = self._environ_of(command)
        if may_be_forked(command, environ):
            done = run_forked(command, cwd=self.folder, environ=environ, timeout_s=timeout_s)
        else:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        if exit_code is not None:
            assert done.returncode == exit_code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback (most recent call last)" not in done.stderr, done.stderr
        return done

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def submit(self, job: str, *arguments: str, wait: bool = False, exit_code: int = 0) -> Run:
        """Submits a job file of this folder."""
        done = self.run("submit", job, "--json", *(["--wait"] if wait else []), *arguments, exit_code=exit_code)
        told = json.loads(done.stdout.splitlines()[0])
        return Run(job_id=told["job_id"], layout=RunLayout(told["run_dir"]))

    def _environ_of(self, command: Sequence[str]) -> dict[str, str]:
        """Return the environment of a command: without torch, or its compiler, if it starts a job that needs none."""
        words = command[len(self.command) :] if tuple(command[: len(self.command)]) == self.command else ()
        if words[:1] not in (("submit",), ("run",)) or not self.may_hide_torch:
            return self.environ
        text = "".join(map(self._text_of, words))
        if "PYTHONPATH" in text:
            return self.environ
        # About torch, or what only torch brings.
        if any(word in text for word in ("torch", "start: fork", "preload:")):
            return hide_compiler(self.environ)
        return hide_torch(self.environ, self.folder.parent / "without-torch")

    def _text_of(self, word: str) -> str:
        """Return a job file or script with the scripts in it and beside it; nothing for another word of a command."""
        path = self.folder / word
        if not word.endswith((".yaml", ".yml", ".py")) or not path.is_file():
            return ""
        text = path.read_text(errors="replace")
        named = {path.parent / name for name in re.findall(r"[\w./-]+\.py\b", text)}
        files = [file for file in {*path.parent.glob("*.py"), *named} if file.is_file()]
        return text + "".join(file.read_text(errors="replace") for file in files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project folder."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def door(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """Return the command on a machine without Slurm's variables."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "HPC_ELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    door = Door(folder, os.environ)
    yield door
    door.close()


@pytest.fixture
def slurm_door(slurm: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """Return the command on the login node of the test's Slurm."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    door = Door(folder, {**slurm.environment, "XDG_STATE_HOME": str(tmp_path / "state")})
    yield door
    door.close()
