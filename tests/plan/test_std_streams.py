"""Streams by local rank: what job files may say, and what it means."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.plan.std_streams import LocalStreams, Std


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("both", [3, 3, 3]),
        ("none", [0, 0, 0]),
        (1, [1, 1, 1]),
        ("2", [2, 2, 2]),
        ("0:3,1:2", [3, 2, 0]),
        ("2:out", [0, 0, 1]),
        ("11:3", [0, 0, 0]),
        ({"0": "both", "2": 2}, [3, 0, 2]),
        ({0: "none", 1: "3"}, [0, 3, 0]),
    ],
)
def test_streams_of_each_worker(value: Any, expected: list[int]) -> None:
    assert LocalStreams.from_value(value).to_map(3) == {rank: Std(number) for rank, number in enumerate(expected)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("all", "expected out, err, both, none, 0 to 3, or local ranks such as 0:3,1:2, found 'all'"),
        (4, "local ranks such as 0:3,1:2, found 4"),
        (True, "found True"),
        (None, "found None"),
        ({}, "found an empty map"),
        ([0], r"found \[0\]"),
        ("0:3,", "found '0:3,'"),
        ("0:4", "found '0:4'"),
        ("3\n", r"found '3\\n'"),
        ("0:3,0:1", "expected each local rank once, found 0 twice"),
        ({"0": "out", "00": "err"}, "expected each local rank once, found 0 twice"),
        ({"first": "out"}, "expected a local rank, a number such as 0, found 'first'"),
        ({"0": "stdout"}, "expected out, err, both, none or 0 to 3 for local rank 0, found 'stdout'"),
        ({"0": None}, "found None"),
    ],
)
def test_what_names_no_streams_is_rejected(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalStreams.from_value(value)


@pytest.mark.parametrize("text", ["both", "out", "0:both,3:err", "none"])
def test_the_spelling_of_a_value_is_read_as_the_value(text: str) -> None:
    assert str(LocalStreams.from_str(text)) == text
