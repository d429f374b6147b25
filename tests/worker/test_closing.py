"""An exception in flight is told before a process group's connections close; one that is handled is not held on to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hpc_elastic.last_word import NAME_VARIABLE, Word, WordKind, name_of, open_receiver, receive_words
from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

# A stand-in for torch: the names are where torch has them, and are taken from there as torch itself does.
C10D = """
def init_process_group(): pass
def destroy_process_group(): print("closed", flush=True)
"""
USES = """
import sys
from torch.distributed import destroy_process_group, init_process_group
init_process_group()
"""
KINDS = WordKind


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    with open_receiver() as receiver:
        yield receiver


@pytest.fixture
def torch(runner: Runner) -> Runner:
    runner.write("site/torch/__init__.py", "__version__ = '9.9'")
    runner.write("site/torch/distributed/__init__.py", "from .distributed_c10d import *")
    runner.write("site/torch/distributed/distributed_c10d.py", C10D)
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    return runner


def said(torch: Runner, agent: socket.socket, source: str) -> list[Word]:
    torch.run_script(USES + source, **{NAME_VARIABLE: name_of(agent)})
    return list(receive_words(agent))


@pytest.mark.long
def test_a_raise_through_a_finally_that_closes_is_told_before_it_closes(torch: Runner, agent: socket.socket) -> None:
    source = "def train():\n    raise ValueError('a ray')\ntry:\n    train()\nfinally:\n    destroy_process_group()\n"
    words = said(torch, agent, source)
    assert [word.kind for word in words] == [KINDS.CLOSING, KINDS.CLOSED, KINDS.FAILING, KINDS.LAST]
    record = json.loads(words[0].record)
    assert (words[0].exit_code, words[0].attempt, record["message"]["message"]) == (1, 2, "ValueError: a ray")
    assert (record["class"], record["pid"], record["rank"]) == ("exception", words[0].pid, 3)
    assert record["message"]["extraInfo"]["py_callstack"].endswith(
        "in train\n    raise ValueError('a ray')\nValueError: a ray\n"
    )


@pytest.mark.long
@pytest.mark.parametrize(("code", "exit_code", "message"), [("3", 3, ""), ("'no\\nway'", 1, "no\nway")])
def test_an_exit_through_a_finally_that_closes_is_told(
    torch: Runner, agent: socket.socket, code: str, exit_code: int, message: str
) -> None:
    words = said(torch, agent, f"try:\n    sys.exit({code})\nfinally:\n    destroy_process_group()\n")
    assert [word.kind for word in words] == [KINDS.CLOSING, KINDS.CLOSED, KINDS.FAILING]
    record = json.loads(words[0].record)
    assert (words[0].exit_code, record["class"], record["message"]["message"]) == (exit_code, "exit_code", message)


@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "destroy_process_group()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\ndestroy_process_group()",
        "try:\n    sys.exit(0)\nfinally:\n    destroy_process_group()",
        "import os\nif not os.fork():\n try:\n  1 / 0\n finally:\n  destroy_process_group()\nos.wait()",
    ],
    ids=["success", "handled elsewhere", "exit with 0", "child"],
)
def test_what_is_no_exception_in_flight_of_the_rank_is_not_told(
    torch: Runner, agent: socket.socket, source: str
) -> None:
    assert said(torch, agent, source) == []


def test_a_rank_that_handles_its_exception_and_connects_anew_says_so(torch: Runner, agent: socket.socket) -> None:
    source = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    destroy_process_group()\ninit_process_group()\n"
    assert [word.kind for word in said(torch, agent, source)] == [KINDS.CLOSING, KINDS.CLOSED, KINDS.HANDLED]


@pytest.mark.long
def test_what_a_handler_of_term_raises_is_not_told(torch: Runner, agent: socket.socket) -> None:
    raises = (
        "import os, signal\ndef stop(*_):\n    raise RuntimeError('stopped')\nsignal.signal(signal.SIGTERM, stop)\n"
    )
    source = f"{raises}try:\n    os.kill(os.getpid(), signal.SIGTERM)\nfinally:\n    destroy_process_group()\n"
    assert [word.kind for word in said(torch, agent, source)] == [KINDS.LAST]
    assert torch.read_error()["raised_by"] == "SIGTERM"


@pytest.mark.long
def test_a_huge_traceback_is_told_in_part(torch: Runner, agent: socket.socket) -> None:
    source = "try:\n    raise ValueError('\\x00' * 10**6)\nfinally:\n    destroy_process_group()\n"
    assert said(torch, agent, source)[0].kind is KINDS.CLOSING


@pytest.mark.long
def test_a_traceback_shows_no_frame_of_the_wrapper(torch: Runner, agent: socket.socket) -> None:
    torch.write("site/torch/distributed/distributed_c10d.py", C10D + "def destroy_process_group(): 1 / 0\n")
    outcome = torch.run_script(USES + "try:\n    raise ValueError\nfinally:\n    destroy_process_group()\n")
    assert "hpc_elastic" not in outcome.stderr
    assert "ZeroDivisionError" in outcome.stderr


@pytest.mark.long
def test_a_fork_tells_too_and_the_module_is_as_it_was(torch: Runner, agent: socket.socket) -> None:
    check = (
        "import torch.distributed.distributed_c10d as c\n"
        "assert type(c.__spec__.loader).__name__ == type(c.__loader__).__name__ == 'SourceFileLoader'\n"
        "assert not [each for each in sys.meta_path if type(each).__module__.startswith('hpc_elastic')]\n"
    )
    source = f"{USES}{check}try:\n    1 / 0\nfinally:\n    destroy_process_group()\n"
    script = torch.write("script.py", source)
    with fork_server(torch.directory, torch.environment) as server:
        answer = server.fork_worker(
            "script",
            str(script),
            directory=torch.directory,
            environment={**torch.environment, NAME_VARIABLE: name_of(agent)},
        )
        assert collect(answer["pid"]) == 1
    assert [word.kind for word in receive_words(agent)] == [KINDS.CLOSING, KINDS.CLOSED, KINDS.FAILING, KINDS.LAST]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "source", "exit_code", "name"),
    [
        ("--script", "def f(:", 1, "exception"),
        ("--script", None, 2, "start_failed"),
        ("--command", "no binary", 126, "start_failed"),
    ],
    ids=["syntax error", "no script", "exec format"],
)
def test_a_rank_that_cannot_start_its_program_says_so_at_once(
    runner: Runner, agent: socket.socket, kind: str, source: str | None, exit_code: int, name: str
) -> None:
    """Several ranks of a node do so at the same time, and the stop that answers the first may end the others."""
    path = runner.directory / "program"
    if source is not None:
        runner.write("program", source).chmod(0o755)
    assert runner.run_worker(kind, str(path), **{NAME_VARIABLE: name_of(agent)}).exit_code == exit_code
    (word,) = receive_words(agent)
    record = json.loads(word.record)
    assert (word.kind, word.exit_code, record["class"]) == (KINDS.FAILING, exit_code, name)
    assert record["message"]["message"] == runner.read_error()["message"]["message"]
