"""What a machine's sleep does to leases and deadlines.

A process in a time namespace whose boot clock is ahead sees the clocks of a machine that has slept.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.agent.guard.link import GuardLink
from hpc_elastic.agent.system.alarm import Alarm
from hpc_elastic.agent.system.processes import agent_id
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from tests.agent.conftest import Spawn, marks_of

PACKAGE = Path(hpc_elastic.__file__).parent
SLEPT_S = 600
AFTER_SLEEP = ["unshare", "--time", "--boottime", str(SLEPT_S), "--fork"]  # MONOTONIC stays; BOOTTIME is ahead


def can_sleep() -> bool:
    try:
        return subprocess.run([*AFTER_SLEEP, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


needs_sleep = pytest.mark.skipif(not can_sleep(), reason="no time namespaces here (Linux 5.6, root, util-linux 2.36)")


def say(source: str, *, passed: int | None = None, prefix: list[str]) -> str:
    command = [*prefix, sys.executable, "-c", source]
    kept = [] if passed is None else [passed]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, pass_fds=kept, env=environment, check=True)
    return done.stdout.strip()


@needs_sleep
def test_a_deadline_passes_while_the_machine_sleeps() -> None:
    deadline = Deadline.create()
    deadline.set(now() + SLEPT_S / 2)
    source = f"from hpc_elastic.deadline import Deadline; print(Deadline({deadline.descriptor}).has_passed)"
    assert say(source, passed=deadline.descriptor, prefix=[]) == "False"
    assert say(source, passed=deadline.descriptor, prefix=AFTER_SLEEP) == "True"
    deadline.close()


@pytest.mark.long
@needs_sleep
def test_an_agents_lease_runs_out_while_the_machine_sleeps() -> None:
    source = "from hpc_elastic.agent.system.event_loop import AgentEventLoop; print(AgentEventLoop().time())"
    assert float(say(source, prefix=AFTER_SLEEP)) - float(say(source, prefix=[])) > SLEPT_S / 2


@needs_sleep
def test_a_guard_kills_the_workers_of_a_machine_that_slept_beyond_their_deadline(spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    deadline = Deadline.create()
    deadline.set(now() + SLEPT_S / 2)
    arguments = [str(deadline.descriptor), str(tmp_path), "node1", agent_id(os.getpid())]
    guard = [sys.executable, str(PACKAGE / "launch.py"), "hpc_elastic.agent.guard.process", *arguments]
    with subprocess.Popen(
        [*AFTER_SLEEP, *guard], stdin=subprocess.PIPE, pass_fds=[deadline.descriptor], start_new_session=True
    ) as process:
        assert worker.wait(20) == -signal.SIGKILL
        assert process.stdin is not None
        process.stdin.write(b"bye\n")
    deadline.close()


def test_an_alarm_wakes_at_its_moment_and_not_before() -> None:
    """It is what wakes a guard when its machine does; a wait with a timeout would go on for what was left of it."""
    alarm = Alarm()
    waits: list[Callable[[], float]] = [lambda: now() + 0.05, lambda: now() - 1, now]
    for wait in waits:
        alarm.set(moment := wait())
        assert select.select(alarm.descriptors, [], [], 20)[0] == alarm.descriptors
        assert now() >= moment
    for never in (float("inf"), now() + 3600):
        alarm.set(never)
        assert select.select(alarm.descriptors, [], [], 0)[0] == []
    alarm.close()


@pytest.mark.long
def test_agent_and_guard_wait_by_the_same_clock(tmp_path: Path, spawn: Spawn) -> None:
    deadline = Deadline.create()
    link = GuardLink(str(PACKAGE), run_dir=str(tmp_path), node="node1", deadline=deadline)
    worker = spawn(environment=marks_of(tmp_path))
    link.set_deadline(over := now() + 0.5)
    assert worker.wait(20) == -signal.SIGKILL
    assert over <= now() < over + 10
    link.dismiss()
    deadline.close()
