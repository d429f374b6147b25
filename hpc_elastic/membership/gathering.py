"""When the round that gathers the members closes, and what is said while it does not."""

from __future__ import annotations

from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.rounds import HeadSettings

SAY_MISSING_EVERY_S = 30.0


class Gathering:
    """The deadlines of one round after the other.

    The first round waits `join_timeout` for everybody who can still come. Who did not come then is
    not waited for again at every restart, as long as there are enough without.

    Args:
        roster: who is here.
        settings: how many are enough, and how long everybody is waited for.
        now: monotonic seconds, as in every method.
    """

    def __init__(self, roster: Roster, settings: HeadSettings, now: float) -> None:
        self._roster = roster
        self._min_nodes = settings.min_nodes
        self._join_timeout_s = settings.join_timeout_s
        self._has_waited = False
        self.begin(now)

    def begin(self, now: float) -> None:
        """A round begins."""
        self._deadline = now + self._join_timeout_s
        self._say_at = now + SAY_MISSING_EVERY_S

    def next_tick(self) -> float:
        """When to ask again at the latest."""
        return min(self._deadline, self._say_at)

    def is_closed(self, now: float) -> bool:
        """Whether nobody is waited for any more."""
        is_enough = self._has_waited and len(self._roster) >= self._min_nodes
        if self._roster.missing() and now < self._deadline and not is_enough:
            return False
        self._has_waited = True
        return True

    def too_few(self) -> str | None:
        """What is wrong with a closed round, None if there are enough."""
        if len(self._roster) >= self._min_nodes:
            return None
        counts = f"{len(self._roster)} of at least {self._min_nodes} nodes joined"
        missing = ", ".join(self._roster.missing()) or "nobody, the others were lost"
        return f"{counts} within {self._join_timeout_s:g} s; missing: {missing}"

    def reminder(self, now: float) -> str | None:
        """Every 30 s, whom the round waits for."""
        missing = self._roster.missing()
        if now < self._say_at or not missing:
            return None
        self._say_at = now + SAY_MISSING_EVERY_S
        return f"waiting for {', '.join(missing)} to join; {max(0.0, self._deadline - now):.0f} s left"
