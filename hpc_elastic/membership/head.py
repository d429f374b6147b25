"""The head: gathers the members, opens attempts, and decides from the reports of all members.

Theory of operation. `phases` has the phases and their order; `opening` has the steps from a closed round to running
workers, `quorum` the wait where too few nodes are left, `closing` the end. Before any worker starts, the attempt's
claim is on disk: it carries the spend, so a budget is never counted twice, and only one head
can have it. While workers stop, a Finish can still replace a restart, and a restart can be
widened to more roles.

When a member is lost, the workers of all members are stopped at once, for the lost member may be about to go on
without this head; `losses` says when the next attempt may start, and how long a run with too few nodes left must
not be ended, because the lost nodes may be enough to go on.

A restart may be for some roles only. Then the phases STOPPING to CLAIMING apply to those roles, and the workers of
the other roles run on in their own, older attempt; each member's reports are compared with its own attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpc_elastic.errors import ExitCode
from hpc_elastic.hostlist import name_some
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, Drop, Log, Note, SendToMember, WriteResult
from hpc_elastic.membership.admission import unfit_note
from hpc_elastic.membership.at_fault import NodesAtFault
from hpc_elastic.membership.barriers import Barriers
from hpc_elastic.membership.closing import Closing
from hpc_elastic.membership.decisions import Decide, Finish, History, Ignore, RestartWorkers, Trigger
from hpc_elastic.membership.gathering import Gathering, timeout_announcement
from hpc_elastic.membership.held_timeouts import HeldTimeouts
from hpc_elastic.membership.judge import Judge, Seen, end_seen, overdue_seen, seen_in
from hpc_elastic.membership.members import Members, drop
from hpc_elastic.membership.notice_rounds import NoticeRounds
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.opening import Opening
from hpc_elastic.membership.operator_stop import OperatorStop, PendingStop
from hpc_elastic.membership.own_node import OwnNode
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.quorum import QuorumWait
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.membership.rounds import (
    HeadSettings,
    announcement,
    charged_in,
    loss_note,
    observation_note,
    stops,
)
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.tally import Tally
from hpc_elastic.membership.timing import YIELDS_BEFORE_S
from hpc_elastic.membership.unfit import UnfitNodes
from hpc_elastic.rundir.records import Charged, World
from hpc_elastic.rundir.state_records import KeptState

NEVER = float("inf")
ENDING = HeadPhase.CLOSING, HeadPhase.OVER


class Head:
    """The head of one allocation.

    Args:
        settings: the values that stay the same while this agent is head.
        history: the run so far, from its latest claim.
        decide: the policy.
        now: monotonic seconds, as in every method.
        succession: the head whose place this one takes, if it does.
        kept: the training states that the run directory had when the allocation began.
    """

    def __init__(
        self,
        settings: HeadSettings,
        *,
        history: History,
        decide: Decide,
        now: float,
        succession: Succession | None = None,
        kept: Sequence[KeptState] = (),
    ) -> None:
        self._settings = settings
        self._members = Members(settings, node_losses=history.spend.node_losses, now=now, succession=succession)
        self._roster = self._members.roster
        self._judge = Judge(settings, history, decide, self._members, kept)
        self.gathering.set_aside = lambda: self._judge.aside.nodes
        self._tally = Tally()
        self._notices = NoticeRounds(self._roster, settings.restarts)
        self._pending_stop = PendingStop()
        self._barriers = Barriers(self._roster, settings)
        self._closing = Closing(settings, self._members, self._judge)
        self._unfit = UnfitNodes(self._roster)
        self.at_fault = NodesAtFault(settings, self._members, self._judge, self._unfit)
        self._opening = Opening(settings, self._members, self._judge, self._notices)
        self._quorum = QuorumWait(settings, self._members, self._judge)
        self._resume_at = -NEVER
        self._has_opened = False  # the latest attempt
        self._held = HeldTimeouts()
        self._own_node = OwnNode(settings, self._roster, self._members.leases)
        self._opens_at = now + settings.timing.starts_again_after_s if settings.may_predecessor_live else -NEVER
        self._start_gathering(now)

    def _start_gathering(self, now: float) -> None:
        self.phase = HeadPhase.GATHERING
        self._judge.verdict.gathers()
        self.gathering.begin(now)

    @property
    def gathering(self) -> Gathering:
        """Return the round that gathers the members."""
        return self._members.gathering

    @property
    def attempt(self) -> int:
        """Return the number of the run's latest attempt; 0 before the first."""
        return self._judge.history.attempts

    @property
    def _noted_attempt(self) -> int:
        """Return the attempt that an event is of: the one that is being claimed, else the latest one.

        Its claim may be on disk by now, for whoever reads the run; it names the nodes that are lost meanwhile.
        """
        return self.attempt + (self.phase is HeadPhase.CLAIMING)

    @property
    def running(self) -> World | None:
        """Return the world whose workers run, None while any of them are stopped or start."""
        return self._members.world if self.phase is HeadPhase.RUNNING else None

    @property
    def is_at_first(self) -> bool:
        """Return whether this head gathers for the first attempt of its allocation; any thread may ask."""
        return self.phase is HeadPhase.GATHERING and not self.gathering.has_world

    @property
    def is_awaited(self) -> bool:
        """Return whether nodes that this head has lost might end the run before it goes on; any thread may ask.

        It has opened the latest attempt, and opens the next one or ends the run: others need to know that it is there.
        """
        is_between = self._has_opened and self.phase not in (HeadPhase.RUNNING, *ENDING)
        return is_between and self._members.losses.may_live

    @property
    def awaits_quorum_for_another(self) -> bool:
        """Return whether this head would end a run for want of nodes whose latest attempt another one has opened."""
        return self.phase is HeadPhase.AWAITING_QUORUM and not self._has_opened

    def other_is_present(self, now: float) -> list[Action]:
        """Handle a word of the head that has opened the latest attempt: it is there, and ends the run if need be."""
        if self.awaits_quorum_for_another:
            self._quorum.prolong(now)
        return []

    def yields(
        self, to: str, allocation: int, now: float, *, relieves: str = "", is_reached: bool = False
    ) -> list[Action]:
        """Step down for another head of this start, which has claimed a later allocation, if too few nodes are here.

        It may have taken this head for lost while nodes were still to come; each would wait for the other's nodes. One
        that relieves this head may reach no other node either: as long as nodes may come that make enough, both wait.

        Args:
            to: the other head's node.
            allocation: what it has claimed.
            now: monotonic seconds.
            relieves: the first head, if most nodes could not reach that one.
            is_reached: its agent has just answered here, so that the nodes here can go there, however many they are.
        """
        if not self.is_at_first or (self.gathering.is_enough() and not is_reached):
            return []
        if relieves == self._settings.node and self.gathering.goes_on(now + YIELDS_BEFORE_S):
            return []
        return self.superseded(f"{to} is head, too, and has claimed allocation {allocation}")

    @property
    def charged(self) -> Charged:
        """Return what is charged so far, of which the latest claim may not have all."""
        return charged_in(self._judge.charged)

    @property
    def charged_without_losses(self) -> Charged:
        """Return the same for an allocation that the scheduler has ended: who is lost has left before the others."""
        return charged_in(self._judge.history)

    def next_tick(self) -> float:
        """Return when `tick` must be called at the latest, in monotonic seconds."""
        phase, in_this_phase = self.phase, NEVER
        if phase is HeadPhase.RUNNING:
            in_this_phase = min(self._barriers.next_tick(), self._held.until)
        elif phase is HeadPhase.GATHERING and self._unfit.are_there:
            in_this_phase = self._unfit.next_tick  # the round is not closed any more
        elif phase is HeadPhase.GATHERING:
            in_this_phase = self.gathering.next_tick() if self._opens_at == -NEVER else self._opens_at
        elif phase is HeadPhase.PAUSING:
            in_this_phase = self._restarts_at
        elif phase is HeadPhase.AWAITING_QUORUM:
            in_this_phase = self._quorum.until
        return min(self._members.leases.next_tick, self._closing.next_tick, self._pending_stop.due_at, in_this_phase)

    def fence_deadline(self) -> float:
        """Return until when this node's workers may run without another check of the leases; the guard gets the same.

        The time is in monotonic seconds.
        """
        return NEVER if self.phase in ENDING else self._own_node.deadline

    # Events of members.

    def refusal(self, join: messages.Join) -> messages.Refused | None:
        """Return what to answer an agent that cannot join, None if it can.

        Who comes while a result is to be written joins: the run may yet go on, here in another start of the job, or
        under another head, and the exit code is known only then.
        """
        if self.phase is HeadPhase.OVER or self._closing.has_begun:
            return messages.Refused(reason="the run is over", exit_code=self._closing.exit_code)
        return self.gathering.refusal(join)

    def joined(self, join: messages.Join, now: float) -> list[Action]:
        """Handle the Join of an agent that is not refused."""
        is_late = self.phase is not HeadPhase.GATHERING
        actions = self._members.admit(join, now, is_late=is_late, attempt=self._noted_attempt)
        if self.phase in ENDING:  # it leaves in a moment, or finds another head
            return [action for action in actions if not isinstance(action, Note)]
        if self._roster.get(join.node) is None:
            return actions
        actions += self._resume(now)
        if join.problem is not None:
            return actions + self._without(join, now)
        return actions + self._grow(now) + self._gather(now)

    def _without(self, join: messages.Join, now: float) -> list[Action]:
        """Handle a node that cannot take part: go on without it if enough nodes remain and it is not the head's own."""
        if not self._unfit.are_there and (dismissed := self._members.dismiss(join, now, self.attempt)) is not None:
            self._unfit.left_out(join)
            return dismissed + self._gather(now)
        self._unfit.add(join, now)
        return [unfit_note(join, self.attempt), *self._gather(now)]

    def _grow(self, now: float) -> list[Action]:
        taken = self._members.take_newcomers() if self.phase is HeadPhase.RUNNING else ()
        newcomers = tuple(node for node in taken if node not in self._judge.aside)
        return [] if not newcomers else self._observe(Seen(trigger=Trigger.NODE_JOINED, nodes=newcomers), now)

    def received(self, node: str, message: messages.Message, now: float) -> list[Action]:
        """Handle a message from a member."""
        member = self._roster.get(node)
        if member is None:
            return [Drop(node=node)]
        if isinstance(message, messages.Beat):
            member.lease.beat(message, now)
            return [SendToMember(node=node, message=messages.Echo(number=message.number))]
        if isinstance(message, messages.REPORTS):
            is_news = message.attempt == member.attempt and member.is_in_world
            return self._reported(member, message, now) if is_news else []
        if isinstance(message, messages.Terminated):
            return self._end_for(seen_in(member, message), now)
        if isinstance(message, messages.Health):
            return self._examined(member, message.problem, now)
        if isinstance(message, messages.NoticePolls):
            return self._notices.counted(member, message)
        if isinstance(message, messages.Dropped):
            return self.lost(node, f"it has lost this head: {message.reason}", now, is_gone=True, may_return=True)
        return [Log(text=f"{node} sent a {message.KIND}, which only a head sends"), Drop(node=node)]

    def _examined(self, member: RosterEntry, problem: str | None, now: float) -> list[Action]:
        """Handle what a member's health checks found: an unhealthy node is left out of the next attempt.

        A restart of some roles keeps the places of all nodes, so it is widened to all if a node is to lose its own.
        """
        actions = self._members.examined(member, problem, self._noted_attempt)
        if not actions:
            return []
        is_restarting = self.phase in (HeadPhase.STOPPING, HeadPhase.PAUSING) and self._members.is_in_world(member.node)
        if problem is not None and is_restarting and (widened := self._judge.verdict.widen()) is not None:
            return actions + self._stop(widened, now)
        return actions + self._resume(now) + self._grow(now) + self._gather(now)

    def lost(self, node: str, why: str, now: float, *, is_gone: bool, may_return: bool = False) -> list[Action]:
        """Handle the loss of a member.

        Args:
            node: the member's node.
            why: how it was lost, for the log.
            now: monotonic seconds.
            is_gone: it surely has no workers.
            may_return: its agent most likely lives.
        """
        actions = self._lose(node, why, now, is_gone=is_gone, may_return=may_return)
        return actions + self._gather(now) if actions else []

    def _lose(self, node: str, why: str, now: float, *, is_gone: bool, may_return: bool) -> list[Action]:
        # Where this head stood still the next attempt names no node for it, nor one that has stood still with it and
        # says goodbye now; one that does not return is named if that ends the run.
        was_paused = may_return and self._own_node.has_just_woken(now)
        lost = self._members.lose(node, now, is_gone=is_gone, may_return=may_return, why=why)
        if lost is None:
            return []
        if not lost.has_left:
            self._closing.lost(node)
        if self.phase in ENDING:
            return self._left()
        actions: list[Action] = [loss_note(node, why, self._noted_attempt), *self._notices.lost(node)]
        if lost.may_live and self._members.is_in_world(node):  # it may take this head's place
            self._own_node.fences_for(lost.entry.lease, now)
            actions += self._members.fence() if self._judge.verdict.is_final else []
        if self._members.lacks(lost.entry, is_gathering=self.phase is HeadPhase.GATHERING):
            nodes = () if was_paused and self.gathering.can_be_enough() else (node,)
            detail = why if nodes else self._own_node.stood_still
            seen = Seen(trigger=Trigger.NODE_LOST, nodes=nodes, detail=detail, is_agent_dead=lost.is_dead)
            actions += self._observe(seen, now)
        else:
            actions.append(Log(text=f"{node} is lost: {why}; the run does without it", level="warning"))
        return actions + self._check_stopped(now)

    # Events of people and of the run directory.

    def stop_requested(self, by: str, now: float) -> list[Action]:
        """Handle a person's request to end the run."""
        return self._end_for(Seen(trigger=Trigger.STOP_REQUESTED, detail=by), now)

    def stop_announced(self, stop: OperatorStop, now: float) -> list[Action]:
        """Handle a person's request to tell the workers of the end, and to stop them when their time is over."""
        if self.phase in ENDING:
            return []
        has_workers = any(self._roster.in_world())
        self._pending_stop.announce(stop, now, has_workers=has_workers)
        notice = NoticeGiven(reason="operator", seconds_left=stop.seconds_left, by=stop.by)
        told = self.notice_given(notice, now) if has_workers else []
        return told + self._stop_if_due(now)

    def _stop_if_due(self, now: float) -> list[Action]:
        stop = self._pending_stop.take_due(now)
        if stop is None:
            return []
        return self._end_for(Seen(trigger=Trigger.STOP_REQUESTED, detail=stop.by, stop=stop), now)

    def _end_for(self, seen: Seen | None, now: float) -> list[Action]:
        """End the run, or its allocation, for a person or the scheduler, also where it was to end for want of nodes.

        It would have gone on if they had come back; whether it goes on in another start is decided by this end. A head
        that is cut off from one that goes on ends nothing: perhaps it alone is told, as its machine shuts down.
        """
        if self.awaits_quorum_for_another and now < self._quorum.other_until:
            return self.superseded("the head of the latest attempt is there")
        if self._judge.is_short_of_nodes and self.phase not in (HeadPhase.CLOSING, HeadPhase.OVER):
            self._judge.verdict.gathers()
        return self._observe(seen, now)

    def restart_requested(self, by: str, now: float) -> list[Action]:
        """Handle a person's request to start the workers again; it costs no restart of the budget."""
        if self.phase is not HeadPhase.RUNNING:
            text = f"{by} asked for a restart, but no attempt is at work; nothing was done"
            return [Log(text=text, level="warning")]
        return self._observe(Seen(trigger=Trigger.RESTART_REQUESTED, detail=by), now)

    def drain_requested(self, node: str, by: str, now: float) -> list[Action]:
        """Handle a person's request to use a node no more; it costs nothing of the budget."""
        if node not in self._settings.expected:
            text = f"{by} asked to drain {node}, which is none of the job's nodes: {name_some(self._settings.expected)}"
            return [Log(text=text, level="warning")]
        if self.phase in ENDING or node in self._judge.aside:
            return []
        seats = None if self.phase is HeadPhase.GATHERING else self._roster.seats()  # more are to come
        told = self._judge.aside.add(node, f"drained by {by}", seats, self._noted_attempt)
        if told is None:
            text = f"{by} asked to drain {node}, but too few other nodes are here; nothing was done"
            return [Log(text=text, level="warning")]
        if not self._members.is_in_world(node):
            return told
        if self.phase in (HeadPhase.CLAIMING, HeadPhase.RUNNING):
            return told + self._observe(Seen(trigger=Trigger.DRAIN_REQUESTED, nodes=(node,), detail=by), now)
        if self.phase in (HeadPhase.STOPPING, HeadPhase.PAUSING) and (widened := self._judge.verdict.widen()):
            return told + self._stop(widened, now)
        return told

    def notice_given(self, notice: NoticeGiven, now: float) -> list[Action]:
        """Pass on that the workers will be stopped soon; nothing is stopped. It stands for later attempts as well."""
        if self.phase in ENDING:
            return []
        return self._notices.give(notice, self._noted_attempt, now)

    def job_ends(self, trigger: Trigger, why: str, now: float) -> list[Action]:
        """Stop the workers because the scheduler is about to end the job, while there is time to save."""
        return self._end_for(Seen(trigger=trigger, detail=why, stop=self._pending_stop.asked), now)

    def progress_seen(self, progress: str | None) -> None:
        """Keep the present digest of the progress files, by which later failures are judged."""
        self._judge.progress = progress

    def claimed(self, attempt: int, is_ours: bool, world_digest: str, now: float) -> list[Action]:
        """Handle the outcome of a ClaimAttempt: this head has the claim, or another head has it."""
        world, judge = self._members.world, self._judge
        if self.phase is not HeadPhase.CLAIMING or world is None or world.attempt != attempt:
            return []
        if not is_ours:
            return self.superseded(f"another head has opened attempt {attempt}")
        judge.attempt_claimed(attempt)
        self._has_opened = True
        self._tally.forget(world)  # also where it starts no workers: its ranks need not be those of the one before
        if judge.verdict.decision is not None:
            return self._stop(judge.verdict.decision, now)
        self.phase = HeadPhase.RUNNING
        self._own_node.has_fenced()  # no member lost before can have opened this attempt
        judge.verdict.attempt_opened()
        self._members.begin(now)
        self._barriers.begin(now)
        return self._opening.assign(world, world_digest, now) + self._grow(now)

    def superseded(self, reason: str) -> list[Action]:
        """Step down, with all members dropped: another head goes on with the run, or has ended it."""
        if self.phase is HeadPhase.OVER:
            return []
        self.phase = HeadPhase.OVER
        return self._members.superseded(reason, self.attempt)

    def disk_failed(self, error: str, now: float) -> list[Action]:
        """Tell all members to leave, because the run directory cannot be written: no attempt may start unclaimed."""
        self.phase = HeadPhase.CLOSING
        told = self._closing.begin(int(ExitCode.RUN_DIRECTORY), error, now, is_settled=False)
        return [Log(text=error, level="error"), *told, *self._left()]

    def result_written(
        self, exit_code: int, cause: str, now: float, *, flushes_within_s: float | None = None
    ) -> list[Action]:
        """Tell all members to leave, with this exit code and cause.

        The run's result is on disk, or there is none, because the run goes on.

        Args:
            exit_code: the exit code with which they leave.
            cause: why the run ends.
            now: monotonic seconds.
            flushes_within_s: how long they may write training states; None: nothing has to follow before the job's end.
        """
        self.phase = HeadPhase.CLOSING
        told = self._closing.begin(exit_code, cause, now, flushes_within_s=flushes_within_s)
        return [Log(text=cause, level="error" if exit_code else "info"), *told, *self._left()]

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due at the time `now`."""
        actions = self._check_leases(now) if now >= self._members.leases.next_tick else []
        actions += self._stop_if_due(now) + self.gathering.refused_late(self._noted_attempt)
        if self.phase is HeadPhase.RUNNING:
            if now >= self._barriers.next_tick():
                actions += self._check_barriers(now)
            actions += self._observe(self._held.due(now), now)
        if self.phase is HeadPhase.GATHERING:
            if now >= self._opens_at and not self._unfit.are_there:
                self._opens_at = -NEVER
                actions += self.gathering.reminder(now)
            actions += self._gather(now)
        elif self.phase is HeadPhase.PAUSING and now >= self._restarts_at:
            self._start_gathering(now)
            actions += self._gather(now)
        elif self.phase is HeadPhase.AWAITING_QUORUM and now >= self._quorum.until:
            actions += self._end_for_want(now)
        elif self.phase is HeadPhase.CLOSING:
            actions += self._closing.tick(now) + self._left()
        return actions

    def _check_leases(self, now: float) -> list[Action]:
        leases, own_node = self._members.leases, self._own_node
        actions = leases.questions(now)
        because, why = own_node.why_late(now), f"no answer for {self._settings.lease_s:.3g} s"
        may_be_killed = own_node.may_be_killed(now)
        paused_s = leases.paused_s(now)  # then this process was silent, not the members, and they may be back soon
        if paused_s:
            own_node.woke(now)
            self.gathering.woke(now, paused_s)
        silent = leases.tick(now)
        for node in silent:  # the round closes below, without all of them
            lost = self._lose(node, because if paused_s else why, now, is_gone=False, may_return=paused_s > 0)
            actions += [*lost, *drop(node, why)]
        if may_be_killed and own_node.has_workers(but=self._judge.verdict.roles):
            actions += self._observe(Seen(trigger=Trigger.NODE_LOST, nodes=(), detail=because), now)
        return actions

    def _gather(self, now: float) -> list[Action]:
        """Close the round if every node that can join has joined, or the time is up."""
        if self.phase is HeadPhase.GATHERING and self._unfit.are_there:
            return self._observe(self._unfit.settled(now), now)
        if self.phase is not HeadPhase.GATHERING or now < self._opens_at:
            return []
        keeps_places = self._judge.verdict.roles is not None  # of all nodes, and an unhealthy one is at work
        if not keeps_places and not self.gathering.is_closed(now):
            return []
        if self.gathering.succession is not None and (ended := self._succeed(self.gathering.succession, now)):
            return ended
        if not keeps_places and (lost := self.gathering.give_up_returns(now)):
            self._members.losses.settle()
            return self._observe(Seen(trigger=Trigger.NODE_LOST, nodes=lost, detail="no return in time"), now)
        if not keeps_places and (too_few := self.gathering.too_few(now)) is not None:
            said = [*timeout_announcement(too_few, self.attempt), *self.gathering.absent(too_few.missing, self.attempt)]
            return said + self._observe(Seen(trigger=Trigger.NODES_MISSING, detail=too_few.message), now)
        if (end := self._opening.settle(now)) is not None:
            return self._end_unopened(end, now)
        claimed = self._opening.claim()
        self.phase = HeadPhase.CLAIMING
        return claimed

    def _succeed(self, succession: Succession, now: float) -> list[Action]:
        """Take over from the lost head when a successor's round is closed; return the run's end if that ends it."""
        absent = self._members.losses.succeed(succession, self._roster.names(), self._settings.expected, now)
        self.gathering.succeeds()
        if succession.is_finished:
            return self._observe(Seen(trigger=Trigger.SUCCEEDED), now)
        decision = self._judge.succeeds(succession, absent, now)
        return self._end_unopened(decision, now) if decision is not None else []

    def _end_unopened(self, end: Finish, now: float) -> list[Action]:
        """End the run as decided in place of opening the next attempt."""
        return [*announcement(end, self.attempt), *self._after_stop(now)]

    # Running and stopping.

    def _reported(self, member: RosterEntry, message: messages.Report, now: float) -> list[Action]:
        self._roster.reported(member, message)
        self._tally.record(message, now)
        if isinstance(message, messages.Stopped):
            return self._observe(seen_in(member, message), now) + self._check_stopped(now)
        if isinstance(message, messages.Broken) and message.state is not None:
            self._judge.states.misses(member.role, message.state)
        if isinstance(message, (messages.Failed, messages.Broken)):
            return self._observe(seen_in(member, message), now)
        if isinstance(message, messages.Ended):
            self._barriers.ended(member.role, now)
        if self.phase is not HeadPhase.RUNNING:
            return []
        if isinstance(message, messages.Finished) and not any(self._roster.unfinished.of()):
            return self._observe(self._end_seen(), now)
        text = self._barriers.started(now)
        return [] if text is None else [Note(name="attempt.started", message=text, attempt=self.attempt)]

    def _end_seen(self) -> Seen:
        return end_seen(self._tally, self._notices.reason, self._pending_stop.asked)

    def _observe(self, seen: Seen | None, now: float) -> list[Action]:
        """Decide about an event and begin to act on it, unless a decision that stands covers it already."""
        verdict = self._judge.verdict
        if seen is None or verdict.is_final or self.phase in ENDING:
            return []
        decision = self._judge.decides(seen, now)
        if isinstance(decision, Ignore):
            return announcement(decision, self._noted_attempt)
        if self._is_held_back(seen, now):
            return []
        held = self._held.take()
        actions = self._act_on(seen, decision, now)
        for each in held:  # of other roles, which the decision need not be about
            actions += self._observe(each, now) if each is not seen else []
        return actions

    def _act_on(self, seen: Seen, decision: RestartWorkers | Finish, now: float) -> list[Action]:
        standing = self._judge.takes(seen, decision)
        if standing is None:
            return []
        # Ranks that outlast exit_timeout may still save: they are stopped first, as the job ends soon after its result.
        is_end = seen.trigger in (Trigger.NOTICE_TAKEN, Trigger.SUCCEEDED)
        if isinstance(standing, Finish) and is_end and not any(self._roster.unfinished.of()):
            return self._after_stop(now)
        failure = self._judge.observed
        is_opening = self.phase is HeadPhase.CLAIMING  # then `claimed` carries the decision out
        if seen.trigger is Trigger.STATE_MISSING and isinstance(standing, RestartWorkers):
            told = announcement(replace(standing, reason=decision.reason), self._noted_attempt, is_opening=is_opening)
        elif failure is None:
            told = announcement(standing, self._noted_attempt, is_opening=is_opening)
        else:
            told = observation_note(failure, self._noted_attempt)
        return told if is_opening else told + self._stop(standing, now)

    def _is_held_back(self, seen: Seen, now: float) -> bool:
        """Hold a time-out back while ranks that have not failed may report theirs."""
        if self.running is None or len(self._tally.failures) >= len(self.running.ranks):
            return False
        return self._held.hold(seen, now)

    def _stop(self, decision: RestartWorkers | Finish, now: float) -> list[Action]:
        """Stop the workers that the decision is about; a member that is stopping already ignores a second Stop."""
        self.phase = HeadPhase.STOPPING
        return [*stops(self._stopping(), decision, self._judge.observed), *self._check_stopped(now)]

    def _stopping(self) -> Iterator[RosterEntry]:
        """Return the members whose workers must be gone before the decision can be carried out further."""
        return self._roster.unstopped.of(self._judge.verdict.roles)

    def _check_stopped(self, now: float) -> list[Action]:
        return self._after_stop(now) if self.phase is HeadPhase.STOPPING and not any(self._stopping()) else []

    def _check_barriers(self, now: float) -> list[Action]:
        said = (Log(text=text) for text in self._barriers.reminders(now))
        seen = overdue_seen(self._barriers.overdue(now))
        if seen is not None and self._tally.again:  # the others are stopped, but the run is not done
            seen = self._end_seen()
        return [*said, *self._observe(seen, now)]

    # Between attempts, and the end.

    def _after_stop(self, now: float) -> list[Action]:
        settled = self._judge.settles(self._tally, now)
        told = [] if settled is None else announcement(settled, self.attempt)
        told += self._judge.blames()
        decision = self._judge.verdict.decision
        if self.phase is HeadPhase.STOPPING and decision is not None and any(self._stopping()):
            # The cause concerns more than the roles that were stopped: the run ends, or a node loses its place.
            return [*told, *self._stop(decision, now)]
        return [*told, *self._carry_out(now)]

    def _carry_out(self, now: float) -> list[Action]:
        """Carry out the decision that stands, now that no worker is left that it is about."""
        self._own_node.has_fenced()
        decision = self._judge.verdict.decision
        if isinstance(decision, Finish):
            return self._await_quorum(now) if self._judge.is_short_of_nodes else self._finish()
        self._roster.unseat(self._judge.verdict.roles)
        self.phase = HeadPhase.PAUSING
        if isinstance(decision, RestartWorkers):
            self._judge.restarts(decision)
            self._tally.answer()
            self._resume_at = max(self._resume_at, decision.at)
            if now < self._restarts_at:
                return [Log(text=f"the next attempt starts in {self._restarts_at - now:.1f} s")]
        return self.tick(now)

    @property
    def _restarts_at(self) -> float:
        """Return when the next round may begin: earlier where the members are back that may have had workers."""
        return max(self._resume_at, self._members.losses.may_start_at)

    def _await_quorum(self, now: float) -> list[Action]:
        """Await a quorum: too few nodes are left here, but those that cannot be reached may be enough to go on."""
        self._roster.unseat(None)
        self.phase = HeadPhase.AWAITING_QUORUM
        return self._resume(now) or self._quorum.begin(now) or self._end_for_want(now)

    def _resume(self, now: float) -> list[Action]:
        """Go on with the run if enough nodes are back, once those that are not have surely fenced."""
        if self.phase is not HeadPhase.AWAITING_QUORUM:
            return []
        if not (told := self._quorum.resumes(now)):
            self._quorum.adjust(now)
            return []
        self._judge.verdict.gathers()
        self.phase = HeadPhase.PAUSING
        self._resume_at = now
        return [*told, *self.tick(now)]

    def _end_for_want(self, now: float) -> list[Action]:
        """End the run for want of nodes: who might have returned, and has not, counts as lost, and is named."""
        self._members.losses.settle()
        self._judge.names_all_lost(now)
        return self._finish()

    def _finish(self) -> list[Action]:
        self.phase = HeadPhase.CLOSING
        result = self._judge.result(self._tally)
        self._closing.exit_code = result.exit_code
        return [WriteResult(result=result)]

    def _left(self) -> list[Action]:
        if actions := self._closing.left():
            self.phase = HeadPhase.OVER
        return actions
