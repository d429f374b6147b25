"""The agent inside a torchrun, where its part in a run does not end as it should; nodes in one process."""

from __future__ import annotations

import inspect
import os
import signal
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


def test_workers_that_torch_starts_past_the_deadline_are_killed_when_it_asks_for_the_runs_id(tmp_path: Path) -> None:
    """As it does right after it has started them: a process that was paused on its way there has lost its head."""
    (node,) = start_all(tmp_path, 1, (1, 1))
    node.wait_for_round(1)
    agent = node.handler._agent
    assert agent is not None
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, **node.environ})
    assert node.handler.get_run_id() == "torchrun-local-7-7"
    assert is_running(worker.pid)
    agent._deadline.set(0.0)
    assert node.handler.get_run_id() == "torchrun-local-7-7"
    assert not is_running(worker.pid)
    assert worker.wait() == -signal.SIGKILL
    agent._deadline.set(float("inf"))
    node.wish("done")
    assert node.wait() == "done"


def test_torchs_agent_is_told_to_stop_past_the_deadline_although_membership_has_not_come_to_that(
    tmp_path: Path,
) -> None:
    """In a process that was paused, torch's agent may be the first one to go on; what it stops itself is no failure."""
    (node,) = start_all(tmp_path, 1, (1, 1))
    node.wait_for_round(1)
    node.looks.clear()
    agent = node.handler._agent
    assert agent is not None
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, **node.environ})
    assert node.handler.num_nodes_waiting() == 0
    assert is_running(worker.pid)
    agent._deadline.set(0.0)
    assert node.handler.num_nodes_waiting() == 1
    assert not is_running(worker.pid)
    assert worker.wait() == -signal.SIGKILL
    agent._deadline.set(float("inf"))
    node.wish("done")
    node.looks.set()
    assert node.wait() == "done"


def test_torchs_agent_asks_for_the_runs_id_after_it_has_started_workers_and_before_it_waits() -> None:
    """What the backend counts on, in the source of the torch that is here."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    start = inspect.getsource(SimpleElasticAgent._initialize_workers)
    event = inspect.getsource(SimpleElasticAgent._construct_event)
    run = inspect.getsource(SimpleElasticAgent._invoke_run)
    assert start.index("self._start_workers(") < start.index("self._construct_event(")
    assert "rdzv_handler.get_run_id()" in event
    assert run.index("self._initialize_workers(") < run.index("time.sleep(")
