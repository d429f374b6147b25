"""The two moments that a world waits for together: every rank has started, every rank has ended."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.membership.roster import Roster, RosterEntry, name_some
from hpc_elastic.membership.rounds import HeadSettings

NEVER = float("inf")
SAY_WAITING_EVERY_S = 30.0


class Barrier:
    """Nodes that are waited for, and what is said meanwhile.

    torch has the second one alone, as `_exit_barrier`: it waits 300 s on a store, says nothing
    meanwhile, and takes every error for the end of the wait.

    Args:
        what: what the nodes are waited for to do.
    """

    __slots__ = ("_deadline", "_say_at", "_since", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self.clear()

    def clear(self) -> None:
        """Nobody is waited for."""
        self._since = self._say_at = self._deadline = NEVER

    def begin(self, now: float, bound_s: float | None = None) -> None:
        """The wait begins, unless it has; it is bounded if there is a bound, in seconds."""
        if self._since == NEVER:
            self._since, self._say_at = now, now + SAY_WAITING_EVERY_S
            self._deadline = NEVER if bound_s is None else now + bound_s

    @property
    def is_on(self) -> bool:
        """Whether somebody is waited for."""
        return self._since < NEVER

    def next_tick(self) -> float:
        """When to ask again at the latest."""
        return min(self._say_at, self._deadline)

    def is_over(self, now: float) -> bool:
        """Whether the bound of the wait is reached."""
        return now >= self._deadline

    def waited_s(self, now: float) -> float:
        """How long the wait lasts, in seconds; 0 before it began."""
        return max(0.0, now - self._since)

    def reminder(self, now: float, waiting: Iterable[str]) -> str | None:
        """Every 30 s, whom the others wait for."""
        if now < self._say_at:
            return None
        self._say_at = now + SAY_WAITING_EVERY_S
        left = "" if self._deadline == NEVER else f"; {max(0.0, self._deadline - now):.0f} s left"
        return f"waiting {self.waited_s(now):.0f} s for {name_some(tuple(waiting))} {self._what}{left}"


class Barriers:
    """Both waits of one world after the other.

    Args:
        roster: the members, and how far each is.
        settings: how long the other ranks may run once one has exited 0, and whose failures are ignored.
    """

    __slots__ = ("_ends", "_roster", "_settings", "_starts")

    def __init__(self, roster: Roster, settings: HeadSettings) -> None:
        self._roster = roster
        self._settings = settings
        self._starts = Barrier("to start its workers")
        self._ends = Barrier("to end")

    def clear(self) -> None:
        """No world is whole."""
        self._starts.clear()
        self._ends.clear()

    def begin(self, now: float) -> None:
        """A world is at work; members of it may have ended before, in a role that runs on."""
        self.clear()
        self._starts.begin(now)
        self.ended(now)

    def ended(self, now: float) -> None:
        """A rank may have exited 0; in a role whose failures are ignored that says nothing of the others."""
        if self._ends.is_on:
            return
        if any(member.has_ended and not self._is_ignored(member) for member in self._roster.in_world()):
            self._ends.begin(now, self._settings.exit_timeout_s)

    def started(self, now: float) -> str | None:
        """What to say, once, when every rank has its process.

        Nothing if some never got one in a role whose failures are ignored; nobody waits for those.
        """
        if not self._starts.is_on or any(self._roster.starting.of()):
            return None
        seconds = self._starts.waited_s(now)
        self._starts.clear()
        if not all(member.has_started for member in self._roster.in_world()):
            return None
        return f"every rank has its process, {seconds:.2f} s after the attempt was opened"

    def next_tick(self) -> float:
        """When to ask again at the latest."""
        return min(self._starts.next_tick(), self._ends.next_tick())

    def reminders(self, now: float) -> list[str]:
        """Every 30 s, whom the others wait for."""
        starting = (member.node for member in self._roster.starting.of())
        running = (member.node for member in self._roster.unfinished.of())
        said = (self._starts.reminder(now, starting), self._ends.reminder(now, running))
        return [text for text in said if text is not None]

    def overdue(self, now: float) -> tuple[str, ...] | None:
        """The nodes whose ranks run longer after the first end than they may; None if there is time left.

        Ranks of a role whose failures are ignored are not among them: the end of the run stops those.
        """
        if not self._ends.is_over(now):
            return None
        running = self._roster.unfinished.of()
        return tuple(member.node for member in running if not self._is_ignored(member))

    def _is_ignored(self, member: RosterEntry) -> bool:
        return self._settings.restarts.get(member.role) == "ignore"
