"""Time-outs that a head holds back for a moment, so that all ranks that wait in vain can say so before they stop."""

from __future__ import annotations

from hpc_elastic.failures.classes import Blame, blame_of
from hpc_elastic.failures.root_cause import has_waited
from hpc_elastic.membership.judge import Seen
from hpc_elastic.membership.timing import TIMEOUTS_SETTLE_S

NEVER = float("inf")


class HeldTimeouts:
    """What is to be acted on when other ranks have had time to report their time-outs, too.

    Those that do not are the ones that were waited for. Other victims, which the end of the ranks that timed out makes,
    are held back with them; any other event is acted on at once.
    """

    __slots__ = ("_by_role", "until")

    def __init__(self) -> None:
        self._by_role: dict[str, Seen] = {}
        self.until = NEVER  # when the first one is due, in monotonic seconds

    def hold(self, seen: Seen, now: float) -> bool:
        """Hold an event back if it is one to be held back, and return whether it is."""
        failure = seen.failure
        if failure is None or blame_of(failure.failure_class) is not Blame.VICTIM:
            return False
        if not self._by_role:
            if not has_waited(failure):
                return False
            self.until = now + TIMEOUTS_SETTLE_S
        if now >= self.until:
            return False
        self._by_role.setdefault(failure.role, seen)
        return True

    def due(self, now: float) -> Seen | None:
        """Return an event that was held back for long enough, if there is one."""
        return next(iter(self._by_role.values())) if now >= self.until else None

    def take(self) -> list[Seen]:
        """Return the events that were held back, one of each role, and hold none back any more."""
        held, self._by_role, self.until = self._by_role, {}, NEVER
        return list(held.values())
