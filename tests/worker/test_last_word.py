"""An uncaught exception is told to the agent before threads are joined and atexit functions have run."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from hpc_elastic.last_word import NAME_VARIABLE, name_of, open_receiver
from tests.last_words import last_words
from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

RAISES = "raise ValueError('on purpose')\n"
# Ends when standard input does.
LINGERS_AT_EXIT = f"import atexit, sys\natexit.register(sys.stdin.read)\n{RAISES}"
LINGERS_IN_A_THREAD = f"import sys, threading\nthreading.Thread(target=sys.stdin.read).start()\n{RAISES}"


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    with open_receiver() as receiver:
        yield receiver


@pytest.mark.long
@pytest.mark.parametrize("source", [LINGERS_AT_EXIT, LINGERS_IN_A_THREAD])
@pytest.mark.parametrize("kind", ["--script", "--module"])
def test_an_uncaught_exception_is_told_while_the_process_lives_on(
    runner: Runner, command_of: Callable[..., list[str]], agent: socket.socket, kind: str, source: str
) -> None:
    path = runner.write("lingers.py", source)
    with subprocess.Popen(
        command_of(kind, str(path) if kind == "--script" else "lingers"),
        cwd=runner.directory,
        env={**runner.environment, NAME_VARIABLE: name_of(agent)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as worker:
        assert worker.stderr is not None
        said: list[tuple[int, int]] = []
        while not said:
            assert select.select([agent], [], [], 60)[0]
            said = last_words(agent)
        assert said == [(worker.pid, 2)]
        assert runner.read_error()["message"]["message"] == "ValueError: on purpose"
        shown = os.read(worker.stderr.fileno(), 65536).decode()
        assert shown.endswith("ValueError: on purpose\n")
        assert worker.poll() is None
    assert worker.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "print('done')",
        "raise SystemExit(1)",
        "import os; os._exit(1)",
        "raise KeyboardInterrupt",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
        "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()",
        "import os, sys\nsys.excepthook = lambda *_: os._exit(5)\n1 / 0",
        "import sys\ndef hook(*_): sys.exit(5)\nsys.excepthook = hook\n1 / 0",
    ],
    ids=["success", "exit", "os._exit", "interrupt", "thread", "child", "hook leaves", "hook exits"],
)
def test_what_is_no_uncaught_exception_of_the_rank_is_not_told(
    runner: Runner, agent: socket.socket, source: str
) -> None:
    runner.run_script(source, **{NAME_VARIABLE: name_of(agent)})
    assert last_words(agent) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["nobody", "", "x" * 200])
def test_an_agent_that_hears_nothing_changes_nothing(runner: Runner, name: str) -> None:
    outcome = runner.run_script(RAISES, **{NAME_VARIABLE: name})
    assert outcome == runner.run_script(RAISES)


@pytest.mark.parametrize("kind", ["--script", "--command"])
def test_the_users_code_and_its_children_do_not_see_the_agents_name(
    runner: Runner, agent: socket.socket, kind: str
) -> None:
    script = runner.write("show.sh", "#!/bin/sh\nenv\n")
    script.chmod(0o755)
    if kind == "--script":
        script = runner.write("show.py", "import os, subprocess; print(os.environ); subprocess.run(['env'])")
    outcome = runner.run_worker(kind, str(script), **{NAME_VARIABLE: name_of(agent)})
    assert "RANK=3" in outcome.stdout
    assert NAME_VARIABLE not in outcome.stdout


@pytest.mark.long
def test_a_forks_uncaught_exception_is_told_too(runner: Runner, agent: socket.socket) -> None:
    runner.environment["PYTHONPATH"] = str(runner.write("site/torch.py", "__version__ = '9.9'").parent)
    script = runner.write("script.py", f"import os\nprint(dict(os.environ), flush=True)\n{RAISES}")
    with fork_server(runner.directory, runner.environment) as server:
        answer = server.fork_worker(
            "script",
            str(script),
            directory=runner.directory,
            environment={**runner.environment, NAME_VARIABLE: name_of(agent)},
            stdout=runner.directory / "out",
        )
        assert collect(answer["pid"]) == 1
    assert last_words(agent) == [(answer["pid"], 2)]
    seen = (runner.directory / "out").read_text()
    assert "RANK" in seen
    assert NAME_VARIABLE not in seen
