"""The head's own node: until when its workers may run, and what its agent missed while it stood still."""

from __future__ import annotations

from collections.abc import Collection

from hpc_elastic.membership.lease import MemberLease
from hpc_elastic.membership.leases import Leases
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.rounds import HeadSettings

NEVER = float("inf")


class OwnNode:
    """The node of the head itself, of which the head has no lease, and whose workers it must stop in time.

    Another agent may take a silent head's place, so the head's workers may run no longer than its leases of the members
    allow, and a guard kills them where the head does not stop them. A head that stood still cannot tell the silence of
    a member from its own: it has heard nobody.

    Args:
        settings: the head's node and the run's times.
        roster: the members, of which this node is one.
        leases: the leases of the others.
    """

    __slots__ = ("_fenced_by", "_leases", "_roster", "_settings", "_woke_at", "stood_still")

    def __init__(self, settings: HeadSettings, roster: Roster, leases: Leases) -> None:
        self._settings = settings
        self._roster = roster
        self._leases = leases
        self._fenced_by = NEVER  # when a stop for a lost member must have killed this node's own workers
        self._woke_at = -NEVER  # when this process went on after a pause
        self.stood_still = ""  # for how long it did then, for people

    @property
    def deadline(self) -> float:
        """Return until when this node's workers may run without another check of the leases, in monotonic seconds."""
        return min(self._leases.deadline, self._fenced_by)

    def fences_for(self, lease: MemberLease, now: float) -> None:
        """Have this node's workers stopped soon, because a member is lost that may be alive and take this head's place.

        Args:
            lease: the head's lease of that member, which ended long ago if this process was paused.
            now: monotonic seconds.
        """
        lease_ended = lease.acked + self._settings.lease_s
        self._fenced_by = min(self._fenced_by, min(now, lease_ended) + self._settings.timing.fences_within_s)

    def has_fenced(self) -> None:
        """Record that no workers are left here that must be stopped for a lost member."""
        self._fenced_by = NEVER

    def why_late(self, now: float) -> str:
        """Return for how long this node stood still if the leases are checked only now, for people."""
        late_s = now - self._leases.next_tick
        late = f"{late_s:.0f}" if late_s >= 1 else f"{late_s:.1f}"
        return f"{self._settings.node} stood still for {late} s, and heard nothing"

    def woke(self, now: float) -> None:
        """Record that this process went on after a pause, before the leases are checked."""
        self._woke_at, self.stood_still = now, self.why_late(now)

    def has_just_woken(self, now: float) -> bool:
        """Return whether members that gave this head up while it stood still may not have returned yet."""
        return now < self._woke_at + self._settings.timing.returns_within_s

    def may_be_killed(self, now: float) -> bool:
        """Return whether the guard may have killed this node's workers by now, because no later deadline was set."""
        return now >= self.deadline + self._settings.timing.guard_s

    def has_workers(self, but: Collection[str] | None) -> bool:
        """Return whether this node has workers that have not ended, of a role that is none of these; None: of all."""
        own = self._roster.get(self._settings.node)
        return own is not None and but is not None and own in self._roster.unfinished and own.role not in but
