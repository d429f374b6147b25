"""The head's part in a notice: it tells all members, and names the first call that hears of it on all their ranks.

Theory of operation. The ranks of an attempt that share a store can take part in one collective operation, so they have
to hear of a notice at the same call. No two of them run at the same speed, so nobody can say beforehand which call that
is. Each member first has the calls of its workers wait, then reads how many each of them has made, and tells the head.
When the head knows it of all nodes that share the store, it names the largest number, plus one: that call has not begun
anywhere, and every call before it, waiting or over, is answered as if there were no notice.

Workers that are told to stop meanwhile have their grace, and go on being asked: a call that waited for it all would
cost what the workers save in it. A member whose workers have ended says how many calls they had made, and a lost one
is not waited for. If the head is lost, the members kill all workers, the waiting ones too. The workers of an attempt
that is opened after a notice hear of it at their first call: that needs no agreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hpc_elastic.membership.actions import Action, Log, Note, SendToMember
from hpc_elastic.membership.messages import GiveNotice, NoticeFrom, NoticePolls
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.roster import Roster, RosterEntry
from hpc_elastic.rundir.records import NoticeReason

NEVER = float("inf")
NOBODY = NoticeCounts(polls=0, beats=0)


@dataclass(slots=True, kw_only=True)
class _Round:
    """The members of one attempt that share a store: those that are still to answer, and what the others said."""

    attempt: int
    members: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    made: NoticeCounts = NOBODY

    def answered(self, node: str) -> list[Action]:
        """Wait for one node less; once all have answered, name the first call that hears of the notice."""
        if node not in self.silent:
            return []
        self.silent.remove(node)
        if self.silent:
            return []
        first = NoticeCounts(polls=self.made.polls + 1, beats=self.made.beats + 1)
        text = f"the workers hear of the notice from poll {first.polls} and heartbeat {first.beats} on"
        named = NoticeFrom(attempt=self.attempt, first=first)
        return [
            Log(text=text, level="debug"),
            *(SendToMember(node=each, message=named) for each in sorted(self.members)),
        ]


class NoticeRounds:
    """The notice that stands, and the calls that hear of it.

    Args:
        roster: the members.
        restarts: the restart policy of each role, by its name.
    """

    __slots__ = ("_given", "_given_at", "_restarts", "_roster", "_rounds")

    def __init__(self, roster: Roster, restarts: Mapping[str, str]) -> None:
        self._roster = roster
        self._restarts = restarts
        self._given: NoticeGiven | None = None
        self._given_at: float  # meant only where one is given
        self._rounds: dict[tuple[int, str | None], _Round] = {}

    @property
    def reason(self) -> NoticeReason | None:
        """Return why the notice that stands was given, None if there is none."""
        return None if self._given is None else self._given.reason

    def standing(self, now: float) -> NoticeGiven | None:
        """Return the notice with the seconds that are left at the time `now`, None if there is none."""
        given = self._given
        if given is None or given.seconds_left is None:
            return given
        return replace(given, seconds_left=max(0.0, given.seconds_left - (now - self._given_at)))

    def give(self, notice: NoticeGiven, attempt: int, now: float) -> list[Action]:
        """Tell all members of a notice, unless one stands that leaves no more time and whose time is not over.

        Args:
            notice: what the head was told.
            attempt: the run's latest attempt, for the event.
            now: monotonic seconds.
        """
        if not _says_more(notice, self.standing(now)):
            return []
        self._given, self._given_at = notice, now
        text = notice.describe()
        metadata = {"reason": notice.reason, "seconds_left": notice.seconds_left, "by": notice.by}
        told: list[Action] = [
            Log(text=text, level="warning"),
            Note(name="notice.given", message=text, attempt=attempt, metadata=metadata),
        ]
        current = {self._key(member) for member in self._roster.in_world()}
        self._rounds = {key: held for key, held in self._rounds.items() if key in current}
        is_new = current - self._rounds.keys()
        for member in self._roster.in_world():
            key = self._key(member)
            if key in is_new:
                waiting = self._rounds.setdefault(key, _Round(attempt=member.attempt))
                waiting.members.add(member.node)
                waiting.silent.add(member.node)
            told.append(SendToMember(node=member.node, message=GiveNotice(attempt=member.attempt, notice=notice)))
        return told

    def opened(self, now: float) -> NoticeGiven | None:
        """Return the notice for the members of an attempt that has just been opened: they need no round for it."""
        if self._given is not None:
            for member in self._roster.in_world():
                self._rounds.setdefault(self._key(member), _Round(attempt=member.attempt))
        return self.standing(now)

    def counted(self, member: RosterEntry, message: NoticePolls) -> list[Action]:
        """Take in the calls that a member's workers have made; once all have told theirs, name the first that hears."""
        waiting = self._rounds.get(self._key(member))
        if waiting is None or message.attempt != member.attempt or member.node not in waiting.silent:
            return []
        waiting.made = _larger(waiting.made, message.made)
        return waiting.answered(member.node)

    def lost(self, node: str) -> list[Action]:
        """Wait for the calls of a lost node no more: workers that are being stopped have their grace without it."""
        told: list[Action] = []
        for waiting in self._rounds.values():
            waiting.members.discard(node)
            told += waiting.answered(node)
        return told

    def _key(self, member: RosterEntry) -> tuple[int, str | None]:
        """Return what is the same for the members that share a store: a role that restarts alone has one of its own."""
        is_alone = self._restarts.get(member.role) == "restart_role"
        return member.attempt, member.role if is_alone else None


def _larger(one: NoticeCounts, other: NoticeCounts) -> NoticeCounts:
    return NoticeCounts(polls=max(one.polls, other.polls), beats=max(one.beats, other.beats))


def _says_more(notice: NoticeGiven, standing: NoticeGiven | None) -> bool:
    """Return whether a notice leaves less time than the one that stands, or names a reason where neither knows one.

    One whose time is over without a stop says nothing any more: the job got more time, or nobody meant to stop it.
    """
    if standing is None or (standing.seconds_left == 0.0 and notice.seconds_left != 0.0):
        return True
    left, before = (NEVER if each.seconds_left is None else each.seconds_left for each in (notice, standing))
    return left < before - 1.0 or (left == before == NEVER and notice.reason != standing.reason)
