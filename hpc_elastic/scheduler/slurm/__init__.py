"""Slurm as a scheduler: sbatch, squeue and, where there is accounting, sacct; scancel."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import HpcElasticError, SchedulerError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from hpc_elastic.scheduler.slurm.runner import run_command

if TYPE_CHECKING:  # `status` has no use for it and 50 ms in all
    from hpc_elastic.plan.launch_plan import LaunchPlan


class SlurmScheduler:
    """Talks to the Slurm that the environment leads to; every call is bounded in time.

    Args:
        timeout_s: for a question or a cancellation.
        submit_timeout_s: for a submission: long, for a job whose sbatch was killed may be in the queue.
    """

    name = "slurm"

    def __init__(self, *, timeout_s: float = 30.0, submit_timeout_s: float = 90.0) -> None:
        self._timeout_s = timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._has_accounting = True

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Hands the script over, with an environment that carries no other job's identity.

        Returns:
            The job id.

        Raises:
            SchedulerError: it was refused, or Slurm does not answer.
        """
        done = run_command(
            commands.sbatch_command(script),
            environ=commands.submission_environment(os.environ, plan.sbatch),
            timeout_s=self._submit_timeout_s,
            cwd=os.path.dirname(script),
        )
        return output.parse_submission(done)

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """What became of these jobs: one question to the controller, one more to accounting for those it forgot.

        A task of an array that was cancelled before it started has no name of its own any more, so that
        the controller is asked for its array then.

        Raises:
            SchedulerError: the controller does not answer.
        """
        asked = [job_id for job_id in dict.fromkeys(job_ids) if output.is_job_id(job_id)]
        found: dict[str, JobStatus] = {}
        if asked:
            found |= self._ask_controller(commands.batched_ids(asked), asked)
            lost = [job_id for job_id in asked if job_id not in found and split_task_id(job_id)]
            if arrays := {split[0] for job_id in lost if (split := split_task_id(job_id))}:
                found |= self._ask_controller(sorted(arrays), lost)
        if forgotten := [job_id for job_id in asked if job_id not in found]:
            found |= self._ask_accounting(forgotten)
        return {job_id: found.get(job_id) or _gone(job_id) for job_id in job_ids}

    def cancel_pending(self, job_id: str) -> None:
        """Takes the tasks of an array that wait out of the queue; those that run go on.

        Raises:
            SchedulerError: it was refused, or Slurm does not answer.
        """
        if output.is_job_id(job_id):
            output.parse_cancellation(self._ask(commands.scancel_pending_command(job_id)), job_id)

    def cancel(self, job_id: str) -> None:
        """Ends a job, pending or running, or an array with all its tasks; fine if it is over.

        Raises:
            SchedulerError: it was refused, or Slurm does not answer.
        """
        if output.is_job_id(job_id):
            output.parse_cancellation(self._ask(commands.scancel_command(job_id)), job_id)

    def _ask_controller(self, question: Sequence[str], job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return output.parse_queue(self._ask(commands.squeue_command(question)), job_ids)

    def _ask_accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What sacct knows; nothing where there is no accounting, and then it is not asked again."""
        if not self._has_accounting:
            return {}
        try:
            found = output.parse_accounting(self._ask(commands.sacct_command(job_ids)), job_ids)
        except SchedulerError:
            found = None
        self._has_accounting = found is not None
        return found or {}

    def _ask(self, command: Sequence[str]) -> output.CommandOutput:
        return run_command(command, environ=commands.query_environment(os.environ), timeout_s=self._timeout_s)


def slurm_answers(timeout_s: float = 2.0) -> bool:
    """Whether there is a Slurm that answers `sinfo` in time."""
    try:
        done = run_command(
            commands.sinfo_command(), environ=commands.query_environment(os.environ), timeout_s=timeout_s
        )
    except SchedulerError:
        return False
    return done.returncode == 0


def controller_answers(timeout_s: float = 5.0) -> bool:
    """Whether a controller answers from here, so that jobs can be ended here."""
    environ = commands.query_environment(os.environ)
    try:
        return output.parse_ping(run_command(commands.ping_command(), environ=environ, timeout_s=timeout_s))
    except SchedulerError:
        return False


def allocation_is_over(job_id: str, *, timeout_s: float = 10.0) -> bool | None:
    """Whether nothing of an earlier job can be running any more; None if Slurm cannot be asked from here."""
    try:
        status = SlurmScheduler(timeout_s=timeout_s).query([job_id])[job_id]
    except SchedulerError:
        return None
    return status.state.is_terminal


def count_restarts(job_id: str, *, timeout_s: float = 4.0) -> int | None:
    """How often Slurm has requeued a job; None if it cannot be asked from here. Bounded well below KillWait.

    It is asked when Slurm stops the job, and its TERM, which reaches every process of the step, may come once more:
    the command that asks is started with TERM blocked in this thread, and inherits that.
    """
    try:
        with _spared_term():
            return SlurmScheduler(timeout_s=timeout_s).query([job_id])[job_id].restarts
    except SchedulerError:
        return None


def requeue(job_id: str, *, timeout_s: float) -> None:
    """Has Slurm stop a job and start it again, as a process of the job itself: the TERM must not end the command.

    Raises:
        SchedulerError: it was refused, or Slurm does not answer.
    """
    environ = commands.query_environment(os.environ)
    with _spared_term():
        output.parse_requeue(
            run_command(commands.requeue_command(job_id), environ=environ, timeout_s=timeout_s), job_id
        )


@contextlib.contextmanager
def _spared_term() -> Iterator[None]:
    """Blocks TERM in this thread, and in the commands that it starts."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def nodes_taken_away(job_id: str, nodes: Collection[str], *, timeout_s: float = 5.0) -> frozenset[str]:
    """Those of a running job's nodes that Slurm has taken away from it; none if it cannot be asked from here.

    One question about one job, which the controller answers without a look at its other jobs or nodes.
    """
    try:
        command, environ = commands.squeue_command([job_id]), commands.query_environment(os.environ)
        told = output.parse_queue(run_command(command, environ=environ, timeout_s=timeout_s), [job_id])
        left = output.nodes_left(told.get(job_id))
    except (HpcElasticError, ValueError):  # no Slurm, no answer, or one that this version cannot read
        return frozenset()
    return frozenset() if left is None else frozenset(nodes).difference(left)


def _gone(job_id: str) -> JobStatus:
    return JobStatus(job_id=job_id, state=JobState.GONE, native_state="")
