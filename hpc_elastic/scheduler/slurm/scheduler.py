"""Slurm as a scheduler: submits with sbatch, queries squeue and (with accounting) sacct, cancels with scancel."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import RunDirectoryError, SchedulerError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from hpc_elastic.scheduler.slurm.limits import parse_config
from hpc_elastic.scheduler.slurm.runner import MissingProgramError, Runner, SilenceError, run_command
from hpc_elastic.scheduler.slurm.words import is_refused, is_set_up, slurm_words

if TYPE_CHECKING:  # `status` does not need it, and may take only 50 ms in all
    from hpc_elastic.plan.launch_plan import LaunchPlan


_TIP_OF_SILENCE = "try again later; `--site NAME` takes a site without asking, and `--site local` runs on this machine"


class SlurmScheduler:
    """Submits, queries and cancels jobs of the Slurm that the environment selects; every call has a time limit.

    Queries and cancellations of a run go to the cluster that its record names, whichever this shell names.

    Args:
        timeout_s: the limit of a query or a cancellation.
        submit_timeout_s: the limit of a submission; long, because a job whose sbatch was killed may be in the queue.
        run: the function that runs the commands.
        submission: the record of the run whose jobs are meant; None for jobs of this shell's cluster.
        say: takes each line that sbatch says of a job that it takes.
    """

    name = "slurm"
    answers_at_once = False

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        submit_timeout_s: float = 90.0,
        run: Runner = run_command,
        submission: Mapping[str, Any] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._run = run
        self._submission = submission or {}
        self._say = say or _print_remark
        self._has_accounting = True

    @property
    def cluster(self) -> str:
        """The name of the cluster that is asked; empty for this machine's own."""
        return commands.selection(self._environ()).get("SLURM_CLUSTERS", "")

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Submit the script, with an environment that has no other job's identity.

        Its folder is new, and that of no other job: where sbatch does not say which job it has submitted, Slurm is
        asked for the one that works there. Taken for refused, that job would start without its files.

        Returns:
            The job id.

        Raises:
            SchedulerError: Slurm refused, or does not answer.
        """
        folder = os.path.dirname(script)
        said: tuple[str, ...] = ()
        environ = commands.submission_environment(os.environ, plan.sbatch)
        try:
            done = self._run(
                commands.sbatch_command(script), environ=environ, timeout_s=self._submit_timeout_s, cwd=folder
            )
            said = output.parse_remarks(done)
            job_id = output.parse_submission(done)
        except (SilenceError, output.UnclearSubmissionError):
            if (found := self.find_submitted(folder)) is None:
                raise
            job_id = found
        for remark in said:
            self._say(remark)
        return job_id

    def find_submitted(self, folder: str, *, is_pending: bool = False) -> str | None:
        """Return this user's only job, or pending one, that works in a folder; None if Slurm tells of none."""
        with contextlib.suppress(SchedulerError):
            told = self._ask(commands.submitted_command(os.getuid(), states="PENDING" if is_pending else "all"))
            return output.parse_submitted(told, {folder, os.path.realpath(folder)})
        return None

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of these jobs: asks the controller once, then accounting once for those it has forgotten.

        A task of an array that was cancelled before it started has no id of its own any more, so the
        controller is then asked for its array.

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

    def expected_start(self, job_id: str) -> datetime | None:
        """Return when a waiting job is expected to start, by the controller's clock; None if there is no estimate.

        Raises:
            SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
        """
        return output.parse_outlook(self._ask(commands.outlook_command(job_id))).starts

    def cancel_pending(self, job_id: str) -> None:
        """Cancel the pending tasks of an array; running tasks go on.

        Raises:
            SchedulerError: Slurm refused, or does not answer.
        """
        if output.is_job_id(job_id):
            output.parse_cancellation(self._ask(commands.scancel_pending_command(job_id)), job_id)

    def cancel(self, job_id: str) -> None:
        """End a pending or running job, or an array with all its tasks; do nothing if it has ended.

        Raises:
            SchedulerError: Slurm refused, or does not answer.
        """
        if output.is_job_id(job_id):
            output.parse_cancellation(self._ask(commands.scancel_command(job_id)), job_id)

    def _ask_controller(self, question: Sequence[str], job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return output.parse_queue(self._ask(commands.squeue_command(question)), job_ids)

    def _ask_accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the statuses that sacct knows; none where there is no accounting, which is then not asked again.

        sacct also finds a task that was cancelled before it started only by the id of its array (22.05).

        Raises:
            SchedulerError: there is accounting, and it does not answer: then the job is not gone, but unknown.
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
        return self._run(command, environ=commands.query_environment(self._environ()), timeout_s=self._timeout_s)

    def _environ(self) -> Mapping[str, str]:
        return commands.as_submitted(os.environ, self._submission, host=os.uname().nodename)


def make_scheduler(*, run_dir: str | None, timeout_s: float) -> SlurmScheduler:
    """Make the Slurm scheduler, as `scheduler.protocol.SchedulerModule` asks."""
    return SlurmScheduler(timeout_s=timeout_s, submission=_read_submission(run_dir) if run_dir else None)


def _read_submission(run_dir: str) -> Mapping[str, Any]:
    """Return the record of a run's submission; empty if there is none, or none that can be read."""
    try:
        record = store.read_json(RunLayout(run_dir).submission)
    except RunDirectoryError:
        return {}
    return record if isinstance(record, dict) else {}


def slurm_answers(timeout_s: float = 10.0) -> bool:
    """Return True if a Slurm answers here, False if none is set up on this machine.

    A controller that restarts or is busy makes no login node a machine without Slurm.

    Raises:
        SchedulerError: one is set up and does not answer `sinfo` in time.
    """
    environ = commands.query_environment(os.environ)
    try:
        done = run_command(commands.sinfo_command(), environ=environ, timeout_s=timeout_s)
    except MissingProgramError:
        return False
    except SchedulerError as error:
        raise SchedulerError(error.message, tip=_TIP_OF_SILENCE) from error
    if done.returncode and not is_set_up(done.stderr):
        return False
    if done.returncode and not is_refused(done.stderr):
        raise SchedulerError(f"Slurm does not answer: {slurm_words(done.stderr)}", tip=_TIP_OF_SILENCE)
    return True


def cluster_name(timeout_s: float = 10.0) -> str | None:
    """Return Slurm's name of the cluster (ClusterName); None if Slurm does not tell it here.

    Raises:
        SchedulerError: Slurm does not answer in time.
    """
    environ = commands.query_environment(os.environ)
    try:
        config = parse_config(run_command(commands.config_command(), environ=environ, timeout_s=timeout_s))
    except SilenceError as error:
        raise SchedulerError(error.message, tip=_TIP_OF_SILENCE) from error
    except SchedulerError:
        return None
    return config.get("ClusterName")


def _print_remark(remark: str) -> None:
    print(f"hpc-elastic: {remark if remark.startswith('sbatch') else f'sbatch: {remark}'}", file=sys.stderr)


def _gone(job_id: str) -> JobStatus:
    return JobStatus(job_id=job_id, state=JobState.GONE, native_state="")
