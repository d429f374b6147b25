"""Sets of ranks as text, such as `0-6,8`: the form in which records, options and messages name many ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

MOST_RANKS = 1_000_000
LONGEST_NAMED = 60  # characters of the ranks that a sentence names
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class RankSetError(ValueError):
    """A text is no set of ranks; the message says which part of it is not."""


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text, in order and without duplicates: `0-6,8`; empty for none."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def abbreviate_ranks(ranks: Collection[int]) -> str:
    """Return ranks as `format_ranks` does; where that is long, the first ones and how many there are.

    A line with each second of 4,096 ranks in it has 10,000 characters, which hide what it is about.
    """
    text = format_ranks(ranks)
    if len(text) <= LONGEST_NAMED:
        return text
    return f"{text[: LONGEST_NAMED + 1].rpartition(',')[0]},... ({len(set(ranks))} ranks)"


def name_ranks(ranks: Collection[int]) -> str:
    """Return ranks for a sentence: `rank 3`, `ranks 0-6,8`, `ranks 0,2,4,... (2048 ranks)`."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {abbreviate_ranks(ranks)}"


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `3,7-9`, in order and without duplicates; none for an empty text.

    Raises:
        RankSetError: a part is no number and no range, runs backwards, or there are more than `MOST_RANKS`.
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _PART.fullmatch(part)
        if match is None:
            raise RankSetError(f"{part!r} is no rank and no range of ranks, such as 3 or 7-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise RankSetError(f"the range {part!r} runs backwards")
        if last - first >= MOST_RANKS:
            raise RankSetError(f"the range {part!r} has more than {MOST_RANKS} ranks")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
