"""The head that a member has or has lost; the lost head of the latest attempt counts until another takes its place."""

from __future__ import annotations

from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import Candidate


class Allegiance:
    """A member's relation to its head, from the connection until the loss, for one head after the other."""

    __slots__ = ("_spares", "head", "is_headless", "is_here", "lost")

    def __init__(self) -> None:
        self.head: str | None = None
        self.is_here = False  # whether the head is on this node
        self.is_headless = False
        self.lost: LostHead | None = None
        self._spares: tuple[Candidate, ...] = ()

    def begin(self, *, is_here: bool) -> None:
        """Begin with a new head, whose name is known only when its Welcome comes."""
        self.is_here, self.is_headless = is_here, False
        self.head, self._spares = None, ()

    def told_spares(self, spares: tuple[Candidate, ...]) -> None:
        """Record which nodes have no part in the head's world, this one among them."""
        self._spares = spares

    def welcomed(self, head: str, *, gathers: bool) -> None:
        """Record that the head has taken this node in; a head that only gathers does not replace the lost one yet."""
        self.head = head
        self.lost = self.lost if gathers else None

    def lose(
        self,
        why: str,
        contact: float,
        attempt: int,
        *,
        is_dead: bool,
        was_silent: bool,
        was_paused: bool,
        round_trip_s: float,
    ) -> LostHead | None:
        """Record the loss of the head, and return the lost head that counts; None if there was no head to lose."""
        if self.is_headless:
            return None
        self.is_headless = True
        if self.lost is None:
            self.lost = LostHead(
                node=self.head,
                contact=contact,
                is_dead=is_dead,
                why=why,
                attempt=attempt,
                was_silent=was_silent,
                was_paused=was_paused,
                round_trip_s=round_trip_s,
                spares=self._spares,
            )
        return self.lost
