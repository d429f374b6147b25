"""The leases of a head's members: which have fallen silent, and until when the head's own workers may run."""

from __future__ import annotations

from hpc_elastic.membership.actions import Action, AskScheduler
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.timing import ASKS_SCHEDULER_EVERY_S
from hpc_elastic.rundir.records import World

NEVER = float("inf")


class Leases:
    """The head's periodic check of its members' leases; the cost of one check grows with their number.

    Args:
        roster: the members.
        settings: the lease, and the head's own node, for which there is no lease.
        now: monotonic seconds, as in every method.
    """

    __slots__ = ("_ask_at", "_asked", "_roster", "_settings", "_world", "deadline", "next_tick")

    def __init__(self, roster: Roster, settings: HeadSettings, now: float) -> None:
        self._roster = roster
        self._settings = settings
        self._world: tuple[str, ...] = ()
        self._asked: set[str] = set()  # nodes that have been silent since the scheduler was asked about them
        self._ask_at = now if settings.timing.asks_scheduler else NEVER
        self._look(now)

    def begin(self, world: World, now: float) -> None:
        """Take the members of a new world as those that could succeed this head."""
        self._world = tuple(node.node for node in world.nodes if node.node != self._settings.node)
        self._look(now)

    def tick(self, now: float) -> list[str]:
        """Check the leases if a check is due, and return the nodes that have been silent for a whole lease."""
        if now < self.next_tick:
            return []
        self._look(now)
        silent = self._roster.silent(now, self._settings.lease_s)
        return [node for node in silent if node != self._settings.node]

    def paused_s(self, now: float) -> float:
        """Return for how long this process, or its machine, must have been paused that checks so late; 0 if not."""
        late_s = now - self.next_tick
        return late_s if late_s >= self._settings.timing.looks_every_s else 0.0

    def questions(self, now: float) -> list[Action]:
        """Return the question for the scheduler about members of the world that are silent for half a lease.

        Each silence of a node is asked about once, and the scheduler is asked at most every `ASKS_SCHEDULER_EVERY_S`.
        """
        if self._ask_at == NEVER or now < self.next_tick:
            return []
        silent = set(self._roster.silent(now, self._settings.lease_s / 2)).intersection(self._world)
        self._asked &= silent  # a node that is heard again between two questions has another silence after it
        if now < self._ask_at or silent <= self._asked:
            return []
        self._asked |= silent
        self._ask_at = now + ASKS_SCHEDULER_EVERY_S
        return [AskScheduler(nodes=tuple(sorted(silent)))]

    def _look(self, now: float) -> None:
        # Until the deadline no successor of this head can have workers.
        self.deadline = self._roster.oldest(self._world) + self._settings.lease_s
        self.next_tick = now + self._settings.timing.looks_every_s
        if now < self.deadline:
            self.next_tick = min(self.next_tick, self.deadline)
