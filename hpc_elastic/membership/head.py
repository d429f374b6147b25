"""The head: gathers the members, opens attempts, and decides with everybody's reports.

Theory of operation. The head goes through phases:

    GATHERING --all expected joined, or join_timeout and at least `min`--> CLAIMING
    CLAIMING  --the claim is ours--> RUNNING
    RUNNING   --an observation--> STOPPING (with a Restart or a Finish decided)
    STOPPING  --every member of the world stopped or is lost--> PAUSING, YIELDING or CLOSING
    PAUSING   --the back-off is over, whoever is lost has fenced--> GATHERING
    YIELDING  --enough are back--> GATHERING; --nobody else went on in time--> CLOSING
    CLOSING   --the result is written and everybody told and gone--> OVER
    any       --another head has claimed the next attempt--> OVER, with Superseded

Before any worker starts, the attempt's claim is on disk: it carries the spend, so a budget is
never counted twice, and only one head in the world can have it. While workers stop, a Finish can
still replace a Restart, and a Restart can be widened to more roles.

A lost member stops everybody's workers at once, for the lost may be about to go on without this head;
`losses` says when the next attempt may start, and how long a run that has too few nodes left must
not be ended, because the others may have enough.

A Restart may be for some roles only. Then STOPPING to CLAIMING are theirs, and the workers of the
other roles run on in their own, older attempt: `_starting` has the roles that are stopped or being
stopped and start in the next attempt, and every member's reports are held against its own attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, ClaimAttempt, Drop, Note, Say, Send, Superseded, WriteResult
from hpc_elastic.membership.admission import admit, dismiss
from hpc_elastic.membership.barriers import Barriers
from hpc_elastic.membership.closing import Closing
from hpc_elastic.membership.decisions import Decide, Finish, History, Ignore, Observation, Restart, Trigger
from hpc_elastic.membership.gathering import Gathering, timeout_announcement
from hpc_elastic.membership.job_end import JobEnd
from hpc_elastic.membership.leases import Leases
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.messages import Message, StopManner
from hpc_elastic.membership.roster import Roster, RosterEntry
from hpc_elastic.membership.rounds import (
    HeadSettings,
    announcement,
    assignments,
    open_attempt,
    opening,
    run_result,
    starting_roles,
    stop_for,
)
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.tally import Tally
from hpc_elastic.membership.verdict import Verdict
from hpc_elastic.rundir.records import FailureRecord

NEVER = float("inf")
FENCED_WITHIN_S = 0.25  # else the guard does it


class Phase(str, Enum):
    """Where the head stands; the module's docstring has the transitions."""

    GATHERING = "gathering"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"
    YIELDING = "yielding"
    CLOSING = "closing"
    OVER = "over"


class Head:
    """The head of one allocation.

    Args:
        settings: what does not change.
        history: the run so far, from its latest claim.
        decide: the policy.
        now: monotonic seconds, as in every method.
        succession: the head whose place this one takes, if it does.
    """

    def __init__(
        self,
        settings: HeadSettings,
        *,
        history: History,
        decide: Decide,
        now: float,
        succession: Succession | None = None,
    ) -> None:
        self._settings = settings
        self._history = history
        self._decide = decide
        self._roster = Roster(settings.expected)
        self.gathering = Gathering(self._roster, settings, now, succession)
        self._world = succession.world if succession is not None else None
        self._verdict = Verdict()
        self._tally = Tally()
        self._barriers = Barriers(self._roster, settings)
        self._progress = history.progress
        self._opened_because = "first start" if history.attempts == 0 else "the run goes on in a new allocation"
        self._closing = Closing(self._roster)
        self._job_end = JobEnd(self._world, succession.lost if succession is not None else None)
        self._losses = Losses(settings.lease_s, history.spend.node_losses)
        self._leases = Leases(self._roster, settings, now)
        self._newcomers: set[str] = set()  # who came while a world with room was at work
        self._resume_at = -NEVER
        self._fenced_by = NEVER  # when a stop for a lost member must have killed this node's own workers
        self._start_gathering(now)

    def _start_gathering(self, now: float) -> None:
        self.phase = Phase.GATHERING
        self._verdict.gathers()
        self.gathering.begin(now)

    @property
    def attempt(self) -> int:
        """The latest attempt of the run; 0 before the first."""
        return self._history.attempts

    def next_tick(self) -> float:
        """When `tick` must be called at the latest, in monotonic seconds."""
        times = [self._leases.next_tick, self._closing.next_tick()]
        if self.phase is Phase.RUNNING:
            times.append(self._barriers.next_tick())
        if self.phase is Phase.GATHERING:
            times.append(self.gathering.next_tick())
        if self.phase in (Phase.PAUSING, Phase.YIELDING):
            times.append(self._resume_at)
        return min(times)

    def fence_deadline(self) -> float:
        """Until when this node's workers may run without another look at the leases; the guard is told the same."""
        return NEVER if self.phase in (Phase.CLOSING, Phase.OVER) else min(self._leases.deadline, self._fenced_by)

    # What members do.

    def refusal(self, join: messages.Join) -> messages.Refused | None:
        """What to answer an agent that cannot join, None if it can."""
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return messages.Refused(reason="the run is over", exit_code=self._closing.exit_code)
        return self.gathering.refusal(join)

    def joined(self, join: messages.Join, now: float) -> list[Action]:
        """An agent that is not refused connected and said who it is."""
        is_late = self.phase is not Phase.GATHERING
        welcome = messages.Welcome(
            allocation=self._settings.allocation,
            head=self._settings.node,
            is_late=is_late,
            gathers=self.gathering.succession is not None,
        )
        actions = admit(self._roster, join, now, welcome=welcome, attempt=self.attempt)
        if self._roster.get(join.node) is None:
            return actions
        if self._losses.returned(join.node):
            text = f"{join.node} is back"
            actions += [Say(text=text), Note(name="node.returned", message=text, attempt=self.attempt)]
        self._job_end.joined(join)
        if self.phase is Phase.YIELDING and self.gathering.is_enough():
            self._start_gathering(now)
        if is_late:
            self._newcomers.add(join.node)
            return actions + self._grow(now) + self._gather(now)
        if join.problem is not None:
            return actions + self._unfit(join, now)
        return actions + self._gather(now)

    def _unfit(self, join: messages.Join, now: float) -> list[Action]:
        """A node cannot take part: the others do without it if they can, unless it is the head's."""
        self._roster.remove(join.node)
        if self.gathering.can_be_enough() and join.node != self._settings.node:
            text = f"{join.node} cannot take part: {join.problem}; going on without it"
            return dismiss(join, text) + self._gather(now)
        self._roster.add(join, now)
        return self._observe(Trigger.NODE_UNFIT, now, nodes=(join.node,), detail=join.problem or "")

    def _grow(self, now: float) -> list[Action]:
        """Whoever came while a world with room is at work may be taken into it at once, but only once."""
        world = self._world
        if self._settings.rejoin != "immediately" or self.phase is not Phase.RUNNING or world is None:
            return []
        newcomers = sorted(self._newcomers & self._roster.names())
        if not newcomers or len(world.nodes) >= self._settings.max_nodes:
            return []
        self._newcomers.clear()
        return self._observe(Trigger.NODE_JOINED, now, nodes=tuple(newcomers))

    def received(self, node: str, message: Message, now: float) -> list[Action]:
        """A member sent something."""
        member = self._roster.get(node)
        if member is None:
            return [Drop(node=node)]
        if isinstance(message, messages.Beat):
            member.lease.beat(message, now)
            return [Send(node=node, message=messages.Echo(number=message.number))]
        if isinstance(message, messages.Terminated):
            return self._observe(Trigger.TERMINATED, now, member=member, detail=message.signal_name)
        if isinstance(message, messages.REPORTS):
            if message.attempt != member.attempt or not member.is_in_world:
                return []
            return self._reported(member, message, now)
        return [Say(text=f"{node} sent a {message.KIND}, which only a head sends"), Drop(node=node)]

    def lost(self, node: str, why: str, now: float, *, is_gone: bool) -> list[Action]:
        """A member's connection closed, or its lease ran out; `is_gone` if it surely has no workers."""
        member = self._roster.remove(node)
        if member is None:
            return []
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return self._left()
        is_in_world = self._world is not None and any(each.node == node for each in self._world.nodes)
        is_counted = is_in_world and self.gathering.succession is None
        self._losses.add(node, member.lease, now, is_gone=is_gone, is_counted=is_counted)
        self._job_end.lost(node, is_gone=is_gone)
        actions: list[Action] = [Note(name="node.lost", message=f"{node}: {why}", attempt=self.attempt)]
        if is_in_world and not is_gone:
            self._fenced_by = min(self._fenced_by, now + FENCED_WITHIN_S)
            actions += self._fence() if self._verdict.is_final else []
        if (is_in_world and self.phase is not Phase.GATHERING) or not self.gathering.can_be_enough():
            actions += self._observe(Trigger.NODE_LOST, now, nodes=(node,), detail=why)
        else:
            actions.append(Say(text=f"{node} is lost: {why}; the run does without it", level="warning"))
        return actions + self._check_stopped(now) + self._gather(now)

    def _fence(self) -> list[Action]:
        """Whatever stop is under way becomes a hard one: the lost may start elsewhere in a moment."""
        reason = "a node was lost"
        return [
            Send(
                node=member.node, message=messages.Stop(attempt=member.attempt, manner=StopManner.FENCE, reason=reason)
            )
            for member in self._roster.unstopped.of()
        ]

    # What people and the disk do.

    def stop_requested(self, by: str, now: float) -> list[Action]:
        """A person asked for the end of the run."""
        return self._observe(Trigger.STOP_REQUESTED, now, detail=by)

    def progress_seen(self, progress: str | None) -> None:
        """The digest of the progress files as they are now; later failures are held against it."""
        self._progress = progress

    def claimed(self, attempt: int, is_ours: bool, world_digest: str, now: float) -> list[Action]:
        """The claim that was asked for is ours, or somebody else's."""
        world = self._world
        if self.phase is not Phase.CLAIMING or world is None or world.attempt != attempt:
            return []
        if not is_ours:
            return self.superseded(f"another head has opened attempt {attempt}")
        self._history = replace(self._history, attempts=attempt)
        if self._verdict.decision is not None:
            return self._stop(self._verdict.decision, now)
        self.phase = Phase.RUNNING
        self._verdict.opens()
        starting = starting_roles(world)
        self._tally.forget(world, starting)
        self._roster.seat(world, starting)
        self._barriers.begin(now)
        self._leases.begin(world, now)
        self._resume_at = -NEVER
        self._newcomers -= {node.node for node in world.nodes}
        parts = assignments(world, world_digest, self._history.spend.restarts)
        sends = (Send(node=node, message=part) for node, part in parts.items())
        return [*opening(world, self._opened_because), *sends, *self._grow(now)]

    def superseded(self, reason: str) -> list[Action]:
        """Another head goes on with the run, or has ended it: nobody is this one's member any more."""
        if self.phase is Phase.OVER:
            return []
        self.phase = Phase.OVER
        note = Note(name="head.superseded", message=reason, attempt=self.attempt)
        return [Say(text=reason, level="warning"), note, *self._drop_everybody(reason), Superseded(reason=reason)]

    def _drop_everybody(self, reason: str) -> list[Action]:
        others = sorted(self._roster.names() - {self._settings.node})
        return [action for node in others for action in _drop(node, reason)]

    def disk_failed(self, error: str, now: float) -> list[Action]:
        """The run directory cannot be written: nothing may start without a claim."""
        return [Say(text=error, level="error"), *self._end_everybody(int(ExitCode.RUN_DIRECTORY), error, now)]

    def result_written(self, exit_code: int, cause: str, now: float) -> list[Action]:
        """The run's result is on disk, with this exit code and cause; or there is none, for the run goes on."""
        return [Say(text=cause, level="error" if exit_code else "info"), *self._end_everybody(exit_code, cause, now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for node in self._leases.tick(now):
            why = f"no answer for {self._settings.lease_s:g} s"
            actions += [*self.lost(node, why, now, is_gone=False), *_drop(node, why)]
        actions += self._check_barriers(now)
        if self.phase is Phase.GATHERING:
            actions += self.gathering.reminder(now)
            actions += self._gather(now)
        elif self.phase is Phase.PAUSING and now >= self._resume_at:
            self._start_gathering(now)
            actions += self._gather(now)
        elif self.phase is Phase.YIELDING and now >= self._resume_at:
            actions += self._finish()
        elif self.phase is Phase.CLOSING:
            actions += self._closing.tick(now) + self._left()
        return actions

    # Gathering.

    def _gather(self, now: float) -> list[Action]:
        """Closes the round if everybody who can come is here, or the time is up."""
        if self.phase is not Phase.GATHERING or not self.gathering.is_closed(now):
            return []
        if self.gathering.succession is not None and (ended := self._succeed(self.gathering.succession, now)):
            return ended
        if (too_few := self.gathering.too_few()) is not None:
            said = timeout_announcement(too_few, self.attempt)
            return said + self._observe(Trigger.NODES_MISSING, now, detail=too_few.message)
        spend = replace(self._history.spend, node_losses=self._losses.count)
        self._history = replace(self._history, spend=spend)
        seats, roles, because = self._roster.seats(), self._verdict.roles, self._opened_because
        claim, world = open_attempt(self._settings, self._history, seats, because, self._world, roles)
        self._world = self._job_end.noted_in(world)
        self.phase = Phase.CLAIMING
        return [*self.gathering.left_behind(), ClaimAttempt(claim=claim, world=self._world)]

    def _succeed(self, succession: Succession, now: float) -> list[Action]:
        """The round of a successor is closed; what ends the run instead of an attempt, if something does."""
        absent = self._losses.succeed(succession, self._roster.names(), self._settings.expected)
        self.gathering.succeeds()
        if succession.is_finished:
            return self._observe(Trigger.SUCCEEDED, now)
        lost, nodes = succession.lost, absent or (succession.world.head,)
        observation = self._observation(Trigger.NODE_LOST, nodes=nodes, detail=lost.why)
        decision = self._decide(self._history, observation, now)
        if isinstance(decision, Finish):
            self._verdict.take(decision)
            return [*announcement(decision, self.attempt), *self._after_stop(now)]
        if isinstance(decision, Restart):
            self._opened_because = decision.reason
        return []

    # Running and stopping.

    def _reported(self, member: RosterEntry, message: messages.Report, now: float) -> list[Action]:
        self._roster.reported(member, message)
        self._tally.record(message)
        if isinstance(message, messages.Failed):
            return self._observe(Trigger.WORKER_FAILED, now, member=member, failure=message.failure)
        if isinstance(message, messages.Broken):
            return self._observe(Trigger.NODE_BROKEN, now, member=member, detail=message.reason)
        if isinstance(message, messages.Stopped):
            if not message.unkillable:
                return self._check_stopped(now)
            survivors = f"{', '.join(map(str, message.unkillable))} survived KILL"
            return self._observe(Trigger.UNKILLABLE, now, member=member, detail=survivors) + self._check_stopped(now)
        if isinstance(message, messages.Ended):
            self._barriers.ended(now)
        if self.phase is not Phase.RUNNING:
            return []
        if isinstance(message, messages.Finished) and not any(self._roster.unfinished.of()):
            return self._observe(Trigger.SUCCEEDED, now)
        text = self._barriers.started(now)
        return [] if text is None else [Note(name="attempt.started", message=text, attempt=self.attempt)]

    def _observe(
        self,
        trigger: Trigger,
        now: float,
        *,
        member: RosterEntry | None = None,
        nodes: tuple[str, ...] = (),
        detail: str = "",
        failure: FailureRecord | None = None,
    ) -> list[Action]:
        """Decides about what was seen and begins to act on it, unless as much is decided already."""
        if self._verdict.is_final or self.phase in (Phase.CLOSING, Phase.OVER):
            return []
        nodes = (member.node,) if member is not None else nodes
        role = member.role if member is not None else None
        observation = self._observation(trigger, nodes=nodes, role=role, detail=detail, failure=failure)
        decision = self._decide(self._history, observation, now)
        if isinstance(decision, Ignore):
            return announcement(decision, self.attempt)
        standing = self._verdict.take(decision)
        if standing is None:
            return []
        if trigger is Trigger.SUCCEEDED:
            return self._after_stop(now)
        told = announcement(standing, self.attempt)
        # While a claim is under way, `claimed` goes on with the decision.
        return told if self.phase is Phase.CLAIMING else told + self._stop(standing, now)

    def _observation(
        self,
        trigger: Trigger,
        *,
        nodes: tuple[str, ...],
        detail: str,
        role: str | None = None,
        failure: FailureRecord | None = None,
    ) -> Observation:
        return Observation(
            trigger=trigger,
            attempt=self.attempt,
            role=role,
            nodes=nodes,
            detail=detail,
            failure=failure,
            progress=self._progress,
            is_enough=self.gathering.can_be_enough(),
            node_losses=self._losses.count,
        )

    def _stop(self, decision: Restart | Finish, now: float) -> list[Action]:
        """Stops the workers that the decision is about; those who stop already pass over a second word."""
        self.phase = Phase.STOPPING
        self._barriers.clear()
        stops = (Send(node=member.node, message=stop_for(member.attempt, decision)) for member in self._stopping())
        return [*stops, *self._check_stopped(now)]

    def _stopping(self) -> Iterator[RosterEntry]:
        """The members whose workers must be gone before the decision can be carried on."""
        return self._roster.unstopped.of(self._verdict.roles)

    def _check_stopped(self, now: float) -> list[Action]:
        if self.phase is Phase.STOPPING and not any(self._stopping()):
            return self._after_stop(now)
        return []

    def _check_barriers(self, now: float) -> list[Action]:
        if self.phase is not Phase.RUNNING:
            return []
        actions: list[Action] = [Say(text=text) for text in self._barriers.reminders(now)]
        if (overdue := self._barriers.overdue(now)) is None:
            return actions
        return actions + self._observe(Trigger.EXIT_TIMEOUT if overdue else Trigger.SUCCEEDED, now, nodes=overdue)

    # Between attempts, and the end.

    def _after_stop(self, now: float) -> list[Action]:
        decision, self._fenced_by = self._verdict.decision, NEVER
        if isinstance(decision, Finish):
            return self._yield(now) if decision.exit_code is ExitCode.NODE_LOST else self._finish()
        self._roster.unseat(self._verdict.roles)
        self.phase = Phase.PAUSING
        if isinstance(decision, Restart):
            self._history = replace(decision.history, attempts=self.attempt)
            self._opened_because = decision.reason
            self._resume_at = max(self._resume_at, decision.at, self._losses.may_start_at)
            if now < self._resume_at:
                return [Say(text=f"the next attempt starts in {self._resume_at - now:.1f} s")]
        return self.tick(now)

    def _yield(self, now: float) -> list[Action]:
        """Too few nodes are left here; those that cannot be reached may be enough, and then the run is theirs."""
        self._resume_at = self._losses.yields_until(self._settings.min_nodes)
        if now >= self._resume_at:
            return self._finish()
        self._roster.unseat(None)
        self.phase = Phase.YIELDING
        text = f"too few nodes are left here, but the others may go on: waiting {self._resume_at - now:.1f} s for that"
        return [Say(text=text), Note(name="run.yielding", message=text, attempt=self.attempt)]

    def _finish(self) -> list[Action]:
        decision = self._verdict.decision
        if not isinstance(decision, Finish):
            return []
        self.phase = Phase.CLOSING
        self._closing.exit_code = int(decision.exit_code)
        running = tuple(self._roster.unfinished.of())
        result = run_result(self._settings, self._history, decision, self._world, self._tally, running)
        return [WriteResult(result=result)]

    def _end_everybody(self, exit_code: int, cause: str, now: float) -> list[Action]:
        self.phase = Phase.CLOSING
        return self._closing.begin(exit_code, cause, now, self._job_end) + self._left()

    def _left(self) -> list[Action]:
        actions = self._closing.left()
        if self._closing.is_over:
            self.phase = Phase.OVER
        return actions


def _drop(node: str, reason: str) -> list[Action]:
    """A member that has to go is told so: a connection that closes without a word means a death."""
    return [Send(node=node, message=messages.Dropped(reason=reason)), Drop(node=node)]
