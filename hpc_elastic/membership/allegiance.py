"""Which head a member has, and which one it lost: that of the latest attempt counts, until there is another."""

from __future__ import annotations

from hpc_elastic.membership.succession import LostHead


class Allegiance:
    """From connecting to a head until it is lost, again and again."""

    __slots__ = ("head", "is_headless", "is_here", "lost")

    def __init__(self) -> None:
        self.head: str | None = None
        self.is_here = False  # the head is on this node
        self.is_headless = False
        self.lost: LostHead | None = None

    def begin(self, *, is_here: bool) -> None:
        """There is a head; what it is called is known when it says welcome."""
        self.is_here, self.is_headless = is_here, False
        self.head = None

    def welcomed(self, head: str, *, gathers: bool) -> None:
        """The head has taken this node in; one that only gathers takes nobody's place yet."""
        self.head = head
        self.lost = self.lost if gathers else None

    def lose(self, why: str, contact: float, attempt: int, *, is_dead: bool) -> LostHead | None:
        """The head is lost; None if there is none already."""
        if self.is_headless:
            return None
        self.is_headless = True
        if self.lost is None:
            self.lost = LostHead(node=self.head, contact=contact, is_dead=is_dead, why=why, attempt=attempt)
        return self.lost
