"""The error file: torch's format and ours, for any text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.rundir.error_file import (
    MESSAGE_LIMIT,
    STDERR_TAIL_LIMIT,
    FailedWorker,
    build_error,
    clip,
    merge_error,
    parse_error,
    read_log_tail,
    read_tail,
)
from hpc_elastic.rundir.layout import RunLayout

WORKER = FailedWorker(rank=5, local_rank=1, pid=4242, node="node2", attempt=1)
KILLED: Any = build_error(
    WORKER,
    failure_class="signal",
    message="killed by SIGKILL",
    time_ns=1_700_000_000_250_000_000,
    signal_name="SIGKILL",
    stderr_tail="last words\n",
)


def test_build_error_has_torchs_fields_and_ours() -> None:
    assert KILLED == {
        "message": {
            "message": "killed by SIGKILL",
            "extraInfo": {"py_callstack": "killed by SIGKILL", "timestamp": "1700000000"},
        },
        "format_version": 1,
        "class": "signal",
        "exit_code": None,
        "signal": "SIGKILL",
        "rank": 5,
        "local_rank": 1,
        "pid": 4242,
        "node": "node2",
        "attempt": 1,
        "time_ns": 1_700_000_000_250_000_000,
        "stderr_tail": "last words\n",
    }


def test_build_error_fits_any_text_into_json() -> None:
    text = "\udcff\ud800 ä \0" * MESSAGE_LIMIT
    record: Any = build_error(WORKER, failure_class="exception", message=text, time_ns=0, callstack=text)
    assert json.loads(json.dumps(record, ensure_ascii=False).encode()) == record


def test_parse_error_reads_what_build_error_makes() -> None:
    parsed = parse_error(KILLED)
    assert parsed is not None
    assert (parsed.message, parsed.failure_class) == ("killed by SIGKILL", "signal")
    assert parsed.timestamp == pytest.approx(1_700_000_000.25, abs=1e-6)


@pytest.mark.parametrize(
    ("data", "message", "timestamp"),
    [
        ({"message": {"message": "E: x", "extraInfo": {"py_callstack": "", "timestamp": "17"}}}, "E: x", 17.0),
        ({"message": {"message": "E: x"}}, "E: x", 0.0),
        ({"message": {"message": "E: x", "extraInfo": {"timestamp": "soon"}}}, "E: x", 0.0),
        ({"message": "E: x", "timestamp": 17}, "E: x", 17.0),
        ({"message": "E: x"}, "E: x", 0.0),
    ],
)
def test_parse_error_reads_both_formats_of_torch(data: Any, message: str, timestamp: float) -> None:
    parsed = parse_error(data)
    assert parsed is not None
    assert (parsed.message, parsed.timestamp, parsed.failure_class) == (message, timestamp, None)


@pytest.mark.parametrize("data", [None, [], "text", 3, {}, {"message": None}, {"message": {"extraInfo": {}}}])
def test_parse_error_is_none_if_it_is_no_error_file(data: Any) -> None:
    assert parse_error(data) is None


def test_merge_error_keeps_what_is_there_and_adds_ours() -> None:
    theirs = {"message": {"message": "E: theirs", "errorCode": 5, "extraInfo": {"timestamp": "1"}}}
    merged: Any = merge_error(theirs, KILLED)
    assert merged["message"] == theirs["message"]
    assert {**merged, "message": KILLED["message"]} == KILLED


@pytest.mark.parametrize("existing", [None, [], "torn", {}, {"other": 1}])
def test_merge_error_replaces_what_is_no_error_file(existing: Any) -> None:
    assert merge_error(existing, KILLED) == KILLED


@pytest.mark.local
def test_torch_reads_what_build_error_makes(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    path = tmp_path / "error.json"
    path.write_text(json.dumps(KILLED))
    failure = errors.ProcessFailure(local_rank=1, pid=4242, exitcode=-9, error_file=str(path))
    assert (failure.message, failure.timestamp) == (KILLED["message"], 1_700_000_000)


def test_clip_keeps_beginning_and_end() -> None:
    text = "begin" + "x" * 10_000 + "end"
    clipped = clip(text, 1000)
    assert len(clipped) < 1100
    assert clipped.startswith("begin")
    assert clipped.endswith("end")
    assert "[... 9008 characters left out ...]" in clipped
    assert clip("short", 1000) == "short"


def test_read_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(10_000)))
    tail = read_tail(str(path))
    assert len(tail) <= STDERR_TAIL_LIMIT
    assert tail.splitlines()[0].startswith("line 9")
    assert tail.endswith("line 9998\nline 9999\n")


def test_read_tail_cuts_a_line_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"x" * 100_000)
    assert read_tail(str(path), 100) == "x" * 100


def test_read_tail_is_empty_if_there_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", "fifo", "."):
        assert read_tail(str(tmp_path / name)) == ""


def test_the_tail_of_an_error_file_reaches_over_a_cut(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("last\n")
    Path(RunLayout.earlier(str(log))).write_text("first\nbefore\n")
    assert read_log_tail(str(log)) == "first\nbefore\nlast\n"
    assert read_log_tail(str(log), 13) == "before\nlast\n"
    assert read_log_tail(str(log), 5) == "last\n"
    assert read_log_tail(str(tmp_path / "none")) == ""
