"""Machines with a bug each in how they survive losses: planted for the simulation to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, DiscoverHead, SendToMember, StopWorkers
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.discovery import NEVER, DiscoveryAction, HeadDiscovery
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.lease import Lease, MemberLease
from hpc_elastic.membership.losses import Losses, SuccessionRound
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, Beat, Join, Message
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.succession import Records, Succession
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rundir.records import Spend


class _LongLease(Lease):
    def __init__(self, timing: Timing) -> None:
        super().__init__(timing)
        self.patience_s = timing.lease_s * 1.5


class _LateFence(Member):
    def __init__(self, join: Join, *, run: str, timing: Timing) -> None:
        super().__init__(join, run=run, timing=timing)
        self._lease = _LongLease(timing)


class _NoGuard(Member):
    def fence_deadline(self) -> float:
        return NEVER


class _SearchesAtOnce(Member):
    def disconnected(self, why: str, *, is_dead: bool, now: float = -NEVER, was_paused: bool = False) -> list[Action]:
        actions = super().disconnected(why, is_dead=is_dead, now=now, was_paused=was_paused)
        lost = self._allegiance.lost
        has_workers = any(isinstance(action, StopWorkers) for action in actions)
        return [*actions, DiscoverHead(lost=lost)] if has_workers and lost is not None else actions


class _StartsLate(Member):
    def _assigned(self, assign: Assign, now: float) -> list[Action]:
        self._lease.start(now, now)
        return super()._assigned(assign, now)


class _SilenceIsDeath(Member):
    def disconnected(self, why: str, *, is_dead: bool, now: float = -NEVER, was_paused: bool = False) -> list[Action]:
        return super().disconnected(why, is_dead=True, now=now, was_paused=was_paused)


class _ReceiptIsEnough(Head):
    def received(self, node: str, message: Message, now: float) -> list[Action]:
        actions = super().received(node, message, now)
        member = self._roster.get(node)
        if isinstance(message, Beat) and member is not None:
            member.lease.acked = now
        return actions


class _WithRound(Head):
    """Its round, if it is a successor, closes by another rule."""

    ROUND: type[SuccessionRound]

    def __init__(self, settings: HeadSettings, *, now: float, succession: Succession | None, **more: Any) -> None:
        super().__init__(settings, now=now, succession=succession, **more)
        if succession is not None:
            self.gathering._round = self.ROUND(succession, settings.timing, self._roster, now)


class _ImpatientRound(SuccessionRound):
    def closes_at(self, is_enough: Callable[[], bool], has_room: Callable[[], bool]) -> float:
        return self.succession.lost.contact if self._is_complete() else super().closes_at(is_enough, has_room)


class _HastyRound(SuccessionRound):
    def closes_at(self, is_enough: Callable[[], bool], has_room: Callable[[], bool]) -> float:
        early = self.succession.lost.contact + self._timing.succeeds_after_contact_s
        return min(super().closes_at(is_enough, has_room), early)


class _DoesNotWait(_WithRound):
    ROUND = _ImpatientRound


class _DoesNotWaitForTheMissing(_WithRound):
    ROUND = _HastyRound


class _WithLosses(Head):
    """It draws other conclusions from a loss."""

    LOSSES: type[Losses]

    def __init__(self, settings: HeadSettings, *, history: History, **more: Any) -> None:
        super().__init__(settings, history=history, **more)
        self._members.losses = self.LOSSES(settings.timing, history.spend.node_losses)


class _NeverWaits(Losses):
    @property
    def may_start_at(self) -> float:
        return -NEVER


class _NeverAwaitsQuorum(Losses):
    def may_end_at(self, min_nodes: int, here: int, now: float, *, can_resume: bool) -> float:
        return -NEVER


class _CountsTwice(Losses):
    def _count(self, node: str, *, is_dead: bool = False) -> None:
        super()._count(node, is_dead=is_dead)
        self._before += 1


class _CountsNothing(Losses):
    def _count(self, node: str, *, is_dead: bool = False) -> None:
        pass


class _StartsBesideTheLost(_WithLosses):
    LOSSES = _NeverWaits


class _EndsTheOthersRun(_WithLosses):
    LOSSES = _NeverAwaitsQuorum


class _PaysLossTwice(_WithLosses):
    LOSSES = _CountsTwice


class _PaysNoLoss(_WithLosses):
    LOSSES = _CountsNothing


class _ForgetsBudget(Head):
    def __init__(self, settings: HeadSettings, *, history: History, succession: Succession | None, **more: Any) -> None:
        history = history if succession is None else replace(history, spend=Spend())
        super().__init__(settings, history=history, succession=succession, **more)


class _ClaimsUnchecked(Head):
    def claimed(self, attempt: int, is_ours: bool, world_digest: str, now: float) -> list[Action]:
        return super().claimed(attempt, True, world_digest, now)


class _NeverGivesWay(Head):
    def superseded(self, reason: str) -> list[Action]:
        return []


class _OpensBesideTheOldStart(Head):
    def __init__(self, settings: HeadSettings, **more: Any) -> None:
        alone = replace(settings, may_predecessor_live=False)
        super().__init__(alone, **more)


class _FencesNobody(Head):
    def lost(self, node: str, why: str, now: float, *, is_gone: bool, may_return: bool = False) -> list[Action]:
        actions = super().lost(node, why, now, is_gone=is_gone, may_return=may_return)
        own = self._settings.node
        return [action for action in actions if not (isinstance(action, SendToMember) and _is_stop_of(action, own))]


def _is_stop_of(send: SendToMember, node: str) -> bool:
    return send.node == node and isinstance(send.message, messages.Stop)


class _NewLease(MemberLease):
    """Counts as long as the connection is open."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.acked = NEVER


class _ConnectionIsLife(Head):
    def joined(self, join: Join, now: float) -> list[Action]:
        actions = super().joined(join, now)
        member = self._roster.get(join.node)
        if member is not None:
            member.lease = _NewLease(now)
        return actions


class _Outsider(HeadDiscovery):
    def _gathers_at(self) -> float:
        records = self._records
        if records is None or records.claim is None:
            return super()._gathers_at()
        return min(super()._gathers_at(), self._began + 3.0)


class _NeverHearsOfTheEnd(HeadDiscovery):
    def read(self, records: Records, now: float) -> list[DiscoveryAction]:
        return super().read(replace(records, result=None), now)


class _TrainsAgain(HeadDiscovery):
    def read(self, records: Records, now: float) -> list[DiscoveryAction]:
        return super().read(replace(records, is_finished=True), now)


SURVIVING_HEADS: dict[str, type[Head]] = {
    "the head's lease counts from receipt": _ReceiptIsEnough,
    "a successor does not wait for the lost head": _DoesNotWait,
    "a successor without everybody waits for one lease only": _DoesNotWaitForTheMissing,
    "an attempt does not wait for those who fell silent": _StartsBesideTheLost,
    "too few nodes end a run that is not theirs": _EndsTheOthersRun,
    "a loss is counted twice": _PaysLossTwice,
    "a loss is not counted": _PaysNoLoss,
    "a successor forgets what is spent": _ForgetsBudget,
    "the answer to a claim is not looked at": _ClaimsUnchecked,
    "a superseded head goes on": _NeverGivesWay,
    "a head that loses a node does not fence its own workers": _FencesNobody,
    "an open connection is taken for life": _ConnectionIsLife,
}
SURVIVING_MEMBERS: dict[str, type[Member]] = {
    "a member's lease is longer than the head's": _LateFence,
    "the guard has no deadline": _NoGuard,
    "an agent searches before its workers are gone": _SearchesAtOnce,
    "an assignment counts however late it comes": _StartsLate,
    "a silent head is taken for dead": _SilenceIsDeath,
}
SEEKERS: dict[str, type[HeadDiscovery]] = {
    "an outsider claims the next attempt": _Outsider,
    "an agent without a head does not look for the result": _NeverHearsOfTheEnd,
    "a successor takes the run for finished": _TrainsAgain,
}
# These show in two starts of the job only.
STARTS: dict[str, type[Head]] = {
    "a new start does not wait for the agents of the old one": _OpensBesideTheOldStart,
}
