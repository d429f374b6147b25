"""The agent inside a torchrun, where its part in a run does not end as it should; nodes in one process."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")

from tests.agent.conftest import is_running
from tests.integrations.torchrun.nodes import Node, start_all

pytestmark = pytest.mark.local


def break_agent(node: Node) -> None:
    """An exception that nobody has handled."""

    def fail() -> None:
        raise RuntimeError("a defect of the agent")

    agent = node.handler._agent
    assert agent is not None
    agent._loop.call_soon_threadsafe(fail)


def test_the_others_go_on_without_an_agent_that_fails_when_its_workers_are_gone(tmp_path: Path) -> None:
    """Its torchrun looks late at whether it is to stop them; a close of its connections is a death to the others."""
    first, other = start_all(tmp_path, 2, (1, 2))
    for node in (first, other):
        node.wait_for_round(1)
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, **other.environ})
    other.looks.clear()

    def look_again() -> None:
        worker.wait()
        other.looks.set()

    looks_again = threading.Thread(target=look_again)
    looks_again.start()
    break_agent(other)
    first.wait_for_round(2)
    assert not is_running(worker.pid)
    looks_again.join()
    assert str(other.wait()) == "a defect of the agent"
    first.wish("done")
    assert first.wait() == "done"
