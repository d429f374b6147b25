"""The guard as the real process that it is."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.agent.guard_link import GuardLink
from tests.agent.conftest import Spawn, is_running, marks_of, wait_until_gone
from tests.slurm_sandbox.cluster import wait_until

PACKAGE = str(Path(hpc_elastic.__file__).parent)


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[GuardLink]:
    link = GuardLink(PACKAGE, run_dir=str(tmp_path), node="node1")
    yield link
    if link._process.poll() is None:
        link._process.kill()
        link._process.wait()
    if link._process.stdin is not None:
        link._process.stdin.close()


def close(guard: GuardLink) -> None:
    """What the kernel does when the agent is killed."""
    assert guard._process.stdin is not None
    guard._process.stdin.close()


def is_idle(guard: GuardLink) -> bool:
    """Whether the guard has read all that it was told, and sleeps until its deadline or the next word."""
    assert guard._process.stdin is not None
    unread = array.array("i", [0])
    fcntl.ioctl(guard._process.stdin, termios.FIONREAD, unread)
    state = Path(f"/proc/{guard.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return unread[0] == 0 and state == "S"


def test_kills_the_workers_if_the_agent_is_gone(guard: GuardLink, spawn: Spawn, tmp_path: Path) -> None:
    worker, neighbour = spawn(environment=marks_of(tmp_path)), spawn(environment=marks_of(tmp_path, node="node2"))
    close(guard)
    assert worker.wait(20) == -signal.SIGKILL
    assert guard._process.wait(20) == 0
    assert is_running(neighbour.pid)


def test_spares_what_is_left_if_the_agent_says_bye(guard: GuardLink, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guard.dismiss()
    assert is_running(worker.pid)


def test_a_guard_that_is_paused_does_not_hold_the_agent(guard: GuardLink, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    os.kill(guard.pid, signal.SIGSTOP)
    for number in range(20_000):  # far more than a pipe takes
        guard.set_deadline(time.monotonic() + 600 + number)
    os.kill(guard.pid, signal.SIGCONT)
    while guard._known != guard.deadline:
        guard.set_deadline(guard.deadline)
    guard.set_deadline(time.monotonic())
    assert worker.wait(20) == -signal.SIGKILL


def test_kills_the_workers_if_the_deadline_passes_and_guards_on(guard: GuardLink, spawn: Spawn, tmp_path: Path) -> None:
    first = spawn(environment=marks_of(tmp_path))
    guard.set_deadline(time.monotonic() + 0.05)
    assert first.wait(20) == -signal.SIGKILL
    second = spawn(environment=marks_of(tmp_path))
    assert guard._process.poll() is None
    guard.set_deadline(time.monotonic())
    assert second.wait(20) == -signal.SIGKILL


def test_spares_workers_that_started_after_the_agent_had_set_a_later_deadline(spawn: Spawn, tmp_path: Path) -> None:
    """The next attempt, which starts while the guard still looks for workers of the one before."""
    for _ in range(12):
        link = GuardLink(PACKAGE, run_dir=str(tmp_path), node="node1")
        old = spawn(environment=marks_of(tmp_path))
        link.set_deadline(time.monotonic())
        assert old.wait(20) == -signal.SIGKILL
        link.set_deadline(over := time.monotonic() + 0.01)
        while time.monotonic() < over + 0.002:
            pass
        link.set_deadline(float("inf"))
        new = spawn(environment=marks_of(tmp_path))
        link.dismiss()
        assert is_running(new.pid)
        new.kill()
        new.wait()


@pytest.mark.parametrize("newest", [1000.0, float("inf")])
def test_waits_for_the_newest_deadline(guard: GuardLink, spawn: Spawn, tmp_path: Path, newest: float) -> None:
    """Also where it reads it together with one that has passed meanwhile."""
    worker = spawn(environment=marks_of(tmp_path))
    guard.set_deadline(time.monotonic() + 1000)
    wait_until(lambda: is_idle(guard), "the guard has read its first deadline")
    os.kill(guard.pid, signal.SIGSTOP)
    guard.set_deadline(time.monotonic())
    guard.set_deadline(time.monotonic() + newest)
    os.kill(guard.pid, signal.SIGCONT)
    wait_until(lambda: is_idle(guard), "the guard has acted on what it has read")
    assert is_running(worker.pid)
    guard.set_deadline(time.monotonic())
    assert worker.wait(20) == -signal.SIGKILL


def test_the_signals_that_end_an_agent_do_not_end_its_guard(guard: GuardLink, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guard.set_deadline(time.monotonic())  # the worker's death says that the guard is ready for signals
    assert worker.wait(20) == -signal.SIGKILL
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(guard.pid, number)
    last = spawn(environment=marks_of(tmp_path))
    close(guard)
    assert last.wait(20) == -signal.SIGKILL
    assert wait_until_gone(guard.pid)


def test_a_guard_that_was_killed_is_no_trouble_for_the_agent(guard: GuardLink) -> None:
    os.kill(guard.pid, signal.SIGKILL)
    guard._process.wait()
    guard.set_deadline(1.0)
    guard.dismiss()
