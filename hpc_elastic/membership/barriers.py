"""The two barriers of a world: one until every rank has started, one until every rank has ended."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.membership.roster import Roster, RosterEntry, name_some
from hpc_elastic.membership.rounds import HeadSettings

NEVER = float("inf")
SAY_WAITING_EVERY_S = 30.0


class Barrier:
    """One wait for nodes to do something, and the lines that are logged meanwhile.

    torch has only the barrier at the end, as `_exit_barrier`: it waits 300 s on a store, logs nothing
    meanwhile, and takes every error for the end of the wait.

    Args:
        what: what the nodes have to do, as in "to end its part".
    """

    __slots__ = ("_deadline", "_say_at", "_since", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self.clear()

    def clear(self) -> None:
        """End the wait."""
        self._since = self._say_at = self._deadline = NEVER

    def begin(self, now: float, bound_s: float | None = None) -> None:
        """Begin the wait, unless it has begun; it is bounded if `bound_s` is given."""
        if self._since == NEVER:
            self._since, self._say_at = now, now + SAY_WAITING_EVERY_S
            self._deadline = NEVER if bound_s is None else now + bound_s

    @property
    def is_on(self) -> bool:
        """Return whether the wait has begun and not ended."""
        return self._since < NEVER

    def next_tick(self) -> float:
        """Return when to ask again at the latest, in monotonic seconds."""
        return min(self._say_at, self._deadline)

    def is_over(self, now: float) -> bool:
        """Return whether the bound of the wait is reached."""
        return now >= self._deadline

    def waited_s(self, now: float) -> float:
        """Return how long the wait has lasted, in seconds; 0 before it began."""
        return max(0.0, now - self._since)

    def reminder(self, now: float, waiting: Iterable[str]) -> str | None:
        """Return, every 30 s, a line with the nodes that the others wait for; else None."""
        if now < self._say_at:
            return None
        self._say_at = now + SAY_WAITING_EVERY_S
        left = "" if self._deadline == NEVER else f"; {max(0.0, self._deadline - now):.0f} s left"
        return f"waiting {self.waited_s(now):.0f} s for {name_some(tuple(waiting))} {self._what}{left}"


class Barriers:
    """The two barriers of one world after the other.

    Args:
        roster: the members, and whether the workers of each have started and ended.
        settings: how long the other ranks may run once one has exited 0, and whose failures are ignored.
    """

    __slots__ = ("_ends", "_roster", "_settings", "_starts")

    def __init__(self, roster: Roster, settings: HeadSettings) -> None:
        self._roster = roster
        self._settings = settings
        self._starts = Barrier("to start its workers")
        self._ends = Barrier("to end its part")

    def clear(self) -> None:
        """End both waits."""
        self._starts.clear()
        self._ends.clear()

    def begin(self, now: float) -> None:
        """Begin the waits of a world; members in a role that runs on may have ended before."""
        self.clear()
        self._starts.begin(now)
        self.ended(now)

    def ended(self, now: float) -> None:
        """Begin the exit barrier if a rank has exited 0.

        A rank in a role whose failures are ignored does not begin it: its end says nothing about the other ranks.
        """
        if self._ends.is_on:
            return
        if any(member.has_ended and not self._is_ignored(member) for member in self._roster.in_world()):
            self._ends.begin(now, self._settings.exit_timeout_s)

    def started(self, now: float) -> str | None:
        """Return, once, the line which says that every rank has its process; else None.

        There is no such line if some rank never got a process in a role whose failures are ignored; such a rank is
        not waited for.
        """
        if not self._starts.is_on or any(self._roster.starting.of()):
            return None
        seconds = self._starts.waited_s(now)
        self._starts.clear()
        if not all(member.has_started for member in self._roster.in_world()):
            return None
        return f"every rank has its process, {seconds:.2f} s after the attempt was opened"

    def next_tick(self) -> float:
        """Return when to ask again at the latest, in monotonic seconds."""
        return min(self._starts.next_tick(), self._ends.next_tick())

    def reminders(self, now: float) -> list[str]:
        """Return, every 30 s, the lines with the nodes that the others wait for."""
        starting = (member.node for member in self._roster.starting.of())
        running = (member.node for member in self._roster.unfinished.of())
        said = (self._starts.reminder(now, starting), self._ends.reminder(now, running))
        return [text for text in said if text is not None]

    def overdue(self, now: float) -> tuple[str, ...] | None:
        """Return the nodes whose ranks run longer after the first rank's end than they may; None if there is time left.

        Ranks of a role whose failures are ignored are not among them: the end of the run stops those.
        """
        if not self._ends.is_over(now):
            return None
        running = self._roster.unfinished.of()
        return tuple(member.node for member in running if not self._is_ignored(member))

    def _is_ignored(self, member: RosterEntry) -> bool:
        return self._settings.restarts.get(member.role) == "ignore"
