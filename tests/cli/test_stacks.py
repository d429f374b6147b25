"""`stacks` of runs that are over or do not run yet; `tests/integration/test_local_stalls.py` has runs at work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.failures.stacks import NO_STACK
from hpc_elastic.observe.stacks import StackAnswers
from hpc_elastic.rundir import store
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]
READS = 'Current thread 0x0 (most recent call first):\n  File "/home/ada/data.py", line 31 in read\n'


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)


def stacks(run: RunBuilder, *arguments: str) -> int:
    return main(["stacks", *arguments, run.layout.root])


def write(run: RunBuilder, texts: dict[int, str]) -> None:
    for rank, text in texts.items():
        path = Path(run.layout.stack(1, rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_of_a_run_that_is_over_the_last_stacks_are_grouped(run: RunBuilder, capsys: Capture) -> None:
    write(run, {0: READS, 1: READS, 2: f"{NO_STACK}its process is stopped\x1b[31m\n"})
    run.end()
    assert stacks(run) == 0
    out, err = capsys.readouterr()
    assert "over; these stacks of attempt 1 were taken last" in err
    lines = out.splitlines()
    assert lines[0].startswith("rank 2 on ")
    assert " gave no stack: its process is stopped" in lines[0]
    assert "\x1b" not in out
    assert lines[1].endswith("are in read (data.py:31): 0-1")


def test_of_attempts_without_stacks_some_ranks_are_asked(
    run: RunBuilder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, dict.fromkeys(range(150), READS))
    for attempt in (2, 3):
        run.open_attempt(attempt)
        for rank in range(150):
            os.makedirs(run.layout.rank(attempt, rank))
    run.end()
    asked, really_stat = [], os.stat

    def stat(path: str, **more: Any) -> os.stat_result:
        asked.append(str(path))
        return really_stat(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert stacks(run) == 0
    out, err = capsys.readouterr()
    assert "these stacks of attempt 1 were taken last" in err
    assert out.endswith("150 ranks are in read (data.py:31): 0-149\n")
    for attempt in (2, 3):
        assert 64 <= sum(path.startswith(run.layout.ranks(attempt)) for path in asked) < 128  # of 150


def test_rank_prints_the_whole_stack(run: RunBuilder, capsys: Capture) -> None:
    write(run, {0: READS, 1: READS})
    run.end()
    assert stacks(run, "--rank", "1") == 0
    out = capsys.readouterr().out
    assert out.startswith("rank 1 on ")
    assert READS in out
    assert stacks(run, "--rank", "0,7") == 1
    assert "there is no stack of rank 7; there is one of 0-1" in capsys.readouterr().err


def test_json_has_groups_and_the_chosen_stacks(run: RunBuilder, capsys: Capture) -> None:
    write(run, {0: READS, 1: READS})
    run.end()
    assert stacks(run, "--json", "--rank", "0") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(group["ranks"], group["place"], group["is_waiting"]) for group in found["groups"]] == [
        ("0-1", "data.py:31", False)
    ]
    assert (found["request"], found["missing"], list(found["stacks"])) == (None, [], ["0"])


def test_a_run_without_stacks_says_how_to_get_them(run: RunBuilder, capsys: Capture) -> None:
    run.end()
    assert stacks(run) == 5
    assert "is over, and no stacks were taken of it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", "x"), "'x' is no rank and no range of ranks"),
        (("--rank", ""), "--rank names no rank"),
        (("--rank", "7-3"), "runs backwards"),
        (("--timeout", "0"), "expected seconds, more than 0"),
        (("--timeout", "nan"), "expected seconds, more than 0"),
    ],
)
def test_stacks_rejects_what_it_cannot_do(
    run: RunBuilder, capsys: Capture, arguments: tuple[str, str], message: str
) -> None:
    assert stacks(run, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        '{"name": "stacks.taken"}',
        '{"name": "stacks.taken", "attempt": 1, "metadata": {"request": "other"}}',
        '{"name": "stacks.taken", "attempt": "x", "metadata": {"request": "mine"}}',
        "\\x00{",
    ],
)
def test_what_is_no_answer_is_passed_over(run: RunBuilder, line: str) -> None:
    events = Path(run.layout.events("node1"))
    events.parent.mkdir(parents=True, exist_ok=True)
    answers = StackAnswers(run.layout, ["node1"])
    with events.open("a") as file:
        file.write(line + "\n")
    answers.look("mine")
    assert answers.missing == ["node1"]
    with events.open("a") as file:
        file.write('{"name": "stacks.taken", "attempt": 1, "metadata": {"request": "mine", "ranks": [0, "x", 1]}}')
        file.flush()
        answers.look("mine")
        assert answers.missing == ["node1"], "the line is not complete"
        file.write("\n")
    answers.look("mine")
    assert answers.found["node1"].ranks == (0, 1)


def test_a_run_that_waits_to_start_again_is_asked_for_nothing(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    waiting = RunBuilder(tmp_path / "waiting").submit().allocate().open_attempt(1)
    fake_slurm.say("PENDING")
    assert main(["stacks", waiting.layout.root]) == 5
    assert "digits is REQUEUED, and none of its ranks runs\n" in capsys.readouterr().err
    assert list(store.read_lines(waiting.layout.requests)) == []
