"""Every failed rank has an error file, whatever ended it and whoever wrote first."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.workers.failures import record_failure
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord

ORDER = WorkerOrder(
    rank=5, local_rank=1, attempt=2, kind="command", target="x", arguments=(), environment={}, directory="/"
)
TORCHS = {
    "message": {
        "message": "ValueError: from @record",
        "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"},
    }
}


class Rank:
    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        self.directory = Path(self.layout.rank(2, 5))
        self.directory.mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def fail(self, exitcode: int, *, pid: int = 77, message: str = "") -> FailureRecord:
        return record_failure(
            self.layout, ORDER, node="node2", role="default", pid=pid, exitcode=exitcode, timestamp=1.5, message=message
        )

    def error(self) -> Any:
        return json.loads((self.directory / "error.json").read_text())


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_a_kill_from_outside_is_told_by_its_signal(rank: Rank) -> None:
    rank.write("stderr.log", "last words\n")
    failure = rank.fail(-9)
    assert (failure.failure_class, failure.signal_name, failure.message) == ("signal", "SIGKILL", "killed by SIGKILL")
    error = rank.error()
    assert (error["class"], error["signal"], error["exit_code"], error["rank"]) == ("signal", "SIGKILL", None, 5)
    assert error["stderr_tail"] == "last words\n"
    assert error["message"]["message"] == "killed by SIGKILL"


def test_a_real_time_signal_has_a_name_too(rank: Rank) -> None:
    assert rank.fail(-35).signal_name == "SIG35"


def test_an_exit_code_is_told_by_the_last_line_of_stderr(rank: Rank) -> None:
    rank.write("stderr.log", "first\nconfig not found\n\n")
    failure = rank.fail(3)
    assert (failure.failure_class, failure.exitcode, failure.message) == ("exit_code", 3, "config not found")
    assert rank.error()["exit_code"] == 3


def test_an_exit_code_without_a_word_is_told_by_its_number(rank: Rank) -> None:
    assert rank.fail(3).message == "exit code 3"


def test_a_worker_that_never_started_is_told_by_the_reason(rank: Rank) -> None:
    failure = rank.fail(1, pid=0, message="No such file or directory: /opt/python")
    assert (failure.failure_class, failure.message) == ("start_failed", "No such file or directory: /opt/python")
    assert rank.error()["class"] == "start_failed"


def test_what_the_bootstrap_wrote_stands(rank: Rank) -> None:
    theirs = {**TORCHS, "class": "exception", "time_ns": 1_700_000_000_500_000_000, "exit_code": 1}
    rank.write("error.json", json.dumps(theirs))
    failure = rank.fail(1)
    assert (failure.failure_class, failure.message) == ("exception", "ValueError: from @record")
    assert failure.timestamp == 1_700_000_000.5
    assert rank.error() == {**theirs, "frame": "", "detail": ""}


def test_what_torchs_record_wrote_alone_is_completed(rank: Rank) -> None:
    rank.write("error.json", json.dumps(TORCHS))
    failure = rank.fail(1)
    assert (failure.failure_class, failure.message) == ("exception", "ValueError: from @record")
    error = rank.error()
    assert error["message"] == TORCHS["message"]
    assert (error["class"], error["exit_code"], error["rank"], error["node"]) == ("exception", 1, 5, "node2")


@pytest.mark.long
def test_a_message_without_end_that_torchs_record_wrote_fits_into_a_message_to_the_head(rank: Rank) -> None:
    message = f"ValueError: {'x' * 20_000_000} the end"
    rank.write("error.json", json.dumps({"message": {"message": message, "extraInfo": {"timestamp": "1"}}}))
    failure = rank.fail(1)
    assert len(failure.message) < 10_000
    assert failure.message.startswith("ValueError: xxx")
    assert failure.message.endswith("the end")
    assert rank.error()["message"]["message"] == message, "the file keeps what it has"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 7}'])
def test_a_torn_error_file_is_replaced(rank: Rank, text: str) -> None:
    rank.write("error.json", text)
    assert rank.fail(-11).message == "killed by SIGSEGV: a segmentation fault"
    assert rank.error()["signal"] == "SIGSEGV"


def test_a_failure_is_told_although_its_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("a file where a folder should be")
    failure = record_failure(
        RunLayout(tmp_path), ORDER, node="node2", role="default", pid=77, exitcode=-9, timestamp=1.0
    )
    assert failure.message == "killed by SIGKILL"


def test_a_rank_whose_words_a_used_up_quota_has_dropped_is_told_as_that_and_not_by_zeros(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client takes what a rank writes, and shows zeros there when the server has no room for it."""
    rank.write("stderr.log", "\0" * 500)

    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "write", refuse)
    assert rank.fail(1).message == f"what it said could not be written: {os.strerror(errno.EDQUOT)}"


def test_zeros_in_a_log_are_no_words_of_a_rank(rank: Rank) -> None:
    rank.write("stderr.log", "first\n" + "\0" * 500 + "last\n" + "\0" * 500)
    assert rank.fail(1).message == "last"
    assert rank.error()["stderr_tail"] == "first\nlast\n"


def test_a_failure_that_the_worker_did_not_report_has_the_moment_of_its_end(rank: Rank) -> None:
    """Not that of the record: the first of two is the cause, and a rank ended by a TERM is judged a moment later."""
    assert rank.fail(-15).timestamp == 1.5
    assert rank.error()["time_ns"] == 1_500_000_000


def test_a_worker_that_dies_of_the_agents_term_was_torn_down(tmp_path: Path) -> None:
    failure = record_failure(
        RunLayout(tmp_path),
        ORDER,
        node="node2",
        role="default",
        pid=77,
        exitcode=-15,
        timestamp=1.0,
        is_after_stop=True,
    )
    assert (failure.failure_class, failure.is_after_stop) == ("torn_down", True)


def test_a_failure_is_recorded_with_its_class_and_the_line_of_the_script(rank: Rank) -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/p/train.py", line 3, in step\n    open(x)\nOSError: [Errno 5] x\n'
    )
    message = {"message": "OSError: [Errno 5] x", "extraInfo": {"py_callstack": traceback, "timestamp": "1"}}
    rank.write("error.json", json.dumps({"message": message}))
    failure = rank.fail(1)
    assert (failure.failure_class, failure.frame) == ("file_system", "p/train.py:3 in step")
    error = rank.error()
    assert (error["class"], error["frame"], error["detail"]) == ("file_system", "p/train.py:3 in step", "")


@pytest.mark.parametrize(
    "found", [{"exception_type": 7}, {"message": {"message": "x", "extraInfo": 3}}, {"message": {"message": "x"}}]
)
def test_fields_of_another_type_in_an_error_file_are_no_evidence(rank: Rank, found: dict[str, Any]) -> None:
    rank.write("error.json", json.dumps({**TORCHS, **found}))
    assert rank.fail(1).failure_class == "exception"
