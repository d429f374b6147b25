"""Questions and requests of a node to Slurm about its job; each has a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import JobOutlook, JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from hpc_elastic.scheduler.slurm.host_side import run_from_node
from hpc_elastic.scheduler.slurm.limits import parse_config
from hpc_elastic.scheduler.slurm.runner import Runner
from hpc_elastic.scheduler.slurm.scheduler import SlurmScheduler

_RESERVATION_S = 3.0  # who asks about the end of a job may have a few seconds left; a backup controller needs two


def is_over(job_id: str, *, timeout_s: float = 10.0, run: Runner = run_from_node) -> bool:
    """Return whether nothing of a job can be running any more; a job that Slurm has forgotten is over.

    Raises:
        SchedulerError: Slurm does not answer, or what it says cannot be read.
    """
    return SlurmScheduler(timeout_s=timeout_s, run=run).query([job_id])[job_id].state.is_terminal


def is_requeued(job_id: str, restart_count: int) -> bool:
    """Return whether Slurm stops this start of a job in order to requeue it.

    Slurm (22.05 to 26.05) counts the restart before it sends the TERM of a requeue. The TERM with which the
    GraceTime of a preemption begins comes before that count: at that moment the answer for such a job is False.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    return count_restarts(job_id) > restart_count


def is_at_work(job_id: str, restart_count: int) -> bool:
    """Return whether Slurm means this start of a job to go on.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    told = look_up(job_id)
    return (told.state, told.restarts) == (JobState.RUNNING, restart_count)


def count_restarts(job_id: str, *, timeout_s: float = 4.0, run: Runner = run_from_node) -> int:
    """Return how often Slurm has requeued a job, asked of the controller: accounting does not know the number.

    This is called when Slurm stops the job. Slurm's TERM reaches every process of the step and may come once more:
    the command is therefore started with TERM blocked in this thread, and inherits that. The limit is below KillWait.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    return look_up(job_id, timeout_s=timeout_s, run=run).restarts


def look_up(job_id: str, *, timeout_s: float = 4.0, run: Runner = run_from_node) -> JobStatus:
    """Return the controller's status of a job, asked with TERM blocked as in `count_restarts`.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    with _spared_term():
        told = _ask_controller(job_id, timeout_s=timeout_s, run=run)
    if told is None:
        raise SchedulerError(f"squeue does not know job {job_id}")
    return told


def outlook(job_id: str, *, timeout_s: float = 4.0, run: Runner = run_from_node) -> JobOutlook:
    """Return what the controller says about the end of a job, asked with TERM blocked as in `count_restarts`.

    Of a job that ends because its script was killed Slurm (22.05 to 26.05) gives the same reason if the script's node
    was set DOWN and after `scancel --batch --signal=KILL`: then it is asked whether the job still has that node.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    with _spared_term():
        told = run(commands.outlook_command(job_id), environ=_environ(), timeout_s=timeout_s)
        found = output.parse_outlook(told)
        if found.state is JobState.RUNNING and found.reservation:
            return output.parse_outlook(told, reserved_until=_find_reservation_end(found.reservation, run))
        if found.is_script_killed:
            told = run(commands.host_command(job_id), environ=_environ(), timeout_s=timeout_s)
            return replace(found, has_lost_node=output.has_lost_host(told))
    return found


def _find_reservation_end(name: str, run: Runner) -> datetime | None:
    """Return when a reservation ends its jobs; None if it ends none, or nobody says."""
    with contextlib.suppress(SchedulerError):
        told, config = (
            run(command, environ=_environ(), timeout_s=_RESERVATION_S)
            for command in (commands.reservation_command(name), commands.config_command())
        )
        return output.parse_reservation(told, parse_config(config))
    return None


def leave_reservation(job_id: str, *, timeout_s: float = 5.0, run: Runner = run_from_node) -> None:
    """Let a pending job start without its reservation.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    with _spared_term():
        told = run(commands.leave_reservation_command(job_id), environ=_environ(), timeout_s=timeout_s)
    output.parse_leave(told, job_id)


def dead_nodes(
    job_id: str, nodes: Collection[str], *, timeout_s: float = 5.0, run: Runner = run_from_node
) -> frozenset[str]:
    """Return those of a running job's nodes that Slurm has taken away from it.

    Asks one question about one job, which the controller answers without a look at its other jobs or nodes.

    Raises:
        SchedulerError: Slurm does not answer, or what it says cannot be read.
    """
    left = output.nodes_left(_ask_controller(job_id, timeout_s=timeout_s, run=run))
    return frozenset() if left is None else frozenset(nodes).difference(left)


def can_end_job(job_id: str) -> bool:
    """Return whether this node could end the job, which is so if a controller answers this node.

    Raises:
        SchedulerError: `scontrol` cannot be run, or does not end in time.
    """
    return output.is_job_id(job_id) and controller_answers()


def controller_answers(*, timeout_s: float = 5.0, run: Runner = run_from_node) -> bool:
    """Return whether a controller answers this node, so that jobs can be ended from here.

    Raises:
        SchedulerError: `scontrol` cannot be run, or does not end in time.
    """
    return output.parse_ping(run(commands.ping_command(), environ=_environ(), timeout_s=timeout_s))


def end_job(job_id: str, *, timeout_s: float) -> None:
    """End a job; do nothing if it has ended.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    SlurmScheduler(timeout_s=timeout_s, run=run_from_node).cancel(job_id)


def requeue_job(job_id: str, *, timeout_s: float, run: Runner = run_from_node) -> None:
    """Requeue a job from a process of the job itself: the command runs with TERM blocked, so that TERM cannot end it.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    with _spared_term():
        output.parse_requeue(run(commands.requeue_command(job_id), environ=_environ(), timeout_s=timeout_s), job_id)


def set_comment(job_id: str, text: str, *, timeout_s: float = 5.0, run: Runner = run_from_node) -> None:
    """Let Slurm show a line beside a job, in place of the one before.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    command = commands.comment_command(job_id, text)
    with _spared_term():
        output.parse_comment(run(command, environ=_environ(), timeout_s=timeout_s), job_id)


def excluded(job_id: str, *, timeout_s: float = 5.0, run: Runner = run_from_node) -> tuple[str, ...]:
    """Return the nodes that a job must not get.

    Raises:
        SchedulerError: Slurm does not answer, does not know the job, or what it says cannot be read.
    """
    with _spared_term():
        return output.parse_excluded(run(commands.excluded_command(job_id), environ=_environ(), timeout_s=timeout_s))


def check_exclusion(
    script: str, nodes: Collection[str], *, timeout_s: float = 10.0, run: Runner = run_from_node
) -> None:
    """Check that a script could ever run without these nodes; nothing is submitted.

    Raises:
        SchedulerError: it could not, or Slurm does not answer.
    """
    command = commands.sbatch_test_command(script, exclude=tuple(nodes))
    environ = commands.submission_environment(os.environ, ())
    with _spared_term():
        output.parse_test(run(command, environ=environ, timeout_s=timeout_s, cwd=os.path.dirname(script)))


def exclude(job_id: str, nodes: Collection[str], *, timeout_s: float = 10.0, run: Runner = run_from_node) -> None:
    """Keep a pending job from these nodes, and from no others.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    command = commands.exclude_command(job_id, tuple(nodes))
    with _spared_term():
        output.parse_exclude(run(command, environ=_environ(), timeout_s=timeout_s), job_id)


def submit_after(
    job_id: str, script: str, *, timeout_s: float, is_reserved: bool = True, run: Runner = run_from_node
) -> str:
    """Submit a script that starts when a job is over, without its reservation if so; return the new job's id.

    Raises:
        SchedulerError: Slurm refused, or does not answer.
    """
    command = commands.sbatch_after_command(script, job_id, is_reserved=is_reserved)
    environ = commands.submission_environment(os.environ, ())
    folder = os.path.dirname(script)
    with _spared_term():
        done = run(command, environ=environ, timeout_s=timeout_s, cwd=folder)
        try:
            return output.parse_submission(done)
        except output.UnclearSubmissionError:
            found = SlurmScheduler(timeout_s=timeout_s, run=run).find_submitted(folder, is_pending=True)
            if found is None:
                raise
            return found


def _ask_controller(job_id: str, *, timeout_s: float, run: Runner) -> JobStatus | None:
    told = run(commands.squeue_command([job_id]), environ=_environ(), timeout_s=timeout_s)
    return output.parse_queue(told, [job_id]).get(job_id)


def _environ() -> Mapping[str, str]:
    return commands.query_environment(os.environ)


@contextlib.contextmanager
def _spared_term() -> Iterator[None]:
    """Block TERM in this thread, and in the commands that it starts."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
