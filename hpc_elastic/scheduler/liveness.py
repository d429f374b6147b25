"""What a node asks the scheduler about jobs of its run: is one over, will one start again, which nodes has it lost.

Theory of operation. What the scheduler says can hasten or inform, and never costs a result: a refusal, a time-out, a
missing program and an answer that cannot be read are all "unknown", which decides nothing. Why an answer is unknown is
said once, and again only if there was a good answer to that question in between. Jobs of this machine are known
without a question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.scheduler.protocol import JobState

_T = TypeVar("_T")


class JobQuestions:
    """Asks about jobs of this machine or of Slurm; no question raises.

    Args:
        complain: takes a line about an answer that decides nothing.
    """

    def __init__(self, complain: Callable[[str], None] = lambda _: None) -> None:
        self._complain = complain
        self._unknown: set[str] = set()

    def is_over(self, job_id: str) -> bool | None:
        """Return whether nothing of this job can be running any more; None if nobody can tell from here.

        Either kind of scheduler may have started the other allocation of a run: somebody may run the
        job.sh of a Slurm run by hand.
        """
        if _is_local(job_id):
            from hpc_elastic.scheduler.local import LocalScheduler

            return LocalScheduler().query([job_id])[job_id].state is not JobState.RUNNING
        from hpc_elastic.scheduler.slurm import from_node

        return self._ask(f"whether job {job_id} is over", lambda: from_node.is_over(job_id))

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler stops this start of a job in order to start it again; None if unknown.

        Slurm (22.05 to 26.05) counts the restart before it sends the TERM of a requeue. The TERM with which the
        GraceTime of a preemption begins comes before that: such a job is not known to start again.
        """
        if _is_local(job_id):
            return False
        from hpc_elastic.scheduler.slurm import from_node

        restarts = self._ask(f"whether job {job_id} starts again", lambda: from_node.count_restarts(job_id))
        return None if restarts is None else restarts > restart_count

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler means this start of a job to go on; None if unknown.

        It does not if it ends the job (cancelled, out of time, preempted), or starts it again.
        """
        if _is_local(job_id):
            return True
        from hpc_elastic.scheduler.slurm import from_node

        told = self._ask(f"whether job {job_id} is at work", lambda: from_node.look_up(job_id))
        return None if told is None else (told.state, told.restarts) == (JobState.RUNNING, restart_count)

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of the job's nodes that the scheduler has given up for this job, for good.

        Takes 5 s at most. A node that is not in the answer may be alive or dead: nobody may need this
        answer, it can only spare the wait for a lease. On this machine nobody can be asked.
        """
        if _is_local(job_id) or not nodes:
            return frozenset()
        from hpc_elastic.scheduler.slurm import from_node

        question = f"which nodes job {job_id} has lost"
        return self._ask(question, lambda: from_node.nodes_taken_away(job_id, nodes)) or frozenset()

    def can_end_job(self, job_id: str) -> bool:
        """Return whether this node could end the job: takes 5 s at most. On this machine nobody has to."""
        if _is_local(job_id):
            return False
        from hpc_elastic.scheduler.slurm import from_node
        from hpc_elastic.scheduler.slurm.output import is_job_id

        return is_job_id(job_id) and self._ask("whether it is there", from_node.controller_answers) is True

    def _ask(self, question: str, ask: Callable[[], _T]) -> _T | None:
        try:
            answer = ask()
        except HpcElasticError as error:
            if question not in self._unknown:
                self._unknown.add(question)
                self._complain(f"Slurm does not say {question}: {error.message}")
            return None
        self._unknown.discard(question)
        return answer


def end_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """End a job of Slurm; fine if it is over.

    Raises:
        SchedulerError: it was refused, or Slurm does not answer.
    """
    from hpc_elastic.scheduler.slurm import SlurmScheduler

    SlurmScheduler(timeout_s=timeout_s).cancel(job_id)


def requeue_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """Have Slurm stop a job and start it again; the TERM that follows reaches every process of its steps.

    Raises:
        SchedulerError: it was refused, or Slurm does not answer.
    """
    from hpc_elastic.scheduler.slurm import from_node

    from_node.requeue(job_id, timeout_s=timeout_s)


def _is_local(job_id: str) -> bool:
    return job_id.startswith("local-")
