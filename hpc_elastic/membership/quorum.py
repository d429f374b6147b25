"""The wait of a head with too few nodes for those that it has lost, or that have not come yet."""

from __future__ import annotations

from hpc_elastic.membership.actions import Action, Log, Note
from hpc_elastic.membership.judge import Judge
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.rounds import HeadSettings

NEVER = float("inf")


class QuorumWait:
    """How long a head waits whose run is to end for want of nodes.

    The nodes that it cannot reach may be enough to go on without it, so it must not end their run. If enough of them
    come back instead, the run goes on here.

    Args:
        settings: with how many nodes the run goes on.
        members: the head's members.
        judge: the decision that stands.
    """

    __slots__ = ("_judge", "_latest", "_members", "_settings", "other_until", "until")

    def __init__(self, settings: HeadSettings, members: Members, judge: Judge) -> None:
        self._settings = settings
        self._members = members
        self._judge = judge
        self.other_until = -NEVER  # until when the head that has opened the latest attempt counts as there
        self.until = -NEVER  # when the run ends if too few nodes are here still, in monotonic seconds
        self._latest = -NEVER  # until when that may be put off for nodes that come back one after the other

    def begin(self, now: float) -> list[Action]:
        """Begin the wait, and return what is said of it; nothing if the run may end at once."""
        members, can_resume = self._members, self._judge.can_resume
        self.until = members.losses.may_end_at(
            self._settings.min_nodes, len(members.roster), now, can_resume=can_resume
        )
        awaited = "silent ones to come back, or to go on by themselves"
        if now >= self.until and can_resume:
            self.until, awaited = members.gathering.newcomers_until(now), "those that have not come yet"
        if now >= self.until:
            return []
        self._latest = self.until + self._settings.timing.returns_within_s
        text = f"too few nodes are left here; waiting {self.until - now:.1f} s for {awaited}"
        note = Note(name="run.yielding", message=text, attempt=self._judge.history.attempts)
        return [Log(text=text, level="warning"), note]

    def prolong(self, now: float) -> None:
        """Wait for the head that has opened the latest attempt, which is there: it ends the run, or goes on."""
        self.other_until = now + self._settings.timing.awaits_return_s
        self.until = max(self.until, self.other_until)

    def adjust(self, now: float) -> None:
        """Wait a moment longer for the others where a lost node is back; no longer if all that are not here are dead.

        Nodes that were lost together find this head one after the other. Those that have never come are still awaited.
        """
        losses = self._members.losses
        self.until = max(self.until, min(losses.others_return_until(), self._latest))
        if not losses.may_live:
            self.until = min(self.until, max(now, self._members.gathering.newcomers_until(now)))

    def resumes(self, now: float) -> list[Action]:
        """Return what is said of a run that goes on because enough nodes are back; nothing if it does not."""
        gathering = self._members.gathering
        if not (gathering.goes_on(now) and self._judge.resumes(now)):
            return []
        self._members.losses.go_on()
        who = "enough nodes are" if gathering.is_enough() else "who was lost is"
        return [Log(text=f"{who} back: the run goes on")]
