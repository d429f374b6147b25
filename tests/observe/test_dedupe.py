"""Lines that many ranks print, shown once: nothing is lost or doubled, and each rank's order stays."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import pytest

from hpc_elastic.observe import dedupe as dedupe_module
from hpc_elastic.observe.dedupe import Deduper


class Group(NamedTuple):
    """A line, the ranks that printed it, and when the first of them did."""

    line: bytes
    ranks: list[int]
    time_ns: int


def dedupe(lines: list[tuple[int, int, bytes]], *, window_ns: int = 100) -> list[Group]:
    """The groups of lines, each with a time, a rank and a text."""
    return dedupe_batches([(time_ns, rank, [line]) for time_ns, rank, line in lines], window_ns=window_ns)


def dedupe_batches(batches: list[tuple[int, int, list[bytes]]], *, window_ns: int = 100) -> list[Group]:
    """The groups of batches of lines, each with a time and a rank."""
    deduper = Deduper(window_ns)
    ready = [deduper.add(time_ns, rank, lines) for time_ns, rank, lines in batches]
    return [
        Group(line, [ranks] if isinstance(ranks, int) else ranks, time_ns)
        for groups in (*ready, deduper.finish())
        if groups is not None
        for line, ranks, time_ns in zip(groups.lines, groups.ranks, groups.times_ns, strict=True)
    ]


def shown(groups: list[Group]) -> list[tuple[bytes, list[int]]]:
    return [(group.line, sorted(group.ranks)) for group in groups]


def test_a_line_of_all_ranks_is_one_line() -> None:
    lines = [(0, rank, line) for line in (b"loading", b"ready") for rank in range(4)]
    assert shown(dedupe(lines)) == [(b"loading", [0, 1, 2, 3]), (b"ready", [0, 1, 2, 3])]


def test_a_line_that_a_rank_prints_twice_is_two_lines() -> None:
    assert shown(dedupe([(0, 0, b"x"), (0, 0, b"x"), (0, 1, b"x")])) == [(b"x", [0, 1]), (b"x", [0])]


def test_ranks_in_another_order_stay_in_theirs() -> None:
    lines = [(0, 0, b"a"), (0, 0, b"b"), (0, 1, b"b"), (0, 1, b"a")]
    assert shown(dedupe(lines)) == [(b"a", [0]), (b"b", [0, 1]), (b"a", [1])]


def test_what_comes_later_than_the_window_begins_anew() -> None:
    assert shown(dedupe([(0, 0, b"a"), (101, 1, b"a")])) == [(b"a", [0]), (b"a", [1])]
    assert shown(dedupe([(0, 0, b"a"), (100, 1, b"a")])) == [(b"a", [0, 1])]


def calls_within(act: Callable[[], object]) -> int:
    """How many of the deduper's functions are called, whatever the machine's speed.

    Only its own: a garbage collection that happens to come now calls functions of others.
    """
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename == dedupe_module.__file__

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_lines_of_one_rank_and_of_all_ranks_alike_go_in_and_out_by_whole_batches() -> None:
    deduper, lines = Deduper(), [b"line %d" % number for number in range(10_000)]

    def act() -> None:
        deduper.add(0, 0, lines)
        deduper.add(0, 1, lines)
        deduper.finish()

    assert calls_within(act) < 50


@pytest.mark.parametrize("seed", range(100))
def test_lines_that_come_together_are_grouped_as_those_that_come_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    words = [b"%d" % word for word in range(chance.choice([3, 30, 300]))]
    text = [chance.choice(words) for _ in range(60)]
    time_ns, batches = 0, []
    for _ in range(chance.randint(1, 40)):
        time_ns += chance.choice([0, 0, 1, 30, 200])
        begin = chance.randrange(60)
        some = [chance.choice(words) for _ in range(chance.randint(1, 30))]
        lines = text[begin : begin + chance.randint(1, 40)] if chance.random() < 0.6 else some
        batches.append((time_ns, chance.randrange(4), lines))
    singly = [(time_ns, rank, line) for time_ns, rank, lines in batches for line in lines]
    assert dedupe_batches(batches) == dedupe(singly)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_no_line_is_lost_or_doubled_and_no_rank_is_reordered(seed: int) -> None:
    chance = random.Random(seed)
    ranks, words = chance.randint(1, 6), [b"%d" % word for word in range(chance.randint(1, 5))]
    time_ns, lines = 0, []
    for _ in range(chance.randint(0, 300)):
        time_ns += chance.choice([0, 0, 1, 30])
        lines.append((time_ns, chance.randrange(ranks), chance.choice(words)))
    groups = dedupe(lines)
    for rank in range(ranks):
        expected = [line for _, writer, line in lines if writer == rank]
        assert [group.line for group in groups for member in group.ranks if member == rank] == expected
    assert sum(len(group.ranks) for group in groups) == len(lines)
    assert [group.time_ns for group in groups] == sorted(group.time_ns for group in groups)
