from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.units import (
    LONGEST_DURATION,
    format_duration,
    format_slurm_memory,
    format_slurm_time,
    parse_duration,
    parse_size,
    parse_slurm_memory,
)

durations = st.timedeltas(min_value=timedelta(0), max_value=LONGEST_DURATION)
positive_durations = st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST_DURATION)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", timedelta(minutes=90)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("45s", timedelta(seconds=45)),
        ("0s", timedelta(0)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("0.5s", timedelta(seconds=0.5)),
        ("1.5h", timedelta(minutes=90)),
        ("12:30", timedelta(minutes=12, seconds=30)),
        ("90:00", timedelta(minutes=90)),
        ("12:00:00", timedelta(hours=12)),
        ("1-12", timedelta(days=1, hours=12)),
        ("1-12:30", timedelta(days=1, hours=12, minutes=30)),
        ("1-12:30:15", timedelta(days=1, hours=12, minutes=30, seconds=15)),
        ("0-00:00:01", timedelta(seconds=1)),
    ],
)
def test_parse_duration_reads_our_and_slurms_spellings(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "s", "-5m", "1h1h", "30m2h", "1 h", "1:2:3:4", "1-", "1-2:3:4:5", "soon", "\u0661m", "1h\n", "UNLIMITED"],
)
def test_parse_duration_rejects_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90m"):
        parse_duration(text)


def test_parse_duration_rejects_a_bare_number() -> None:
    with pytest.raises(ValueError, match="found '90'; write 90m for minutes, 90s for seconds"):
        parse_duration("90")


@pytest.mark.parametrize("text", ["24856d", "999999999999999999999999h", "99999999-00"])
def test_parse_duration_rejects_more_than_slurm_can_count(text: str) -> None:
    with pytest.raises(ValueError, match="at most 24855 days"):
        parse_duration(text)


@given(durations)
def test_format_duration_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(positive_durations)
def test_format_slurm_time_is_never_shorter_than_asked(duration: timedelta) -> None:
    read_back = parse_duration(format_slurm_time(duration))
    assert duration <= read_back < duration + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(microseconds=1), "00:00:01"),
        (timedelta(seconds=45), "00:00:45"),
        (timedelta(hours=23, minutes=59, seconds=59.5), "1-00:00:00"),
        (timedelta(days=2, hours=3), "2-03:00:00"),
    ],
)
def test_format_slurm_time(duration: timedelta, expected: str) -> None:
    assert format_slurm_time(duration) == expected


def test_format_slurm_time_rejects_zero_that_would_mean_no_limit() -> None:
    with pytest.raises(ValueError, match="no limit at all"):
        format_slurm_time(timedelta(0))


@pytest.mark.parametrize("write", [format_duration, format_slurm_time])
def test_formatting_rejects_a_negative_duration(write: object) -> None:
    assert callable(write)
    with pytest.raises(ValueError, match="at least 0s"):
        write(timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1K", 1024),
        ("64G", 64 << 30),
        ("64GB", 64 << 30),
        ("64GiB", 64 << 30),
        ("1.5T", 1536 << 30),
        ("500m", 500 << 20),
    ],
)
def test_parse_size(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "G", "-1G", "64 G", "64X", "1e3M"])
def test_parse_size_rejects_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 500M"):
        parse_size(text)


def test_parse_size_rejects_a_bare_number() -> None:
    with pytest.raises(ValueError, match="found '64'; write 64M for MiB, 64G for GiB"):
        parse_size("64")


def test_parse_slurm_memory_takes_a_bare_number_as_mebibytes() -> None:
    assert parse_slurm_memory("1000") == 1000 << 20
    assert parse_slurm_memory("0") == 0
    assert parse_slurm_memory("4G") == 4 << 30


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "0"), (1, "1M"), (64 << 30, "64G"), (1536 << 20, "1536M"), (2 << 40, "2T")]
)
def test_format_slurm_memory(size: int, expected: str) -> None:
    assert format_slurm_memory(size) == expected


@given(st.integers(min_value=0, max_value=1 << 50))
def test_format_slurm_memory_is_never_less_than_asked(size: int) -> None:
    read_back = parse_slurm_memory(format_slurm_memory(size))
    assert size <= read_back < size + (1 << 20)
