"""The head's judgement: what it knows of the run when it decides, and what the next attempt takes over from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.errors import ExitCode
from hpc_elastic.failures.blame import fails_again_there
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.root_cause import ObservedFailure, StoppedRanks, find_root_cause, name_unfinished
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, Log
from hpc_elastic.membership.aside import Aside, blame, blame_lost, count_lost
from hpc_elastic.membership.decisions import (
    Decide,
    Decision,
    Finish,
    History,
    Ignore,
    Observation,
    RestartWorkers,
    Trigger,
)
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import Message
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.membership.requeue import CAUSES
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.membership.rounds import HeadSettings, open_attempt, run_result, spares_beside
from hpc_elastic.membership.run_states import RunStates
from hpc_elastic.membership.succession import Succession, with_candidates
from hpc_elastic.membership.tally import Tally
from hpc_elastic.membership.verdict import Verdict
from hpc_elastic.rank_set import name_ranks
from hpc_elastic.rundir.records import (
    AttemptClaim,
    FailureRecord,
    NoticeReason,
    RootCause,
    RunResultRecord,
    SetAside,
    World,
    WorldRank,
)
from hpc_elastic.rundir.state_records import Flush, KeptState

# Events that are the cause themselves, whatever workers fail after them.
_CLASSES = {
    Trigger.NODE_LOST: FailureClass.NODE_LOST,
    Trigger.NODE_BROKEN: FailureClass.AGENT_LOST,
    Trigger.UNKILLABLE: FailureClass.UNKILLABLE,
    Trigger.EXIT_TIMEOUT: FailureClass.STALLED,
    Trigger.NODES_MISSING: FailureClass.RENDEZVOUS,
    Trigger.TIME_LIMIT: FailureClass.TIME_LIMIT,
    Trigger.PREEMPTED: FailureClass.PREEMPTED,
}
TOO_FEW = ("node_lost", "nodes_missing")
_ENDS_FOR_ALL = frozenset(CAUSES).difference(TOO_FEW)  # reasons for which the whole allocation ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event that the head saw on these nodes; `role` and `failure` are set where it is about workers.

    `is_agent_dead`: the kernel of a node that is lost says that its agent has ended, so the node itself lives.
    `notice`: why the notice was given that the ranks have taken. `stop`: the stop that a person has announced.
    """

    trigger: Trigger
    nodes: tuple[str, ...] = ()
    detail: str = ""
    role: str | None = None
    failure: FailureRecord | None = None
    is_agent_dead: bool = False
    notice: NoticeReason | None = None
    stop: OperatorStop | None = None


_MISSED = Seen(trigger=Trigger.NODE_LOST, detail="no answer in time")  # whom a round has found missing


def seen_in(member: RosterEntry, message: Message) -> Seen | None:
    """Return the event in a member's message that needs a decision, None if nothing in it does."""
    nodes, role = (member.node,), member.role
    if isinstance(message, messages.Failed):
        return Seen(trigger=Trigger.WORKER_FAILED, nodes=nodes, role=role, failure=message.failure)
    if isinstance(message, messages.Broken) and message.state is not None:
        return Seen(trigger=Trigger.STATE_MISSING, nodes=nodes, role=role, detail=message.reason)
    if isinstance(message, messages.Broken):
        return Seen(trigger=Trigger.NODE_BROKEN, nodes=nodes, role=role, detail=message.reason)
    if isinstance(message, messages.Terminated):
        return Seen(trigger=Trigger.TERMINATED, nodes=nodes, role=role, detail=message.signal_name)
    if isinstance(message, messages.Stopped) and message.unkillable:
        survivors = f"{', '.join(map(str, message.unkillable))} survived KILL"
        return Seen(trigger=Trigger.UNKILLABLE, nodes=nodes, role=role, detail=survivors)
    return None


def end_seen(tally: Tally, notice: NoticeReason | None, stop: OperatorStop | None) -> Seen:
    """Return the event that no worker runs any more and none has failed.

    Args:
        tally: what the members reported of the workers.
        notice: why a notice was given, after which ranks exited 75, if one was.
        stop: the stop that a person has announced, if one has.
    """
    if not tally.again:
        return Seen(trigger=Trigger.SUCCEEDED)
    text = f"{name_ranks(tally.again)} exited 75 after the notice, to go on later"
    return Seen(trigger=Trigger.NOTICE_TAKEN, detail=text, notice=notice, stop=stop)


def overdue_seen(nodes: tuple[str, ...] | None) -> Seen | None:
    """Return the event that the exit barrier's bound is reached, None if it is not.

    `nodes` are the nodes that still run; if there are none that matter, the attempt has succeeded.
    """
    return None if nodes is None else Seen(trigger=Trigger.EXIT_TIMEOUT if nodes else Trigger.SUCCEEDED, nodes=nodes)


class Judge:
    """The run's history, the policy, and the decision that stands.

    Args:
        settings: the head's settings.
        history: the run so far, from its latest claim.
        decide: the policy.
        members: the head's members.
        kept: the training states that the run directory had when the allocation began.
    """

    def __init__(
        self,
        settings: HeadSettings,
        history: History,
        decide: Decide,
        members: Members,
        kept: Sequence[KeptState] = (),
    ) -> None:
        self._settings = settings
        self._decide = decide
        self._members = members
        self.history = history
        self._claimed = history  # as it was when the latest attempt was claimed
        self.aside = Aside(settings, history.set_aside)
        self.verdict = Verdict()
        self.progress = history.progress
        self.before: World | None = None  # the world before the latest one
        self.root_cause: RootCause | None = None  # of the end of the latest attempt, once it is known
        self._standing: Seen | None = None  # the event that the decision that stands is about
        self._failed_role: str | None = None  # whose failure the decision is about, if it is about one
        self._loss: Seen | None = None  # the loss of nodes for which the run ends, if it does for that
        self.states = RunStates(settings, members, history, kept)
        after = f": {settings.goes_on_after}" if settings.goes_on_after else ""
        self.because = "first start" if history.attempts == 0 else f"the run goes on in a new allocation{after}"

    @property
    def is_short_of_nodes(self) -> bool:
        """Return whether the run ends because nodes are lost or missing, which may go on under another head.

        They may not where the allocation ends for all.
        """
        decision = self.verdict.decision
        if not isinstance(decision, Finish) or decision.reason in _ENDS_FOR_ALL:
            return False
        return decision.exit_code in (ExitCode.NODE_LOST, ExitCode.NODES_MISSING)

    def takes(self, seen: Seen, decision: RestartWorkers | Finish) -> RestartWorkers | Finish | None:
        """Take in a decision about an event; return the decision that stands now, None if nothing changes.

        A state that is missing only adds roles to a restart that stands: the failure for which that is goes on to be
        paid for, and to be waited for, and its cause is still to be settled.

        A restart of some roles keeps the places of all nodes. Where one of those roles has an unhealthy node, which
        would get workers again, it becomes a restart of all, which leaves that node out.
        """
        before, is_added = self.verdict.decision, False
        if isinstance(before, RestartWorkers) and isinstance(decision, RestartWorkers):
            is_added = seen.trigger is Trigger.STATE_MISSING
            decision = replace(before, roles=decision.roles) if is_added else decision
        if isinstance(decision, RestartWorkers) and self._members.are_unhealthy_in(decision.roles or ()):
            decision = replace(decision, roles=None)
        standing = self.verdict.take(decision)
        if standing is not None and not is_added:
            self._standing, self._failed_role = seen, seen.role
            self._loss = seen if seen.trigger is Trigger.NODE_LOST else None
            world = self._members.world  # of the attempt that is being claimed, if one is
            attempt = world.attempt if world else self.history.attempts
            self.root_cause = _cause_in(self._with_all_lost(seen), standing, attempt)
        return standing

    def _with_all_lost(self, seen: Seen) -> Seen:
        """Return the loss of a node with all that are lost, where only these together are too many."""
        losses = self._members.losses
        if seen.trigger is not Trigger.NODE_LOST or self._members.gathering.can_be_enough():
            return seen
        nodes = tuple(sorted({*seen.nodes, *losses.nodes}))
        is_dead = seen.is_agent_dead and not losses.may_live_of(nodes)
        return replace(seen, nodes=nodes, detail=losses.describe(nodes, seen.detail), is_agent_dead=is_dead)

    @property
    def observed(self) -> FailureRecord | None:
        """Return the failure that the decision that stands is about, until its cause is settled."""
        is_about_failure = self._standing is not None and self._standing.trigger is Trigger.WORKER_FAILED
        return self._standing.failure if self._standing is not None and is_about_failure else None

    def settles(self, tally: Tally, now: float) -> RestartWorkers | Finish | None:
        """Decide again, now that every node has stopped its workers: about a worker's failure by its cause.

        Where every rank had exited 0 by then, and not all nodes had said so, the run has succeeded.

        Returns:
            The decision, None if the one that stands is about something else, or is settled.
        """
        seen, failure = self._standing, self.observed
        self._standing = None
        is_new = seen is not None and seen.trigger is not Trigger.SUCCEEDED
        if is_new and failure is None and self._have_succeeded(tally):
            return self._succeeds_after_all(now)
        if seen is not None and seen.trigger is Trigger.EXIT_TIMEOUT and self.root_cause is not None:
            late = self._stopped_ranks(tally, lambda rank: rank.node in seen.nodes)
            self.root_cause = name_unfinished(self.root_cause, late)
        if seen is None or failure is None:
            return None
        observed = self._observed(tally, failure, now)
        stores = {self._store_of(each.failure.role) for each in observed}
        # Ranks that meet in another store cannot have been waited for.
        others = self._stopped_ranks(tally, lambda rank: self._store_of(rank.role) in stores)
        found = find_root_cause(self.history.attempts, observed, others)
        if found is None:
            return None
        settled = replace(seen, failure=found.failure, role=found.failure.role, detail=found.cause.line)
        decision = self.decides(settled, now, is_settled=True, step=tally.step)
        if isinstance(decision, Ignore):  # its role's failures are ignored, and others' are not: one of these decided
            return None
        self.root_cause, self._failed_role = found.cause, found.failure.role
        self.verdict.settle(decision)
        return self.verdict.decision

    def _have_succeeded(self, tally: Tally) -> bool:
        """Return whether every rank that counts had exited 0 when its node was stopped.

        A node says so when its record of it is on disk, and the file system may be slow.
        """
        world, roster, restarts = self._members.world, self._members.roster, self._settings.restarts
        if world is None:
            return False
        running = {member.node for member in roster.unfinished.of()}
        have_ended = {member.node for member in roster.in_world()} - running
        counting = [each for each in world.ranks if restarts.get(each.role) != "ignore"] or world.ranks
        return all(each.node in have_ended and each.rank not in tally.again for each in counting)

    def _succeeds_after_all(self, now: float) -> RestartWorkers | Finish | None:
        """Let the run succeed instead of what was to follow the stop."""
        decision = self.decides(Seen(trigger=Trigger.SUCCEEDED), now)
        if isinstance(decision, Finish):
            self.root_cause = self._failed_role = self._loss = None
            self.verdict.settle(decision)
        return self.verdict.decision

    def _observed(self, tally: Tally, failure: FailureRecord, now: float) -> list[ObservedFailure]:
        """Return the failures of the roles that were stopped and are not ignored, as the head heard of them."""
        ignored = {role for role, restart in self._settings.restarts.items() if restart == "ignore"}
        roles = self.verdict.roles
        heard = [
            each
            for each in tally.observed()
            if each.failure.role not in ignored and (roles is None or each.failure.role in roles)
        ]
        return heard or [ObservedFailure(failure=failure, at=now)]

    def _store_of(self, role: str) -> str:
        """Return the name of the store in which the ranks of a role meet: their own, or the one of all other roles."""
        return role if self._settings.restarts.get(role) == "restart_role" else ""

    def _stopped_ranks(self, tally: Tally, counts: Callable[[WorldRank], bool]) -> StoppedRanks:
        """Return the ranks that were stopped, of those that count."""
        world, roles, lost = self._members.world, self.verdict.roles, self._members.losses.nodes
        if world is None:
            return StoppedRanks(nodes={})
        ranks = [each for each in world.ranks if each.node not in lost and counts(each)]
        is_stopped = (each for each in ranks if roles is None or each.role in roles)
        return StoppedRanks(
            nodes={each.rank: each.node for each in is_stopped},
            succeeded=frozenset(tally.succeeded),
            waiting=frozenset(tally.waiting),
            paused=frozenset(tally.paused),
        )

    @property
    def can_resume(self) -> bool:
        """Return whether the run is to end only because too few nodes are left, so that their return would save it."""
        decision = self.verdict.decision
        return isinstance(decision, Finish) and decision.reason in TOO_FEW

    def resumes(self, now: float) -> bool:
        """Return whether a run that was to end for lack of nodes can go on, now that enough nodes are back.

        If it cannot, the nodes that are here are not the reason any more: the run ends because it has lost too many.
        """
        if not self.can_resume:
            return False
        back = Seen(trigger=Trigger.NODE_LOST, detail="enough nodes are back")
        if not isinstance(self.decides(back, now), RestartWorkers):
            self._blame_count(now)
            return False
        self.because = back.detail
        if self._loss is not None:  # that it left too few is not so any more
            lost = self._with_all_counted(self._loss)
            decision = self.decides(lost, now)
            if isinstance(decision, RestartWorkers):
                self.root_cause = _cause_in(lost, decision, self.history.attempts)
        return True

    def names_all_lost(self, now: float) -> None:
        """End a run, for which the first of several losses had left too few nodes, for all of them."""
        if not self.can_resume or self._loss is None:
            return
        losses = self._members.losses
        first = tuple(node for node in self._loss.nodes if losses.is_lost(node))  # those that are not back
        is_dead = self._loss.is_agent_dead and losses.are_dead
        seen = replace(self._loss, nodes=first, is_agent_dead=is_dead)
        decision = self.decides(seen, now)
        if isinstance(decision, Finish):
            self.verdict.settle(decision)
            self.root_cause = _cause_in(self._with_all_lost(seen), decision, self.history.attempts)

    def _blame_count(self, now: float) -> None:
        """End the run because it has lost too many nodes, as enough of them are back.

        Where a round found too few first, none of the losses was what the run was to end for.
        """
        seen = self._with_all_counted(self._loss or _MISSED)
        decision = self.decides(seen, now)
        if isinstance(decision, Finish):
            self.verdict.settle(decision)
            self.root_cause = _cause_in(seen, decision, self.history.attempts)

    def _with_all_counted(self, loss: Seen) -> Seen:
        """Return the loss of a node with all nodes of the latest world that were lost, also those that are back."""
        losses = self._members.losses
        return replace(loss, nodes=losses.counted or loss.nodes, is_agent_dead=loss.is_agent_dead and losses.are_dead)

    def decides(self, seen: Seen, now: float, *, is_settled: bool = False, step: int | None = None) -> Decision:
        """Return the policy's decision about an event that the head saw.

        Args:
            seen: the event.
            now: monotonic seconds.
            is_settled: whether its cause is known, because every node has stopped its workers.
            step: the furthest step that a heartbeat of the attempt named, known by then; None if none did.
        """
        is_enough, lost = self._members.gathering.can_be_enough(), self._with_all_lost(seen)
        observation = Observation(
            trigger=seen.trigger,
            attempt=self.history.attempts,
            role=seen.role,
            nodes=lost.nodes,
            detail=lost.detail,
            failure=seen.failure,
            progress=self.progress,
            step=step,
            is_enough=is_enough,
            node_losses=self._members.losses.count_if_back(len(self._members.roster)),
            is_settled=is_settled or seen.trigger is not Trigger.WORKER_FAILED,
            notice=seen.notice,
            stop=seen.stop,
            may_savers_finish=seen.is_agent_dead and self._members.are_others_too_few(),
        )
        # What has failed since the latest claim is no failure before this one that could have come again.
        before = replace(
            self.history,
            failure_signature=self._claimed.failure_signature,
            same_failures=self._claimed.same_failures,
            progress=self._claimed.progress,
            step=self._claimed.step,
        )
        return self._decide(before, observation, now)

    def blames(self) -> list[Action]:
        """Set the node aside on which the cause was, if the failure would most likely come again there."""
        cause = self.root_cause
        if self.verdict.is_final or cause is None or not cause.node or cause.node in self.aside:
            return []
        if not fails_again_there(cause.failure_class):
            return []
        seats, attempt = self._members.roster.seats(), self.history.attempts
        blamed = SetAside(node=cause.node, why=cause.line, allocation=self._settings.allocation)
        self.history = replace(self.history, set_aside=blame(self.history.set_aside, blamed))
        told = self.aside.add(cause.node, f"blamed: {cause.line}", seats, attempt)
        if told is None:  # the next allocation may have enough others
            text = f"{cause.node} is to blame, but too few other nodes are here; the run goes on there"
            return [Log(text=text, level="warning")]
        self.verdict.widen()  # a restart of some roles would keep its place
        return told

    def restarts(self, decision: RestartWorkers) -> None:
        """Charge a restart to the budget, once the workers are stopped for it."""
        history = self.history
        if decision.history.spend.restarts > history.spend.restarts:  # else the last failure stays what it was
            self.history = replace(
                decision.history,
                attempts=history.attempts,
                set_aside=history.set_aside,
                lost_nodes=history.lost_nodes,
            )
        if _is_failure(history, decision.history, self.root_cause):
            self.states.failed_again(self._failed_role, self.history.states, decision.history.failure_signature)
        self.because = decision.reason

    def succeeds(self, succession: Succession, absent: tuple[str, ...], now: float) -> Finish | None:
        """Decide about the loss of the predecessor and of the members that did not join this head, its successor.

        Returns:
            The decision if it ends the run, else None: this head goes on without the absent nodes.
        """
        nodes = absent or (succession.world.head,)
        lost, is_dead = succession.lost, succession.lost.is_dead and not absent
        seen = Seen(trigger=Trigger.NODE_LOST, nodes=nodes, detail=lost.why, is_agent_dead=is_dead)
        decision = self.decides(seen, now)
        if isinstance(decision, Finish):
            self.takes(seen, decision)
            return decision
        if isinstance(decision, RestartWorkers):
            self.root_cause = _cause_in(seen, decision, self.history.attempts)
            self.restarts(decision)
        return None

    @property
    def charged(self) -> History:
        """The history with all that is charged so far, of which the latest claim may not have all.

        Losses are charged with the next claim, or where they end the allocation; a node that is lost while the
        allocation ends for another reason has only left before the others.
        """
        decision = self.verdict.decision
        is_end_by_loss = isinstance(decision, Finish) and decision.reason in (*TOO_FEW, "setup_failed")
        return self._with_losses() if is_end_by_loss else self.history

    def counts_losses(self) -> list[Action]:
        """Charge the losses of the latest world to the run, once it is known who is lost from it and who is back.

        Returns:
            What sets those nodes aside that were lost before.
        """
        before, self.history = self.history, self._with_losses()
        self._members.losses.begin_attempt()
        actions: list[Action] = []
        for each in self.history.set_aside:
            if each not in before.set_aside and each.node not in self.aside:
                actions += self.aside.add(each.node, f"blamed: {each.why}", None, before.attempts) or []
        return actions

    def _with_losses(self) -> History:
        losses, allocation = self._members.losses, self._settings.allocation
        nodes = losses.at_fault(self._members.roster.names())
        lost = count_lost(self.history.lost_nodes, nodes, allocation)
        return replace(
            self.history,
            spend=replace(self.history.spend, node_losses=losses.count),
            lost_nodes=lost,
            set_aside=blame_lost(self.history.set_aside, lost, nodes),
        )

    def prepare_attempt(self) -> tuple[AttemptClaim, World]:
        """Return the claim and the world of the next attempt, made of the nodes that have joined."""
        members = self._members
        self.before, roles, everybody = members.world, self.verdict.roles, members.roster.seats(with_unhealthy=True)
        # While some roles run on, every node keeps its place, an unhealthy one too.
        seats = everybody
        if roles is None:
            back = () if self.before is None else members.called_back()
            here = members.roster.seats(called_back=back)
            seats = list(self.aside.leave_out(here, is_first=self.before is None))
        why, self.root_cause = self.root_cause, None  # what is seen while the claim is made ends the attempt it is for
        claim, world = open_attempt(self._settings, self.history, seats, self.because, self.before, roles, why)
        members.world = world = replace(members.job_end.noted_in(world), spares=spares_beside(world, everybody))
        return with_candidates(self.states.choose(claim, world, self.history.states), world), world

    def attempt_claimed(self, attempt: int) -> None:
        """Count an attempt that this head has claimed."""
        states = self.states.attempt_claimed(self.history.failure_signature)
        self.history = self._claimed = replace(self.history, attempts=attempt, states=states)

    def flushes(self, exit_code: int, *, within_s: float | None = None) -> dict[str, Flush]:
        """Return which training states are written as the allocation ends with this exit code, by node, and how long.

        None are after a success, and after an end for which the job does not want them.
        """
        if not isinstance(self.verdict.decision, Finish) or exit_code == ExitCode.SUCCESS:
            return {}
        ends = {int(ExitCode.REQUEUE): "requeue", int(ExitCode.STOPPED): "cancel"}
        if ends.get(exit_code, "failure") not in self._settings.flush_after:
            return {}
        return self.states.flushes(self.history.attempts, within_s=within_s)

    def result(self, tally: Tally) -> RunResultRecord:
        """Return the run's result, as decided.

        Raises:
            TypeError: no end of the run is decided.
        """
        if not isinstance(self.verdict.decision, Finish):
            raise TypeError(f"the run goes on: {self.verdict.decision}")
        members, decision = self._members, self.verdict.decision
        running = tuple(members.roster.unfinished.of())
        return run_result(self._settings, self.history, decision, members.world, tally, running, self.root_cause)


def _is_failure(before: History, after: History, cause: RootCause | None) -> bool:
    """Return whether a restart is charged for a failure whose reason can be in the state that was begun with.

    A signal from outside is none.
    """
    is_outside = cause is not None and cause.failure_class == FailureClass.SIGNAL.value
    return after.spend.restarts > before.spend.restarts and after.failure_signature is not None and not is_outside


def _cause_in(seen: Seen, decision: RestartWorkers | Finish, attempt: int) -> RootCause | None:
    """Return the root cause that an event is by itself; None if it is no failure, or one that is not settled."""
    failure_class = FailureClass.AGENT_LOST if seen.is_agent_dead else _CLASSES.get(seen.trigger)
    if failure_class is None or (seen.trigger is Trigger.NODE_LOST and not seen.nodes):  # this head stood still
        return None
    return RootCause(
        attempt=attempt,
        failure_class=failure_class.value,
        line=decision.cause if isinstance(decision, Finish) else decision.reason,
        node=seen.nodes[0] if len(seen.nodes) == 1 else "",
        nodes=seen.nodes if len(seen.nodes) > 1 else (),
    )
