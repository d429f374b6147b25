"""Records what torch's agent reports about its workers: events, metrics, and the Prometheus text file.

Theory of operation. The supervisor passes each action of its member to this module, and the coordinator the
steps of the head. From these the node's WorkerGroup changes its states, and each step is timed from the action
that begins it to the one that ends it:

    rendezvous          from the start, or the end of a stop, to StartWorkers
    start_workers       StartWorkers to the node's record that they are HEALTHY
    initialize_workers  rendezvous and start_workers
    monitor_workers     HEALTHY to StopWorkers; nothing polls, so this is as long as the workers ran
    stop_workers        StopWorkers to Stopped, or to Leave
    restart_workers     StopWorkers to the next HEALTHY
    assign_worker_ranks on the head's node: the claim with every rank in it
    run                 from the agent's start to its end

Records are built when something happens. The disk's thread writes them, perhaps later.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.step_notes import StepNotes
from hpc_elastic.agent.records.textfile import Textfile
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.elastic.events import (
    ASSIGN_WORKER_RANKS,
    RENDEZVOUS,
    START,
    Moment,
    construct_event,
    worker_events,
)
from hpc_elastic.elastic.group import NodeRanks, WorkerGroup
from hpc_elastic.elastic.metrics import METRIC_GROUP, run_metrics, state_metrics, step_metrics
from hpc_elastic.elastic.prometheus import RoleSample, TimeSample, render_textfile
from hpc_elastic.elastic.spec import planned_spec
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    Leave,
    SendToHead,
    StartWorkers,
    StopWorkers,
    WriteNodeResult,
)
from hpc_elastic.membership.messages import Assign, Failed, Message, Stopped
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.error_file import parse_error
from hpc_elastic.rundir.records import (
    Event,
    EventSource,
    MetricData,
    NodeResult,
    RunResultRecord,
    RunState,
    WorkerState,
)
from hpc_elastic.rundir.store import read_json
from hpc_elastic.scheduler.allocation import Allocation

LONGEST_RAW_ERROR = 1024 * 1024  # characters; torch's @record bounds neither message nor traceback
_EVENT_OF_STEP = {"rendezvous": RENDEZVOUS, "assign_worker_ranks": ASSIGN_WORKER_RANKS}
# The exit codes of an agent that worked to the end of the run; any other one means that the agent itself failed.
_AGENT_SUCCEEDED = frozenset(
    {
        *(ExitCode.SUCCESS, ExitCode.WORKERS_FAILED, ExitCode.NO_PROGRESS, ExitCode.STALLED),
        *(ExitCode.STOPPED, ExitCode.REQUEUE),
    }
)


class Telemetry:
    """The telemetry of one node's worker group, as its agent sees it.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        journal: writes to the run directory.
        disk: the thread in which the journal is used.
        say: takes a line for the agent's log.
        now: monotonic seconds.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        journal: Journal,
        disk: BackgroundThread,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._place = allocation
        self._journal = journal
        self._disk = disk
        path, environ = plan.metrics_textfile, {**os.environ, **plan.env}
        self._textfile = None if path is None else Textfile(path, environ, say)
        self._now = now
        self.group = WorkerGroup(planned_spec(plan, allocation.node_id, len(allocation.nodes)))
        self._attempt = 0
        self._restarts = 0
        self._begun: dict[str, float] = {}
        self._durations_ms: dict[str, float] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._run_values: dict[str, dict[str, float]] = {}  # by role
        self.steps: StepNotes | None = None  # is told when workers begin and end, if it is set
        self._began = now()
        self._begin("run", "initialize_workers", "rendezvous")

    # What the supervisor and the coordinator show.

    def saw(self, action: Action) -> None:
        """Record what follows from an action of the member: steps that begin or end, and the group's state."""
        if isinstance(action, StartWorkers):
            self._assigned(action.assign)
        elif isinstance(action, StopWorkers):
            self._end("monitor_workers")
            self._begin("stop_workers", "restart_workers")
        elif isinstance(action, WriteNodeResult) and action.result.state is WorkerState.HEALTHY:
            self._started(action.result)
        elif isinstance(action, WriteNodeResult) and not action.result.state.is_running:
            self._ended(action.result)
        elif isinstance(action, Leave):
            self._left(action)
        elif isinstance(action, SendToHead) and isinstance(action.message, Stopped):
            self._end("stop_workers", is_success=not action.message.unkillable)
            self._begin("initialize_workers", "rendezvous")
        elif isinstance(action, DiscoverHead):
            self._end("stop_workers")
            self._begin("initialize_workers", "rendezvous")
        elif isinstance(action, SendToHead) and _is_failed_start(action.message):
            self._end("start_workers", "initialize_workers", "restart_workers", is_success=False)
        elif isinstance(action, SendToHead) and isinstance(action.message, Failed):
            self._fell_ill()

    @contextlib.contextmanager
    def measuring(self, step: str) -> Iterator[None]:
        """Time a step of the head; the step is the body of the `with` statement."""
        self._begin(step)
        is_success = False
        try:
            yield
            is_success = True
        finally:
            self._end(step, is_success=is_success)

    def run_ended(self, result: RunResultRecord) -> None:
        """Record the metrics of a run whose result is written; a run that was stopped has none, as in torch."""
        if result.state not in (RunState.SUCCEEDED, RunState.FAILED):
            return
        limit, is_failed = self._plan.restart.max_restarts, result.is_failed()
        for role in self._plan.roles:
            values = run_metrics(role.name, max_restarts=limit, restarts=result.restarts, is_failed=is_failed)
            self._run_values[role.name] = values
            self._put(values, role=role.name)
        self._write_textfile()

    def refresh(self) -> None:
        """Write the text file anew, for what changes by time alone."""
        self._write_textfile()

    # Steps.

    def _assigned(self, assign: Assign) -> None:
        self._attempt = assign.attempt
        self._restarts = assign.restarts
        ranks = NodeRanks(
            group_rank=assign.group_rank,
            group_world_size=assign.group_world_size,
            first_global_rank=assign.first_rank,
            world_size=assign.world_size,
            first_role_rank=assign.first_role_rank,
            role_world_size=assign.role_world_size,
        )
        self.group = self.group.assigned(ranks, assign.master)
        self._end("rendezvous")
        self._begin("start_workers")

    def _started(self, result: NodeResult) -> None:
        """Record that all workers of the node have been started."""
        pids = {worker.local_rank: result.pids.get(str(worker.global_rank)) for worker in self.group.workers}
        self.group = self.group.started(pids)
        self._end("start_workers", "initialize_workers", "restart_workers")
        self._begin("monitor_workers")
        if self.steps is not None:
            self.steps.begin(result.attempt, is_traced=self.group.workers[0].role_rank == 0)
        moment, source = self._moment(), EventSource.WORKER
        self._append_events(
            [
                construct_event(self.group, moment, state=START, source=source, worker=worker, worker_pid=worker.id)
                for worker in self.group.workers
            ]
        )
        self._enter(WorkerState.HEALTHY)

    def _fell_ill(self) -> None:
        """Record that a worker failed and those of this node have not been stopped yet; once for a group."""
        if self.group.state is not WorkerState.HEALTHY:
            return
        state, source = WorkerState.UNHEALTHY, EventSource.AGENT
        self._append_events([construct_event(self.group, self._moment(), state=state.value, source=source)])
        self._enter(state)

    def _ended(self, result: NodeResult) -> None:
        """Record how each of the node's workers ended, when the node's part in an attempt is over."""
        group, moment = self.group, self._moment()
        paths = {rank: failure.error_file for rank, failure in result.failures.items()}

        def write() -> None:
            errors = {rank: _raw_error(path) for rank, path in paths.items()}
            self._journal.append_events(worker_events(group, moment, result, errors=errors))

        if self.steps is not None:
            self.steps.end()
        self._disk.best_effort(write)
        self._enter(result.state)

    def _left(self, leave: Leave) -> None:
        self._end("stop_workers", "run")
        is_success = leave.exit_code in _AGENT_SUCCEEDED
        state = WorkerState.SUCCEEDED if is_success else WorkerState.FAILED
        raw_error = None if is_success else leave.cause
        event = construct_event(
            self.group, self._moment(), state=state.value, source=EventSource.AGENT, raw_error=raw_error
        )
        self._append_events([event])
        self._write_textfile()

    def _enter(self, state: WorkerState) -> None:
        self.group = self.group.entered(state)
        limit, role = self._plan.restart.max_restarts, self.group.spec.role
        self._put(state_metrics(role, state, max_restarts=limit, restarts=self._restarts), role=role)
        self._write_textfile()

    def _begin(self, *steps: str) -> None:
        for step in steps:
            self._begun[step] = self._now()

    def _end(self, *steps: str, is_success: bool = True) -> None:
        """Record the end of those of the steps that were begun."""
        for step in steps:
            begun = self._begun.pop(step, None)
            if begun is None:
                continue
            duration_ms = (self._now() - begun) * 1000
            self._durations_ms[step] = duration_ms
            successes, failures = self._counts.get(step, (0, 0))
            self._counts[step] = (successes + is_success, failures + (not is_success))
            self._put(step_metrics(step, duration_ms=duration_ms, is_success=is_success), role=self.group.spec.role)
            if state := _EVENT_OF_STEP.get(step):
                source = EventSource.AGENT
                event = construct_event(self.group, self._moment(), state=state, source=source, duration_ms=duration_ms)
                self._append_events([event])

    # Records.

    def _moment(self) -> Moment:
        return _moment(
            self._plan,
            self._place,
            self._journal,
            attempt=self._attempt,
            restarts=self._restarts,
            run_time_s=self._now() - self._began,
        )

    def _append_events(self, events: list[Event]) -> None:
        self._disk.best_effort(lambda: self._journal.append_events(events))

    def _put(self, values: Mapping[str, float], *, role: str) -> None:
        timestamp = time.time()
        metrics = [
            MetricData(
                timestamp=timestamp,
                group_name=METRIC_GROUP,
                name=name,
                value=value,
                run=self._plan.run,
                node=self._place.node,
                attempt=self._attempt,
                role=role,
            )
            for name, value in values.items()
        ]
        self._disk.best_effort(lambda: self._journal.append_metrics(metrics))

    def _write_textfile(self) -> None:
        textfile = self._textfile
        if textfile is not None and self._journal.is_head:
            samples = self._samples()
            self._disk.best_effort(lambda: textfile.replace(render_textfile(samples, self._time_sample())))

    def _time_sample(self) -> TimeSample:
        """Return what the run's time was spent on so far; blocks."""
        spent = self._journal.useful_time()
        seconds = {use.key: seconds for use, seconds in spent.seconds.items()}
        return TimeSample(run=self._plan.run, node=self._place.node, seconds=seconds, share=spent.share)

    def _samples(self) -> list[RoleSample]:
        run, node, own = self._plan.run, self._place.node, self.group.spec.role
        limit = self._plan.restart.max_restarts
        states = state_metrics(own, self.group.state, max_restarts=limit, restarts=self._restarts)
        mine = RoleSample(
            run=run,
            role=own,
            node=node,
            values={**states, **self._run_values.get(own, {})},
            state=self.group.state,
            durations_ms=dict(self._durations_ms),
            counts=dict(self._counts),
        )
        others = [
            RoleSample(run=run, role=role, node=node, values=values)
            for role, values in self._run_values.items()
            if role != own
        ]
        return [mine, *others]


def _is_failed_start(message: Message) -> bool:
    return isinstance(message, Failed) and message.failure.failure_class == "start_failed"


def record_crash(plan: LaunchPlan, allocation: Allocation, journal: Journal, *, attempt: int, detail: str) -> None:
    """Write the event of an agent that failed itself; `detail` is its traceback. Blocks."""
    group = WorkerGroup(planned_spec(plan, allocation.node_id, len(allocation.nodes)))
    moment = _moment(plan, allocation, journal, attempt=attempt, restarts=max(0, attempt - 1), run_time_s=0)
    failed = WorkerState.FAILED.value
    journal.append_events([construct_event(group, moment, state=failed, source=EventSource.AGENT, raw_error=detail)])


def _moment(
    plan: LaunchPlan, place: Allocation, journal: Journal, *, attempt: int, restarts: int, run_time_s: float
) -> Moment:
    return Moment(
        time_ns=time.time_ns(),
        run=plan.run,
        node=place.node,
        hostname=os.uname().nodename,  # torch asks a name server for the full name, which may block
        allocation=journal.allocation,
        attempt=attempt,
        restarts=restarts,
        run_time_s=run_time_s,
    )


def _raw_error(path: str) -> str | None:
    """Return a rank's error file as torch's events have it, on one line; only its message if it is very long."""
    with contextlib.suppress(RunDirectoryError):
        data = read_json(path)
        raw_error = None if data is None else json.dumps(data)
        if raw_error is not None and len(raw_error) > LONGEST_RAW_ERROR and (error := parse_error(data)) is not None:
            return json.dumps({"message": {"message": error.message}})
        return raw_error
    return None
