"""The exit codes, and the one tree of errors that map to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """The exit codes of `submit --wait`, of the rendered script and of the agent."""

    SUCCESS = 0
    WORKERS_FAILED = 1
    USAGE = 2
    SETUP = 3  # the job file, a site, a template or a setup line is wrong
    SCHEDULER = 4  # Slurm refused, or does not answer
    RUN_DIRECTORY = 5  # unusable, in use, or of a run that has ended
    NODES_MISSING = 6
    NODE_LOST = 7  # nodes or agents were lost, and fewer than `min` are left
    NO_PROGRESS = 8
    STALLED = 9  # workers stalled, or could not be killed
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
    """A job file or an override is wrong; the error holds all problems at once. Exit code 3.

    Args:
        problems: one line for each, such as `job.yaml:12: restart.max_restart: unknown key`.
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
    """The scheduler refused, or does not answer. Exit code 4.

    `is_lasting`: the same question cannot be answered on this machine a moment later either. `is_silence`: no answer
    came in time, so the scheduler may have done what it was asked for. `is_passing`: it refuses only for now, as where
    there are as many jobs in the queue as one may have there. `is_disabled`: this job is one that it never requeues.
    `is_reservation_over`: the job asks for a reservation that is not there.
    """

    exit_code = ExitCode.SCHEDULER
    is_lasting = False
    is_silence = False
    is_passing = False
    is_disabled = False
    is_reservation_over = False


class RunDirectoryError(HpcElasticError):
    """The run directory cannot be read or written, is not empty, is in use, or its run has ended. Exit code 5."""

    exit_code = ExitCode.RUN_DIRECTORY


class FileSystemError(RunDirectoryError):
    """The file system refused or failed; the same call may succeed a moment later. Exit code 5."""


class RendezvousCause(str, Enum):
    """Why a node is missing in the rendezvous; `docs/how-to/rendezvous.md` says what to do about each."""

    NEVER_STARTED = "never_started"  # its agent left no trace
    AGENT_FAILED = "agent_failed"  # its agent ended with an error of its own before it could join
    CANNOT_RESOLVE = "cannot_resolve"  # the node cannot resolve the head's host name
    CANNOT_ROUTE = "cannot_route"  # the head's machine does not answer on any port
    REFUSED = "refused"  # the head's machine refuses the connection: nobody listens on the port
    BLOCKED_PORT = "blocked_port"  # something between the two machines blocks this port and not others
    WRONG_SECRET = "wrong_secret"  # its authentication failed
    OTHER_VERSION = "other_version"  # its version of Python, torch or hpc_elastic is not the head's
    SILENT = "silent"  # the connection was made, and no answer came
    HEAD_LOST = "head_lost"  # it was a head of this start of the job, was lost, and has not come back
    UNHEALTHY = "unhealthy"  # it joined, and its health checks found that no worker should run on it


WAS_HEAD = "was the head, and was lost"  # so the detail of such a head begins
NO_SIGN = "has given no sign of its agent"  # the detail of a node of which nothing more is known


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNode:
    """A node that did not join, and the reason.

    `detail` continues a sentence that begins with the node's name: `cannot resolve node1: Name or service not known`.
    """

    node: str
    cause: RendezvousCause
    detail: str

    def __str__(self) -> str:
        return f"{self.node} {self.detail}"


class RendezvousTimeoutError(HpcElasticError):
    """Too few nodes joined the rendezvous in time. Exit code 6.

    Args:
        message: how many nodes of how many joined, in one line.
        missing: the nodes that did not join, with the reasons.
    """

    exit_code = ExitCode.NODES_MISSING

    def __init__(self, message: str, missing: Sequence[MissingNode], *, tip: str | None = None) -> None:
        super().__init__(message, tip=tip)
        self.missing = tuple(missing)
