"""The protocols of a scheduler: submit, query and cancel for the login side, and the questions of a node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpc_elastic.plan.launch_plan import LaunchPlan  # its dataclasses cost `status` 10 ms
    from hpc_elastic.scheduler.allocation import Allocation


class JobState(str, Enum):
    """The state of a job, as the scheduler reports it; GONE: the scheduler does not know the job (any more)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    GONE = "GONE"

    @property
    def is_terminal(self) -> bool:
        """Whether the job will not run any more."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.COMPLETING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The status of one job; `native_state` is the scheduler's own word, `exit_code` is `code:signal`."""

    job_id: str
    state: JobState
    native_state: str
    reason: str | None = None
    nodes: str | None = None
    restarts: int = 0
    exit_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutlook:
    """What the scheduler says about the end of a running job.

    `seconds_left`: until the scheduler ends the job, infinite where there is no limit, None if that is unknown.
    `is_preempted`: the scheduler has begun to take the job's nodes for another one. `is_out_of_time`: its time limit
    has ended it. `has_lost_node`: it ends all of the job because a node failed, as of one that is not to survive that,
    or because that of its script was set DOWN.
    `is_script_killed`: it ends because the job's script got a SIGKILL.
    `restarts`: how often the scheduler has started it again, a start that is to come included.
    `reservation`: the one in which it runs, empty if in none. `ends_with_reservation`: `seconds_left` is until its end.
    `starts`: when a waiting job is expected to start, by the scheduler's clock, None if there is no estimate.
    """

    state: JobState
    restarts: int
    seconds_left: float | None = None
    is_preempted: bool = False
    is_out_of_time: bool = False
    has_lost_node: bool = False
    is_script_killed: bool = False
    reservation: str = ""
    ends_with_reservation: bool = False
    starts: datetime | None = None


class JobQuery(Protocol):
    """An object that can be asked for the status of jobs."""

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of each of these jobs, asked for in one question; every id has an answer.

        Raises:
            SchedulerError: the scheduler does not answer.
        """


class Scheduler(JobQuery, Protocol):
    """A scheduler: Slurm, or this machine.

    `answers_at_once`: queries return without waiting for another process or machine.
    """

    name: str
    answers_at_once: bool

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Submit the script at this path.

        Returns:
            The job id.

        Raises:
            SchedulerError: the scheduler refused, or does not answer.
        """

    def cancel(self, job_id: str) -> None:
        """End a pending or running job, or an array with all its tasks; do nothing if it has ended.

        Raises:
            SchedulerError: the scheduler refused, or does not answer.
        """


class ArrayScheduler(Scheduler, Protocol):
    """A scheduler that also takes arrays, by the same `submit`; task 4 of job 12 is job `12_4`."""

    def cancel_pending(self, job_id: str) -> None:
        """Cancel an array's pending tasks, so that no more of them start; running tasks go on.

        Raises:
            SchedulerError: the scheduler refused, or does not answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """What the next start of a job is to avoid.

    `script` is the job's. `nodes` are those to avoid, the ones that matter most last. `earlier` are those that were
    avoided for earlier starts, and are not any more unless `nodes` has them.
    """

    script: str
    nodes: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


class NodeQuestions(Protocol):
    """The questions of a node about jobs of its run; `scheduler.questions.JobQuestions` asks a real scheduler."""

    def is_over(self, job_id: str) -> bool | None:
        """Return whether nothing of a job can be running any more; None if that is unknown."""

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler stops this start of a job in order to requeue it; None if that is unknown."""

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler means this start of a job to go on; None if that is unknown."""

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of a job's nodes that the scheduler has given up for good; none if that is unknown."""

    def outlook(self, job_id: str) -> JobOutlook | None:
        """Return what the scheduler says about the end of a job; None if that is unknown."""

    def start_again(self, job_id: str, without: Exclusion) -> str:
        """Have a job stopped and started again; return the scheduler's refusal, empty if there was none."""

    def forbids_requeue(self) -> bool:
        """Return whether the job was refused another start because this scheduler never requeues it."""

    def submit_after(self, job_id: str, without: Exclusion) -> tuple[str, str]:
        """Submit a script that starts when a job is over; return the new job's id, or empty and the refusal."""

    def may_be_accepted_later(self) -> bool:
        """Return whether a job was refused only for now, as where its partition is drained or the queue is full."""

    def may_answer_later(self) -> bool:
        """Return whether what was not answered may be answered a moment later."""


class SchedulerModule(Protocol):
    """The module `scheduler` of a scheduler's folder."""

    def make_scheduler(self, *, run_dir: str | None, timeout_s: float) -> ArrayScheduler:
        """Make the scheduler; `registry.make_scheduler` says what the arguments mean."""


class StepModule(Protocol):
    """The module `step` of a scheduler's folder: pure."""

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Return whether this is the environment of a job of this scheduler."""

    def derive_start(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Return the job's id, and how often the job was started again.

        Raises:
            AllocationError: there is no job.
        """

    def derive_allocation(self, environ: Mapping[str, str]) -> Allocation:
        """Return this node's place in the allocation.

        Raises:
            AllocationError: there is no step, or it has not exactly one agent a node.
        """

    def find_cancelled_step(self, lines: Sequence[str]) -> str:
        """Return the step that a person cancelled alone, by the last lines of an agent's output; empty if none was."""


class FromNodeModule(Protocol):
    """The module `from_node` of a scheduler's folder; each question raises SchedulerError if the answer is unknown."""

    def is_over(self, job_id: str) -> bool:
        """Return whether nothing of a job can be running any more."""

    def is_requeued(self, job_id: str, restart_count: int) -> bool:
        """Return whether the scheduler stops this start of a job in order to requeue it."""

    def is_at_work(self, job_id: str, restart_count: int) -> bool:
        """Return whether the scheduler means this start of a job to go on."""

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of a job's nodes that the scheduler has given up for good."""

    def outlook(self, job_id: str) -> JobOutlook:
        """Return what the scheduler says about the end of a job."""

    def can_end_job(self, job_id: str) -> bool:
        """Return whether a node should and could end the job when its script is gone."""

    def end_job(self, job_id: str, *, timeout_s: float) -> None:
        """End a job; do nothing if it has ended."""

    def requeue_job(self, job_id: str, *, timeout_s: float) -> None:
        """Have a job stopped and started again."""

    def leave_reservation(self, job_id: str) -> None:
        """Let a pending job start without its reservation."""

    def set_comment(self, job_id: str, text: str) -> None:
        """Let the scheduler show a line beside a job, in place of the one before."""

    def excluded(self, job_id: str) -> tuple[str, ...]:
        """Return the nodes that a job must not get."""

    def check_exclusion(self, script: str, nodes: Collection[str]) -> None:
        """Check that a script could ever run without these nodes; SchedulerError if not."""

    def exclude(self, job_id: str, nodes: Collection[str]) -> None:
        """Keep a pending job from these nodes, and from no others."""

    def submit_after(self, job_id: str, script: str, *, timeout_s: float, is_reserved: bool = True) -> str:
        """Submit a script that starts when a job is over, without its reservation if so; return the new job's id."""
