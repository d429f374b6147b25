"""A worker has the signals of a fresh Python in the foreground, and leaves a stack where one of its own ends it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.tiers import longer
from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('goes on')"


def ignore() -> None:
    """Does as a shell for what it runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "exitcode"),
    [
        (INTERRUPTED, -signal.SIGINT),
        ("import _thread; _thread.interrupt_main(); print('goes on')", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGQUIT)", -signal.SIGQUIT),
    ],
)
def test_a_worker_of_an_agent_in_the_background_is_ended_by_its_own_interrupt(
    runner: Runner, command_of: Callable[..., list[str]], source: str, exitcode: int
) -> None:
    script = str(runner.write("script.py", source))
    done = subprocess.run(
        command_of("--script", script), env=runner.environment, capture_output=True, timeout=60, preexec_fn=ignore
    )
    assert (done.returncode, done.stdout) == (exitcode, b"")


@pytest.mark.long
def test_a_fork_of_a_server_in_the_background_is_ended_by_its_own_interrupt(runner: Runner) -> None:
    script = runner.write("script.py", INTERRUPTED)
    with fork_server(runner.directory, runner.environment, ignored=[signal.SIGINT]) as server:
        paths = [runner.directory / name for name in ("out", "err")]
        answer = server.fork_worker(
            "script",
            str(script),
            directory=runner.directory,
            environment=runner.environment,
            stdout=paths[0],
            stderr=paths[1],
        )
        assert (collect(answer["pid"]), paths[0].read_text()) == (-signal.SIGINT, "")


@pytest.mark.long
def test_a_signal_that_a_setup_line_ignores_stays_ignored(runner: Runner, command_of: Callable[..., list[str]]) -> None:
    script = str(runner.write("script.py", "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"))
    done = subprocess.run(
        command_of("--script", script),
        env=runner.environment,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    )
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["SIGSEGV", *longer("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")])
def test_a_fatal_signal_leaves_pythons_stack_on_standard_error(runner: Runner, name: str) -> None:
    source = f"import os, signal\ndef step():\n    os.kill(os.getpid(), signal.{name})\nstep()\n"
    outcome = runner.run_script(source)
    assert outcome.exit_code == -getattr(signal, name)
    assert 'script.py", line 3 in step' in outcome.stderr


@pytest.mark.long
def test_a_worker_whose_standard_error_is_closed_runs(runner: Runner, command_of: Callable[..., list[str]]) -> None:
    script = str(runner.write("script.py", "print('runs')"))
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command_of("--script", script)],
        env=runner.environment,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"runs\n")
