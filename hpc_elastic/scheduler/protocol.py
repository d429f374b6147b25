"""What a scheduler does for a run: submit, query, cancel; and what a node asks it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpc_elastic.plan.launch_plan import LaunchPlan  # its dataclasses cost `status` 10 ms
    from hpc_elastic.scheduler.allocation import Allocation


class JobState(str, Enum):
    """What the scheduler says of a job. GONE: it does not know it (any more)."""

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
    """One job. `native_state` is the scheduler's own word, `exit_code` as `code:signal`."""

    job_id: str
    state: JobState
    native_state: str
    reason: str | None = None
    nodes: str | None = None
    restarts: int = 0
    exit_code: str | None = None


class JobQuery(Protocol):
    """Who can be asked about jobs."""

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """What became of these jobs, in one question; every id has an answer.

        Raises:
            SchedulerError: the scheduler does not answer.
        """


class Scheduler(JobQuery, Protocol):
    """Slurm, or this machine.

    `answers_at_once`: no question waits for anybody.
    """

    name: str
    answers_at_once: bool

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Hands the script at this path over.

        Returns:
            The job id.

        Raises:
            SchedulerError: it was refused, or the scheduler does not answer.
        """

    def cancel(self, job_id: str) -> None:
        """Ends a job, pending or running, or an array with all its tasks; fine if it is over.

        Raises:
            SchedulerError: it was refused, or the scheduler does not answer.
        """


class ArrayScheduler(Scheduler, Protocol):
    """One that arrays can be given to, by the same `submit`; task 4 of job 12 is job `12_4`."""

    def cancel_pending(self, job_id: str) -> None:
        """Sees to it that no more tasks of an array start; those that run go on.

        Raises:
            SchedulerError: it was refused, or the scheduler does not answer.
        """


class NodeQuestions(Protocol):
    """What a node asks about jobs of its run; `scheduler.questions.JobQuestions` asks for real."""

    def is_over(self, job_id: str) -> bool | None:
        """Return whether nothing of a job can be running any more; None if nobody can tell."""

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether this start of a job is stopped in order to start it again; None if nobody can tell."""

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler means this start of a job to go on; None if nobody can tell."""

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of a job's nodes that the scheduler has given up for good; none if nobody can tell."""


class SchedulerModule(Protocol):
    """The module `scheduler` of a scheduler's folder."""

    def make_scheduler(self, *, run_dir: str | None, timeout_s: float) -> ArrayScheduler:
        """Make one; `registry.make_scheduler` says what the arguments mean."""


class StepModule(Protocol):
    """The module `step` of a scheduler's folder: pure."""

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Return whether this is the environment of a job of this scheduler."""

    def derive_start(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Return the job, and how often it was started again.

        Raises:
            AllocationError: there is no job.
        """

    def derive_allocation(self, environ: Mapping[str, str]) -> Allocation:
        """Return this node's place.

        Raises:
            AllocationError: there is none, or it is not one agent a node.
        """


class FromNodeModule(Protocol):
    """The module `from_node` of a scheduler's folder; each answer raises SchedulerError if it is unknown."""

    def is_over(self, job_id: str) -> bool:
        """Return whether nothing of a job can be running any more."""

    def is_requeued(self, job_id: str, restart_count: int) -> bool:
        """Return whether this start of a job is stopped in order to start it again."""

    def is_at_work(self, job_id: str, restart_count: int) -> bool:
        """Return whether this start of a job is meant to go on."""

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of a job's nodes that were given up for good."""

    def can_end_job(self, job_id: str) -> bool:
        """Return whether a node should and could end the job when its script is gone."""

    def end_job(self, job_id: str, *, timeout_s: float) -> None:
        """End a job; fine if it is over."""

    def requeue_job(self, job_id: str, *, timeout_s: float) -> None:
        """Have a job stopped and started again."""
