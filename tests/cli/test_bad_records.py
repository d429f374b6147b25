"""Records that are there and cannot be read: said at once, with the path, by every verb that needs them."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import pytest

from hpc_elastic.api.run import Run
from hpc_elastic.cli.main import main
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import TIME, RunBuilder
from tests.tiers import longer, variants

Capture = pytest.CaptureFixture[str]
DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "truncated": (b'{"format_version": 1, "state": "SUCC', "it is not JSON"),
    "garbage": (b"\x7fELF\x02\x01", "it is not JSON"),
    "no text": (b'{"state": "\xff"}', "it is not UTF-8 text"),
    "a list": (b"[]", "expected an object, found a list"),
    "another version": (b'{"format_version": 2, "state": "X", "job_id": "42"}', "it has format_version 2"),
    "no version": (b'{"format_version": "one", "state": "X", "job_id": "42"}', "it has format_version 'one'"),
    "other types": (b'{"state": 5, "job_id": 42, "scheduler": 7}', "expected text, found a number"),
}
RECORDS: dict[str, Callable[[RunBuilder], str]] = {
    "result": lambda run: run.layout.result,
    "plan": lambda run: run.layout.plan,
    "submission": lambda run: run.layout.submission,
    "allocation": lambda run: run.layout.allocation(1),
}


@pytest.fixture
def run(tmp_path: Path, fake_slurm: FakeSlurm) -> RunBuilder:
    fake_slurm.say("RUNNING")
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    entry = IndexEntry(
        run=run.plan.run,
        name="digits",
        job_id="42",
        site="generic-slurm",
        scheduler="slurm",
        run_dir=run.layout.root,
        submitted=TIME,
    )
    append_entry(index_path(os.environ), entry)
    return run


def test_who_meets_a_record_of_a_later_version_is_told_to_use_that_version(run: RunBuilder, capsys: Capture) -> None:
    Path(run.layout.result).write_text('{"format_version": 2, "state": "X"}')
    assert main(["status", run.layout.root]) == 5
    assert "tip: look at the run with the version of hpc_elastic that wrote it" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("record", ["result", *longer(*sorted({*RECORDS} - {"result"}))])
@pytest.mark.parametrize("damage", ["truncated", *longer(*sorted({*DAMAGE} - {"truncated"}))])
@pytest.mark.parametrize("verb", ["status", *variants("cancel", of="test_record_that_makes_no_sense_is_named_at_once")])
def test_record_that_makes_no_sense_is_named_at_once(
    run: RunBuilder, fake_slurm: FakeSlurm, capsys: Capture, record: str, damage: str, verb: str
) -> None:
    path = RECORDS[record](run)
    content, problem = DAMAGE[damage]
    Path(path).write_bytes(content)
    began = time.monotonic()
    assert main([verb, "42"]) == 5
    assert time.monotonic() - began < 5
    error = capsys.readouterr().err
    assert f"{path} cannot be read: " in error
    assert problem in error
    assert "tip: " in error
    assert fake_slurm.calls("") == []


@pytest.mark.parametrize("verb", [["status", "42"], ["cancel", "42"], ["logs", "42", "--follow"]])
def test_directory_in_the_place_of_a_result_is_named(run: RunBuilder, capsys: Capture, verb: list[str]) -> None:
    Path(run.layout.result).mkdir()
    assert main(verb) == 5
    assert f"{run.layout.result} cannot be read: Is a directory" in capsys.readouterr().err


def test_result_with_failures_of_another_shape_is_named(run: RunBuilder, capsys: Capture) -> None:
    Path(run.layout.result).write_text('{"state": "FAILED", "failures": {"0": "boom"}}')
    assert main(["status", "42"]) == 5
    assert "failures.0: expected a failure by its rank" in capsys.readouterr().err


@pytest.mark.long
def test_list_leaves_out_what_cannot_be_read_and_names_it(run: RunBuilder, capsys: Capture) -> None:
    Path(run.layout.result).write_bytes(b"")
    assert main(["list"]) == 0
    captured = capsys.readouterr()
    assert f"{run.layout.result} cannot be read: it is empty" in captured.err
    assert "digits" not in captured.out


@pytest.mark.long
def test_wait_ends_with_what_cannot_be_read(run: RunBuilder) -> None:
    watched = Run(run.layout.root)
    Path(run.layout.result).write_bytes(b"")
    for call in (watched.wait, watched.status, watched.cancel, watched.result):
        with pytest.raises(RunDirectoryError, match=r"result\.json cannot be read: it is empty"):
            call()


def test_array_record_that_makes_no_sense_is_named(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "array"
    folder.mkdir()
    (folder / "array.json").write_text("{}")
    for verb in ("status", "cancel", "logs"):
        assert main([verb, str(folder)]) == 5
        assert "array.json cannot be read: tasks is missing" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("record", ["[1]", '{"tasks": null}', '{"tasks": 5}', ""])
def test_array_that_the_index_lost_and_whose_record_makes_no_sense_is_named(
    workplace: Path, capsys: Capture, record: str
) -> None:
    folder = workplace / "hpc-elastic-runs" / "array"
    folder.mkdir(parents=True)
    (folder / "array.json").write_text(record)
    for verb, code in (("status", 5), ("cancel", 5), ("logs", 5), ("list", 0)):
        assert main([verb]) == code
        assert f"{folder}/array.json cannot be read: " in capsys.readouterr().err


@pytest.mark.long
def test_attempts_claim_that_makes_no_sense_hides_nothing_else(run: RunBuilder, capsys: Capture) -> None:
    Path(run.layout.claim(1)).write_bytes(b"")
    run.end()
    assert main(["status", "42", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["attempts"]) == ("SUCCEEDED", 1)
    assert f"{run.layout.claim(1)} cannot be read: it is empty" in shown["note"]


@pytest.mark.parametrize("verb", ["status", "explain"])
def test_attempt_whose_claim_cannot_be_read_is_not_said_to_have_ended(
    run: RunBuilder, capsys: Capture, verb: str
) -> None:
    """The run trains on, and the claim alone would say in which allocation."""
    Path(run.layout.claim(1)).write_text('{"format_version": 1, "att')
    assert main([verb, "42"]) == 0
    captured = capsys.readouterr()
    said = " ".join((captured.out + captured.err).split())
    assert f"{run.layout.claim(1)} cannot be read" in said
    assert "ended" not in said


@pytest.mark.parametrize("clock_is_off_by_s", [-20, 0, 20])
def test_result_that_is_being_written_without_hard_links_is_waited_for(
    run: RunBuilder, capsys: Capture, clock_is_off_by_s: int
) -> None:
    content = store.dump_json({"format_version": 1, "state": "SUCCEEDED"})
    with open(run.layout.result, "wb", buffering=0) as file:
        file.write(content[:10])
        os.utime(run.layout.result, (time.time() + clock_is_off_by_s,) * 2)
        writer = threading.Timer(0.1, file.write, [content[10:]])
        writer.start()
        assert main(["status", "42", "--json"]) == 0
        writer.join()
    assert json.loads(capsys.readouterr().out)["state"] == "SUCCEEDED"


def test_record_that_was_replaced_while_it_was_open_is_read_again(
    run: RunBuilder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.end()
    stale = [run.layout.result, run.layout.plan]

    def open_or_find_stale(path: str, mode: str) -> IO[bytes]:
        if path in stale:
            stale.remove(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return cast("IO[bytes]", open(path, mode))

    monkeypatch.setattr("hpc_elastic.rundir.record_file.open", open_or_find_stale, raising=False)
    assert main(["status", "42", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "SUCCEEDED"
    assert stale == []
