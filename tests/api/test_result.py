"""A run's result as a program gets it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic
from hpc_elastic.api.result import ReturnValuesError, RunFailed, RunResult, raise_unless_succeeded, read_result
from hpc_elastic.codec import to_json
from hpc_elastic.errors import ExitCode, MissingNode, RendezvousCause, RendezvousTimeoutError, RunDirectoryError
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.gathering import timeout_announcement
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


def test_values_come_by_global_rank_also_those_that_are_none(tmp_path: Path) -> None:
    for rank, value in ((0, {"rank": 0}), (2, None), (10, {"rank": 10})):
        (tmp_path / f"{rank}.pkl").write_bytes(pickle.dumps(value))
    layout = write_result(tmp_path, return_values={"10": "10.pkl", "2": "2.pkl", "0": "0.pkl"})
    result = raise_unless_succeeded("train", read_result(layout))
    assert list(result.return_values.items()) == [(0, {"rank": 0}), (2, None), (10, {"rank": 10})]
    assert not result.is_failed()


def test_a_value_that_is_missing_is_no_none_and_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "0.pkl").write_bytes(pickle.dumps(None))
    layout = write_result(tmp_path, return_values={"0": "0.pkl", "3": "3.pkl"})
    missing = re.escape(f"what rank 3 returned is missing: there is no {tmp_path}/3.pkl")
    with pytest.raises(RunDirectoryError, match=missing):
        read_result(layout)
    write_result(tmp_path, state=RunState.FAILED, return_values={})
    assert read_result(layout).return_values == {}


def test_a_value_that_cannot_be_read_here_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "3.pkl").write_bytes(b"cnowhere\nthing\n.")
    layout = write_result(tmp_path, return_values={"3": "3.pkl"})
    told = "what rank 3 returned cannot be unpickled here: ModuleNotFoundError"
    with pytest.raises(RunDirectoryError, match=told) as caught:
        read_result(layout)
    assert caught.value.tip is None, "no other rank has a value"


def test_values_that_cannot_be_read_do_not_hide_those_of_other_ranks(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"{rank}.pkl").write_bytes(pickle.dumps({"loss": rank}))
    (tmp_path / "3.pkl").write_bytes(b"cnowhere\nthing\n.")
    layout = write_result(tmp_path, return_values={str(rank): f"{rank}.pkl" for rank in range(5)})
    with pytest.raises(ReturnValuesError, match=r"what rank 1 returned is missing.*; 2 more: ranks 3-4") as caught:
        read_result(layout)
    error = caught.value
    assert error.result.return_values == {0: {"loss": 0}, 2: {"loss": 2}}
    assert error.result.state is RunState.SUCCEEDED
    assert list(error.problems) == [1, 3, 4]
    assert "ModuleNotFoundError: No module named 'nowhere'" in error.problems[3]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.result, again.exit_code) == (str(error), error.result, error.exit_code)


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


def test_a_run_directory_that_was_moved_still_shows_the_traceback(tmp_path: Path) -> None:
    root = tmp_path / "run"
    content = {"message": {"message": "no", "extraInfo": {"py_callstack": "Traceback of 1\n"}}}
    store.write_json(str(root / "plan.json"), {"run_dir": str(root)})
    store.write_json(str(root / "1.json"), content)
    failures = {"1": failure(1, timestamp=7.0, error_file=str(root / "1.json"))}
    write_result(root, state=RunState.FAILED, exit_code=8, cause="no progress", failures=failures)
    root.rename(tmp_path / "moved")
    result = read_result(RunLayout(tmp_path / "moved"))
    assert result.failures[1].error_file == str(tmp_path / "moved" / "1.json")
    with pytest.raises(RunFailed, match="Traceback of 1"):
        raise_unless_succeeded("train", result)


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


MISSING = (
    MissingNode(node="node3", cause=RendezvousCause.CANNOT_ROUTE, detail="cannot route to node1"),
    MissingNode(node="node4", cause=RendezvousCause.NEVER_STARTED, detail="has never started its agent"),
)


def write_end_without_nodes(folder: Path) -> RunLayout:
    cause = "2 of at least 4 nodes joined; missing: node3 (cannot route), node4 (never started)"
    return write_result(folder, state=RunState.FAILED, exit_code=6, reason="nodes_missing", cause=cause)


def timeout_event(missing: tuple[MissingNode, ...], attempt: int) -> str:
    """Return the line that the head writes: its metadata are made by the head's own code."""
    actions = timeout_announcement(RendezvousTimeoutError("too few", missing), attempt)
    (note,) = [action for action in actions if isinstance(action, Note)]
    event = records.Event(
        time_ns=1,
        run="train",
        node="node1",
        allocation=1,
        attempt=attempt,
        name=note.name,
        message=note.message,
        metadata=note.metadata,
    )
    return json.dumps(to_json(event)) + "\n"


def test_a_run_that_missed_nodes_raises_a_rendezvous_time_out_with_each_of_them(tmp_path: Path) -> None:
    layout = write_end_without_nodes(tmp_path)
    events = Path(layout.events("node1"))
    events.parent.mkdir(parents=True)
    events.write_text(timeout_event(MISSING[:1], 1) + "rendezvous.timeout, torn {\n" + timeout_event(MISSING, 2))
    with pytest.raises(hpc_elastic.RendezvousTimeoutError) as caught:
        raise_unless_succeeded("train", read_result(layout))
    error = caught.value
    assert isinstance(error, hpc_elastic.RunFailed)
    assert error.missing == error.result.missing == MISSING
    assert (str(error), error.exit_code) == (f"train FAILED: {error.result.cause}", ExitCode.NODES_MISSING)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.missing, str(again)) == (type(error), MISSING, str(error))


def test_a_run_that_missed_nodes_reads_their_own_records_if_the_events_are_gone(tmp_path: Path) -> None:
    layout = write_end_without_nodes(tmp_path)
    for node, content in {
        "node2": {"node": "node2", "cause": "of_a_later_version", "detail": "x"},
        "node3": {"node": "node3", "cause": "cannot_route", "detail": "cannot route to node1"},
        "node5": ["no", "record"],
    }.items():
        Path(layout.rendezvous(node)).parent.mkdir(parents=True)
        store.write_json(layout.rendezvous(node), content)
    with pytest.raises(RendezvousTimeoutError) as caught:
        raise_unless_succeeded("train", read_result(layout))
    assert caught.value.missing == MISSING[:1]


def test_a_run_that_failed_otherwise_raises_no_rendezvous_time_out(tmp_path: Path) -> None:
    layout = write_result(tmp_path, state=RunState.FAILED, exit_code=7, reason="node_lost", cause="node2 was lost")
    with pytest.raises(RunFailed) as caught:
        raise_unless_succeeded("train", read_result(layout))
    assert not isinstance(caught.value, RendezvousTimeoutError)


def test_a_run_that_is_not_over_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"result\.json is not a run's result"):
        read_result(RunLayout(str(tmp_path)))
