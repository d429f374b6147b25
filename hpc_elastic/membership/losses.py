"""What the loss of members forbids: an attempt before they have fenced, an end while they may go on."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.membership.lease import MemberLease
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.timing import SPARES_COME_WITHIN_S, Timing

NEVER = float("inf")


class Losses:
    """The members that a head has lost, until they return.

    Args:
        timing: the run's.
        count: how many nodes the run has lost so far.
    """

    __slots__ = (
        "_counted",
        "_fenced_at",
        "_goodbyes",
        "_hopes_until",
        "_lost",
        "_rivals",
        "_timing",
        "_yields_until",
        "count",
    )

    def __init__(self, timing: Timing, count: int) -> None:
        self._timing = timing
        self.count = count
        self._counted: set[str] = set()  # of the latest world: each once, however often it comes and goes
        self._lost: set[str] = set()
        self._goodbyes: dict[str, float] = {}  # of the latest world, until when they may be on their way back
        self._rivals: set[str] = set()  # lost, but not dead for all that is known here: they may be at work together
        self._fenced_at = self._yields_until = self._hopes_until = -NEVER

    @property
    def may_start_at(self) -> float:
        """When nobody who is lost has workers any more, in monotonic seconds."""
        return self._fenced_at

    @property
    def may_live(self) -> bool:
        """Whether somebody who is lost is perhaps not dead."""
        return bool(self._rivals)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who is lost and has not returned."""
        return tuple(sorted(self._lost))

    def add(
        self, node: str, lease: MemberLease, now: float, *, is_gone: bool, may_return: bool, is_counted: bool
    ) -> None:
        """A member is lost; `is_gone` if its workers are known to be gone, `is_counted` if it was in the world.

        One that has said goodbye has lost this head, which was silent: if it is back in a moment, it was not lost.
        """
        if is_counted and may_return:
            self._goodbyes[node] = now + self._timing.returns_within_s
        elif is_counted:
            self._count(node)
        self._lost.add(node)
        if not is_gone:
            self._fenced_at = max(self._fenced_at, lease.heard + self._timing.gone_after_heard_s)
        if may_return or not is_gone:
            self._rivals.add(node)
            self._yields_until = max(self._yields_until, now + self._timing.yields_s)
            self._hopes_until = max(self._hopes_until, now + self._timing.hopes_s)

    def succeed(self, succession: Succession, here: set[str], expected: tuple[str, ...], now: float) -> tuple[str, ...]:
        """This head carries on from another one with those who are here; whom of that world it has lost.

        However long ago the contact was, the others have a lease from now on: this agent may have been paused.
        """
        lost = succession.lost
        absent = tuple(node.node for node in succession.world.nodes if node.node not in here)
        for node in absent:
            self._count(node)
        self._lost.update(absent)
        self._rivals.update(set(expected) - here - ({lost.node} if lost.is_dead else set()))
        self._yields_until = max(lost.contact + self._timing.yields_s, now + self._timing.lease_s)
        self._hopes_until = self._yields_until
        return absent

    def returns_until(self) -> float:
        """Until when somebody may be on the way back, in monotonic seconds."""
        return max(self._goodbyes.values(), default=-NEVER)

    def settle(self) -> tuple[str, ...]:
        """The round is closed: who has said goodbye and is not back is lost; these nodes, counted now."""
        absent = tuple(sorted(self._goodbyes))
        self._goodbyes.clear()
        for node in absent:
            self._count(node)
        return absent

    def _count(self, node: str) -> None:
        self.count += node not in self._counted
        self._counted.add(node)

    def opens(self) -> None:
        """The next attempt is claimed: in its world nobody is lost yet."""
        self._counted.clear()

    def returned(self, node: str) -> bool:
        """A node has joined; whether it was lost before."""
        was_lost = node in self._lost
        self._lost.discard(node)
        self._rivals.discard(node)
        self._goodbyes.pop(node, None)
        return was_lost

    def yields_until(self, min_nodes: int) -> float:
        """Until when a head with too few nodes must not end the run, in monotonic seconds; long ago if it may.

        Those who are lost but perhaps not dead may be enough to go on without it: where the network has taken one, a
        connection that was reset may have been closed by an agent that lives, and whose goodbye was lost as well, so
        all whom the latest world has lost may be together. If even they are too few, nobody can go on without
        them, and nothing is lost while the silent ones may come back.
        """
        if not self._rivals:
            return -NEVER
        may_live = self._rivals | (self._counted & self._lost)
        return self._yields_until if len(may_live) >= min_nodes else self._hopes_until


class Round:
    """The one round in which a successor gathers the world that it carries on.

    The head that is lost has killed its own workers a lease after the last contact, for it lost this
    member then, and has told its members to do the same: they have done it 2/3 of a lease later, if they
    did not hear. When all of them are here they have fenced, and only the head's own workers matter; those of
    a dead agent are dead. If all of them are too few without the head, spares that are on their way may
    yet be enough; and where there is room for some, those have a moment to come.

    Args:
        succession: what is carried on.
        timing: the run's.
        roster: who is here.
        now: when it begins, in monotonic seconds.
    """

    __slots__ = ("_awaited", "_began", "_departures", "_roster", "_seen", "_timing", "succession")

    def __init__(self, succession: Succession, timing: Timing, roster: Roster, now: float) -> None:
        self._began = now
        self.succession = succession
        self._timing = timing
        self._roster = roster
        self._awaited = [node.node for node in succession.world.nodes if node.node != succession.lost.node]
        self._seen = 0  # so many of them are here, for all that is known; each join would look through all else
        self._departures = roster.departures

    def closes_at(self, is_enough: Callable[[], bool], has_room: Callable[[], bool]) -> float:
        """When the next attempt may be opened with those who are here, in monotonic seconds.

        Args:
            is_enough: whether nobody else is needed, or can come.
            has_room: whether the next world has room for some more of the step's nodes.
        """
        lost = self.succession.lost
        if not (self._is_complete() and is_enough()):  # whoever begins late has to be found, too
            return max(lost.contact + self._timing.closes_after_contact_s, self._began + self._timing.is_found_within_s)
        at = lost.contact if lost.is_dead else lost.contact + self._timing.succeeds_after_contact_s
        return max(at, self._began + SPARES_COME_WITHIN_S) if has_room() else at

    def _is_complete(self) -> bool:
        if self._departures != self._roster.departures:
            self._seen, self._departures = 0, self._roster.departures
        while self._seen < len(self._awaited) and self._roster.get(self._awaited[self._seen]) is not None:
            self._seen += 1
        return self._seen == len(self._awaited)
