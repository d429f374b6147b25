"""Leases, each by its own clock: when a member beats, since when its head is silent, and which members are."""

from __future__ import annotations

from hpc_elastic.membership.messages import Beat
from hpc_elastic.membership.timing import Timing

NEVER = MANY = float("inf")


class Lease:
    """Counts from when the newest beat that the head echoed was *sent*; there is none before `start`.

    Args:
        timing: the run's.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._sent: dict[int, float] = {}
        self._number = 0
        self._heard = 0
        self._heard_until = NEVER
        self._asked = NEVER
        self.next_beat = NEVER
        self._nodes = MANY  # until a head says how many
        self.contact = -NEVER  # when anything of the head came

    @property
    def patience_s(self) -> float:
        """How long a head may be silent."""
        return self._timing.patience_s

    @property
    def deadline(self) -> float:
        """When a head that says nothing counts as lost."""
        return self._heard_until + self.patience_s

    @property
    def fence_deadline(self) -> float:
        """Until when workers may run: for all that is known before the first echo, the head counts from the join."""
        return self.deadline if self._heard else self._asked + self.patience_s

    def start(self, now: float, asked: float | None = None) -> None:
        """There is a head, which was heard now; another one perhaps than before.

        Args:
            now: monotonic seconds.
            asked: when this node asked to join, if not now: the answer may have been on its way for long.
        """
        self._sent.clear()
        self._number = self._heard = 0
        self._heard_until = self.contact = now
        self._asked = now if asked is None else asked
        self.next_beat = max(now, self._asked + self._timing.beats_every_s(self._nodes))

    def share(self, nodes: int) -> None:
        """The head has so many members."""
        self._nodes = nodes

    def end(self) -> None:
        """There is no head to beat to any more."""
        self._heard_until = self._asked = self.next_beat = NEVER

    def beat(self, now: float) -> list[Beat]:
        """The beat that is due, if one is."""
        if now < self.next_beat:
            return []
        self.next_beat = now + self._timing.beats_every_s(self._nodes)
        self._number += 1
        self._sent[self._number] = now
        return [Beat(number=self._number, heard=self._heard)]

    def echoed(self, number: int) -> None:
        """The head answered a beat, and so heard all that were sent before it."""
        sent = self._sent.pop(number, None)
        if sent is not None and self._heard_until < NEVER:
            self._heard = max(self._heard, number)
            self._heard_until = max(self._heard_until, sent)
            self._sent = {other: at for other, at in self._sent.items() if other > number}


class MemberLease:
    """The head's lease of one member, by the head's clock: two times, for two questions.

    `heard` is when the newest beat came: that member has no workers 2/3 of the lease later, if it hears
    nothing more. `acked` is when the newest echo was sent that the member says it got: it has had contact
    since, so whoever succeeds this head there does not start before `acked` and a whole lease. Beats that
    come while the echoes are lost would hide that, if the head counted from `heard`.
    """

    __slots__ = ("_echoed", "acked", "heard")

    def __init__(self, now: float) -> None:
        self.heard = self.acked = now
        self._echoed: dict[int, float] = {}

    def beat(self, beat: Beat, now: float) -> None:
        """A beat came, and is answered now."""
        self.heard = now
        acked = self._echoed.get(beat.heard)
        if acked is not None:
            self.acked = acked
            for number in [number for number in self._echoed if number <= beat.heard]:
                del self._echoed[number]
        self._echoed[beat.number] = now
