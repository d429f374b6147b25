"""A worker does not outlive its agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

WAIT_S = 30.0

# Stands in for the agent: starts a worker and hands on its output, until it is killed.
AGENT = """
import os, signal, subprocess, sys
command = sys.argv[1:]
command[command.index("PARENT")] = str(os.getpid())
subprocess.Popen(command, start_new_session=True)
signal.pause()
"""
SCRIPT = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
SHELL = "echo $$; exec sleep 600"


@pytest.mark.parametrize("kind", ["--script", "--module", "--command"])
def test_worker_is_killed_if_its_agent_is_killed(
    runner: Runner, command_of: Callable[..., list[str]], kind: str
) -> None:
    runner.write("script.py", SCRIPT)
    targets = {"--script": ["script.py"], "--module": ["script"], "--command": ["sh", "-c", SHELL]}
    command = [part if part != "0" else "PARENT" for part in command_of(kind, *targets[kind])]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, *command], cwd=runner.directory, env=runner.environment, stdout=subprocess.PIPE
    )
    with agent:
        assert agent.stdout is not None
        worker = os.pidfd_open(int(agent.stdout.readline()))
        agent.kill()
        ended = bool(select.select([worker], [], [], WAIT_S)[0])
        if not ended:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)
    assert ended, f"the worker was alive {WAIT_S} s after its agent was killed"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["--script", "--command"])
def test_worker_does_nothing_if_its_agent_is_gone_already(
    runner: Runner, command_of: Callable[..., list[str]], kind: str
) -> None:
    target = str(runner.write("script.py", "#!/bin/sh\nprint('started')"))
    not_the_parent = os.getppid()
    outcome = runner.run(command_of(kind, target, parent=not_the_parent))
    assert (outcome.exit_code, outcome.stdout) == (-signal.SIGKILL, "")
