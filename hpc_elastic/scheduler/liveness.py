"""What a node asks the scheduler about jobs of its run: whether one is over, whether one will start again."""

from __future__ import annotations

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
