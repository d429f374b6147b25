"""Sets of ranks as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.rank_set import RankSetError, format_ranks, parse_ranks


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([8, 0, 1, 8, 6, 5], "0-1,5-6,8")]
)
def test_ranks_are_ranges_in_order(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@given(st.sets(st.integers(0, 2000), max_size=60))
def test_a_text_gives_the_same_ranks_back(ranks: set[int]) -> None:
    assert set(parse_ranks(format_ranks(ranks))) == ranks


def test_spaces_and_empty_parts_are_allowed() -> None:
    assert parse_ranks(" 3, 7-9,, 8") == (3, 7, 8, 9)


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1..2", "0-99999999", "1 2"])
def test_what_is_no_set_of_ranks_is_refused_by_name(text: str) -> None:
    with pytest.raises(RankSetError, match=r"rank|range"):
        parse_ranks(text)
