"""Slurm as a scheduler: sbatch, squeue and, where there is accounting, sacct; scancel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import SchedulerError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from hpc_elastic.scheduler.slurm.runner import MissingProgramError, Runner, run_command

if TYPE_CHECKING:  # `status` has no use for it and 50 ms in all
    from hpc_elastic.plan.launch_plan import LaunchPlan


class SlurmScheduler:
    """Talks to the Slurm that the environment leads to; every call is bounded in time.

    Args:
        timeout_s: for a question or a cancellation.
        submit_timeout_s: for a submission: long, for a job whose sbatch was killed may be in the queue.
        run: runs the commands.
    """

    name = "slurm"
    answers_at_once = False

    def __init__(self, *, timeout_s: float = 30.0, submit_timeout_s: float = 90.0, run: Runner = run_command) -> None:
        self._timeout_s = timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._run = run
        self._has_accounting = True

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Hands the script over, with an environment that carries no other job's identity.

        Returns:
            The job id.

        Raises:
            SchedulerError: it was refused, or Slurm does not answer.
        """
        done = self._run(
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
            SchedulerError: the controller does not answer, nor accounting where it has to, or what they say
                cannot be read.
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
        """What sacct knows; nothing where there is no accounting, and then it is not asked again.

        sacct too finds a task that was cancelled before it started only by the name of its array (22.05).

        Raises:
            SchedulerError: there is accounting, and it does not answer: such a job is not gone, but unknown.
        """
        if not self._has_accounting:
            return {}
        try:
            arrays = [split[0] for job_id in job_ids if (split := split_task_id(job_id))]
            question = commands.sacct_command(list(dict.fromkeys([*job_ids, *arrays])))
            found = output.parse_accounting(self._ask(question), job_ids)
        except MissingProgramError:
            found = None
        self._has_accounting = found is not None
        return found or {}

    def _ask(self, command: Sequence[str]) -> output.CommandOutput:
        return self._run(command, environ=commands.query_environment(os.environ), timeout_s=self._timeout_s)


def make_scheduler(*, run_dir: str | None, timeout_s: float) -> SlurmScheduler:  # noqa: ARG001
    """Slurm; of scheduler.protocol.SchedulerModule."""
    return SlurmScheduler(timeout_s=timeout_s)


def slurm_answers(timeout_s: float = 2.0) -> bool:
    """Whether there is a Slurm that answers `sinfo` in time."""
    try:
        done = run_command(
            commands.sinfo_command(), environ=commands.query_environment(os.environ), timeout_s=timeout_s
        )
    except SchedulerError:
        return False
    return done.returncode == 0


def _gone(job_id: str) -> JobStatus:
    return JobStatus(job_id=job_id, state=JobState.GONE, native_state="")
