"""Real processes for tests, which are gone when the test is over, however it went."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE, NODE_VARIABLE, RUN_DIR_VARIABLE
from hpc_elastic.agent.workers.spawn import Spawner
from hpc_elastic.deadline import Deadline
from hpc_elastic.processes import read_children

Spawn = Callable[..., "subprocess.Popen[bytes]"]
PACKAGE = Path(hpc_elastic.__file__).parent
DEADLINE = Deadline.create()  # it never comes
SPAWNER = Spawner(str(PACKAGE), DEADLINE)
SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


def marks_of(run_dir: Path | str, node: str = "node1", attempt: int = 1) -> dict[str, str]:
    """Return the variables by which a worker's process is found."""
    return {RUN_DIR_VARIABLE: str(run_dir), NODE_VARIABLE: node, ATTEMPT_VARIABLE: str(attempt)}


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def own_children() -> list[int]:
    """Return the process ids of this process's children, whichever thread started them."""
    return [int(child) for thread in os.listdir("/proc/self/task") for child in read_children(os.getpid(), thread)]


def wait_until_gone(pid: int, within_s: float = 20) -> bool:
    """Return whether a process, not only a child, ended in time; wait on its pidfd, without polling."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `python -c SOURCE` in a session of its own and returns when it has printed its first line."""
    started: list[subprocess.Popen[bytes]] = []

    def start(source: str = SLEEP, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.first_line = process.stdout.readline().decode().strip()  # type: ignore[attr-defined]
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Make this process a subreaper, as an agent is: orphans below it become its children."""
    set_subreaper = 36  # prctl(2)
    libc = ctypes.CDLL(None)
    libc.prctl(set_subreaper, 1, 0, 0, 0)
    yield
    libc.prctl(set_subreaper, 0, 0, 0, 0)
