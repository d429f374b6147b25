"""`hpc-elastic drain` of a node that has no workers, and what `status` says of it then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.api.requests import make_request
from hpc_elastic.cli.main import main
from hpc_elastic.cli.next_attempt import NotRestartedError, ask_to_set_aside
from hpc_elastic.rundir import store
from tests.cli.conftest import FakeSlurm
from tests.cli.test_stop import a_head
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, fake_slurm: FakeSlurm) -> RunBuilder:
    fake_slurm.say("RUNNING")
    built = RunBuilder(tmp_path / "run").submit().allocate(nodes=("node1", "node2", "node3")).open_attempt(1)
    return built.note("node1", "node.joined", "node1", "node2", "node3", attempt=0)


def sets_aside(run: RunBuilder) -> Callable[[], object]:
    return lambda: run.note("node1", "node.set_aside", "node3", attempt=1, reason="drained by ada@login1")


def drain(run: RunBuilder, node: str) -> int:
    return main(["drain", "--node", node, run.layout.root])


def test_a_drain_of_a_spare_returns_when_the_head_has_heard_of_it(run: RunBuilder, capsys: Capture) -> None:
    with a_head(run, sets_aside(run)):
        assert drain(run, "node3") == 0
    assert capsys.readouterr().out == "digits: node3, a spare, will not be used: drained by ada@login1\n"


def test_a_node_that_is_lost_is_drained_before_it_comes_back(run: RunBuilder, capsys: Capture) -> None:
    run.note("node1", "node.lost", "node3", attempt=1)
    with a_head(run, sets_aside(run)):
        assert drain(run, "node3") == 0
    said = "digits: node3, lost now, will not be used when it is back: drained by ada@login1\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("node", ["node2", "node3"])
def test_a_node_of_a_run_that_waits_to_start_again_is_drained_at_once(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, node: str
) -> None:
    fake_slurm.say("PENDING")
    assert drain(run, node) == 0
    assert capsys.readouterr().out == f"digits: {node} will get no workers when the job has started again\n"
    (request,) = store.read_lines(run.layout.requests)
    assert (request["kind"], request["node"]) == ("drain", node)


def test_a_spare_that_no_head_sets_aside_is_not_said_to_be_drained(run: RunBuilder) -> None:
    with pytest.raises(NotRestartedError, match="the head has not set node3 aside within 0 s"):
        ask_to_set_aside(run.layout, make_request("drain", node="node3"), "node3", within_s=0.0)


def test_a_spare_that_gets_workers_meanwhile_is_not_said_to_be_drained(run: RunBuilder, capsys: Capture) -> None:
    with a_head(run, lambda: run.open_attempt(2, nodes=("node1", "node3"))):
        assert drain(run, "node3") == 9
    assert "node3 has got workers meanwhile" in capsys.readouterr().err


def test_a_node_that_is_set_aside_is_asked_for_no_more(run: RunBuilder, capsys: Capture) -> None:
    sets_aside(run)()
    assert drain(run, "node3") == 0
    assert "node3 is set aside already: drained by ada@login1" in capsys.readouterr().out
    assert list(store.read_lines(run.layout.requests)) == []


def test_status_names_who_is_set_aside_and_why(run: RunBuilder, capsys: Capture) -> None:
    sets_aside(run)()
    run.note("node1", "node.joined", "node4", attempt=0)
    assert main(["status", run.layout.root]) == 0
    rows = dict(line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines() if line[:3] == "set")
    assert rows == {"aside": "node3 (drained by ada@login1)"}
