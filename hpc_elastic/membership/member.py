"""A member: joins a head, starts and stops this node's workers as the head says, and reports to it.

Theory of operation. A member goes through phases:

    JOINING, SEARCHING --Welcome--> PARKED
    PARKED   --Assign--> WORKING
    WORKING  --every worker has its process, the node's record is durable--> WORKING, after sending Started
    WORKING  --every worker exited 0, the node's record is durable--> WORKING, after sending Finished
    WORKING  --Stop, a TERM from outside, the head is lost--> STOPPING
    STOPPING --no worker is left, every failure is recorded--> PARKED, or SEARCHING if the head is lost,
                                                              LEAVING if the run ended
    PARKED   --the head is lost--> SEARCHING
    any      --End, Refused--> LEAVING, by way of STOPPING where there are workers

A worker's failure is only reported; the head decides and tells all members. In a role whose failures
are ignored the other workers run on, and the node is finished when none runs any more. A member that has not
heard its head for two thirds of the lease fences: it kills its workers, because it cannot know
whether the other nodes go on without it. Then it searches for another head, or the same one again (`discovery`).

A notice changes no phase (`notice_rounds`). After one, a worker that exits 75 has not failed: it has saved, and is to
be started again later; a node whose workers have all exited 0 or 75 is finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    HoldForNotice,
    Leave,
    Log,
    NameNotice,
    Note,
    RecordFailure,
    SendToHead,
    StartWorkers,
    StopWorkers,
    WriteNodeResult,
)
from hpc_elastic.membership.allegiance import Allegiance
from hpc_elastic.membership.exits import ENDED_BY_TERM, Exits
from hpc_elastic.membership.lease import NEVER, Lease
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import TAKEN_EXIT_CODE, NoticeCounts
from hpc_elastic.membership.reports import failure_note, node_result
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rank_set import format_ranks
from hpc_elastic.rundir.records import FailureRecord, NodeResult, WorkerState
from hpc_elastic.rundir.state_records import HeldState, StateVersion


class MemberPhase(str, Enum):
    """Where the member stands; the module's docstring has the transitions."""

    JOINING = "joining"
    PARKED = "parked"
    WORKING = "working"
    STOPPING = "stopping"
    SEARCHING = "searching"
    LEAVING = "leaving"


HAVE_WORKERS = MemberPhase.WORKING, MemberPhase.STOPPING


class Member:
    """One node's membership: its head, its assignment and the state of its workers.

    Args:
        join: the node's description of itself, as it tells the head.
        run: the run's name in records.
        timing: the run's times.
    """

    def __init__(self, join: messages.Join, *, run: str, timing: Timing) -> None:
        self.join = join
        self._told = join.unhealthy  # what the latest Join said of this node's health
        self._run = run
        self.phase = MemberPhase.JOINING
        self._assign: Assign | None = None
        self._exits = Exits()
        self._pids: Mapping[str, int]  # of the attempt, by global rank
        self._unkillable: tuple[int, ...] | None = None  # from `workers_stopped`, until it is handled
        self._step: int | None = None  # likewise
        self._waiting: str  # as text of ranks, likewise
        self._paused: str  # likewise
        self._takes_stacks: bool  # of the stop under way: the workers write their stacks before its TERM
        self._stop_reason: str  # likewise
        self._stop_manner: StopManner  # likewise
        self._expects_term: bool  # likewise: a TERM from outside reaches the workers
        self._is_finished: bool  # every worker of the attempt has ended by itself
        self._have_workers_term: bool  # of the attempt, from outside
        self._has_notice = False  # in this start of the job
        self._is_terminated = False
        self._leave: Leave | None = None
        self._allegiance = Allegiance()
        self._timing = timing
        self._lease = Lease(timing)

    @property
    def attempt(self) -> int:
        """Return the attempt that this node works on or worked on last; 0 before the first."""
        return self._assign.attempt if self._assign is not None else 0

    def next_tick(self) -> float:
        """Return when `tick` must be called at the latest, in monotonic seconds."""
        return min(self._lease.next_beat, self._exits.judge_held_at, self._silence_deadline())

    def fence_deadline(self) -> float:
        """Return until when the workers may run without news from the head; the guard is told the same."""
        return self._silence_deadline() if self.phase in HAVE_WORKERS else NEVER

    def _silence_deadline(self) -> float:
        """Return when a silent head counts as lost, in monotonic seconds."""
        if self._leave is not None:
            return NEVER
        has_workers = self.phase is MemberPhase.WORKING
        if self._allegiance.is_here:
            is_alone = self._assign is not None and self._assign.group_world_size == 1
            if is_alone or not has_workers:
                return NEVER  # if the head on this node is silent, this process was only paused
        return self._lease.deadline if self.phase is MemberPhase.PARKED else self._lease.fence_deadline

    # Events of the head.

    def connected(self, now: float, *, is_joined: bool, asked: float | None = None) -> list[Action]:
        """Begin with a head: one on another node, which this node asked to join at `asked`, or this node's own."""
        self._allegiance.begin(is_here=not is_joined)
        self._lease.start(now, asked)
        return [] if is_joined else [SendToHead(message=self.asks())]

    def received(self, message: messages.Message, now: float) -> list[Action]:
        """Handle a message from the head."""
        self._lease.contact = now
        if isinstance(message, messages.Echo):
            self._lease.echoed(message.number, now)
            return []
        if isinstance(message, messages.Welcome):
            if self._allegiance.is_headless:  # it came when this node had just given that head up
                return []
            self.phase = MemberPhase.PARKED
            self._allegiance.welcomed(message.head, gathers=message.gathers)
            is_known = self._told == self.join.unhealthy
            return [] if is_known else [SendToHead(message=messages.Health(problem=self.join.unhealthy))]
        if isinstance(message, messages.Dropped):
            return self.disconnected(message.reason, is_dead=False)
        if isinstance(message, messages.Spares):
            self._allegiance.told_spares(message.agents)
            return []
        if isinstance(message, Assign):
            return self._assigned(message, now)
        if isinstance(message, messages.Stop):
            return self._told_to_stop(message, now) if message.attempt == self.attempt else []
        if isinstance(message, (messages.End, messages.Refused)):
            return self._end(message)
        if isinstance(message, messages.GiveNotice):
            self._has_notice = True
            return self._noticed(message) if message.attempt == self.attempt else []
        if isinstance(message, messages.NoticeFrom):
            name = NameNotice(attempt=message.attempt, first=message.first)
            return [name] if message.attempt == self.attempt else []
        return [Log(text=f"the head sent a {message.KIND}, which only a member sends")]

    def disconnected(self, why: str, *, is_dead: bool, now: float = -NEVER, was_paused: bool = False) -> list[Action]:
        """Handle the loss of the head.

        Args:
            why: how it was lost, for the log and the events.
            is_dead: the kernel of its machine closed the connection without a message from the head.
            now: monotonic seconds; needed where the head is dead.
            was_paused: this agent stood still, and the head may have, too.
        """
        is_known = self._allegiance.lost is not None  # the head that is lost now has only gathered
        contact, attempt = self._lease.contact, self.attempt
        was_silent = is_dead and now - contact >= self._timing.silent_before_restart_s(self._lease.beats_as_one_of)
        if self._leave is not None or not self._allegiance.lose(
            why,
            contact,
            attempt,
            is_dead=is_dead,
            was_silent=was_silent,
            was_paused=was_paused,
            round_trip_s=self._lease.round_trip_s,
        ):
            return []
        self._lease.end()
        lost = f"{self._allegiance.head or 'the head'} is lost, which was head: {why}"
        if self.phase in HAVE_WORKERS:
            fence = self._stop(StopManner.FENCE, lost)
            return [Log(text=f"{lost}; killing this node's workers", level="warning"), *fence]
        return (
            self._discover_head(is_news=False)
            if is_known
            else [Log(text=lost, level="warning"), *self._discover_head()]
        )

    def asks(self) -> messages.Join:
        """Return a Join for the next agent that this node asks to be its head; of two Joins the later one counts."""
        self.join = replace(self.join, number=self.join.number + 1)
        self._told = self.join.unhealthy
        return self.join

    def examined(self, problem: str | None) -> list[Action]:
        """Record what this node's health checks found, None if it is healthy, and tell the head what is news to it."""
        if problem == self.join.unhealthy:
            return []
        self.join = replace(self.join, unhealthy=problem)
        if self.phase in (MemberPhase.JOINING, MemberPhase.SEARCHING, MemberPhase.LEAVING):
            return []  # the next Join says it, or a message that follows the Welcome
        return [SendToHead(message=messages.Health(problem=problem))]

    def leaves(self, exit_code: int, cause: str, *, ends_job: bool = False) -> list[Action]:
        """Leave, because no head can be found or the run is over; `ends_job`: the Slurm job has to be ended, too."""
        return self._depart(Leave(exit_code=exit_code, cause=cause, ends_job=ends_job))

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due at the time `now`."""
        actions: list[Action] = []
        if now >= self._exits.judge_held_at:
            actions += self._record_held()
        if now >= self._silence_deadline():
            was_paused = now >= self._silence_deadline() + self._timing.looks_every_s
            why = f"no answer for {self._lease.patience_s:.3g} s"
            why += f"; {self.join.node} itself stood still" if was_paused else ""
            actions += self.disconnected(why, is_dead=False, was_paused=was_paused)
        if now >= self._lease.next_beat:
            actions += [SendToHead(message=beat) for beat in self._lease.beat(now)]
        return actions

    # Events of the workers.

    def workers_started(self, attempt: int, pids: Mapping[str, int]) -> list[Action]:
        """Record that every worker of this node has its process: `pids` by global rank."""
        if attempt != self.attempt or self.phase is not MemberPhase.WORKING:
            return []
        self._pids = pids
        return self._record(WorkerState.HEALTHY, "every worker has its process")

    def worker_exited(
        self, attempt: int, local_rank: int, exitcode: int, now: float, *, is_after_stop: bool = False
    ) -> list[Action]:
        """Handle the exit of a worker that no signal of this agent explains for certain.

        Args:
            attempt: the worker's attempt.
            local_rank: its local rank.
            exitcode: its exit code, negative for a signal.
            now: the monotonic time.
            is_after_stop: it ended after the TERM of a stop, so that only its own account tells whether it failed.
        """
        if attempt != self.attempt or self.phase not in (MemberPhase.WORKING, MemberPhase.STOPPING):
            return []
        if self._exits.has_failed(local_rank):  # it was reported while it still ran, because it had stalled
            return []
        has_taken_notice = exitcode == TAKEN_EXIT_CODE and self._has_notice
        if exitcode == 0 or has_taken_notice:
            if self.phase is MemberPhase.STOPPING:
                return []
            is_first = (
                self._exits.took_notice(local_rank) if has_taken_notice else self._exits.ended_well(local_rank, now)
            )
            told: list[Action] = [SendToHead(message=messages.Ended(attempt=attempt))] if is_first else []
            return told + self._check_all_over()
        if self.phase is MemberPhase.STOPPING and (self._expects_term or exitcode in ENDED_BY_TERM):
            return []
        # The signal at which a worker writes its stacks may wake it, and then it finds that its peers are gone.
        if is_after_stop or (self.phase is MemberPhase.STOPPING and self._takes_stacks):
            # Only a stop because of a failure is one that other failures may precede; what ends during another stop,
            # such as a rank whose peers a person has stopped, has not failed.
            is_about_failure = self.phase is MemberPhase.STOPPING and self._stop_manner is StopManner.RESTART
            return [self._record_failure(local_rank, exitcode, now, is_after_stop=True)] if is_about_failure else []
        if exitcode in ENDED_BY_TERM:
            self._exits.hold(local_rank, exitcode, now)
            return []
        return [self._record_failure(local_rank, exitcode, now)]

    def failure_recorded(self, failure: FailureRecord) -> list[Action]:
        """Report a failed worker, or one that could not be started, once its error file is written."""
        if failure.attempt != self.attempt or self.phase not in (MemberPhase.WORKING, MemberPhase.STOPPING):
            return []
        self._exits.recorded(failure)
        event = failure_note(failure)
        if self.phase is MemberPhase.STOPPING:
            return [event, *self._after_stop()]  # `Stopped` tells the head
        return [
            event,
            SendToHead(message=messages.Failed(attempt=failure.attempt, failure=failure)),
            *(self._check_all_over() or self._note_unhealthy()),
        ]

    def ended_by_stop(self, attempt: int, local_rank: int) -> list[Action]:
        """Take note that a worker which ended after the TERM of a stop has left no account of a failure."""
        if attempt != self.attempt or self.phase is not MemberPhase.STOPPING:
            return []
        self._exits.was_stopped(local_rank)
        return self._after_stop()

    def _check_all_over(self, unkillable: tuple[int, ...] = ()) -> list[Action]:
        """Record the node's end if every worker has exited 0, or has ended in a role whose failures are ignored."""
        assign, failures = self._assign, self._exits.failures
        if assign is None or not self._exits.are_all_over(assign.workers):
            return []
        if not failures and self._exits.again:
            return self._record(WorkerState.STOPPED, "every worker exited 0, or 75 after the notice")
        if not failures:
            return self._record(WorkerState.SUCCEEDED, "every worker exited 0", unkillable)
        if not assign.is_failure_ignored:
            return []
        return self._record(WorkerState.FAILED, f"{len(failures)} of {assign.workers} workers failed, which is ignored")

    def _note_unhealthy(self) -> list[Action]:
        """Record that a worker failed and the others run on, because failures of their role are ignored.

        Other roles' workers are stopped in a moment: a record on disk would only delay the next attempt's claim.
        """
        assign, failures = self._assign, self._exits.failures
        if assign is None or not assign.is_failure_ignored or not self._pids:
            return []
        why = f"{len(failures)} of {assign.workers} workers failed, which is ignored; the others run on"
        return self._record(WorkerState.UNHEALTHY, why)

    def node_result_written(self, result: NodeResult, held: tuple[HeldState, ...] = ()) -> list[Action]:
        """Tell the head that every worker has started or ended, once the node's record of it is durable.

        Args:
            result: the record.
            held: the training states in memory that all workers of this node hold, if they are to go on later.
        """
        if result.attempt != self.attempt or self.phase is not MemberPhase.WORKING:
            return []
        if result.state is WorkerState.HEALTHY:
            return [SendToHead(message=messages.Started(attempt=self.attempt))]
        if result.state is WorkerState.UNHEALTHY:
            return []
        self._is_finished = True
        again = self._global_ranks(self._exits.again)
        return [SendToHead(message=messages.Finished(attempt=self.attempt, again=again, held=held))]

    def _noticed(self, message: messages.GiveNotice) -> list[Action]:
        if self.phase is MemberPhase.WORKING:
            return [HoldForNotice(attempt=message.attempt, notice=message.notice)]
        return [SendToHead(message=messages.NoticePolls(attempt=message.attempt, made=None))]

    def polls_counted(self, attempt: int, made: NoticeCounts) -> list[Action]:
        """Tell the head how many calls the workers have made that ask for a notice; later ones wait.

        Workers that are being stopped have their grace, in which a call of theirs may wait, and so may one of ranks on
        other nodes: the agreement goes on until the attempt is over here.
        """
        is_ours = attempt == self.attempt
        return [SendToHead(message=messages.NoticePolls(attempt=attempt, made=made))] if is_ours else []

    def node_broke(self, reason: str, state: StateVersion | None = None) -> list[Action]:
        """Report a failure outside the workers of this node, which keeps the attempt from going on.

        `state` is the training state that this node cannot provide to its workers, if that is what keeps it.
        """
        if self.phase is not MemberPhase.WORKING:
            return []
        broken = messages.Broken(attempt=self.attempt, reason=reason, state=state)
        return [Log(text=reason), SendToHead(message=broken)]

    def terminated(self, signal_name: str, now: float, *, have_workers: bool) -> list[Action]:
        """Stop the workers, because a signal from outside ends this agent; `have_workers` if they may have got one.

        It is called once: whoever asks again is in a hurry, which concerns the workers alone. The signal comes to
        agent and workers in any order, so those that have just exited 0 may have done so for it.
        """
        if self.phase is MemberPhase.LEAVING:
            return []
        self._is_terminated = True
        self._have_workers_term = have_workers
        if have_workers:
            self._exits.doubt_latest(now)
        if self.phase in (MemberPhase.JOINING, MemberPhase.SEARCHING):
            return self.leaves(int(ExitCode.STOPPED), f"{signal_name} while there was no head")
        told = SendToHead(message=messages.Terminated(signal_name=signal_name))
        return [Log(text=f"got {signal_name}"), told, *self._stop(StopManner.GRACE, f"{signal_name} from outside")]

    def workers_stopped(
        self,
        attempt: int,
        unkillable: tuple[int, ...],
        store_port: int,
        step: int | None = None,
        waiting: Collection[int] = (),
        held: tuple[HeldState, ...] = (),
        paused: Collection[int] = (),
    ) -> list[Action]:
        """Handle the end of a stop: no worker of the attempt is left, except those that survived KILL.

        Args:
            attempt: the attempt that was stopped.
            unkillable: the process ids that survived KILL.
            store_port: the port for the next attempt's store, if this node is to serve it.
            step: the furthest step that a worker's heartbeat named, None if none did.
            waiting: the global ranks that waited for others in a collective when the stop began, as far as known.
            held: the training states in memory that all workers of this node hold.
            paused: the global ranks that a signal or a debugger had stopped when the stop began.
        """
        if self.phase is not MemberPhase.STOPPING or attempt != self.attempt:
            return []
        self._unkillable, self._step = unkillable, step
        self._waiting, self._paused = format_ranks(waiting), format_ranks(paused)
        self.join = replace(self.join, store_port=store_port, held=held)
        return self._after_stop()

    def _after_stop(self) -> list[Action]:
        if (unkillable := self._unkillable) is None or not self._exits.is_settled:
            return []
        self._unkillable = None
        state = WorkerState.FAILED if self._exits.failures else WorkerState.STOPPED
        actions: list[Action] = []
        if not self._is_finished:  # else the record of success stands, whatever became of the others
            is_over = not self._exits.failures and not self._exits.again
            ended = self._check_all_over(unkillable) if is_over else []
            actions += ended or self._record(state, self._stop_reason, unkillable)
        if self._leave is not None:
            return [*actions, *self._depart(self._leave)]
        if self._allegiance.is_headless:
            return actions + self._discover_head(unkillable)
        self.phase = MemberPhase.PARKED
        failures, port = tuple(self._exits.failures.values()), self.join.store_port
        stopped = messages.Stopped(
            attempt=self.attempt,
            failures=failures,
            unkillable=unkillable,
            store_port=port,
            succeeded=self._global_ranks(self._exits.ended_well_here),
            step=self._step,
            waiting=self._waiting,
            paused=self._paused,
            held=self.join.held,
        )
        return [*actions, SendToHead(message=stopped)]

    def _global_ranks(self, local_ranks: Iterable[int]) -> str:
        """Return the global ranks of these workers, as a set of ranks."""
        first = self._assign.first_rank if self._assign is not None else 0
        return format_ranks(first + local_rank for local_rank in local_ranks)

    # Steps.

    def _assigned(self, assign: Assign, now: float) -> list[Action]:
        if self.phase is not MemberPhase.PARKED or assign.attempt <= self.attempt:
            return [Log(text=f"passed over an assignment to attempt {assign.attempt} in phase {self.phase.value}")]
        is_alone = self._allegiance.is_here and assign.group_world_size == 1
        if now >= self._lease.fence_deadline and not is_alone:  # the head may have given this node up by now
            return self.disconnected(f"the assignment to attempt {assign.attempt} came too late", is_dead=False)
        self._assign = assign
        self.join = replace(self.join, role=assign.role, workers=assign.workers)  # a spare may get another role's place
        self._allegiance.lost = None
        self._lease.share(assign.group_world_size)
        self._exits.clear()
        self._pids = {}
        self._is_finished = False
        self._has_notice = self._has_notice or assign.notice is not None
        self._have_workers_term = False
        self.phase = MemberPhase.WORKING
        return [StartWorkers(assign=assign)]

    def _record_failure(
        self, local_rank: int, exitcode: int, ended_at: float, *, is_after_stop: bool = False
    ) -> RecordFailure:
        self._exits.records(local_rank)
        return RecordFailure(
            attempt=self.attempt,
            local_rank=local_rank,
            exitcode=exitcode,
            ended_at=ended_at,
            is_after_stop=is_after_stop,
        )

    def _record_held(self) -> list[Action]:
        """Record the workers that a TERM ended as failed, because no TERM came for this agent."""
        return [self._record_failure(*held) for held in self._exits.take_held()]

    def _told_to_stop(self, stop: messages.Stop, now: float) -> list[Action]:
        if stop.is_term_coming:
            self._exits.doubt_latest(now)
        return self._stop(stop.manner, stop.reason, is_term_coming=stop.is_term_coming, takes_stacks=stop.takes_stacks)

    def _stop(
        self, manner: StopManner, reason: str, *, is_term_coming: bool = False, takes_stacks: bool = False
    ) -> list[Action]:
        """Stop the workers that run; a second stop takes effect only if it is harder, and a fence always."""
        if self.phase not in HAVE_WORKERS:
            return []
        is_again = self.phase is MemberPhase.STOPPING and manner is not StopManner.FENCE
        if is_again and manner.hardness <= self._stop_manner.hardness:
            return []
        self.phase = MemberPhase.STOPPING
        self._stop_reason = reason
        self._stop_manner, self._takes_stacks = manner, takes_stacks
        # A failure on another node may be the consequence of one on this node that was not judged yet.
        actions = self._record_held() if manner is StopManner.RESTART else []
        self._exits.forget_held()
        has_term, is_coming = self._have_workers_term, is_term_coming and not self._is_terminated
        self._expects_term = has_term or is_coming
        stop = StopWorkers(
            attempt=self.attempt,
            manner=manner,
            is_terminated=has_term,
            is_term_coming=is_coming,
            takes_stacks=takes_stacks,
        )
        return [*actions, stop]

    def _end(self, message: messages.End | messages.Refused) -> list[Action]:
        cause = message.cause if isinstance(message, messages.End) else message.reason
        if self._leave is not None:
            return []
        leave = Leave(exit_code=message.exit_code, cause=cause)
        if isinstance(message, messages.End):
            leave = replace(leave, ends_job=message.ends_job, stands_by=message.stands_by, flush=message.flush)
        self._leave = leave
        if self.phase in HAVE_WORKERS:  # `workers_stopped` departs
            # Without a result other nodes may go on while these workers use their grace, and no lease would show it.
            is_settled = isinstance(message, messages.Refused) or message.is_settled
            return self._stop(StopManner.GRACE if is_settled else StopManner.FENCE, cause)
        return self._depart(leave)

    def _depart(self, leave: Leave) -> list[Action]:
        self._leave = leave
        self.phase = MemberPhase.LEAVING
        self._lease.end()
        return [leave]

    def _discover_head(self, unkillable: tuple[int, ...] = (), *, is_news: bool = True) -> list[Action]:
        """Search for another head, once no worker is left here.

        The node leaves instead if workers survived KILL, or if it got a TERM: the head got one too, perhaps because
        of a requeue.
        """
        if (lost := self._allegiance.lost) is None:
            return []
        if unkillable:
            survivors = f"{', '.join(map(str, unkillable))} survived KILL, and the head is lost"
            return self.leaves(int(ExitCode.STALLED), survivors)
        if self._is_terminated:
            return self.leaves(int(ExitCode.STOPPED), f"terminated, and {lost.node or 'the head'} was lost: {lost.why}")
        self.phase = MemberPhase.SEARCHING
        note = Note(name="head.lost", message=lost.why, attempt=self.attempt, metadata={"head": lost.node})
        word = SendToHead(message=messages.Dropped(reason=lost.why))
        return [word, note, DiscoverHead(lost=lost)] if is_news else [word, DiscoverHead(lost=lost)]

    def _record(self, state: WorkerState, reason: str, unkillable: tuple[int, ...] = ()) -> list[Action]:
        if self._assign is None:
            return []
        whose, failures = (self._run, self.join.node, self._assign, state), self._exits.failures
        record = node_result(*whose, reason=reason, pids=self._pids, failures=failures, unkillable=unkillable)
        return [WriteNodeResult(result=record)]
