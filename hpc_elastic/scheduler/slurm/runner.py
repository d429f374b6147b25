"""Runs Slurm's commands: without a shell, without input, and with a time limit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.output import CommandOutput

_WAITS_FOR_ROOM = re.compile(
    "(?i)Slurm temporarily unable to accept job|Slurm job queue full|Job creation temporarily disabled"
)


class MissingProgramError(SchedulerError):
    """A command of Slurm is not on this machine. Exit code 4."""

    is_lasting = True


class SilenceError(SchedulerError):
    """A command of Slurm did not end in time, so Slurm may have done what it was asked for. Exit code 4."""

    is_silence = True


class Runner(Protocol):
    """A function that runs commands: `run_command`, or a test's substitute for Slurm."""

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        """Return how the command ended.

        Raises:
            SchedulerError: the command cannot be started, or did not end in time.
        """


def run_command(
    command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> CommandOutput:
    """Run a command, and return how it ended.

    Args:
        command: the program and its arguments.
        environ: the command's whole environment.
        timeout_s: the time after which it is killed. A Slurm command waits up to a minute by itself for a
            controller that is switched off.
        cwd: its working directory; None keeps this process's own.

    Raises:
        SchedulerError: the command cannot be started, or did not end in time.
    """
    import subprocess  # imported late: 10 ms that `status` of an ended run need not take

    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            start_new_session=True,  # Ctrl-C must not reach the command: an sbatch that it ends may have submitted
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr or ""
        raise no_answer(command, timeout_s, said if isinstance(said, str) else said.decode(errors="replace")) from error
    except OSError as error:
        kind = MissingProgramError if isinstance(error, FileNotFoundError) else SchedulerError
        raise kind(
            f"cannot run {command[0]}: {error.strerror or error}",
            tip="is this a login node of the cluster? `--site local` runs on this machine instead",
        ) from error
    return CommandOutput(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def no_answer(command: Sequence[str], timeout_s: float, stderr: str) -> SchedulerError:
    """Return the error of a command that was killed after its time.

    An sbatch that finds the cluster's queue full says so at once, and tries again by itself for two minutes (22.05 to
    26.05, `MaxJobCount`): it has submitted nothing.
    """
    waits = _WAITS_FOR_ROOM.search(stderr)
    if waits is None:
        return SilenceError(
            f"Slurm does not answer: {command[0]} did not answer within {timeout_s:g} s",
            tip="the Slurm controller is down or overloaded: try again later",
        )
    refusal = SchedulerError(
        f"Slurm takes no job for now: {waits[0]}", tip="the cluster's queue is full: try again later"
    )
    refusal.is_passing = True
    return refusal
