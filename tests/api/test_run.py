"""A run as an object."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic import Run
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.rundir.layout import ArrayLayout
from tests.observe.builders import RunBuilder


def test_the_folder_of_an_array_is_named_as_what_it_is(tmp_path: Path) -> None:
    Path(ArrayLayout(str(tmp_path)).record).write_text("{}")
    with pytest.raises(RunDirectoryError, match="is the folder of an array of runs") as caught:
        Run(tmp_path)
    assert caught.value.tip == f"name a task of it, such as {tmp_path}/0"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).layout.root)


NOT_SECONDS = [math.nan, -1, -0.5, -math.inf, True, "10", timedelta(seconds=3)]


@pytest.mark.parametrize("seconds", NOT_SECONDS, ids=repr)
@pytest.mark.parametrize("wait", [Run.wait, Run.result, Run.results])
def test_a_timeout_that_is_no_number_of_seconds_is_refused_and_nothing_is_waited_for(
    wait: Callable[[Run, Any], Any], seconds: Any, run: Run
) -> None:
    message = f"timeout_s is {seconds!r}, expected seconds, 0 or more, or None for no limit"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        wait(run, seconds)


@pytest.mark.parametrize("seconds", [0, 0.0])
def test_a_timeout_of_zero_is_one_look(seconds: float, run: Run) -> None:
    with pytest.raises(TimeoutError, match="digits is RUNNING after 0 s"):
        run.wait(seconds)


@pytest.mark.parametrize("timeout", [None, 0, math.inf])
def test_a_run_that_is_over_is_not_waited_for(timeout: float | None, tmp_path: Path) -> None:
    ended = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    assert Run(ended.layout.root).wait(timeout).is_over


def test_a_wait_outlives_a_run_directory_that_is_moved_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    root, moved = Path(builder.layout.root), tmp_path / "moved"
    moves: list[Callable[[], object]] = [
        lambda: root.rename(moved),
        lambda: None,
        lambda: moved.rename(root) and builder.end(),
    ]
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: moves.pop(0)())  # other threads sleep, too
    monkeypatch.setattr("hpc_elastic.api.run.time", clock)
    assert Run(root).wait().is_over
    assert moves == []


@pytest.mark.parametrize("seconds", [*NOT_SECONDS, math.inf, 1e300], ids=repr)
def test_a_lead_that_is_no_number_of_seconds_is_refused_and_nobody_is_told(seconds: Any, run: Run) -> None:
    message = f"lead_s is {seconds!r}, expected seconds, from 0 to 2147483647, or None for the job's own"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        run.stop(lead_s=seconds)
    assert Path(run.run_dir, "requests.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    "ask",
    [Run.status, Run.wait, Run.result, Run.results, Run.logs, Run.cancel, Run.stop, lambda run: list(run.events())],
    ids=["status", "wait", "result", "results", "logs", "cancel", "stop", "events"],
)
def test_a_run_says_that_its_directory_is_gone_if_it_was_removed(ask: Callable[[Run], Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    run = Run(folder)
    shutil.rmtree(folder)
    with pytest.raises(RunDirectoryError, match=f"^there is no directory {re.escape(str(folder))}$"):
        ask(run)
