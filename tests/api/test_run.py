"""A run as an object."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import Run
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.layout import ArrayLayout


def test_the_folder_of_an_array_is_named_as_what_it_is(tmp_path: Path) -> None:
    Path(ArrayLayout(str(tmp_path)).record).write_text("{}")
    with pytest.raises(RunDirectoryError, match="is the folder of an array of runs") as caught:
        Run(tmp_path)
    assert caught.value.tip == f"name a task of it, such as {tmp_path}/0"


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
