"""A run's result as a program gets it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.result import RunFailed, RunResult, raise_unless_succeeded, read_result
from hpc_elastic.codec import to_json
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.rundir import records, store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from hpc_elastic.rundir.states import RunState


def failure(rank: int, *, timestamp: float, error_file: str = "") -> FailureRecord:
    return FailureRecord(
        rank=rank,
        local_rank=0,
        role="default",
        node=f"node{rank}",
        attempt=2,
        pid=1,
        exitcode=1,
        signal_name=None,
        error_file=error_file,
        message="",
        timestamp=timestamp,
        failure_class="exception",
    )


def write_result(folder: Path, **changes: Any) -> RunLayout:
    layout = RunLayout(str(folder))
    values: dict[str, Any] = {
        "run": "train",
        "state": RunState.SUCCEEDED,
        "exit_code": 0,
        "reason": "succeeded",
        "cause": "every rank exited 0",
        "attempts": 1,
        "restarts": 0,
        "failures": {},
        "return_values": {},
        "nodes": ("node1",),
        "started": None,
        "ended": "",
        "written_by": "node1",
    }
    store.write_json(layout.result, to_json(records.RunResultRecord(**{**values, **changes})))
    return layout


def test_values_come_by_global_rank_and_none_for_a_rank_that_left_without_one(tmp_path: Path) -> None:
    for rank in (0, 10):
        (tmp_path / f"{rank}.pkl").write_bytes(pickle.dumps({"rank": rank}))
    layout = write_result(tmp_path, return_values={"10": "10.pkl", "2": "2.pkl", "0": "0.pkl"})
    result = raise_unless_succeeded("train", read_result(layout))
    assert list(result.return_values.items()) == [(0, {"rank": 0}), (2, None), (10, {"rank": 10})]
    assert not result.is_failed()


def test_a_value_that_cannot_be_read_here_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "3.pkl").write_bytes(b"cnowhere\nthing\n.")
    layout = write_result(tmp_path, return_values={"3": "3.pkl"})
    with pytest.raises(RunDirectoryError, match="what rank 3 returned cannot be unpickled here: ModuleNotFoundError"):
        read_result(layout)


def test_a_failed_run_shows_the_traceback_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    for rank in (1, 2):
        content = {"message": {"message": "no", "extraInfo": {"py_callstack": f"Traceback of {rank}\n"}}}
        store.write_json(str(tmp_path / f"{rank}.json"), content)
    failures = {
        "1": failure(1, timestamp=7.0, error_file=str(tmp_path / "1.json")),
        "2": failure(2, timestamp=5.5, error_file=str(tmp_path / "2.json")),
        "3": failure(3, timestamp=1.0, error_file=str(tmp_path / "gone.json")),
    }
    layout = write_result(tmp_path, state=RunState.FAILED, exit_code=8, cause="no progress", failures=failures)
    with pytest.raises(RunFailed) as caught:
        raise_unless_succeeded("train", read_result(layout))
    error = caught.value
    assert str(error) == "train FAILED: no progress\n\nrank 2 on node2, attempt 2:\nTraceback of 2"
    assert error.exit_code is ExitCode.NO_PROGRESS
    assert list(error.result.failures) == [1, 2, 3]
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RunFailed)
    assert (str(again), again.result, again.exit_code) == (str(error), error.result, error.exit_code)


def test_a_run_without_a_traceback_says_its_cause_alone() -> None:
    result = RunResult(
        run_dir="/runs/a",
        state=RunState.CANCELLED,
        return_values={},
        failures={},
        exit_code=10,
        reason="stop_requested",
        cause="cancelled by me@here",
        attempts=1,
        restarts=0,
        nodes=(),
        started=None,
        ended="",
    )
    with pytest.raises(RunFailed) as caught:
        raise_unless_succeeded("a", result)
    assert (str(caught.value), caught.value.tip) == ("a CANCELLED: cancelled by me@here", "the logs are in /runs/a")


def test_a_run_that_is_not_over_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"result\.json is not a run's result"):
        read_result(RunLayout(str(tmp_path)))
