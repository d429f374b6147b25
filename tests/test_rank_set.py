"""Sets of ranks as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.rank_set import LONGEST_NAMED, RankSetError, format_ranks, name_ranks, parse_ranks


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([8, 0, 1, 8, 6, 5], "0-1,5-6,8")]
)
def test_ranks_are_ranges_in_order(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@given(st.sets(st.integers(0, 2000), max_size=60))
def test_a_text_gives_the_same_ranks_back(ranks: set[int]) -> None:
    assert set(parse_ranks(format_ranks(ranks))) == ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1, 2, 8], "ranks 0-2,8"),
        ([rank for rank in range(4096) if rank != 17], "ranks 0-16,18-4095"),
        (range(0, 40, 2), "ranks 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"),
        (range(0, 44, 2), "ranks 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42"),
        (range(0, 4096, 2), "ranks 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,... (2048 ranks)"),
    ],
)
def test_a_sentence_names_the_first_of_many_ranks_and_how_many_there_are(ranks: Sequence[int], text: str) -> None:
    assert name_ranks(ranks) == text
    assert len(text) <= len("ranks ") + LONGEST_NAMED + len(",... (2048 ranks)")


def test_spaces_and_empty_parts_are_allowed() -> None:
    assert parse_ranks(" 3, 7-9,, 8") == (3, 7, 8, 9)


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1..2", "0-99999999", "1 2"])
def test_what_is_no_set_of_ranks_is_refused_by_name(text: str) -> None:
    with pytest.raises(RankSetError, match=r"rank|range"):
        parse_ranks(text)
