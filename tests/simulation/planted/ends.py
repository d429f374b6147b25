"""Heads with a bug each in how they end a run, or say so, which rules of several modules must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import head_start
from hpc_elastic.membership.actions import Action, Log
from hpc_elastic.membership.barriers import Barriers
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.rundir.state_records import Flush, StateVersion
from tests.simulation.plant import Plant


class _EndsInTheMiddle(Head):
    def stop_requested(self, by: str, now: float) -> list[Action]:
        return [Log(text="the run is cancelled by:"), *super().stop_requested(by, now)]


class _NamesNobody(Head):
    def stop_requested(self, by: str, now: float) -> list[Action]:
        return super().stop_requested("somebody", now)


class _WritesInVain(Head):
    def result_written(self, *arguments: Any, **more: Any) -> list[Action]:
        flush = Flush(ended=self.attempt, state=StateVersion(attempt=self.attempt, step=1))
        self._judge.flushes = lambda *_, **__: {self._settings.node: flush}  # type: ignore[method-assign]
        return super().result_written(*arguments, **more)


class _CountsOldEnds(Barriers):
    def begin(self, now: float) -> None:
        before = dict(self._ended)
        super().begin(now)
        self._ended = before
        self._await_ends(now)


class _WaitsTooShort(Head):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._barriers = _CountsOldEnds(self._roster, self._settings)


class _TurnsRound(Barriers):
    def __init__(self, roster: Roster, settings: HeadSettings) -> None:
        turned = not settings.succeeds_after_exit_timeout
        super().__init__(roster, replace(settings, succeeds_after_exit_timeout=turned))


class _WaitsForAnother(Head):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._barriers = _TurnsRound(self._roster, self._settings)


class _KeepsAway(Roster):
    __slots__ = ()

    def called_back(self, *_: Any) -> dict[str, str]:
        return {}


class _CallsNobodyBack(Head):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._roster.__class__ = _KeepsAway


class _AwaitsTheDead(Head):
    def _lose(self, node: str, why: str, now: float, *, is_gone: bool, may_return: bool) -> list[Action]:
        silent_s = self._members._silence_s(node, now)
        is_awaited = is_gone and silent_s > self._settings.timing.patience_s / 5
        return super()._lose(node, why, now, is_gone=is_gone, may_return=may_return or is_awaited)


class _GoesOn(Head):
    def superseded(self, reason: str) -> list[Action]:
        before = self.phase
        actions = super().superseded(reason)
        self.phase = before
        return actions


# By what is wrong: the head, a kind of schedules in which it shows, and the words of the rule that it breaks.
END_BUGS: dict[str, tuple[type[Head], str, str]] = {
    "a line ends in the middle": (_EndsInTheMiddle, "closings", "not whole"),
    "the result does not say who has ended the run": (_NamesNobody, "closings", "a person has ended the run"),
    "a state is written after a success": (_WritesInVain, "foretold", "which nobody loads"),
    "an end of an older attempt begins the exit barrier": (_WaitsTooShort, "overdue", "for nothing"),
    "the time of another role ends the run": (_WaitsForAnother, "overdue", "their time is over at"),
    "a node whose agent is dead is awaited": (_AwaitsTheDead, "foretold", "an attempt without"),
    "a head that has given way hears on": (_GoesOn, "starts", "gives way, and is in phase"),
    "no spare is called back to its own role": (_CallsNobodyBack, "stand-ins", "ends the run for node_lost"),
}


class PlantedEnds(Plant):
    """A head that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [(head_start, "Head", END_BUGS[self._bug][0])]
