"""Answers a node's questions about jobs of this machine, without asking another program."""

from __future__ import annotations

from collections.abc import Collection

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import JobOutlook, JobState


def is_over(job_id: str) -> bool:
    """Return whether nothing of a job can be running any more."""
    from hpc_elastic.scheduler.local.scheduler import LocalScheduler

    return LocalScheduler().query([job_id])[job_id].state is not JobState.RUNNING


def is_requeued(job_id: str, restart_count: int) -> bool:  # noqa: ARG001
    """Return whether the job will start again, which is never so."""
    return False


def is_at_work(job_id: str, restart_count: int) -> bool:  # noqa: ARG001
    """Return whether the job is meant to go on, which is always so."""
    return True


def dead_nodes(job_id: str, nodes: Collection[str]) -> frozenset[str]:  # noqa: ARG001
    """Return the nodes that are lost for good: none, because the node that asks is on the only machine there is."""
    return frozenset()


def outlook(job_id: str) -> JobOutlook:  # noqa: ARG001
    """Return that the job runs; its time limit is the plan's, which its script sees to."""
    return JobOutlook(state=JobState.RUNNING, restarts=0)


def can_end_job(job_id: str) -> bool:  # noqa: ARG001
    """Return whether a node should end the job when its script is gone, which is never needed."""
    return False


def end_job(job_id: str, *, timeout_s: float) -> None:  # noqa: ARG001
    """End a job with all its processes.

    Raises:
        SchedulerError: a process cannot be killed.
    """
    from hpc_elastic.scheduler.local.scheduler import LocalScheduler

    LocalScheduler().cancel(job_id)


def excluded(job_id: str) -> tuple[str, ...]:  # noqa: ARG001
    """Return the nodes that a job must not get: none, for all are this machine."""
    return ()


def check_exclusion(script: str, nodes: Collection[str]) -> None:  # noqa: ARG001
    """Refuse to leave out nodes, which are all this machine.

    Raises:
        SchedulerError: always.
    """
    raise SchedulerError("all nodes of a job of this machine are this machine")


def exclude(job_id: str, nodes: Collection[str]) -> None:  # noqa: ARG001
    """Refuse to leave out nodes, which are all this machine.

    Raises:
        SchedulerError: always.
    """
    raise SchedulerError(f"all nodes of job {job_id} are this machine")


def leave_reservation(job_id: str) -> None:
    """Do nothing: no job of this machine has a reservation."""


def set_comment(job_id: str, text: str) -> None:
    """Do nothing: nobody shows a line beside a job of this machine."""


def submit_after(job_id: str, script: str, *, timeout_s: float, is_reserved: bool = True) -> str:  # noqa: ARG001
    """Refuse to chain jobs: nothing of this machine waits for another one.

    Raises:
        SchedulerError: always.
    """
    raise SchedulerError(f"job {job_id} is of this machine, where no job waits for another one")


def requeue_job(job_id: str, *, timeout_s: float) -> None:  # noqa: ARG001
    """Refuse to requeue: nothing starts a job of this machine again.

    Raises:
        SchedulerError: always.
    """
    raise SchedulerError(f"job {job_id} is of this machine, which starts no job again")
