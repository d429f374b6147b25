"""The opening of an attempt, from the closed round to each member's part."""

from __future__ import annotations

from hpc_elastic.membership.actions import Action, ClaimAttempt, SendToMember
from hpc_elastic.membership.decisions import Finish, Trigger
from hpc_elastic.membership.judge import Judge, Seen
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.node_news import RoundNews
from hpc_elastic.membership.notice_rounds import NoticeRounds
from hpc_elastic.membership.rounds import HeadSettings, assignments, opening_notes
from hpc_elastic.rundir.records import World


class Opening:
    """The steps in which a head opens one attempt after the other, each when the one before is done.

    When the round is closed, `settle` says whether the run ends instead. `claim` has the attempt claimed, and `assign`
    tells the members their parts once the claim is on disk.

    Args:
        settings: the head's settings.
        members: the head's members.
        judge: what the head knows of the run.
        notices: the notice that stands.
    """

    __slots__ = ("_judge", "_members", "_news", "_notices", "_settings")

    def __init__(self, settings: HeadSettings, members: Members, judge: Judge, notices: NoticeRounds) -> None:
        self._settings = settings
        self._members = members
        self._judge = judge
        self._notices = notices
        self._news = RoundNews(members.roster)

    def settle(self, now: float) -> Finish | None:
        """Settle what could be known only when the round is closed; return the end of the run if that ends it."""
        return self._settle_losses(now) or self._settle_silent_ends(now)

    def _settle_losses(self, now: float) -> Finish | None:
        """Count as lost the members that did not return as expected; return the end of the run if that ends it."""
        absent = self._members.losses.settle()
        if not absent:
            return None
        return self._take_end(Seen(trigger=Trigger.NODE_LOST, nodes=absent, detail="it did not return"), now)

    def _settle_silent_ends(self, now: float) -> Finish | None:
        """Return the end of a run whose job the scheduler has started again too often without any progress."""
        if not self._settings.has_silent_ends:
            return None
        return self._take_end(Seen(trigger=Trigger.ENDED_SILENTLY, detail=self._settings.goes_on_after), now)

    def _take_end(self, seen: Seen, now: float) -> Finish | None:
        """Let the run end for what was seen before an attempt if the policy decides so; return that end, else None."""
        decision = self._judge.decides(seen, now)
        if not isinstance(decision, Finish):
            return None
        self._judge.takes(seen, decision)
        return decision

    def claim(self) -> list[Action]:
        """Have the next attempt claimed with the nodes that have joined, after what is to be said of the round."""
        attempt, gathering = self._judge.history.attempts, self._members.gathering
        told = [
            *self._members.arrivals.others(),
            *self._news.tell(attempt),
            *gathering.left_behind(attempt),
            *self._judge.counts_losses(),
        ]
        claim, world = self._judge.prepare_attempt()
        gathering.opens()
        return [*told, ClaimAttempt(claim=claim, world=world)]

    def assign(self, world: World, digest: str, now: float) -> list[Action]:
        """Tell the members of an attempt that has begun their parts in it.

        Args:
            world: the attempt's.
            digest: of the world's record on disk.
            now: monotonic seconds.
        """
        judge, roster = self._judge, self._members.roster
        parts = assignments(
            world,
            digest,
            judge.history.spend.restarts,
            self._notices.opened(now),
            judge.states.chosen,
            judge.states.sources,
            roster.keepers(),
            self._settings.domains or roster.switches(),
        )
        return [
            *opening_notes(world, judge.because, judge.before, judge.states.lines),
            *(SendToMember(node=node, message=part) for node, part in parts.items()),
            *self._members.welcome_spares(),
        ]
