"""Lines that many ranks print, shown once: nothing is lost or doubled, and each rank's order stays."""

from __future__ import annotations

import random

import pytest

from hpc_elastic.observe.dedupe import Deduper, Group


def dedupe(lines: list[tuple[int, int, bytes]], *, window_ns: int = 100) -> list[Group]:
    """The groups of lines, each with a time, a rank and a text."""
    deduper = Deduper(window_ns)
    groups = [group for time_ns, rank, line in lines for group in deduper.add(time_ns, rank, f"node{rank}", [line])]
    return groups + list(deduper.finish())


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
