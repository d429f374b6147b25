"""What people read of an agent: its lines, and its events."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.records.event_log import LEVELS
from hpc_elastic.membership.actions import Note
from tests.agent.records.runs import Runs


class Unbuffered(io.RawIOBase):
    """A file as Python's standard streams are on top of with -u or PYTHONUNBUFFERED."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        return len(data)


def test_a_line_is_one_write_so_that_nothing_a_worker_wrote_comes_before_its_end(runs: Runs) -> None:
    journal, file = runs.journal(), Unbuffered()
    journal.log = io.TextIOWrapper(file, write_through=True)  # type: ignore[type-var]  # as sys.stdout is there
    journal.say("as a member")
    (written,) = file.writes
    assert written.endswith(b"node0: as a member\n")


def test_only_the_head_speaks_into_the_scripts_output(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal()
    journal.say("as a member")
    journal.is_head = True
    journal.say("as the head")
    assert Path(runs.layout.script_output("42")).read_text().endswith("node0: as the head\n")
    assert "as a member" in capsys.readouterr().out


def test_what_a_worker_wrote_cannot_control_the_terminal_of_who_reads_the_logs(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal()
    journal.is_head = True
    journal.say("rank 0 failed: \x1b[2J\udcff\n2026-01-02 hpc-elastic node1: it succeeded")
    for text in (capsys.readouterr().out, Path(runs.layout.script_output("42")).read_text()):
        assert text.endswith("rank 0 failed: \\x1b[2J\\udcff\\n2026-01-02 hpc-elastic node1: it succeeded\n")


@pytest.mark.parametrize(
    ("log_level", "heard"),
    [
        ("error", "error"),
        ("warning", "error warning"),
        ("info", "error warning info"),
        ("debug", "error warning info debug"),
    ],
)
def test_a_line_is_said_if_the_log_level_asks_for_as_much(
    runs: Runs, capsys: pytest.CaptureFixture[str], log_level: str, heard: str
) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal(log_level=log_level)
    journal.is_head = True
    for level in LEVELS:
        journal.say(f"<{level}>", level)
    texts = (capsys.readouterr().out, Path(runs.layout.script_output("42")).read_text())
    assert [re.findall("<(.*)>", text) for text in texts] == [heard.split()] * 2


def test_an_event_is_a_line_of_the_nodes_own_file(runs: Runs) -> None:
    journal = runs.journal()
    for number in range(2):
        note = Note(name="worker.failed", message="it failed", attempt=number, metadata={"rank": number})
        journal.note(note, 1000 + number)
    lines = [json.loads(line) for line in Path(runs.layout.events("node0")).read_text().splitlines()]
    assert [(line["time_ns"], line["name"], line["attempt"], line["metadata"]) for line in lines] == [
        (1000, "worker.failed", 0, {"rank": 0}),
        (1001, "worker.failed", 1, {"rank": 1}),
    ]
