"""The output of many ranks in the order of its time."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.codec import to_json
from hpc_elastic.observe import log_streams
from hpc_elastic.observe.log_streams import Batch, LogSource, LogStream, NodeLogStream, merge, open_streams
from hpc_elastic.observe.roster import RankPlace
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import LogMark

SECOND = 1_000_000_000


def source(rank: int = 0) -> LogSource:
    return LogSource(index=rank, rank=rank, node="n", is_stderr=False)


def timed(batches: list[Batch]) -> list[tuple[int, bytes]]:
    return [(batch.time_ns, line) for batch in batches for line in batch.lines]


def test_a_line_has_the_time_of_the_first_mark_that_covers_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    stream = LogStream(source(), str(path), [(4, 10), (10, 20), (14, 30)])
    found = timed(list(stream.batches(is_last=True)))
    assert found[:3] == [(10, b"one"), (20, b"two"), (30, b"three")]
    assert found[3] == (path.stat().st_mtime_ns, b"four")


def test_a_stream_goes_on_where_it_stopped_and_keeps_an_incomplete_line_until_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    stream = LogStream(source(), str(path))
    assert list(stream.batches(is_last=False)) == []
    for part, expected in ((b"one\ntw", [b"one"]), (b"o", []), (b"\nend", [b"two"])):
        with open(path, "ab") as file:
            file.write(part)
        assert [line for _, line in timed(list(stream.batches(is_last=False)))] == expected
    assert [line for _, line in timed(list(stream.batches(is_last=True)))] == [b"end"]
    assert list(stream.batches(is_last=True)) == []


def test_a_progress_bar_of_hours_in_a_node_log_is_one_line_and_read_in_seconds(tmp_path: Path) -> None:
    path, state = tmp_path / "log", b"\r 7% of it" * 100
    path.write_bytes(b"2026-01-31T14:30:00.123456Z 3 out+ " + state + b"\n")
    path.write_bytes(path.read_bytes() * 8_000 + b"2026-01-31T14:30:00.123456Z 3 out done\n")
    begun = time.process_time()
    found = timed(list(NodeLogStream(str(path), [source(3)]).batches(is_last=True)))
    assert time.process_time() - begun < 5
    assert [line for _, line in found] == [state * 8_000 + b"done"]


@pytest.mark.long
def test_a_line_of_many_chunks_is_put_together_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 40_000_000 + b"\nnext")
    begun = time.process_time()
    found = timed(list(LogStream(source(), str(path)).batches(is_last=True, chunk_bytes=4096)))
    assert time.process_time() - begun < 5
    assert [line for _, line in found] == [b"x" * 40_000_000, b"next"]


@pytest.mark.long
def test_a_line_without_an_end_comes_in_pieces_so_that_memory_does_not_grow_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_streams, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "log"
    path.write_bytes(b"begin\n")
    os.truncate(path, 200 << 20)  # zeros, as after a crash of a node
    with open(path, "ab") as file:
        file.write(b"\nend\n")
    tracemalloc.start()
    lengths = [len(line) for batch in LogStream(source(), str(path)).batches(is_last=True) for line in batch.lines]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 << 20
    assert (lengths[0], lengths[-1], sum(lengths)) == (5, 3, (200 << 20) - 1 + 3)
    assert max(lengths) <= 2 * log_streams.LONGEST_LINE


def test_a_long_progress_bar_is_cut_between_two_of_its_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_streams, "LONGEST_LINE", 1 << 20)
    path, state = tmp_path / "log", b" 7% of it\r"
    path.write_bytes(state * 300_000 + b"done\n")
    *pieces, last = [line for _, line in timed(list(LogStream(source(), str(path)).batches(is_last=True)))]
    assert len(pieces) >= 1
    assert all(piece.startswith(b" 7%") and piece.endswith(b"\r") for piece in pieces)
    assert last.endswith(b"it\rdone")
    assert b"".join([*pieces, last]) == state * 300_000 + b"done"


@pytest.mark.parametrize(
    "content", [b"one\ntwo\nthree\n", b"one\ntwo\nthr", b"", b"\n\n\n", b"a" * 200_000 + b"\nb\nc\n"]
)
@pytest.mark.parametrize("last", [0, 1, 2, 10])
def test_what_is_read_for_the_last_lines_ends_with_them_and_has_the_same_times(
    content: bytes, last: int, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    marks = [(4, 10), (8, 20)]
    whole = timed(list(LogStream(source(), str(path), marks).batches(is_last=True)))
    found = timed(list(LogStream(source(), str(path), marks, last=last).batches(is_last=True)))
    assert found == whole[len(whole) - len(found) :]
    assert min(last, len(whole)) <= len(found) <= max(last + 1, 0)


def test_the_last_lines_of_a_large_log_are_read_without_the_rest_and_then_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    os.truncate(path, 1 << 40)
    with open(path, "ab") as file:
        file.write(b"\none\ntwo\n")
    stream = LogStream(source(), str(path), last=1)
    assert [line for _, line in timed(list(stream.batches(is_last=False)))][-1:] == [b"two"]
    with open(path, "ab") as file:
        file.write(b"three\n")
    assert [line for _, line in timed(list(stream.batches(is_last=False)))] == [b"three"]


def test_the_part_before_a_cut_comes_first_with_the_time_of_the_cut(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    Path(layout.rank(1, 3)).mkdir(parents=True)
    Path(layout.stdout(1, 3)).write_text("ning\nlater\n")
    Path(layout.earlier(layout.stdout(1, 3))).write_text("before\nbegin")
    for time_ns, size in ((1, 900), (2, 5), (3, 11)):
        store.append_line(layout.log_marks(1, "n"), to_json(LogMark(time_ns=time_ns, ends={"3.stdout": size})))
    streams = open_streams(layout, [RankPlace(rank=3, node="n", attempt=1)])
    assert timed(list(merge(streams))) == [(2, b"before"), (2, b"beginning"), (3, b"later")]


def many_logs(layout: RunLayout, ranks: int, lines: int) -> list[RankPlace]:
    for rank in range(ranks):
        Path(layout.rank(1, rank)).mkdir(parents=True)
        Path(layout.stdout(1, rank)).write_bytes(b"rank %d\n" % rank * lines)
    return [RankPlace(rank=rank, node="n", attempt=1) for rank in range(ranks)]


def test_a_merge_of_more_than_fits_into_memory_has_no_log_open_while_its_lines_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had all logs open at once, and left out, without a word, those for which there were no descriptors left."""
    monkeypatch.setattr(log_streams, "MOST_SORTED", 1000)
    layout = RunLayout(tmp_path)
    streams = open_streams(layout, many_logs(layout, 20, lines=30), with_stderr=False)
    before, found = len(os.listdir("/proc/self/fd")), []
    for batch in merge(streams):
        assert len(os.listdir("/proc/self/fd")) == before
        found += batch.lines
    assert sorted(found) == sorted(b"rank %d" % rank for rank in range(20) for _ in range(30))


@pytest.mark.parametrize("last", [None, 3])
@pytest.mark.parametrize(("max_size", "opens"), [(None, 1), (1 << 20, 2)])
def test_a_log_is_opened_once_and_its_earlier_part_only_where_logs_are_cut(
    max_size: int | None, opens: int, last: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file server an open takes a millisecond, and 4,096 ranks have 8,192 logs."""
    layout, opened = RunLayout(tmp_path), []
    places = many_logs(layout, 5, lines=9)
    store.write_json(layout.plan, {"logs": {"per": "rank", "max_size_bytes": max_size}})
    really_open = os.open

    def count(path: str, *arguments: Any, **keywords: Any) -> int:
        opened.append(path)
        return really_open(path, *arguments, **keywords)

    streams = open_streams(layout, places, with_stderr=False, last=last)
    monkeypatch.setattr(os, "open", count)
    assert sum(len(batch.lines) for batch in merge(streams)) == 5 * (9 if last is None else last)
    assert len(opened) == 5 * opens


@pytest.mark.parametrize("seed", range(60))
def test_a_merge_loses_and_doubles_no_line_and_keeps_the_order_of_each_rank(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(log_streams, "MOST_SORTED", chance.choice([0, 60_000, 1 << 30]))
    layout, places = RunLayout(tmp_path), []
    written: dict[int, list[bytes]] = {rank: [] for rank in range(5)}
    files = {rank: bytearray() for rank in written}
    for rank in written:
        places.append(RankPlace(rank=rank, node=f"n{rank % 2}", attempt=1))
        Path(layout.rank(1, rank)).mkdir(parents=True)
    times: dict[bytes, int] = {}
    for second in range(1, chance.randint(2, 12)):
        marks: dict[str, dict[str, int]] = {"n0": {}, "n1": {}}
        for rank in written:
            for _ in range(chance.choice([0, 0, 1, 3])):
                line = b"%d %d %s" % (rank, len(written[rank]), b"x" * chance.choice([0, 5, 30_000]))
                written[rank].append(line)
                files[rank] += line + b"\n"
                times[line] = second * SECOND
            marks[f"n{rank % 2}"][f"{rank}.stdout"] = len(files[rank])
        for node, ends in marks.items():
            store.append_line(layout.log_marks(1, node), to_json(LogMark(time_ns=second * SECOND, ends=ends)))
    for rank, content in files.items():
        Path(layout.stdout(1, rank)).write_bytes(bytes(content))
    batches = list(merge(open_streams(layout, places)))
    for rank, lines in written.items():
        assert [line for batch in batches if batch.source.rank == rank for line in batch.lines] == lines
    assert [time_ns for time_ns, _ in timed(batches)] == sorted(time_ns for time_ns, _ in timed(batches))
    assert {line: time_ns for time_ns, line in timed(batches)} == times
