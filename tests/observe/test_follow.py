"""What a followed run says, in which order, and what a terminal of any width shows."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hpc_elastic.observe.display import SHOW_CURSOR, LiveDisplay, PlainDisplay, open_display
from hpc_elastic.observe.follow import follow
from hpc_elastic.observe.narrate import describe_nodes, describe_state, narrate_end
from hpc_elastic.observe.present import plain_list, plain_status, rich_list, rich_status
from hpc_elastic.observe.snapshot import Snapshot, take_snapshot
from hpc_elastic.observe.tail import Tail
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState
from tests.nfs_client import NfsClient
from tests.observe.builders import RunBuilder, make_failure
from tests.observe.test_snapshot import TellingScheduler


class Recorder:
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.unfinished: list[list[str]] = []

    def say(self, line: str) -> None:
        self.lines.append(f"> {line}")

    def output(self, line: str) -> None:
        self.lines.append(line)

    def show(self, snapshot: Snapshot, unfinished: Sequence[str] = ()) -> None:
        del snapshot
        self.unfinished.append(list(unfinished))


def restarted_run(root: Path) -> Iterator[tuple[RunBuilder, Snapshot]]:
    run = RunBuilder(root).submit()
    yield run, take_snapshot(run.layout, TellingScheduler(JobState.PENDING, "Resources"))
    run.allocate()
    yield run, take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    run.open_attempt(1).write_rank(1, 0, "epoch 1\nepo")
    yield run, take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    run.write_rank(1, 0, "ch 2\nhalf a line")
    run.open_attempt(2, reason="rank 3 was killed by SIGKILL", restarts=1).write_rank(2, 0, "epoch 2\n", "warning\n")
    yield run, take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    run.write_rank(2, 0, "done").end()
    yield run, take_snapshot(run.layout, None)


def test_a_backlog_of_a_log_is_not_held_in_memory(tmp_path: Path) -> None:
    path, line = tmp_path / "stdout.log", b"x" * 99_999 + b"\n"
    path.write_bytes(line * 120)
    tracemalloc.start()
    try:
        assert sum(len(line) + 1 for line in Tail(str(path)).lines()) == 12_000_000
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_follow_goes_on_with_the_output_of_a_role_that_runs_on(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1, roles={"trainer": 1, "reader": 1})
    run.write_rank(1, 0, "epoch 1\nepo").write_rank(1, 2, "reading\n")

    def all_snapshots() -> Iterator[Snapshot]:
        yield take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        run.open_attempt(2, reason="rank 3 was killed", restarts=1, roles={"trainer": 1, "reader": 2})
        run.write_rank(2, 2, "reading again\n")
        yield take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        run.write_rank(1, 0, "ch 2\n").end()
        yield take_snapshot(run.layout, None)

    trainer = Recorder()
    follow(run.layout, all_snapshots(), trainer)
    assert trainer.lines[:5] == [
        "> RUNNING",
        "> attempt 1: 4 workers on 2 nodes (node1, node2)",
        "epoch 1",
        "> attempt 2: the workers of reader start again; restart 1 of 3; after: rank 3 was killed",
        "epoch 2",
    ]
    reader = Recorder()
    follow(run.layout, [take_snapshot(run.layout, None)], reader, rank=2)
    assert [line for line in reader.lines if not line.startswith(">")] == ["reading", "reading again"]


def test_follow_tells_a_restarted_run_in_order(tmp_path: Path) -> None:
    display = Recorder()
    snapshots = restarted_run(tmp_path / "run")
    run, first = next(snapshots)
    last = follow(run.layout, [first], Recorder())
    assert not last.is_over

    def all_snapshots() -> Iterator[Snapshot]:
        yield first
        for _, snapshot in snapshots:
            yield snapshot

    follow(run.layout, all_snapshots(), display)
    assert display.lines == [
        "> PENDING (Resources)",
        "> RUNNING",
        "> attempt 1: 4 workers on 2 nodes (node1, node2)",
        "epoch 1",
        "epoch 2",
        "half a line",
        "> attempt 2: 4 workers on 2 nodes (node1, node2); restart 1 of 3; after: rank 3 was killed by SIGKILL",
        "epoch 2",
        "warning",
        "done",
        "> SUCCEEDED: every rank exited 0",
        "> see: hpc-elastic logs 42",
    ]


def test_follow_shows_a_progress_bar_before_its_line_has_an_end(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    display = Recorder()

    def all_snapshots() -> Iterator[Snapshot]:
        for output, errors in (("loading ", "\r 1%|"), ("data\n", "\r 50%|#"), ("", "\r 99%|##\r100%|##\n")):
            run.write_rank(1, 0, output, errors)
            yield take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        run.write_rank(1, 0, "x" * 100_000).end()
        yield take_snapshot(run.layout, None)

    follow(run.layout, all_snapshots(), display)
    assert display.unfinished[:3] == [["loading ", " 1%|"], [" 50%|#"], []]
    assert len(display.unfinished[3][0]) < 10_000
    assert [line for line in display.lines if not line.startswith(">")] == ["loading data", "100%|##", "x" * 100_000]


def test_end_of_a_failed_run_names_the_first_failed_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    failures = {
        "0": make_failure(0, run.layout, timestamp=9.0),
        "3": make_failure(3, run.layout, timestamp=2.0),
    }
    run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", cause="rank 3 failed", failures=failures)
    assert narrate_end(take_snapshot(run.layout, None)) == [
        "FAILED (exit code 1): rank 3 failed",
        "see: hpc-elastic explain 42",
        "see: hpc-elastic logs 42 --rank 3",
        "see: " + run.layout.error(1, 3),
    ]


def test_a_run_that_was_cancelled_before_its_start_has_no_logs_to_look_at(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().end(RunState.CANCELLED, exit_code=10, reason="stop_requested")
    assert [line for line in narrate_end(take_snapshot(run.layout, None)) if "logs" in line] == []
    begun = RunBuilder(tmp_path / "begun").submit().allocate().end(RunState.CANCELLED, exit_code=10)
    assert "see: hpc-elastic logs 42" in narrate_end(take_snapshot(begun.layout, None))


def test_a_job_that_slurm_has_suspended_is_told_from_one_that_works(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    works = replace(take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)), job_nodes="node[1-2]")
    assert describe_state(works) == "RUNNING on node[1-2]"
    assert describe_state(replace(works, job_state="SUSPENDED")) == "RUNNING (SUSPENDED) on node[1-2]"
    assert describe_state(replace(works, job_reason="Prolog")) == "RUNNING (Prolog) on node[1-2]"


def test_many_nodes_are_counted_and_the_first_named() -> None:
    assert describe_nodes([f"n{number}" for number in range(100)]) == "100 nodes (n0, n1, n2, n3, n4, n5, ...)"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_plain_status_fits_its_width_apart_from_paths_and_commands(tmp_path: Path, width: int) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.end(RunState.FAILED, exit_code=1, cause="rank 3 on node2 was killed by SIGKILL, three restarts were spent")
    text = plain_status(take_snapshot(run.layout, None), width)
    too_long = [line for line in text.splitlines() if len(line) > max(width, 22)]
    assert all(len(line.split()) == 1 or str(tmp_path) in line or "hpc-elastic" in line for line in too_long)
    for word in ("FAILED", "SIGKILL,", "restarts", "2026-01-02", run.layout.root):
        assert word in text


@pytest.mark.parametrize("width", [40, 100])
def test_rich_status_and_list_draw_if_there_is_no_colour(tmp_path: Path, width: int) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    snapshot = take_snapshot(run.layout, None)
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, no_color=True, legacy_windows=False)
    console.print(rich_status(snapshot))
    console.print(rich_list([snapshot], width))
    text = stream.getvalue()
    assert text.count("SUCCEEDED") == 2
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines())) <= width


def test_plain_list_lines_up(tmp_path: Path) -> None:
    one = RunBuilder(tmp_path / "one", name="a-long-name").submit().end()
    two = RunBuilder(tmp_path / "two", name="b").submit("7")
    lines = plain_list([take_snapshot(run.layout, None) for run in (one, two)]).splitlines()
    assert len({line.index(word) for line, word in zip(lines, ("STATE", "SUCCEEDED", "PENDING"), strict=True)}) == 1


def test_live_display_keeps_its_line_to_the_width(tmp_path: Path) -> None:
    from rich.live import Live

    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    stream = io.StringIO()
    console = Console(file=stream, width=40, force_terminal=True, no_color=True, legacy_windows=False)
    with Live(console=console, auto_refresh=False) as live:
        display = LiveDisplay(console, live)
        display.say("[bold]not markup[/]")
        display.output("\x1b[31mred\x1b[0m \x07bell")
        display.show(take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)))
        live.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n")
    assert "[bold]not markup[/]" in plain
    assert "\x07" not in plain
    assert "- RUNNING  0:00:00  attempt 1  4 worker…" in plain


def test_live_display_has_a_progress_bar_above_its_line_as_wide_as_the_terminal(tmp_path: Path) -> None:
    from rich.live import Live

    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    stream = io.StringIO()
    console = Console(file=stream, width=40, force_terminal=True, no_color=True, legacy_windows=False)
    with Live(console=console, auto_refresh=False) as live:
        snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        LiveDisplay(console, live).show(snapshot, [" 50%|" + "#" * 100, "\x1b[2J[b]"])
        live.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert plain.split("\n")[:2] == [" 50%|" + "#" * 33 + "…", "\\x1b[2J[b]"]
    assert "- RUNNING" in plain.split("\n")[2]


def test_plain_display_is_chosen_if_there_is_no_terminal() -> None:
    progress, output = io.StringIO(), io.StringIO()
    with open_display(progress, output) as display:
        assert isinstance(display, PlainDisplay)
        display.say("RUNNING")
        display.output("epoch 1")
    assert re.fullmatch(r"\[hpc-elastic \d\d:\d\d:\d\d\] RUNNING\n", progress.getvalue())
    assert output.getvalue() == "epoch 1\n"


def read_terminal(end: int, until: str | None) -> str:
    """Return what was written to a terminal from now on, up to this text; None: until nobody has it open any more."""
    text = ""
    while until is None or until not in text:
        assert select.select([end], [], [], 30)[0], text
        try:
            text += os.read(end, 4096).decode()
        except OSError:
            break
    return text


@pytest.mark.long
def test_live_display_draws_only_while_it_has_the_foreground_of_its_terminal(tmp_path: Path) -> None:
    """`hpc-elastic run ... &`: its live line was drawn over the user's prompt."""
    end, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.observe.display_in_background", str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    ) as program:
        assert program.stdin is not None
        os.close(terminal)
        behind = read_terminal(end, "bell\x1b[0m\r\n")
        program.stdin.write(b"\n")
        program.stdin.flush()
        assert "RUNNING" in read_terminal(end, "RUNNING")
        program.stdin.close()  # its last step
        rest = read_terminal(end, None)
        os.close(end)
    assert program.returncode == 0
    assert re.fullmatch(r"\[hpc-elastic [\d:]+\] began\r\n\x1b\[31mred\x1b\[0m \\x07bell\x1b\[0m\r\n", behind)
    assert rest.partition("goes on")[2].replace(SHOW_CURSOR, "") == "\r\n"
    assert SHOW_CURSOR in rest


def test_tail_starts_over_if_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path))
    assert tail.read_lines() == []
    path.write_bytes(b"one\ntwo\n")
    assert tail.read_lines() == ["one", "two"]
    path.write_bytes(b"three\n")
    assert tail.read_lines() == ["three"]


def test_tail_shows_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b" 1%\r 50%\r100%\r\nnext \xff")
    tail = Tail(str(path))
    assert tail.read_lines() == ["100%"]
    assert tail.read_lines(is_last=True) == ["next \N{REPLACEMENT CHARACTER}"]


def test_tail_keeps_only_what_a_progress_bar_shows_until_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path))
    kept = set()
    for state in (b" 1%\r", b" 2%\r", b"\r 3%", b"\r\r", b"\r 4", b"%", b"\r 5%\r 6%\r"):
        with path.open("ab") as file:
            file.write(state)
        assert tail.read_lines() == []
        kept.add(len(tail._partial))
    assert max(kept) <= len(" 3%\r\r")
    assert tail.read_lines(is_last=True) == [" 6%"]


def test_tail_shows_a_line_without_an_end_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x" * 5_000_000)
    tail = Tail(str(path))
    first = tail.read_lines()
    assert len(first) > 1
    last = tail.read_lines(is_last=True)
    assert "".join([*first, *last]) == "x" * 5_000_000


def test_follow_shows_the_output_of_an_attempt_whose_logs_an_nfs_client_had_looked_for_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    with client.written_elsewhere():
        run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
        os.makedirs(run.layout.rank(1, 0))

    def all_snapshots() -> Iterator[Snapshot]:
        yield take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        with client.written_elsewhere():
            run.write_rank(1, 0, "epoch 1\n")
        yield take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
        with client.written_elsewhere():
            run.write_rank(1, 0, "epoch 2\n").end()
        yield take_snapshot(run.layout, None)

    recorder = Recorder()
    follow(run.layout, all_snapshots(), recorder)
    assert [line for line in recorder.lines if not line.startswith(">")] == ["epoch 1", "epoch 2"]
