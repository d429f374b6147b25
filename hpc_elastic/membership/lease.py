"""The two sides of a lease, each by its own clock: a member's lease on its head, and the head's lease of a member."""

from __future__ import annotations

from collections import deque

from hpc_elastic.membership.messages import Beat
from hpc_elastic.membership.timing import MANY, Timing

NEVER = float("inf")
LATEST_ECHOES = 4  # as many as there are in a member's patience


class Lease:
    """A member's lease on its head, and when the member must send its next beat.

    The lease counts from when the newest beat that the head echoed was *sent*. Before `start` there is no lease.

    Args:
        timing: the run's times.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.patience_s = timing.patience_s  # how long a head may be silent
        self._sent: dict[int, float] = {}
        self._number = 0
        self._heard = 0
        self._heard_until: float  # both from `start`
        self._asked: float
        self.deadline = NEVER  # when a silent head counts as lost, in monotonic seconds
        # Until when workers may run, in monotonic seconds. Before the first echo it counts from when this node asked to
        # join: for all that is known, the head does, too.
        self.fence_deadline = NEVER
        self.next_beat = NEVER
        self._nodes = MANY  # members of the head, until it says how many it has
        self.beats_as_one_of: float  # nodes: the next beat comes as with so many members; from `start`
        self.contact = -NEVER  # when the head's last message came
        self._round_trips: deque[float] = deque(maxlen=LATEST_ECHOES)

    def start(self, now: float, asked: float | None = None) -> None:
        """Begin the lease on a head that was heard now, which may be another head than before.

        Args:
            now: monotonic seconds.
            asked: when this node asked to join, if not now: the head's answer may have taken long to arrive.
        """
        self._sent.clear()
        self._number = self._heard = 0
        self._heard_until = self.contact = now
        self._asked = now if asked is None else asked
        self._set_deadlines()
        self.beats_as_one_of = self._nodes
        self.next_beat = max(now, self._asked + self._timing.beats_every_s(self._nodes))

    def share(self, nodes: int) -> None:
        """Take in how many members the head has.

        A first beat that is due earlier with so few is sent earlier: until its echo comes, the lease counts from the
        question to join, and a stall of a third of it would be the end of it.
        """
        self._nodes = nodes
        if not self._number:
            self.beats_as_one_of = min(self.beats_as_one_of, nodes)
            self.next_beat = min(self.next_beat, self._asked + self._timing.beats_every_s(nodes))

    def end(self) -> None:
        """End the lease: there is no head to send beats to any more."""
        self._heard_until = self._asked = self.next_beat = NEVER
        self._set_deadlines()

    def _set_deadlines(self) -> None:
        self.deadline = self._heard_until + self.patience_s
        self.fence_deadline = (self._heard_until if self._heard else self._asked) + self.patience_s

    def beat(self, now: float) -> list[Beat]:
        """Return the beat that is due, if one is."""
        if now < self.next_beat:
            return []
        self.beats_as_one_of = self._nodes
        self.next_beat = now + self._timing.beats_every_s(self._nodes)
        self._number += 1
        self._sent[self._number] = now
        return [Beat(number=self._number, heard=self._heard)]

    @property
    def round_trip_s(self) -> float:
        """Return how long the slowest of the latest echoes took; 0 before the first."""
        return max(self._round_trips, default=0.0)

    def echoed(self, number: int, now: float) -> None:
        """Extend the lease: the head echoed a beat, so it heard all beats that were sent before it, too."""
        sent = self._sent.pop(number, None)
        if sent is not None and self._heard_until < NEVER:
            self._round_trips.append(now - sent)
            self._heard = max(self._heard, number)
            self._heard_until = max(self._heard_until, sent)
            self._set_deadlines()
            self._sent = {other: at for other, at in self._sent.items() if other > number}


class MemberLease:
    """The head's lease of one member, by the head's clock: two times, for two questions.

    `heard` is when the newest beat came: the member has no workers 2/3 of the lease later, if it hears
    nothing more. `acked` is when the newest echo was sent that the member says it got: the member has had contact
    since, so if it succeeds this head, it starts no workers before `acked` plus a whole lease. If the head counted
    from `heard`, beats that arrive while the echoes are lost would hide that.

    The member beats as one of `nodes`, those of the latest world in which this head has given it a part, or more often.
    """

    __slots__ = ("_echoed", "acked", "heard", "nodes")

    def __init__(self, now: float) -> None:
        self.heard = self.acked = now
        self.nodes = MANY
        self._echoed: dict[int, float] = {}

    def beat(self, beat: Beat, now: float) -> None:
        """Record a beat that came, which the head answers at the time `now`."""
        self.heard = now
        acked = self._echoed.get(beat.heard)
        if acked is not None:
            self.acked = acked
            for number in [number for number in self._echoed if number <= beat.heard]:
                del self._echoed[number]
        self._echoed[beat.number] = now
