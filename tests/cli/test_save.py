"""`save` of runs that are over or do not answer; `tests/integration/test_local_memory.py` has a run at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.observe.builders import RunBuilder
from tests.rundir.test_saved_states import save as put_save

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)


def save(run: RunBuilder, *arguments: str) -> int:
    return main(["save", *arguments, run.layout.root])


def test_of_a_run_that_is_over_what_it_has_left_is_named(run: RunBuilder, capsys: Capture) -> None:
    run.end()
    assert save(run) == 5
    assert "no training state is left of it" in capsys.readouterr().err
    name = put_save(run.layout, 7)
    assert save(run) == 5
    err = capsys.readouterr().err
    assert f"step 7 is in {run.layout.saved_states(name)}" in err
    assert "load_from" in err
    assert not Path(run.layout.requests).exists() or "save" not in Path(run.layout.requests).read_text()


def test_a_time_that_is_none_is_refused(run: RunBuilder, capsys: Capture) -> None:
    assert save(run, "--timeout", "0") == 2
    assert "--timeout is 0" in capsys.readouterr().err
    assert save(run, "--timeout", "nan") == 2
