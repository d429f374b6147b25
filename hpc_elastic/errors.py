"""The exit codes, and the one tree of errors that become them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """What `submit --wait`, the rendered script and the agent leave the shell with."""

    SUCCESS = 0
    WORKERS_FAILED = 1
    USAGE = 2
    SETUP = 3  # the job file, a site, a template or a setup line is wrong
    SCHEDULER = 4  # Slurm refused, or does not answer
    RUN_DIRECTORY = 5  # unusable, busy or over
    NODES_MISSING = 6
    NODE_LOST = 7  # a node or an agent lost beyond `min`
    NO_PROGRESS = 8
    STALLED = 9  # stalled or unkillable
    STOPPED = 10  # stopped by a person
    REQUEUE = 75  # stopped to be requeued


class HpcElasticError(Exception):
    """Root of everything this package raises on purpose.

    Args:
        message: what was found and what was expected, one sentence.
        tip: what to do next; shown on a line of its own.
    """

    exit_code: ExitCode = ExitCode.WORKERS_FAILED

    def __init__(self, message: str, *, tip: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.tip = tip


class UsageError(HpcElasticError):
    """The command line asks for something that does not exist or does not fit. Exit code 2."""

    exit_code = ExitCode.USAGE


class JobError(HpcElasticError):
    """A job file or an override is wrong: all its problems at once. Exit code 3.

    Args:
        problems: one line each, `job.yaml:12: restart.max_restart: unknown key`.
    """

    exit_code = ExitCode.SETUP

    def __init__(self, problems: Sequence[str], *, tip: str | None = None) -> None:
        super().__init__("\n".join(problems), tip=tip)
        self.problems = tuple(problems)


class SiteError(JobError):
    """A site file is wrong, or the site that was asked for does not exist. Exit code 3."""


class UnknownSiteError(SiteError):
    """The site that was asked for does not exist, or its file cannot be read. Exit code 3."""


class TemplateError(HpcElasticError):
    """A template is missing or does not render, or a value cannot stand in a script. Exit code 3."""

    exit_code = ExitCode.SETUP


class UnknownTemplateError(TemplateError):
    """The template that was asked for does not exist. Exit code 3."""


class AllocationError(HpcElasticError):
    """What the scheduler gave this node is not what the plan needs. Exit code 3."""

    exit_code = ExitCode.SETUP


class WorkerSpecError(HpcElasticError, ValueError):
    """A WorkerSpec, or what is filled into its WorkerGroup, makes no sense. Exit code 3."""

    exit_code = ExitCode.SETUP


class SchedulerError(HpcElasticError):
    """The scheduler refused, or does not answer. Exit code 4."""

    exit_code = ExitCode.SCHEDULER


class RunDirectoryError(HpcElasticError):
    """The run directory cannot be read or written, is not empty, is busy or is over. Exit code 5."""

    exit_code = ExitCode.RUN_DIRECTORY


class FileSystemError(RunDirectoryError):
    """The file system refused or failed; what it says a moment later may be another thing. Exit code 5."""


class RendezvousCause(str, Enum):
    """Why a node is missing in the rendezvous; `docs/how-to/rendezvous.md` says what to do about each."""

    NEVER_STARTED = "never_started"  # its agent gave no sign
    CANNOT_RESOLVE = "cannot_resolve"  # the head's name means nothing there
    CANNOT_ROUTE = "cannot_route"  # the head's machine does not answer, on no port
    REFUSED = "refused"  # the head's machine answers that nobody listens
    BLOCKED_PORT = "blocked_port"  # something between the two lets other ports through and not this one
    WRONG_SECRET = "wrong_secret"  # it authenticated wrongly
    OTHER_VERSION = "other_version"  # of Python, torch or hpc_elastic than the head's
    SILENT = "silent"  # it was connected, and there was no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNode:
    """A node that did not join, and why.

    `detail` goes on from the node's name: `cannot resolve node1: Name or service not known`.
    """

    node: str
    cause: RendezvousCause
    detail: str

    def __str__(self) -> str:
        return f"{self.node} {self.detail}"


class RendezvousTimeoutError(HpcElasticError):
    """Too few nodes have joined in time. Exit code 6.

    Args:
        message: how many of how many, in one line.
        missing: who did not, and why.
    """

    exit_code = ExitCode.NODES_MISSING

    def __init__(self, message: str, missing: Sequence[MissingNode], *, tip: str | None = None) -> None:
        super().__init__(message, tip=tip)
        self.missing = tuple(missing)
