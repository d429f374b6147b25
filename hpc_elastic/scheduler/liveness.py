"""What a node asks the scheduler about jobs of its run: is one over, will one start again, which nodes has it lost."""

from __future__ import annotations

from collections.abc import Collection

from hpc_elastic.scheduler.protocol import JobState


def is_job_over(job_id: str) -> bool | None:
    """Whether nothing of this job can be running any more; None if nobody can tell from here.

    Either kind of scheduler may have started the other allocation of a run: somebody may run the
    job.sh of a Slurm run by hand.
    """
    if job_id.startswith("local-"):
        from hpc_elastic.scheduler.local import LocalScheduler

        return LocalScheduler().query([job_id])[job_id].state is not JobState.RUNNING
    from hpc_elastic.scheduler.slurm import allocation_is_over

    return allocation_is_over(job_id)


def is_job_requeued(job_id: str, restart_count: int) -> bool:
    """Whether the scheduler stops this start of a job in order to start it again.

    Slurm (22.05) counts the restart before it sends the TERM. Where it cannot be asked the answer is no.
    """
    if job_id.startswith("local-"):
        return False
    from hpc_elastic.scheduler.slurm import count_restarts

    restarts = count_restarts(job_id)
    return restarts is not None and restarts > restart_count


def dead_nodes(job_id: str, nodes: Collection[str]) -> frozenset[str]:
    """Those of the job's nodes that the scheduler has given up for this job, for good.

    Never raises, and takes 5 s at most. A node that is not in the answer may be alive or dead: nobody
    may need this answer, it can only spare the wait for a lease. On this machine nobody can be asked.
    """
    if job_id.startswith("local-") or not nodes:
        return frozenset()
    from hpc_elastic.scheduler.slurm import nodes_taken_away

    return nodes_taken_away(job_id, nodes)


def can_end_job(job_id: str) -> bool:
    """Whether this node could end the job: takes 5 s at most, and never raises. On this machine nobody has to."""
    if job_id.startswith("local-"):
        return False
    from hpc_elastic.scheduler.slurm import controller_answers
    from hpc_elastic.scheduler.slurm.output import is_job_id

    return is_job_id(job_id) and controller_answers()


def end_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """Ends a job of Slurm; fine if it is over.

    Raises:
        SchedulerError: it was refused, or Slurm does not answer.
    """
    from hpc_elastic.scheduler.slurm import SlurmScheduler

    SlurmScheduler(timeout_s=timeout_s).cancel(job_id)


def requeue_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """Has Slurm stop a job and start it again; the TERM that follows reaches every process of its steps.

    Raises:
        SchedulerError: it was refused, or Slurm does not answer.
    """
    from hpc_elastic.scheduler.slurm import requeue

    requeue(job_id, timeout_s=timeout_s)
