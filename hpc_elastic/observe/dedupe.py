"""Shows a line that many ranks print once, with the ranks; the order of each rank's own lines stays.

Theory of operation. Equal lines of different ranks are a group. The groups that were not shown yet have growing
numbers, and stand in lists side by side, so that lines which nobody else printed, and those that a rank printed in the
same order as another one, go in and out by whole batches: that takes a third of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW_NS = 60_000_000_000
MOST_GROUPS = 100_000
_FEW_LINES = 8  # are not worth the tries for all of them together
_MOST_GONE = 2 * MOST_GROUPS  # groups that were shown and still stand in the lists


@dataclass(slots=True)
class Groups:
    """Lines in the order of their groups, and of each who printed it: a rank, or a list of several.

    `times_ns`: when the first of them did.
    """

    lines: list[bytes] = field(default_factory=list)
    ranks: list[int | list[int]] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)

    def extended(self, others: Groups) -> Groups:
        """Return these groups and the others."""
        return Groups(self.lines + others.lines, self.ranks + others.ranks, self.times_ns + others.times_ns)


class Deduper:
    """Collects equal lines of different ranks.

    A rank's line joins the oldest group with the same text that comes after all groups which this rank is in
    already; without one it begins a group. So each rank is in each group once at most, and its lines, read in the
    order of the groups, are as it wrote them.

    Args:
        window_ns: for how long a group takes further ranks.
    """

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._groups = Groups()  # some were shown already
        self._base = 0  # the number of the first of them
        self._oldest = 0  # the number of the first that was not shown yet
        self._by_line: dict[bytes, int | _Numbers] = {}  # the numbers of the groups that were not shown yet
        self._latest: dict[int, int] = {}  # by rank, the number of the last group that it is in
        self._next = 0
        self._due_ns = 0  # when the first group is to be shown, if there is one

    def add(self, time_ns: int, rank: int, lines: list[bytes]) -> Groups | None:
        """Add lines of a rank; return the groups that take no further ranks, which are to be shown now, if any.

        Times must not decrease.
        """
        is_due = time_ns > self._due_ns or self._next - self._oldest > MOST_GROUPS
        ready = self.expire(time_ns) if is_due else None
        if self._next == self._oldest:
            self._due_ns = time_ns + self._window_ns
        is_short = len(lines) < _FEW_LINES
        if is_short or not (self._join_run(rank, lines) or self._begin_all(time_ns, rank, lines)):
            self._join_each(time_ns, rank, lines)
        if self._next - self._oldest > MOST_GROUPS:
            more = self.expire(time_ns)
            ready = more if ready is None else ready.extended(more)
        return ready

    def expire(self, time_ns: int) -> Groups:
        """Return the groups that began longer ago than the window, and the oldest ones of too many."""
        first = self._oldest - self._base
        end = bisect_right(self._groups.times_ns, time_ns - self._window_ns - 1, lo=first) + self._base
        return self._take(max(end, self._next - MOST_GROUPS))

    def finish(self) -> Groups:
        """Return all groups that are left."""
        return self._take(self._next)

    def _join_run(self, rank: int, lines: list[bytes]) -> bool:
        """Let all of these lines join groups that follow each other with just these texts; return whether they did."""
        number = self._find(lines[0], self._latest.get(rank, -1))
        if number is None:
            return False
        first, groups = number - self._base, self._groups
        if groups.lines[first : first + len(lines)] != lines:
            return False
        for place, known in enumerate(groups.ranks[first : first + len(lines)], first):
            if isinstance(known, int):
                groups.ranks[place] = [known, rank]
            else:
                known.append(rank)
        self._latest[rank] = number + len(lines) - 1
        return True

    def _begin_all(self, time_ns: int, rank: int, lines: Sequence[bytes]) -> bool:
        """Let each of these lines begin a group if nobody has printed one of them; return whether they did."""
        if not self._by_line.keys().isdisjoint(lines):
            return False
        numbers = dict(zip(lines, range(self._next, self._next + len(lines)), strict=True))
        if len(numbers) < len(lines):
            return False
        self._by_line.update(numbers)
        groups, count = self._groups, len(lines)
        groups.lines += lines
        groups.ranks += [rank] * count
        groups.times_ns += [time_ns] * count
        self._next += count
        self._latest[rank] = self._next - 1
        return True

    def _join_each(self, time_ns: int, rank: int, lines: Sequence[bytes]) -> None:
        latest, base, oldest = self._latest.get(rank, -1), self._base, self._oldest
        ranks, texts, times_ns = self._groups.ranks, self._groups.lines, self._groups.times_ns
        for line in lines:
            place = latest + 1 - base
            if oldest <= latest + 1 and place < len(texts) and texts[place] == line:
                latest += 1  # as in nearly all cases
            elif (found := self._find(line, latest)) is not None:
                latest = found
            else:
                latest = self._next
                known = self._by_line.get(line)
                if known is None:
                    self._by_line[line] = latest
                elif isinstance(known, int):
                    self._by_line[line] = _Numbers(known, latest)
                else:
                    known.append(latest)
                texts.append(line)
                ranks.append(rank)
                times_ns.append(time_ns)
                self._next += 1
                continue
            place = latest - base
            others = ranks[place]
            if isinstance(others, int):
                ranks[place] = [others, rank]
            else:
                others.append(rank)
        self._latest[rank] = latest

    def _find(self, line: bytes, latest: int) -> int | None:
        """Return the number of the oldest group of this line after another one; None if there is none."""
        known = self._by_line.get(line)
        if known is None or isinstance(known, int):
            return known if known is not None and known > latest else None
        return known.after(latest)

    def _take(self, end: int) -> Groups:
        """Return the groups before this number, and forget them."""
        if end <= self._oldest:
            return Groups()
        groups, first, last = self._groups, self._oldest - self._base, end - self._base
        taken = Groups(groups.lines[first:last], groups.ranks[first:last], groups.times_ns[first:last])
        by_line = self._by_line
        for line in taken.lines:
            known = by_line[line]
            if isinstance(known, int) or known.drop_first():
                del by_line[line]
        self._oldest = end
        if last > _MOST_GONE or last == len(groups.lines):
            del groups.lines[:last], groups.ranks[:last], groups.times_ns[:last]
            self._base = end
        if groups.times_ns:
            self._due_ns = groups.times_ns[end - self._base] + self._window_ns
        return taken


class _Numbers:
    """The growing numbers of the groups of one line, from which the first one is dropped again and again."""

    __slots__ = ("_first", "_numbers")

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)
        self._first = 0

    def append(self, number: int) -> None:
        self._numbers.append(number)

    def after(self, number: int) -> int | None:
        """Return the first number that is larger; None if there is none."""
        if self._numbers[self._first] > number:  # as in nearly all cases
            return self._numbers[self._first]
        place = bisect_right(self._numbers, number, lo=self._first)
        return self._numbers[place] if place < len(self._numbers) else None

    def drop_first(self) -> bool:
        """Drop the first number; return whether that was the last one."""
        self._first += 1
        if self._first > len(self._numbers) // 2:
            del self._numbers[: self._first]
            self._first = 0
        return self._first >= len(self._numbers)
