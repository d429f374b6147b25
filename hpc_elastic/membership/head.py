"""The head: gathers the members, opens attempts, and decides with everybody's reports.

Theory of operation. The head goes through phases:

    GATHERING --all expected joined, or join_timeout and at least `min`--> CLAIMING
    CLAIMING  --the claim is ours--> RUNNING
    RUNNING   --an observation--> STOPPING (with a Restart or a Finish decided)
    STOPPING  --every member of the world stopped or is lost--> PAUSING or CLOSING
    PAUSING   --the back-off is over--> GATHERING
    CLOSING   --the result is written and everybody told and gone--> OVER

Before any worker starts, the attempt's claim is on disk: it carries the spend, so a budget is
never counted twice, and only one head in the world can have it. While workers stop, a Finish can
still replace a Restart, and a Restart can be widened to more roles.

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
from hpc_elastic.membership.actions import Action, ClaimAttempt, Drop, Note, Say, Send, WriteResult
from hpc_elastic.membership.admission import admit
from hpc_elastic.membership.barriers import Barriers
from hpc_elastic.membership.closing import Closing
from hpc_elastic.membership.decisions import Decide, Finish, History, Ignore, Observation, Restart, Trigger
from hpc_elastic.membership.gathering import Gathering, timeout_announcement
from hpc_elastic.membership.messages import Message
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
from hpc_elastic.membership.tally import Tally
from hpc_elastic.membership.verdict import Verdict
from hpc_elastic.rundir.records import FailureRecord, World

NEVER = float("inf")


class Phase(str, Enum):
    """Where the head stands; the module's docstring has the transitions."""

    GATHERING = "gathering"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"
    CLOSING = "closing"
    OVER = "over"


class Head:
    """The head of one allocation.

    Args:
        settings: what does not change.
        history: the run so far, from its latest claim.
        decide: the policy.
        now: monotonic seconds, as in every method.
    """

    def __init__(self, settings: HeadSettings, *, history: History, decide: Decide, now: float) -> None:
        self._settings = settings
        self._history = history
        self._decide = decide
        self._roster = Roster(settings.expected)
        self.gathering = Gathering(self._roster, settings, now)
        self._world: World | None = None
        self._chosen: tuple[str, ...] = ()
        self._verdict = Verdict()
        self._tally = Tally()
        self._barriers = Barriers(self._roster, settings)
        self._progress = history.progress
        self._opened_because = "first start" if history.attempts == 0 else "the run goes on in a new allocation"
        self._closing = Closing(self._roster)
        self._resume_at = NEVER
        self._leases_at = now + settings.lease_s / 3
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
        times = [self._leases_at, self._closing.next_tick()]
        if self.phase is Phase.RUNNING:
            times.append(self._barriers.next_tick())
        if self.phase is Phase.GATHERING:
            times.append(self.gathering.next_tick())
        if self.phase is Phase.PAUSING:
            times.append(self._resume_at)
        return min(times)

    # What members do.

    def refusal(self, join: messages.Join) -> messages.Refused | None:
        """What to answer an agent that cannot join, None if it can."""
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return messages.Refused(reason="the run is over", exit_code=self._closing.exit_code)
        return self.gathering.refusal(join)

    def joined(self, join: messages.Join, now: float) -> list[Action]:
        """An agent that is not refused connected and said who it is."""
        is_late, allocation = self.phase is not Phase.GATHERING, self._settings.allocation
        actions = admit(self._roster, join, now, allocation=allocation, attempt=self.attempt, is_late=is_late)
        if is_late:
            return actions
        if join.problem is not None:
            return actions + self._observe(Trigger.NODE_UNFIT, now, nodes=(join.node,), detail=join.problem)
        return actions + self._gather(now)

    def received(self, node: str, message: Message, now: float) -> list[Action]:
        """A member sent something."""
        member = self._roster.get(node)
        if member is None:
            return [Drop(node=node)]
        member.last_heard = now
        if isinstance(message, messages.Beat):
            return [Send(node=node, message=messages.Echo(number=message.number))]
        if isinstance(message, messages.Terminated):
            return self._observe(Trigger.TERMINATED, now, member=member, detail=message.signal_name)
        if isinstance(message, messages.REPORTS):
            if message.attempt != member.attempt or not member.is_in_world:
                return []
            return self._reported(member, message, now)
        return [Say(text=f"{node} sent a {message.KIND}, which only a head sends"), Drop(node=node)]

    def lost(self, node: str, why: str, now: float) -> list[Action]:
        """A member's connection closed, or its lease ran out."""
        member = self._roster.remove(node)
        if member is None:
            return []
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return self._left()
        actions: list[Action] = [Note(name="node.lost", message=f"{node}: {why}", attempt=self.attempt)]
        is_chosen = node in self._chosen and (self.phase is Phase.CLAIMING or self._verdict.roles is not None)
        if member.is_in_world or is_chosen or self._roster.possible < self._settings.min_nodes:
            actions += self._observe(Trigger.NODE_LOST, now, nodes=(node,), detail=why)
        return actions + self._check_stopped(now) + self._gather(now)

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
            cause = f"another head has opened attempt {attempt}"
            return [Say(text=cause), *self._end_everybody(int(ExitCode.RUN_DIRECTORY), cause, now)]
        self._history = replace(self._history, attempts=attempt)
        if self._verdict.decision is not None:
            return self._stop(self._verdict.decision, now)
        self.phase = Phase.RUNNING
        self._verdict.opens()
        starting = starting_roles(world)
        self._tally.forget(world, starting)
        self._roster.seat(world, starting)
        self._barriers.begin(now)
        parts = assignments(world, world_digest, self._history.spend.restarts)
        sends = (Send(node=node, message=part) for node, part in parts.items())
        return [*opening(world, self._opened_because), *sends]

    def disk_failed(self, error: str, now: float) -> list[Action]:
        """The run directory cannot be written: nothing may start without a claim."""
        return [Say(text=error, level="error"), *self._end_everybody(int(ExitCode.RUN_DIRECTORY), error, now)]

    def result_written(self, exit_code: int, cause: str, now: float) -> list[Action]:
        """The run's result is on disk, with this exit code and cause; or there is none, for the run goes on."""
        return [Say(text=cause, level="error" if exit_code else "info"), *self._end_everybody(exit_code, cause, now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if now >= self._leases_at:
            self._leases_at = now + self._settings.lease_s / 3
            actions += self._check_leases(now)
        actions += self._check_barriers(now)
        if self.phase is Phase.GATHERING:
            actions += self.gathering.reminder(now)
            actions += self._gather(now)
        elif self.phase is Phase.PAUSING and now >= self._resume_at:
            self._start_gathering(now)
            actions += self._gather(now)
        elif self.phase is Phase.CLOSING:
            actions += self._closing.tick(now) + self._left()
        return actions

    # Gathering.

    def _gather(self, now: float) -> list[Action]:
        """Closes the round if everybody who can come is here, or the time is up."""
        if self.phase is not Phase.GATHERING or not self.gathering.is_closed(now):
            return []
        if (too_few := self.gathering.too_few()) is not None:
            said = timeout_announcement(too_few, self.attempt)
            return said + self._observe(Trigger.NODES_MISSING, now, detail=too_few.message)
        seats, roles, because = self._roster.seats(), self._verdict.roles, self._opened_because
        claim, self._world = open_attempt(self._settings, self._history, seats, because, self._world, roles)
        self.phase = Phase.CLAIMING
        self._chosen = claim.members
        return [*self.gathering.left_behind(), ClaimAttempt(claim=claim, world=self._world)]

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
        observation = Observation(
            trigger=trigger,
            attempt=self.attempt,
            role=member.role if member is not None else None,
            nodes=(member.node,) if member is not None else nodes,
            detail=detail,
            failure=failure,
            progress=self._progress,
        )
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

    def _check_leases(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for node in self._roster.silent(now, self._settings.lease_s):
            if node != self._settings.node:
                why = f"not heard for {self._settings.lease_s:g} s"
                actions += [Drop(node=node), *self.lost(node, why, now)]
        return actions

    # Between attempts, and the end.

    def _after_stop(self, now: float) -> list[Action]:
        decision = self._verdict.decision
        if isinstance(decision, Finish):
            self.phase = Phase.CLOSING
            self._closing.exit_code = int(decision.exit_code)
            running = tuple(self._roster.unfinished.of())
            result = run_result(self._settings, self._history, decision, self._world, self._tally, running)
            return [WriteResult(result=result)]
        self._roster.unseat(self._verdict.roles)
        self.phase = Phase.PAUSING
        if isinstance(decision, Restart):
            self._history = replace(decision.history, attempts=self.attempt)
            self._opened_because = decision.reason
            self._resume_at = decision.at
            if now < decision.at:
                return [Say(text=f"the next attempt starts in {decision.at - now:.1f} s")]
        return self.tick(now)

    def _end_everybody(self, exit_code: int, cause: str, now: float) -> list[Action]:
        self.phase = Phase.CLOSING
        return self._closing.begin(exit_code, cause, now) + self._left()

    def _left(self) -> list[Action]:
        actions = self._closing.left()
        if self._closing.is_over:
            self.phase = Phase.OVER
        return actions
