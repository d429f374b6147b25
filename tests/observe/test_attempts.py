"""Which attempts a run has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.observe.facts import list_attempts
from hpc_elastic.observe.snapshot import take_snapshot
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]


def test_an_attempt_whose_head_died_before_it_was_claimed_is_none(tmp_path: Path, capfd: Capture) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.write_rank(1, 0, "of attempt 1\n")
    os.makedirs(run.layout.attempt(2))
    assert list_attempts(run.layout) == [1]
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.attempts, snapshot.nodes, snapshot.between) == (1, ("node1", "node2"), None)
    assert main(["logs", run.layout.root]) == 0
    assert capfd.readouterr().out == "of attempt 1\n"
    assert main(["logs", "--rank", "all", "--tail", "1", run.layout.root]) == 0
    assert capfd.readouterr().out == "[node1:0] of attempt 1\n"
