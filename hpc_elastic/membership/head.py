"""The head: gathers the members, opens attempts, and decides with everybody's reports.

Theory of operation. The head goes through phases:

    GATHERING --all expected joined, or join_timeout and at least `min`--> CLAIMING
    CLAIMING  --the claim is ours--> RUNNING
    RUNNING   --an observation--> STOPPING (with a Restart or a Finish decided)
    STOPPING  --every member of the world stopped or is lost--> PAUSING or CLOSING
    PAUSING   --the back-off is over--> GATHERING
    CLOSING   --the result is written and everybody told and gone--> OVER

Before any worker starts, the attempt's claim is on disk: it carries the spend, so a budget is
never counted twice, and only one head in the world can have it. A decision is made once for an
attempt; while the workers stop, only a Finish can still replace a Restart.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, ClaimAttempt, Drop, HeadOver, Note, Say, Send, WriteResult
from hpc_elastic.membership.decisions import Decide, Decision, Finish, History, Observation, Restart, Trigger
from hpc_elastic.membership.gathering import Gathering
from hpc_elastic.membership.messages import (
    Beat,
    Broken,
    Echo,
    End,
    Failed,
    Finished,
    Join,
    Message,
    Refused,
    Stop,
    StopManner,
    Stopped,
    Terminated,
    Welcome,
)
from hpc_elastic.membership.roster import Roster, RosterEntry
from hpc_elastic.membership.rounds import HeadSettings, announcement, assignments, open_attempt, opening, run_result
from hpc_elastic.rundir.records import FailureRecord, World

CLOSING_BOUND_S = 5.0
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
        self._gathering = Gathering(self._roster, settings, now)
        self._world: World | None = None
        self._chosen: tuple[str, ...] = ()
        self._decision: Decision | None = None
        self._failures: dict[str, FailureRecord] = {}
        self._return_values: dict[str, Any] = {}
        self._progress = history.progress
        self._opened_because = "first start" if history.attempts == 0 else "the run goes on in a new allocation"
        self._exit_code = int(ExitCode.SUCCESS)
        self._resume_at = NEVER
        self._closing_deadline = NEVER
        self._leases_at = now + settings.lease_s / 3
        self._start_gathering(now)

    def _start_gathering(self, now: float) -> None:
        self.phase = Phase.GATHERING
        self._decision = None
        self._gathering.begin(now)

    @property
    def attempt(self) -> int:
        """The latest attempt of the run; 0 before the first."""
        return self._history.attempts

    def next_tick(self) -> float:
        """When `tick` must be called at the latest, in monotonic seconds."""
        times = [self._leases_at, self._closing_deadline]
        if self.phase is Phase.GATHERING:
            times.append(self._gathering.next_tick())
        if self.phase is Phase.PAUSING:
            times.append(self._resume_at)
        return min(times)

    # What members do.

    def refusal(self, join: Join) -> Refused | None:
        """What to answer an agent that cannot join, None if it can."""
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return Refused(reason="the run is over", exit_code=self._exit_code)
        reason = self._roster.why_not(join)
        return None if reason is None else Refused(reason=reason, exit_code=int(ExitCode.SETUP))

    def joined(self, join: Join, now: float) -> list[Action]:
        """An agent that is not refused connected and said who it is."""
        self._roster.add(join, now)
        is_late = self.phase is not Phase.GATHERING
        if join.problem is not None and is_late:
            self._roster.remove(join.node)  # the others do without it already, and go on so
            refused = Refused(reason=join.problem, exit_code=int(ExitCode.SETUP))
            return [Say(text=f"{join.node} came late, unfit: {join.problem}"), Send(node=join.node, message=refused)]
        actions: list[Action] = [
            Send(node=join.node, message=Welcome(allocation=self._settings.allocation, is_late=is_late)),
            Note(name="node.joined", message=f"{join.node} joined", attempt=self.attempt, metadata=join.versions),
        ]
        if join.problem is not None:
            return actions + self._observe(Trigger.NODE_UNFIT, now, nodes=(join.node,), detail=join.problem)
        late = [Say(text=f"{join.node} joined late and waits for the next attempt")]
        return [*actions, *(late if is_late else self._gather(now))]

    def received(self, node: str, message: Message, now: float) -> list[Action]:
        """A member sent something."""
        member = self._roster.get(node)
        if member is None:
            return [Drop(node=node)]
        member.last_heard = now
        if isinstance(message, Beat):
            return [Send(node=node, message=Echo(number=message.number))]
        if isinstance(message, Terminated):
            return self._observe(Trigger.TERMINATED, now, nodes=(node,), detail=message.signal_name)
        if isinstance(message, (Failed, Broken, Finished, Stopped)):
            if message.attempt != self.attempt or not member.is_in_world:
                return []
            return self._reported(member, message, now)
        return [Say(text=f"{node} sent a {message.KIND}, which only a head sends"), Drop(node=node)]

    def lost(self, node: str, why: str, now: float) -> list[Action]:
        """A member's connection closed, or its lease ran out."""
        member = self._roster.remove(node)
        if member is None:
            return []
        if self.phase in (Phase.CLOSING, Phase.OVER):
            return self._close_if_alone()
        actions: list[Action] = [Note(name="node.lost", message=f"{node}: {why}", attempt=self.attempt)]
        is_chosen = self.phase is Phase.CLAIMING and node in self._chosen
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
        if self._decision is not None:
            return self._after_stop(now)
        self.phase = Phase.RUNNING
        self._failures.clear()
        self._return_values.clear()
        self._roster.seat(world)
        parts = assignments(world, world_digest)
        sends = (Send(node=node, message=part) for node, part in parts.items())
        return [*opening(world, self._opened_because), *sends]

    def disk_failed(self, error: str, now: float) -> list[Action]:
        """The run directory cannot be written: nothing may start without a claim."""
        return [Say(text=error), *self._end_everybody(int(ExitCode.RUN_DIRECTORY), error, now)]

    def result_written(self, exit_code: int, cause: str, now: float) -> list[Action]:
        """The run's result is on disk, with this exit code and cause; or there is none, for the run goes on."""
        return [Say(text=cause), *self._end_everybody(exit_code, cause, now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if now >= self._leases_at:
            self._leases_at = now + self._settings.lease_s / 3
            actions += self._check_leases(now)
        if self.phase is Phase.GATHERING:
            if (reminder := self._gathering.reminder(now)) is not None:
                actions.append(Say(text=reminder))
            actions += self._gather(now)
        elif self.phase is Phase.PAUSING and now >= self._resume_at:
            self._start_gathering(now)
            actions += self._gather(now)
        elif self.phase is Phase.CLOSING and now >= self._closing_deadline:
            actions += [Drop(node=member.node) for member in self._roster]
            self._roster.clear()
            actions += self._close_if_alone()
        return actions

    # Gathering.

    def _gather(self, now: float) -> list[Action]:
        """Closes the round if everybody who can come is here, or the time is up."""
        if self.phase is not Phase.GATHERING:
            return []
        if not self._gathering.is_closed(now):
            return []
        if (too_few := self._gathering.too_few()) is not None:
            return self._observe(Trigger.NODES_MISSING, now, nodes=self._roster.missing(), detail=too_few)
        seats = self._roster.seats(self._settings.max_nodes)
        claim, self._world = open_attempt(self._settings, self._history, seats, self._opened_because)
        self.phase = Phase.CLAIMING
        self._chosen = claim.members
        return [ClaimAttempt(claim=claim, world=self._world)]

    # Running and stopping.

    def _reported(self, member: RosterEntry, message: Failed | Broken | Finished | Stopped, now: float) -> list[Action]:
        nodes = (member.node,)
        if isinstance(message, Failed):
            self._failures.setdefault(str(message.failure.rank), message.failure)
            return self._observe(Trigger.WORKER_FAILED, now, nodes=nodes, failure=message.failure)
        if isinstance(message, Broken):
            return self._observe(Trigger.NODE_BROKEN, now, nodes=nodes, detail=message.reason)
        if isinstance(message, Finished):
            member.is_finished = True
            self._return_values.update(message.return_values)
            is_last = self.phase is Phase.RUNNING and all(other.is_finished for other in self._roster.in_world())
            return self._observe(Trigger.SUCCEEDED, now) if is_last else []
        member.is_stopped = True
        member.offer_store_port(message.store_port)
        for failure in message.failures:
            self._failures.setdefault(str(failure.rank), failure)
        actions: list[Action] = []
        if message.unkillable:
            detail = f"{', '.join(map(str, message.unkillable))} survived KILL"
            actions = self._observe(Trigger.UNKILLABLE, now, nodes=nodes, detail=detail)
        return actions + self._check_stopped(now)

    def _observe(
        self,
        trigger: Trigger,
        now: float,
        *,
        nodes: tuple[str, ...] = (),
        detail: str = "",
        failure: FailureRecord | None = None,
    ) -> list[Action]:
        """Decides about what was seen and begins to act on it, unless as much is decided already."""
        if isinstance(self._decision, Finish) or self.phase in (Phase.CLOSING, Phase.OVER):
            return []
        observation = Observation(
            trigger=trigger, attempt=self.attempt, nodes=nodes, detail=detail, failure=failure, progress=self._progress
        )
        decision = self._decide(self._history, observation, now)
        if isinstance(self._decision, Restart) and isinstance(decision, Restart):
            return []
        previous, self._decision = self._decision, decision
        if trigger is Trigger.SUCCEEDED:
            return self._after_stop(now)
        return announcement(decision, self.attempt) + self._act(decision, previous, now)

    def _act(self, decision: Decision, previous: Decision | None, now: float) -> list[Action]:
        if self.phase is Phase.CLAIMING:
            return []  # `claimed` goes on with the decision
        if self.phase in (Phase.GATHERING, Phase.PAUSING):
            return self._after_stop(now)
        if self.phase is Phase.STOPPING and previous is not None and decision.manner is not StopManner.FENCE:
            return []  # they are stopping already
        self.phase = Phase.STOPPING
        reason = decision.cause if isinstance(decision, Finish) else decision.reason
        is_term_coming = decision.reason == Trigger.TERMINATED.value
        stop = Stop(attempt=self.attempt, manner=decision.manner, reason=reason, is_term_coming=is_term_coming)
        running = [member.node for member in self._roster.in_world() if not member.is_stopped]
        return [*(Send(node=node, message=stop) for node in running), *self._check_stopped(now)]

    def _check_stopped(self, now: float) -> list[Action]:
        if self.phase is Phase.STOPPING and all(member.is_stopped for member in self._roster.in_world()):
            return self._after_stop(now)
        return []

    def _check_leases(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for node in self._roster.silent(now, self._settings.lease_s):
            if node != self._settings.node:
                why = f"not heard for {self._settings.lease_s:g} s"
                actions += [Drop(node=node), *self.lost(node, why, now)]
        return actions

    # Between attempts, and the end.

    def _after_stop(self, now: float) -> list[Action]:
        decision = self._decision
        if isinstance(decision, Finish):
            self.phase = Phase.CLOSING
            self._exit_code = int(decision.exit_code)
            result = run_result(
                self._settings,
                self._history,
                decision,
                world=self._world,
                failures=self._failures,
                return_values=self._return_values,
            )
            return [WriteResult(result=result)]
        self._roster.unseat()
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
        self._exit_code = exit_code
        self._closing_deadline = now + CLOSING_BOUND_S
        end = End(exit_code=exit_code, cause=cause)
        return [*(Send(node=member.node, message=end) for member in self._roster), *self._close_if_alone()]

    def _close_if_alone(self) -> list[Action]:
        if self.phase is Phase.CLOSING and len(self._roster) == 0 and self._closing_deadline < NEVER:
            self.phase = Phase.OVER
            self._closing_deadline = NEVER
            return [HeadOver()]
        return []
