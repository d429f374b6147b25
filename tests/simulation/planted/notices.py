"""Notices with a bug each, which the rules of `polls` must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.heartbeat_memory import NO_NOTICE
from hpc_elastic.membership import head as head_module
from hpc_elastic.membership.actions import Action, SendToMember
from hpc_elastic.membership.messages import NoticeFrom, NoticePolls
from hpc_elastic.membership.notice_rounds import NoticeRounds
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.roster import RosterEntry
from tests.simulation import workers as workers_module
from tests.simulation.plant import Plant
from tests.simulation.workers import Workers


class _NamesTheLargest(NoticeRounds):
    """One rank may have had that call without a notice."""

    def counted(self, member: RosterEntry, message: NoticePolls) -> list[Action]:
        return [_one_less(action) for action in super().counted(member, message)]


def _one_less(action: Action) -> Action:
    if not (isinstance(action, SendToMember) and isinstance(action.message, NoticeFrom)):
        return action
    first = replace(action.message.first, polls=max(1, action.message.first.polls - 1))
    return replace(action, message=replace(action.message, first=first))


class _TheFirstIsAll(NoticeRounds):
    """It does not wait for the counts of the other nodes."""

    def counted(self, member: RosterEntry, message: NoticePolls) -> list[Action]:
        for waiting in self._rounds.values():
            waiting.silent &= {member.node}
        return super().counted(member, message)


class _AgreesAgain(NoticeRounds):
    """A later notice is agreed on once more, although some ranks have heard of the first one."""

    def give(self, notice: NoticeGiven, attempt: int, now: float) -> list[Action]:
        self._rounds.clear()
        return super().give(notice, attempt, now)


def _name_anew(self: Workers, attempt: int, first: NoticeCounts) -> None:
    """The other half of that bug, and of the next one: the agent takes any number."""
    self._notice = (attempt, first.polls)


async def _hold_nobody(self: Workers, attempt: int, notice: NoticeGiven) -> NoticeCounts:
    """The agent reads the counts, and the calls go on."""
    before = self._notice
    counts = await HOLDS(self, attempt, notice)
    if before[0] != attempt:
        self._notice = (attempt, NO_NOTICE)
    return counts


def _heard_at_first(self: HeadSide) -> NoticeGiven | None:
    """As if no time had passed since."""
    return self._heard


HOLDS = Workers.hold_for_notice
NOTICE_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "the largest count is named": [(head_module, "NoticeRounds", _NamesTheLargest)],
    "the first node's count is everybody's": [(head_module, "NoticeRounds", _TheFirstIsAll)],
    "a second notice is agreed on again": [
        (head_module, "NoticeRounds", _AgreesAgain),
        (Workers, "name_notice", _name_anew),
    ],
    "no call waits": [(Workers, "hold_for_notice", _hold_nobody), (Workers, "name_notice", _name_anew)],
    "a later head gives all the time again": [(HeadSide, "_heard_notice", _heard_at_first)],
    "the counts are read at once": [(workers_module, "POLLS_SETTLE_S", 0.0)],
}


class PlantedNotice(Plant):
    """Notices that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return NOTICE_BUGS[self._bug]
