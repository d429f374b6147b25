"""The one place that runs Slurm's commands: no shell, no input, and never longer than a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.output import CommandOutput


class MissingProgramError(SchedulerError):
    """A command of Slurm is not on this machine. Exit code 4."""


class Runner(Protocol):
    """Who runs commands: `run_command`, or a test that plays Slurm."""

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        """Return how the command ended.

        Raises:
            SchedulerError: it cannot be started, or did not end in time.
        """


def run_command(
    command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> CommandOutput:
    """How the command ended.

    Args:
        command: the program and its arguments.
        environ: its whole environment.
        timeout_s: after so long it is killed. A Slurm command waits up to a minute by itself for a
            controller that is switched off.
        cwd: where it runs; None: here.

    Raises:
        SchedulerError: it cannot be started, or did not end in time.
    """
    import subprocess  # 10 ms that `status` of a run that is over need not pay

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
            start_new_session=True,  # Ctrl-C is for this process: an sbatch that it ends may have submitted
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"Slurm does not answer: {command[0]} did not answer within {timeout_s:g} s",
            tip="the Slurm controller is down or overloaded: try again later",
        ) from error
    except OSError as error:
        kind = MissingProgramError if isinstance(error, FileNotFoundError) else SchedulerError
        raise kind(
            f"cannot run {command[0]}: {error.strerror or error}",
            tip="is this a login node of the cluster? `--site local` runs on this machine instead",
        ) from error
    return CommandOutput(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
