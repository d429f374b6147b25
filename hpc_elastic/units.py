"""Parses and formats durations and sizes, in the spellings of people and of Slurm.

Inside the package a duration is a `timedelta` and a size a number of bytes; no other module reads or writes their
spellings. A bare number is refused: it would be minutes or MiB to Slurm, and seconds or bytes to most people.
Slurm's spellings: https://slurm.schedmd.com/sbatch.html, `--time` and `--mem`.
"""

from __future__ import annotations

import re
from datetime import timedelta

# Slurm counts a job's time in seconds in 32 bits (time_str2secs in src/common/parse_time.c, 22.05).
LONGEST_DURATION = timedelta(seconds=2**31 - 1)

_SECOND = timedelta(seconds=1)
_SECONDS_IN_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.A)
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.A)  # D-HH, D-HH:MM, D-HH:MM:SS
_WITH_COLONS = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.A)  # MM:SS, HH:MM:SS

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", re.A | re.I)
_BYTES_IN_UNIT = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_duration(text: str) -> timedelta:
    """Parse `90m`, `2h30m`, `1d12h`, `0.5s`, or Slurm's `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.

    As in Slurm, `12:30` is twelve and a half minutes, and a field may be larger than on a clock (`90:00`).

    Raises:
        ValueError: the text is none of these; the message says what was expected.
    """
    seconds = _seconds(text)
    if seconds is None:
        hint = f"; write {text}m for minutes, {text}s for seconds" if re.fullmatch(r"\d+", text, re.A) else ""
        raise ValueError(f"expected a duration such as 90m, 2h30m, 45s or 1-12:00:00, found {text!r}{hint}")
    if seconds > LONGEST_DURATION.total_seconds():
        raise ValueError(f"expected a duration of at most {LONGEST_DURATION.days} days, found {text!r}")
    return timedelta(seconds=seconds)


def _seconds(text: str) -> float | None:
    if text and (match := _WITH_UNITS.fullmatch(text)):
        return sum(
            float(number) * unit
            for number, unit in zip(match.groups(), _SECONDS_IN_UNIT.values(), strict=True)
            if number
        )
    if match := _WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(field or 0) for field in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match := _WITH_COLONS.fullmatch(text):
        hours, minutes, seconds = (int(field or 0) for field in match.groups())
        return (hours * 60 + minutes) * 60 + seconds
    return None


def format_duration(duration: timedelta) -> str:
    """Format a duration for people: `2h30m`, `45s`, `0.5s`, `0s`; `parse_duration` reads it back.

    Raises:
        ValueError: it is negative.
    """
    _refuse_negative(duration)
    seconds = duration // _SECOND
    fraction = f".{duration.microseconds:06d}".rstrip("0").rstrip(".")
    parts = []
    for letter, size in _SECONDS_IN_UNIT.items():
        count, seconds = divmod(seconds, size)
        tail = fraction if letter == "s" else ""
        if count or tail:
            parts.append(f"{count}{tail}{letter}")
    return "".join(parts) or "0s"


def format_slurm_time(duration: timedelta) -> str:
    """Format a duration for Slurm's `--time`: `HH:MM:SS` or `D-HH:MM:SS`, rounded up to a whole second.

    Raises:
        ValueError: the duration is zero, which asks Slurm for no limit at all, or negative.
    """
    _refuse_negative(duration)
    if not duration:
        raise ValueError("a time limit of 0 would ask Slurm for no limit at all; expected more than 0s")
    minutes, seconds = divmod(-(-duration // _SECOND), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:{seconds:02d}"


def _refuse_negative(duration: timedelta) -> None:
    if duration < timedelta(0):
        raise ValueError(f"expected a duration of at least 0s, found {duration}")


def parse_size(text: str) -> int:
    """Parse a size, `512K`, `100M`, `64G`, `1.5T`, also with `B` or `iB` at the end, as bytes; 1K is 1024.

    Raises:
        ValueError: the text is something else; the message says what was expected.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        hint = f"; write {text}M for MiB, {text}G for GiB" if re.fullmatch(r"\d+", text, re.A) else ""
        raise ValueError(f"expected a size such as 500M, 64G or 1.5T, found {text!r}{hint}")
    return round(float(match[1]) * _BYTES_IN_UNIT[match[2].upper()])


def parse_slurm_memory(text: str) -> int:
    """Parse a value of `--mem` as a number of bytes, as Slurm reads it: a bare number is MiB.

    Raises:
        ValueError: the text is no size.
    """
    return parse_size(f"{text}M" if re.fullmatch(r"\d+", text, re.A) else text)


def format_slurm_memory(size: int) -> str:
    """Format bytes for Slurm's `--mem`: `64G`, `1536M`, rounded up to a whole MiB; `0` is all memory of a node.

    Raises:
        ValueError: it is negative.
    """
    if size < 0:
        raise ValueError(f"expected a size of at least 0, found {size}")
    mebibytes = -(-size // _BYTES_IN_UNIT["M"])
    for letter, factor in (("T", 1 << 20), ("G", 1 << 10)):
        if mebibytes and mebibytes % factor == 0:
            return f"{mebibytes // factor}{letter}"
    return f"{mebibytes}M" if mebibytes else "0"
