"""Decides whether workers are forks of a process that has torch imported, or spawned, and says why; pure.

A fork has its variables set after the interpreter and torch have started. What these read then, and
never again, is therefore the fork server's: a worker for which such a variable is another one is
spawned, and so is one that a tool wants to see from its first instruction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpc_elastic.agent.node.node_environment import NodeEnvironment
from hpc_elastic.plan.roles import EntrypointKind

# Read when an interpreter, libc, a threading or mathematical library, or torch starts.
_READ_AT_THE_START = re.compile(
    r"(PYTHON|LD_|LC_|LANG|GLIBC_|MALLOC_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|VECLIB_|NUMEXPR_|NPY_"
    r"|TORCH(?!ELASTIC_)|PYTORCH_|TRITON_).*"
)
# Tools that want to be there when the interpreter starts, or that measure what a fork does not do.
_TOOLS = re.compile(
    r"(COVERAGE_PROCESS_|COV_CORE_|DEBUGPY_|PYDEVD_).*|PYTHONPROFILEIMPORTTIME|PYTHONVERBOSE|PYTHONINSPECT"
)
_NO_SUCH_MODULE = "ModuleNotFoundError: No module named 'torch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What a fork server says when it is ready; or, with `unsafe`, why none will be."""

    torch: str | None = None
    no_torch: str | None = None
    unsafe: str | None = None
    seconds: float = 0.0
    imported: int = 0
    failed_preloads: tuple[tuple[str, str], ...] = ()


def parse_report(message: Mapping[str, Any]) -> ServerReport:
    """The report from the server's first message."""
    return ServerReport(
        torch=message["torch"],
        no_torch=message["no_torch"],
        unsafe=message["unsafe"],
        seconds=message["seconds"],
        imported=message["imported"],
        failed_preloads=tuple((name, why) for name, why in message.get("failed_preloads", ())),
    )


def why_no_server(start: Literal["auto", "fork", "spawn"], kind: EntrypointKind, node: NodeEnvironment) -> str | None:
    """Why no worker of this node could be a fork; None if it could."""
    if start == "spawn":
        return "start is spawn"
    if kind == "command":
        return "the entrypoint is a command"
    for name in sorted(node.varying):
        if _READ_AT_THE_START.fullmatch(name):
            return f"{name}, which is read when Python or a library starts, is not the same for every worker"
    for name in sorted(node.variables):
        if _TOOLS.fullmatch(name):
            return f"{name} is set"
    return None


def why_no_fork(report: ServerReport, server: Mapping[str, str], workers: Sequence[Mapping[str, str]]) -> str | None:
    """Why the workers with these environments may not be forks of a server with that one; None if they may."""
    if report.unsafe is not None:
        return report.unsafe
    if report.no_torch is not None and not report.no_torch.startswith(_NO_SUCH_MODULE):
        return f"torch cannot be imported ({report.no_torch})"  # and half of it is there: a second try fails otherwise
    of_server = _read_at_the_start(server)
    for worker in workers:
        of_worker = _read_at_the_start(worker)
        if of_worker != of_server:
            name = min(name for name, _ in of_worker.items() ^ of_server.items())
            return f"{name}, which is read when Python or a library starts, was another one when the fork server did"
    return None


def describe_forks(report: ServerReport) -> str:
    """How workers are started, for the log."""
    took = f"{report.seconds:.1f} s, {report.imported:,} modules"
    if report.torch is None:
        return f"workers are forks of a process without torch ({report.no_torch}; {took})"
    return f"workers are forks of a process that has torch {report.torch} imported ({took})"


def describe_spawns(why: str) -> str:
    """The same where workers are no forks."""
    return f"workers are spawned: {why}"


def describe_refusal(why: str) -> str:
    """Why `start: fork` cannot be had."""
    return f"start is fork, but workers cannot be forks here: {why}"


def _read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _READ_AT_THE_START.fullmatch(name)}
