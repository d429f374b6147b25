"""A member's lease, by its own clock: when it beats, and since when its head is silent."""

from __future__ import annotations

from hpc_elastic.membership.messages import Beat

NEVER = float("inf")


class Lease:
    """Counts from when the newest beat that the head echoed was *sent*; there is none before `start`.

    Args:
        seconds: the whole lease; a beat goes every third of it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sent: dict[int, float] = {}
        self._number = 0
        self._heard_until = NEVER
        self.next_beat = NEVER

    @property
    def patience_s(self) -> float:
        """How long a head may be silent: two thirds of the lease."""
        return self.seconds * 2 / 3

    @property
    def deadline(self) -> float:
        """When a head that says nothing counts as lost."""
        return self._heard_until + self.patience_s

    def start(self, now: float) -> None:
        """The head was heard now."""
        self._heard_until = now
        self.next_beat = now + self.seconds / 3

    def end(self) -> None:
        """There is no head to beat to any more."""
        self._heard_until = self.next_beat = NEVER

    def beat(self, now: float) -> list[Beat]:
        """The beat that is due, if one is."""
        if now < self.next_beat:
            return []
        self.next_beat = now + self.seconds / 3
        self._number += 1
        self._sent[self._number] = now
        return [Beat(number=self._number)]

    def echoed(self, number: int) -> None:
        """The head answered a beat, and so heard all that were sent before it."""
        sent = self._sent.pop(number, None)
        if sent is not None and self._heard_until < NEVER:
            self._heard_until = max(self._heard_until, sent)
            self._sent = {other: at for other, at in self._sent.items() if other > number}
