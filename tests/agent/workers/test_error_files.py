"""A failed rank's error file is its own, whoever wrote to it, and whatever is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.workers.error_files import set_aside_error, settle_error_file
from hpc_elastic.agent.workers.failures import record_failure
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.last_word import Word, WordKind
from hpc_elastic.rundir.error_file import FILE_LIMIT, FailedWorker, build_error
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord

PID = 77


class Rank:
    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        self.path = Path(self.layout.error(2, 5))
        self.path.parent.mkdir(parents=True)
        self.other = Path(self.layout.other_error(2, 5))

    def fail(
        self, exitcode: int, *, failing: Word | None = None, kind: Any = "script", is_after_stop: bool = False
    ) -> FailureRecord | None:
        order = WorkerOrder(
            rank=5, local_rank=1, attempt=2, kind=kind, target="x", arguments=(), environment={}, directory="/"
        )
        who: Any = {"pid": PID, "exitcode": exitcode}
        if not settle_error_file(self.layout, order, **who, failing=failing, is_after_stop=is_after_stop):
            return None
        return record_failure(
            self.layout, order, node="node2", role="default", timestamp=1.0, **who, is_after_stop=is_after_stop
        )


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def torchs(message: str = "ValueError: theirs", **fields: Any) -> dict[str, Any]:
    return {"message": {"message": message, "extraInfo": {"py_callstack": "Trace", "timestamp": "1"}}, **fields}


def ours(message: str = "ValueError: a ray", *, pid: int = PID, exit_code: int = 1, name: Any = "exception") -> Any:
    worker = FailedWorker(rank=5, local_rank=1, pid=pid, node="node2", attempt=2)
    return build_error(worker, failure_class=name, message=message, time_ns=10**18, exit_code=exit_code)


def said(record: Any, exit_code: int = 1) -> Word:
    content = json.dumps(record).encode()
    return Word(pid=PID, attempt=2, kind=WordKind.CLOSING, exit_code=exit_code, record=content)


def test_an_exception_that_was_only_told_of_becomes_the_error_file(rank: Rank) -> None:
    (rank.path.parent / "stderr.log").write_text("a warning\n")
    failure = rank.fail(1, failing=said(ours()), is_after_stop=True)
    assert failure is not None
    assert (failure.message, failure.failure_class, failure.timestamp) == ("ValueError: a ray", "exception", 10**9)
    assert (failure.exitcode, failure.signal_name, failure.is_after_stop) == (1, None, True)
    assert json.loads(rank.path.read_text()) == {**ours(), "stderr_tail": "a warning\n", "frame": "", "detail": ""}


def test_an_exit_that_was_only_told_of_has_the_last_line_of_standard_error(rank: Rank) -> None:
    (rank.path.parent / "stderr.log").write_text("usage\nno such option\n\n")
    failure = rank.fail(3, failing=said(ours("", exit_code=3, name="exit_code"), 3))
    assert failure is not None
    assert (failure.message, failure.failure_class, failure.exitcode) == ("no such option", "exit_code", 3)


def test_a_rank_that_a_stop_has_ended_without_a_word_has_not_failed(rank: Rank) -> None:
    assert rank.fail(1, is_after_stop=True) is None
    assert list(rank.path.parent.iterdir()) == []


def test_a_wrapper_that_a_stop_has_ended_has_failed_if_an_exception_had_ended_its_program(rank: Rank) -> None:
    log = rank.path.parent / "stderr.log"
    log.write_text("[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: a ray\ncleaning up\n")
    failure = rank.fail(1, kind="command", is_after_stop=True)
    assert failure is not None
    assert (failure.message, failure.exitcode, failure.is_after_stop) == ("ValueError: a ray", 1, True)


def test_a_rank_with_an_error_file_of_its_own_has_failed_although_it_ended_after_the_stop(rank: Rank) -> None:
    rank.path.write_text(json.dumps(ours()))
    failure = rank.fail(1, is_after_stop=True)
    assert failure is not None
    assert (failure.message, failure.is_after_stop) == ("ValueError: a ray", True)


def test_what_a_handler_of_the_stops_term_raised_is_no_failure(rank: Rank) -> None:
    rank.path.write_text(json.dumps({**ours(), "raised_by": "SIGTERM"}))
    assert rank.fail(1, is_after_stop=True) is None


@pytest.mark.parametrize(("exitcode", "data"), [(-9, torchs()), (1, torchs(pid=78)), (1, ours(pid=78))])
def test_an_error_file_of_a_child_is_set_aside(rank: Rank, exitcode: int, data: Any) -> None:
    rank.path.write_text(json.dumps(data))
    failure = rank.fail(exitcode)
    assert failure is not None
    assert "ValueError" not in failure.message
    assert json.loads(rank.other.read_text()) == data


@pytest.mark.parametrize(("exitcode", "kind"), [(1, "script"), (1, "command"), (-9, "command")])
def test_an_error_file_of_torchs_record_counts_where_the_rank_may_have_written_it(
    rank: Rank, exitcode: int, kind: str
) -> None:
    rank.path.write_text(json.dumps(torchs()))
    failure = rank.fail(exitcode, kind=kind)
    assert failure is not None
    assert failure.message == "ValueError: theirs"


def test_a_childs_error_file_does_not_replace_what_the_rank_told(rank: Rank) -> None:
    rank.path.write_text(json.dumps(torchs()))
    failure = rank.fail(1, failing=said(ours()))
    assert failure is not None
    assert failure.message == "ValueError: a ray"


def test_the_error_file_of_a_rank_that_succeeded_is_set_aside(rank: Rank) -> None:
    rank.path.write_text(json.dumps(torchs()))
    set_aside_error(rank.layout, 2, 5)
    set_aside_error(rank.layout, 2, 5)  # there is none
    assert os.listdir(rank.path.parent) == ["error.other.json"]


def make_sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10**9)


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/dev/zero"),
        make_sparse,
        lambda path: path.write_bytes(b"["),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b'{"message":' * 50_000),
        lambda path: path.write_bytes(b'{"message": 5}'),
        lambda path: path.write_bytes(b"\0" * 1000),
        lambda path: path.write_bytes(b"\xff\xfe" * 1000),
        lambda path: path.write_bytes(b" " * (FILE_LIMIT + 1)),
    ],
    ids=[
        *("directory", "FIFO", "loop", "dangling", "device", "sparse GB", "torn", "nested list", "nested object"),
        *("no text", "NUL", "no UTF-8", "too long"),
    ],
)
def test_whatever_is_no_error_file_does_not_keep_a_failure_from_being_told(rank: Rank, make: Any) -> None:
    make(rank.path)
    failure = rank.fail(3)
    assert failure is not None
    assert (failure.message, failure.exitcode) == ("exit code 3", 3)
    assert json.loads(rank.path.read_text())["message"]["message"] == "exit code 3"


@pytest.mark.parametrize(
    "field",
    [
        *('"time_ns": 1' + "0" * 400, '"time_ns": ' + "9" * 5000, '"time_ns": 1e999', '"time_ns": NaN'),
        *('"time_ns": true', '"time_ns": -5', '"time_ns": []', '"class": 5', '"class": {}', '"pid": 77.5'),
        *('"extra": ' + "[" * 300 + "]" * 300, '"extra": "\\ud800"', '"\\udcff": 1', '"message2": "\x01\x1b"'),
    ],
)
def test_an_odd_field_does_not_hide_the_message(rank: Rank, field: str) -> None:
    rank.path.write_text('{"message": {"message": "E: \\ud800 odd", "extraInfo": 5}, ' + field + "}")
    failure = rank.fail(1)
    assert failure is not None
    assert failure.message == "E: \\ud800 odd"
    assert 0 <= failure.timestamp < 2**33
    failure.message.encode()
    json.loads(rank.path.read_text())


@pytest.mark.parametrize(
    ("message", "first"),
    [("RuntimeError: \n\nno grad\nmore", "RuntimeError: no grad"), ("\n\nfirst\nsecond", "first"), ("E:\n", "E:")],
)
def test_a_message_begins_with_a_line_that_says_something(rank: Rank, message: str, first: str) -> None:
    rank.path.write_text(json.dumps(ours(message)))
    failure = rank.fail(1)
    assert failure is not None
    assert failure.message.splitlines()[0] == first
    assert json.loads(rank.path.read_text())["message"]["message"] == message
