"""Shows a line that many ranks print once, with the ranks; the order of each rank's own lines stays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WINDOW_NS = 60_000_000_000
MOST_GROUPS = 100_000


@dataclass(slots=True)
class Group:
    """A line, and who printed it: `node` is the first rank's."""

    number: int
    time_ns: int
    node: str
    line: bytes
    ranks: list[int] = field(default_factory=list)


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
        self._groups: dict[int, Group] = {}  # by number: those that were not shown yet
        self._oldest = 0  # the number of the first of them
        self._by_line: dict[bytes, _Numbers] = {}
        self._latest: dict[int, int] = {}  # by rank, the number of the last group that it is in
        self._next = 0
        self._due_ns = 0  # when the first group is to be shown, if there is one

    def add(self, time_ns: int, rank: int, node: str, lines: Iterable[bytes]) -> list[Group]:
        """Add lines of a rank; return the groups that take no further ranks, which are to be shown now.

        Times must not decrease.
        """
        ready = self.expire(time_ns) if time_ns > self._due_ns or len(self._groups) > MOST_GROUPS else []
        latest = self._latest.get(rank, -1)
        for line in lines:
            same = self._by_line.get(line)
            if same is None:
                same = self._by_line[line] = _Numbers()
                number = None
            else:
                number = same.after(latest)
            if number is None:
                number = self._next
                self._next += 1
                if not self._groups:
                    self._due_ns = time_ns + self._window_ns
                self._groups[number] = Group(number, time_ns, node, line)
                same.append(number)
            self._groups[number].ranks.append(rank)
            latest = number
        self._latest[rank] = latest
        if len(self._groups) > MOST_GROUPS:
            ready += self.expire(time_ns)
        return ready

    def expire(self, time_ns: int) -> list[Group]:
        """Return the groups that began longer ago than the window, and the oldest ones of too many."""
        ready = []
        while self._groups:
            oldest = self._groups[self._oldest]
            if time_ns - oldest.time_ns <= self._window_ns and len(self._groups) <= MOST_GROUPS:
                break
            ready.append(self._take(oldest))
        if self._groups:
            self._due_ns = self._groups[self._oldest].time_ns + self._window_ns
        return ready

    def finish(self) -> Iterator[Group]:
        """Yield all groups that are left."""
        while self._groups:
            yield self._take(self._groups[self._oldest])

    def _take(self, group: Group) -> Group:
        del self._groups[group.number]
        self._oldest += 1
        same = self._by_line[group.line]
        same.drop_first()
        if same.is_empty():
            del self._by_line[group.line]
        return group


class _Numbers:
    """The growing numbers of the groups of one line, from which the first one is dropped again and again."""

    __slots__ = ("_first", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._first = 0

    def append(self, number: int) -> None:
        self._numbers.append(number)

    def after(self, number: int) -> int | None:
        """Return the first number that is larger; None if there is none."""
        if self._numbers[self._first] > number:  # as in nearly all cases
            return self._numbers[self._first]
        place = bisect_right(self._numbers, number, lo=self._first)
        return self._numbers[place] if place < len(self._numbers) else None

    def drop_first(self) -> None:
        self._first += 1
        if self._first > len(self._numbers) // 2:
            del self._numbers[: self._first]
            self._first = 0

    def is_empty(self) -> bool:
        return self._first >= len(self._numbers)
