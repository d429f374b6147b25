"""What `status --json` says of a run's time, of a run that is over what its result says; and what `status` reads."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]


def spent(run: RunBuilder, capsys: Capture) -> object:
    assert main(["status", run.layout.root, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["useful_time"]


def test_the_result_of_a_run_that_is_over_is_believed(tmp_path: Path, capsys: Capture) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    path = Path(run.layout.result)
    recorded = {"useful_share": 0.5, "seconds": {"training": 4.0, "starting": 4.0}, "allocations": []}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"useful_time": recorded}))
    assert spent(run, capsys) == recorded


@pytest.mark.parametrize("recorded", [None, 7, "half"])
def test_a_result_that_does_not_say_it_is_measured(tmp_path: Path, capsys: Capture, recorded: object) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    path = Path(run.layout.result)
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"useful_time": recorded}))
    found = spent(run, capsys)
    assert isinstance(found, dict)
    assert found["allocations"][0]["allocation"] == 1


def test_a_run_that_is_not_over_is_measured(tmp_path: Path, capsys: Capture) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    found = spent(run, capsys)
    assert isinstance(found, dict)
    assert {"useful_share", "seconds", "queued_s", "has_steps", "are_repeats_known"} <= found.keys()


def test_a_run_that_goes_on_is_read_once(
    tmp_path: Path, capsys: Capture, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read before the scheduler was asked, after that, and once more for what its time went to."""
    fake_slurm.say("RUNNING")
    run, opened = RunBuilder(tmp_path / "run").submit().allocate(), []
    for attempt in range(1, 6):
        run.open_attempt(attempt)
    really_open = builtins.open

    def count(path: Any, *arguments: Any, **keywords: Any) -> Any:
        opened.append(str(path))
        return really_open(path, *arguments, **keywords)

    monkeypatch.setattr(builtins, "open", count)
    assert main(["status", run.layout.root]) == 0
    assert "RUNNING" in capsys.readouterr().out
    for attempt in range(1, 6):
        assert opened.count(run.layout.world(attempt)) == opened.count(run.layout.claim(attempt)) == 1
