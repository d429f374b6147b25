"""The two barriers of a world: one until every rank has started, one until every rank has ended."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.roster import Roster
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

    __slots__ = ("_since", "_what", "say_at")

    def __init__(self, what: str) -> None:
        self._what = what
        self.clear()

    def clear(self) -> None:
        """End the wait."""
        self._since = self.say_at = NEVER  # `say_at`: when to ask again at the latest, in monotonic seconds

    def begin(self, now: float, since: float) -> None:
        """Begin the wait, which counts from `since`."""
        self._since, self.say_at = since, now + SAY_WAITING_EVERY_S

    @property
    def is_on(self) -> bool:
        """Return whether the wait has begun and not ended."""
        return self._since < NEVER

    def waited_s(self, now: float) -> float:
        """Return how long the wait has lasted, in seconds; 0 before it began."""
        return max(0.0, now - self._since)

    def reminder(self, now: float, waiting: Iterable[str], deadline: float = NEVER) -> str | None:
        """Return, every 30 s, a line with the nodes that the others wait for, until `deadline`; else None."""
        if now < self.say_at:
            return None
        self.say_at = now + SAY_WAITING_EVERY_S
        left = "" if deadline == NEVER else f"; {max(0.0, deadline - now):.0f} s left"
        return f"waiting {self.waited_s(now):.0f} s for {name_some(tuple(waiting))} {self._what}{left}"


class Barriers:
    """The two barriers of one world after the other.

    The time that ranks have after the first one has exited 0 goes on while another role restarts by itself; ranks that
    start then have it from their start.

    Args:
        roster: the members, and whether the workers of each have started and ended.
        settings: how long the other ranks may run once one has exited 0, and whose failures are ignored.
    """

    __slots__ = ("_attempts", "_began", "_ended", "_ends", "_roster", "_settings", "_starts")

    def __init__(self, roster: Roster, settings: HeadSettings) -> None:
        self._roster = roster
        self._settings = settings
        self._starts: Barrier  # both of the latest world
        self._ends: Barrier
        self._attempts: dict[str, int] = {}  # by role, what its workers belong to
        self._began: dict[str, float] = {}  # by role, when that attempt was opened
        self._ended: dict[str, float] = {}  # by role that counts, when its first rank exited 0 in it

    def begin(self, now: float) -> None:
        """Begin the waits of a world; members in a role that runs on may have ended before."""
        self._starts, self._ends = Barrier("to start its workers"), Barrier("to end its part")
        self._starts.begin(now, now)
        attempts = {member.role: member.attempt for member in self._roster.in_world()}
        run_on = {role for role, attempt in attempts.items() if self._attempts.get(role) == attempt}
        self._attempts = attempts
        self._began = {role: self._began[role] if role in run_on else now for role in attempts}
        self._ended = {role: at for role, at in self._ended.items() if role in run_on}
        self._await_ends(now)

    def ended(self, role: str, now: float) -> None:
        """Begin the exit barrier, unless it has begun, because a rank of this role has exited 0.

        A rank in a role whose failures are ignored does not begin it: its end says nothing about the other ranks.
        """
        if not self._is_ignored(role):
            self._ended.setdefault(role, now)
            self._await_ends(now)

    def _await_ends(self, now: float) -> None:
        if self._ended and not self._ends.is_on:
            self._ends.begin(now, min(self._ended.values()))

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
        if not self._ends.is_on:
            return self._starts.say_at
        return min(self._starts.say_at, self._ends.say_at, self._deadline())

    def reminders(self, now: float) -> list[str]:
        """Return, every 30 s, the lines with the nodes that the others wait for."""
        if now < self._starts.say_at and now < self._ends.say_at:
            return []
        starting = (member.node for member in self._roster.starting.of())
        running = (member.node for member in self._roster.unfinished.of())
        said = (self._starts.reminder(now, starting), self._ends.reminder(now, running, self._deadline()))
        return [text for text in said if text is not None]

    def overdue(self, now: float) -> tuple[str, ...] | None:
        """Return the nodes whose ranks run longer after the first rank's end than they may; None if there is time left.

        Ranks of a role whose failures are ignored are not among them: the end of the run stops those.
        """
        if now < self._deadline():
            return None
        late = [role for role in self._running() if now >= self._ends_by(role)]
        return tuple(member.node for member in self._roster.unfinished.of(late)) if late else ()

    def _running(self) -> list[str]:
        """Return the roles that count and of which not every rank has ended."""
        return [role for role in self._roster.unfinished.roles() if not self._is_ignored(role)]

    def _deadline(self) -> float:
        """Return when the wait for the end of the ranks is over, in monotonic seconds.

        A run that fails then ends with the first role whose time is over. One that succeeds would stop the others in
        their work: it waits for the last. If only ranks of ignored roles run, they have as long as those that started
        last.
        """
        if not self._ends.is_on:
            return NEVER
        if running := self._running():
            choose = max if self._settings.succeeds_after_exit_timeout else min
            return choose(map(self._ends_by, running))
        return max(map(self._ends_by, self._began))

    def _ends_by(self, role: str) -> float:
        """Return until when the ranks of a role may run, in monotonic seconds."""
        bound_s = self._settings.exit_timeout_s
        return NEVER if bound_s is None else max(min(self._ended.values()), self._began[role]) + bound_s

    def _is_ignored(self, role: str) -> bool:
        return self._settings.restarts.get(role) == "ignore"
