"""Machines with a bug each: what the simulation must find, or it could not find anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from hpc_elastic.agent.drivers import head_start, participation
from hpc_elastic.agent.policy import Policy
from hpc_elastic.agent.records import journal
from hpc_elastic.agent.rendezvous import successor
from hpc_elastic.codec import to_json
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, Leave, SendToHead, StartWorkers
from hpc_elastic.membership.decisions import Decision, History, Ignore, Observation, RestartWorkers
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, Message, StopManner
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.verdict import Verdict
from hpc_elastic.plan.launch_plan import RestartPlan
from hpc_elastic.rundir.records import AttemptClaim, NodeResult, RunResultRecord, WorkerState
from hpc_elastic.rundir.state_records import HeldState
from hpc_elastic.rundir.store import claim
from tests.simulation.plant import Plant
from tests.simulation.planted.losses import SEEKERS, STARTS, SURVIVING_HEADS, SURVIVING_MEMBERS


class _StopsNobody(Head):
    def _stopping(self) -> Iterator[RosterEntry]:
        return iter(()) if self._judge.verdict.roles is not None else super()._stopping()


class _CountsOldReports(Head):
    def received(self, node: str, message: Message, now: float) -> list[Action]:
        member = self._roster.get(node)
        if member is not None and isinstance(message, messages.REPORTS):
            return self._reported(member, message, now)
        return super().received(node, message, now)


class _BarrierNeverEnds(Head):
    def _check_barriers(self, now: float) -> list[Action]:
        return []


class _OldStore(Head):
    def _reported(self, member: RosterEntry, message: messages.Report, now: float) -> list[Action]:
        port = member.store_port
        actions = super()._reported(member, message, now)
        member.store_port = port
        return actions


class _OneHasStarted(Head):
    def _reported(self, member: RosterEntry, message: messages.Report, now: float) -> list[Action]:
        if isinstance(message, messages.Started):
            for other in self._roster:
                other.has_started = True
                self._roster.starting.discard(other)
        return super()._reported(member, message, now)


class _ForgetsFirstRole(Head):
    def __init__(self, settings: HeadSettings, **more: Any) -> None:
        super().__init__(settings, **more)
        self._judge.verdict = _NotWidened()


class _NotWidened(Verdict):
    def _widened(self, roles: frozenset[str] | None) -> frozenset[str] | None:
        return roles


class _FirstEndIsAll(Head):
    def _reported(self, member: RosterEntry, message: messages.Report, now: float) -> list[Action]:
        if isinstance(message, messages.Ended):
            self._roster.unfinished.discard(member)
        return super()._reported(member, message, now)


class _StartsUnclaimed(Head):
    def _gather(self, now: float) -> list[Action]:
        actions = super()._gather(now)
        if self.phase is HeadPhase.CLAIMING:
            actions += self.claimed(self._judge.history.attempts + 1, True, "digest", now)
        return actions


class _ForgetsStopRequest(Head):
    def stop_requested(self, by: str, now: float) -> list[Action]:
        return []


class _StartedAtOnce(Member):
    def _assigned(self, assign: Assign, now: float) -> list[Action]:
        actions = super()._assigned(assign, now)
        return (
            [*actions, SendToHead(message=messages.Started(attempt=assign.attempt))] if len(actions) == 1 else actions
        )


class _NeverFences(Member):
    def tick(self, now: float) -> list[Action]:
        return [SendToHead(message=beat) for beat in self._lease.beat(now)]

    def next_tick(self) -> float:
        return self._lease.next_beat

    def fence_deadline(self) -> float:
        return float("inf")


class _OwnExitCode(Member):
    def leaves(self, exit_code: int, cause: str, *, ends_job: bool = False) -> list[Action]:
        return super().leaves(7, cause, ends_job=ends_job)


class _LeavesWorkers(Member):
    def _end(self, message: messages.End | messages.Refused) -> list[Action]:
        return [Leave(exit_code=getattr(message, "exit_code", 0), cause="")]


class _FinishedTooEarly(Member):
    def worker_exited(
        self, attempt: int, local_rank: int, exitcode: int, now: float, *, is_after_stop: bool = False
    ) -> list[Action]:
        actions = super().worker_exited(attempt, local_rank, exitcode, now, is_after_stop=is_after_stop)
        if exitcode == 0 and self.phase.value == "working" and actions:
            return [*actions, SendToHead(message=messages.Finished(attempt=attempt))]
        return actions


class _StartsTwice(Member):
    def node_result_written(self, result: NodeResult, held: tuple[HeldState, ...] = ()) -> list[Action]:
        actions = super().node_result_written(result, held)
        if result.state is WorkerState.HEALTHY and self._assign is not None and actions:
            return [*actions, StartWorkers(assign=self._assign)]
        return actions


def _write_result_unasked(self: journal.Journal, result: RunResultRecord) -> tuple[int, str] | AttemptClaim:
    claim(self._layout.result, to_json(result))
    standing = self._chain.result()
    assert standing is not None
    return standing.exit_code, standing.cause


class _Decides:
    """A policy with something wrong about it."""

    def __init__(
        self,
        restart: RestartPlan,
        roles: Mapping[str, str],
        after_exit_timeout: Literal["fail", "succeed"] = "fail",
        run: str = "",
        **more: Any,
    ) -> None:
        self._policy = Policy(restart=restart, roles=roles, after_exit_timeout=after_exit_timeout, run=run, **more)

    def decide(self, history: History, observation: Observation, now: float) -> Decision:
        return self.changed(self._policy.decide(history, observation, now), history, observation, now)

    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        raise NotImplementedError


class _SpendsTwice(_Decides):
    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        if not isinstance(decision, RestartWorkers):
            return decision
        spend = replace(decision.history.spend, restarts=decision.history.spend.restarts + 1)
        return replace(decision, history=replace(decision.history, spend=spend))


class _SpendsNothing(_Decides):
    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        if not isinstance(decision, RestartWorkers):
            return decision
        return replace(decision, history=replace(decision.history, spend=history.spend))


class _IgnoresNothing(_Decides):
    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        if not isinstance(decision, Ignore):
            return decision
        return RestartWorkers(at=now, manner=StopManner.RESTART, reason=decision.reason, history=history)


class _RestartsAll(_Decides):
    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        return replace(decision, roles=None) if isinstance(decision, RestartWorkers) else decision


class _NeverPauses(_Decides):
    def changed(self, decision: Decision, history: History, observation: Observation, now: float) -> Decision:
        return replace(decision, at=now) if isinstance(decision, RestartWorkers) else decision


HEADS: dict[str, type[Head]] = {
    "a partial restart stops nobody": _StopsNobody,
    "reports of an older attempt count": _CountsOldReports,
    "the exit barrier never ends": _BarrierNeverEnds,
    "the store of an older attempt is served again": _OldStore,
    "one node's Started is everybody's": _OneHasStarted,
    "a widened restart forgets the first role": _ForgetsFirstRole,
    "the first end is taken for the last": _FirstEndIsAll,
    "workers start before the claim is there": _StartsUnclaimed,
    "a stop request is passed over": _ForgetsStopRequest,
    **SURVIVING_HEADS,
}
MEMBERS: dict[str, type[Member]] = {
    "Started comes before the processes": _StartedAtOnce,
    "a lost head is not noticed": _NeverFences,
    "an agent leaves with its own exit code": _OwnExitCode,
    "an agent leaves its workers": _LeavesWorkers,
    "Finished comes with the first end": _FinishedTooEarly,
    **SURVIVING_MEMBERS,
}
JOURNALS = {"a result is written without a look at the claims": _write_result_unasked}
POLICIES: dict[str, type[_Decides]] = {
    "one failure is paid for twice": _SpendsTwice,
    "a restart costs nothing": _SpendsNothing,
    "an ignored failure restarts": _IgnoresNothing,
    "a failure in one role stops all": _RestartsAll,
    "there is no pause before a restart": _NeverPauses,
}
BUGS = (*HEADS, *MEMBERS, *SEEKERS, *POLICIES, *JOURNALS)


class Planted(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        bug = self._bug
        kinds: list[tuple[Mapping[str, Any], Any, str]] = [
            (HEADS, head_start, "Head"),
            (STARTS, head_start, "Head"),
            (MEMBERS, participation, "Member"),
            (SEEKERS, successor, "HeadDiscovery"),
            (POLICIES, head_start, "Policy"),
            (JOURNALS, journal.Journal, "write_result"),
        ]
        return [(module, name, bugs[bug]) for bugs, module, name in kinds if bug in bugs]
