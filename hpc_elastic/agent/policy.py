"""Decides when to restart the workers and when to end the run: `Policy.decide(history, observation, now)`, pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hpc_elastic.errors import ExitCode
from hpc_elastic.failures.describe import describe_failure, failure_signature
from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.decisions import (
    Decision,
    Finish,
    History,
    Ignore,
    Observation,
    RestartWorkers,
    SilentEnds,
    Trigger,
)
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.plan.launch_plan import RestartPlan
from hpc_elastic.rundir.allocation_ends import ASKED_AGAIN
from hpc_elastic.rundir.records import RunState

_ENDS_OF_ALLOCATIONS = (Trigger.STOP_REQUESTED, Trigger.NOTICE_TAKEN, Trigger.TIME_LIMIT, Trigger.PREEMPTED)
SILENT_END = "an allocation ended without a word"  # as the signature of a failure, by which such ends are counted
SPREAD = 0.25  # of the pause before a restart: the part that differs from run to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The restart policy of one run: its limits, and the decisions that follow from them.

    `roles` has the restart policy of each role by its name, as `plan.launch_plan.RolePlan` has it.
    `after_exit_timeout` says how a run ends whose ranks still run when `elastic.exit_timeout` is over. `run` is the
    run's name, from which the pauses before restarts get their spread; there is none without a name. After
    `silent_ends_limit` starts of the job in a row that ended without a word and without progress the run ends.
    """

    restart: RestartPlan
    roles: Mapping[str, str] = field(default_factory=dict)
    after_exit_timeout: Literal["fail", "succeed"] = "fail"
    run: str = ""
    silent_ends_limit: int = 5

    def decide(self, history: History, observation: Observation, now: float) -> Decision:
        """Decide on one observation: restart, finish, or ignore it.

        Args:
            history: the history of the run up to the current attempt's claim.
            observation: what the head saw.
            now: monotonic seconds.
        """
        failure = observation.failure
        if failure is not None and self.roles.get(failure.role) == "ignore":
            return Ignore(reason=describe_failure(failure))
        if failure is not None:
            what = observation.detail or describe_failure(failure)
            if failure.failure_class == "start_failed":
                return _failed("start_failed", ExitCode.WORKERS_FAILED, what)
            return self._restart(history, observation, what, failure_signature(failure), now)
        if observation.trigger is Trigger.NODE_BROKEN:
            if self._is_alone_with_ignored(observation.role):
                return Ignore(reason=f"{observation.detail} on {name_some(observation.nodes)}")
            what = f"{observation.detail} on {name_some(observation.nodes)}"
            return self._restart(history, observation, what, observation.detail, now)
        if observation.trigger is Trigger.NODE_LOST and observation.is_enough:
            return self._go_on_without(history, observation, now)
        if observation.trigger is Trigger.ENDED_SILENTLY:
            return self._start_after_silent_ends(history, observation)
        if (uncharged := _restart_uncharged(history, observation, now)) is not None:
            return replace(uncharged, roles=self._roles_beside(observation.role))
        if observation.trigger is Trigger.EXIT_TIMEOUT and self.after_exit_timeout == "succeed":
            return _succeed_without_the_rest()
        return _finish(observation)

    def _start_after_silent_ends(self, history: History, observation: Observation) -> Decision:
        """Decide whether a run starts again whose job nobody but the scheduler has started again."""
        count, limit = history.same_failures, self.silent_ends_limit
        if history.failure_signature != SILENT_END or count < limit:
            return Ignore(reason=observation.detail)
        cause = (
            f"{observation.detail}; it is start {count} of the job in a row that did so, with no progress in between, "
            f"and Slurm has started it again each time: expected fewer than {limit}, the larger of requeue.max and "
            "restart.no_progress_limit. Look at what the job does to the node of its batch script"
        )
        return _failed("no_progress", ExitCode.NO_PROGRESS, cause)

    def _is_alone_with_ignored(self, role: str | None) -> bool:
        """Return whether the store on this role's nodes serves only roles whose failures are ignored."""
        return role is not None and self.roles.get(role) == "ignore" and "restart_all" not in self.roles.values()

    def _roles_beside(self, role: str | None) -> frozenset[str] | None:
        """Return the roles that start again with this one, where it has to: those of its store; None for all."""
        if role is not None and self.roles.get(role) == "restart_role":
            return frozenset({role})
        if self._is_alone_with_ignored(role):
            return frozenset(each for each, restart in self.roles.items() if restart == "ignore")
        return None

    def _go_on_without(self, history: History, observation: Observation, now: float) -> Decision:
        """Decide on a node loss: all roles restart, no restart is spent; the head counts the loss when it claims."""
        what, limit = _describe_loss(observation), self.restart.max_node_losses
        if observation.node_losses > limit:
            lost = f"{observation.node_losses} node {'loss' if observation.node_losses == 1 else 'losses'}"
            cause = f"{what}; {lost} in this run, expected at most restart.max_node_losses, which is {limit}"
            return _failed("node_losses_used_up", ExitCode.NODE_LOST, cause, _stop_after_loss(observation))
        manner = _stop_after_loss(observation)
        return RestartWorkers(roles=None, at=now, manner=manner, reason=what, history=history)

    def _restart(self, history: History, observation: Observation, what: str, signature: str, now: float) -> Decision:
        """Decide on a failure: a restart, unless the budget is spent or the run makes no progress."""
        used, limit = history.spend.restarts, self.restart.max_restarts
        if used >= limit:
            spent = f"all {limit} restarts of max_restarts are" if limit > 1 else "the one restart of max_restarts is"
            cause = f"{what}; {spent} used up" if limit else what
            return _failed("restarts_used_up", ExitCode.WORKERS_FAILED, cause)
        after = _history_after(history, observation, signature)
        if observation.is_settled and after.same_failures >= self.restart.no_progress_limit:
            cause = f"{what}; the same failure came {after.same_failures} times with no progress in between"
            return _failed("no_progress", ExitCode.NO_PROGRESS, cause)
        return RestartWorkers(
            roles=self._roles_beside(observation.role),
            at=now + self.backoff_s(used),
            manner=StopManner.RESTART,
            reason=what,
            history=after,
        )

    def backoff_s(self, used: int) -> float:
        """Return the pause in seconds before a restart when `used` restarts are spent already.

        Up to a quarter is added, more or less from run to run, so that runs which failed together, for a file system
        say, do not come back to it together. It is never longer than the maximum.
        """
        backoff = self.restart.backoff
        try:
            pause = min(backoff.first_s * backoff.factor**used, backoff.max_s)
        except OverflowError:
            pause = backoff.max_s if backoff.first_s else 0.0
        if not self.run:
            return pause
        digest = hashlib.sha256(f"{self.run}/{used}".encode()).digest()
        spread = 1 + SPREAD * int.from_bytes(digest[:4], "big") / 2**32
        return min(pause, backoff.max_s / (1 + SPREAD)) * spread


def _history_after(history: History, observation: Observation, signature: str) -> History:
    """Return the history after this failure was answered by a restart.

    A run makes progress if a file that shows progress has changed since the failure before, or if a heartbeat has
    named a step beyond the furthest one so far: an attempt that repeats the steps of an earlier one does not. Where
    neither is known, because the plan names no file and the script makes no heartbeats, progress is assumed.
    """
    is_known = observation.is_settled and observation.trigger is Trigger.WORKER_FAILED  # which steps there were
    has_gone_further = _has_gone_further(history.step, observation.step) if is_known else None
    is_same = signature == history.failure_signature and _is_stuck(history, observation.progress, has_gone_further)
    return replace(
        history,
        spend=replace(history.spend, restarts=history.spend.restarts + 1),
        failure_signature=signature,
        same_failures=history.same_failures + 1 if is_same else 1,
        progress=observation.progress,
        step=_furthest(history.step, observation.step),
    )


def charge_silent_ends(history: History, ends: SilentEnds) -> History:
    """Return the history after starts of the job that ended without a word, so that no head could charge anything.

    No restart is charged: what ended them is unknown, and may be no fault of the run, as a preemption without notice.
    They are counted as the same failure is, and progress is told in the same way; a start that has opened no attempt
    has made none.
    """
    if not ends.are_there:
        return history
    count = history.same_failures if history.failure_signature == SILENT_END else 0
    if ends.has_worked:
        is_stuck = _is_stuck(history, ends.progress, _has_gone_further(history.step, ends.step))
        count = count + 1 if is_stuck else 1
    return replace(
        history,
        failure_signature=SILENT_END,
        same_failures=count + ends.idle,
        progress=ends.progress,
        step=_furthest(history.step, ends.step),
    )


def _is_stuck(history: History, progress: str | None, has_gone_further: bool | None) -> bool:
    """Return whether something tells of progress, and nothing has told of any since the failure before.

    Args:
        history: the run up to that failure.
        progress: the digest of the progress files now, None if there are none.
        has_gone_further: whether a heartbeat has named a step beyond all before, None if that is not known.
    """
    has_changed = None if progress is None else progress != history.progress
    return False in (has_changed, has_gone_further) and True not in (has_changed, has_gone_further)


def _has_gone_further(before: int | None, step: int | None) -> bool | None:
    """Return whether an attempt has named a step beyond all before; None if none of them has named one."""
    if before is None and step is None:
        return None
    return step is not None and (before is None or step > before)


def _furthest(*steps: int | None) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _restart_uncharged(history: History, observation: Observation, now: float) -> RestartWorkers | None:
    """Return the restart that an observation asks for and that costs nothing; None if it asks for none."""
    nodes, detail, manner = name_some(observation.nodes), observation.detail, StopManner.GRACE
    if observation.trigger is Trigger.STATE_MISSING:  # once for each state: the next attempt begins without it
        reason, manner = f"{nodes}: {detail}", StopManner.RESTART
    elif observation.trigger is Trigger.NODE_JOINED:
        reason = f"{nodes} joined"
    elif observation.trigger is Trigger.RESTART_REQUESTED:
        reason = f"{detail} asked for a restart"
    elif observation.trigger is Trigger.DRAIN_REQUESTED:
        reason = f"{detail} drained {nodes}"
    else:
        return None
    return RestartWorkers(roles=None, at=now, manner=manner, reason=reason, history=history)


def _failed(reason: str, exit_code: ExitCode, cause: str, manner: StopManner = StopManner.RESTART) -> Finish:
    return Finish(state=RunState.FAILED, exit_code=exit_code, manner=manner, reason=reason, cause=cause)


def _succeed_without_the_rest() -> Finish:
    """Return the success of a run whose last ranks are stopped; the result's cause also names their nodes."""
    return Finish(
        state=RunState.SUCCEEDED,
        exit_code=ExitCode.SUCCESS,
        manner=StopManner.GRACE,
        reason="exit_timeout",
        cause="every rank exited 0 within elastic.exit_timeout",
    )


def _finish(observation: Observation) -> Finish:
    nodes, detail = name_some(observation.nodes), observation.detail
    if observation.trigger is Trigger.SUCCEEDED:
        return Finish(
            state=RunState.SUCCEEDED,
            exit_code=ExitCode.SUCCESS,
            manner=StopManner.GRACE,
            reason="succeeded",
            cause="every rank exited 0",
        )
    if observation.stop is not None and observation.trigger in _ENDS_OF_ALLOCATIONS:
        return _finish_as_asked(observation, observation.stop)
    if observation.trigger in (Trigger.STOP_REQUESTED, Trigger.TERMINATED):
        return Finish(
            state=RunState.CANCELLED,
            exit_code=ExitCode.STOPPED,
            manner=StopManner.GRACE,
            reason=observation.trigger.value,
            cause=_describe_stop(observation),
        )
    if observation.trigger in (Trigger.TIME_LIMIT, Trigger.PREEMPTED):
        return _failed(observation.trigger.value, ExitCode.NODE_LOST, detail, StopManner.GRACE)
    if observation.trigger is Trigger.NOTICE_TAKEN:
        return _finish_after_notice(observation)
    reason, exit_code, cause = {
        Trigger.NODE_LOST: (
            "node_lost",
            ExitCode.NODE_LOST,
            f"{_describe_loss(observation)}; too few nodes are left to go on",
        ),
        Trigger.NODE_UNFIT: ("setup_failed", ExitCode.SETUP, detail),
        Trigger.NODES_MISSING: ("nodes_missing", ExitCode.NODES_MISSING, detail),
        Trigger.EXIT_TIMEOUT: (
            "exit_timeout",
            ExitCode.STALLED,
            f"ranks on {nodes} still ran elastic.exit_timeout after the first one had exited 0",
        ),
        Trigger.UNKILLABLE: ("unkillable", ExitCode.STALLED, f"processes on {nodes}: {detail}"),
    }.get(observation.trigger, ("agent_failed", ExitCode.NODE_LOST, detail))
    is_lost = observation.trigger is Trigger.NODE_LOST
    return _failed(reason, exit_code, cause, _stop_after_loss(observation) if is_lost else StopManner.RESTART)


def _stop_after_loss(observation: Observation) -> StopManner:
    return StopManner.LOSS if observation.may_savers_finish else StopManner.FENCE


def _finish_as_asked(observation: Observation, stop: OperatorStop) -> Finish:
    """Return the end that a person has announced: that of the run, or of this allocation."""
    cause = stop.describe_end(observation.detail if observation.trigger is Trigger.NOTICE_TAKEN else "")
    if stop.is_requeue:
        return _failed(ASKED_AGAIN, ExitCode.NODE_LOST, cause, StopManner.GRACE)
    return Finish(
        state=RunState.CANCELLED,
        exit_code=ExitCode.STOPPED,
        manner=StopManner.GRACE,
        reason=Trigger.STOP_REQUESTED.value,
        cause=cause,
    )


def _finish_after_notice(observation: Observation) -> Finish:
    """Return the end of a run whose ranks have all saved and exited after a notice: the end that it announced."""
    announced = {"time_limit": Trigger.TIME_LIMIT, "preemption": Trigger.PREEMPTED}.get(observation.notice or "")
    if announced is not None:
        return _failed(announced.value, ExitCode.NODE_LOST, observation.detail, StopManner.GRACE)
    return Finish(
        state=RunState.CANCELLED,
        exit_code=ExitCode.STOPPED,
        manner=StopManner.GRACE,
        reason=observation.trigger.value,
        cause=f"{observation.detail} ({(observation.notice or 'notice').replace('_', ' ')})",
    )


def _describe_loss(observation: Observation) -> str:
    if not observation.nodes:  # this head stood still, and perhaps all others with it
        return observation.detail
    were = "was" if len(observation.nodes) == 1 else "were"
    return f"{name_some(observation.nodes)} {were} lost: {observation.detail}"


def _describe_stop(observation: Observation) -> str:
    if observation.trigger is Trigger.STOP_REQUESTED:
        return f"cancelled by {observation.detail}"
    return f"{name_some(observation.nodes)} got {observation.detail} from outside"
