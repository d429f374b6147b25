"""Decides whether workers are forked from a process that has torch imported, or spawned, and says why; pure.

A fork gets its variables after the interpreter and torch have started. For variables that these read only at
their start, a fork therefore has the fork server's values. A worker for which such a variable has another value is
spawned, and so is a worker under a tool that has to run from the worker's first instruction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpc_elastic.agent.node.node_environment import NodeEnvironment
from hpc_elastic.plan.roles import EntrypointKind

# Variables that are read when an interpreter, libc, a threading or mathematical library, or torch starts.
_READ_AT_THE_START = re.compile(
    r"(PYTHON|LD_|LC_|LANG|GLIBC_|MALLOC_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|VECLIB_|NUMEXPR_|NPY_"
    r"|TORCH(?!ELASTIC_)|PYTORCH_|TRITON_).*"
)
# Variables of tools that have to run when the interpreter starts, or that measure what a fork does not do.
_TOOLS = re.compile(
    r"(COVERAGE_PROCESS_|COV_CORE_|DEBUGPY_|PYDEVD_).*|PYTHONPROFILEIMPORTTIME|PYTHONVERBOSE|PYTHONINSPECT"
)
# By these an OpenMP library chooses the CPUs of its threads when it is loaded, among those that the process has then.
_PLACES_THREADS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
_PLACES_NONE = ("", "false", "none", "disabled")
_NO_SUCH_MODULE = "ModuleNotFoundError: No module named 'torch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """The report of a fork server that is ready; or, with `unsafe`, why there will be no server."""

    torch: str | None = None
    no_torch: str | None = None
    unsafe: str | None = None
    seconds: float = 0.0
    imported: int = 0
    failed_preloads: tuple[tuple[str, str], ...] = ()


def parse_report(message: Mapping[str, Any]) -> ServerReport:
    """Return the report in the server's first message."""
    return ServerReport(
        torch=message["torch"],
        no_torch=message["no_torch"],
        unsafe=message["unsafe"],
        seconds=message["seconds"],
        imported=message["imported"],
        failed_preloads=tuple((name, why) for name, why in message.get("failed_preloads", ())),
    )


def why_no_server(
    start: Literal["auto", "fork", "spawn"], kind: EntrypointKind, node: NodeEnvironment, *, is_bound: bool = False
) -> str | None:
    """Return why no worker of this node could be a fork; None if workers could be forks.

    Args:
        start: the plan's `start`.
        kind: of the entrypoint.
        node: what the workers of the node have in common.
        is_bound: whether each worker is bound to CPUs of its own, after a fork.
    """
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
    for name in _PLACES_THREADS if is_bound else ():
        if node.variables.get(name, "").lower() not in _PLACES_NONE:
            return f"by {name} a library chooses CPUs when it is loaded, and each worker is bound to its own"
    return None


def why_no_fork(report: ServerReport, server: Mapping[str, str], workers: Sequence[Mapping[str, str]]) -> str | None:
    """Return why workers with these environments may not be forks of a server with its environment; None if they may.

    Args:
        report: the server's report.
        server: the environment of the server.
        workers: the environments of the workers.
    """
    if report.unsafe is not None:
        return report.unsafe
    if report.no_torch is not None and not report.no_torch.startswith(_NO_SUCH_MODULE):
        # Torch is half imported in the server: a second import, in a fork, would fail with another error.
        return f"torch cannot be imported ({report.no_torch})"
    of_server = _read_at_the_start(server)
    for worker in workers:
        of_worker = _read_at_the_start(worker)
        if of_worker != of_server:
            name = min(name for name, _ in of_worker.items() ^ of_server.items())
            return f"{name}, which is read when Python or a library starts, was another one when the fork server did"
    return None


def describe_forks(report: ServerReport) -> str:
    """Return the log line that says that workers are forks."""
    took = f"{report.seconds:.1f} s, {report.imported:,} modules"
    if report.torch is None:
        return f"workers are forks of a process without torch ({report.no_torch}; {took})"
    return f"workers are forks of a process that has torch {report.torch} imported ({took})"


def describe_spawns(why: str) -> str:
    """Return the log line that says that workers are spawned, and why."""
    return f"workers are spawned: {why}"


def describe_refusal(why: str) -> str:
    """Return the message that `start: fork` is impossible, and why."""
    return f"start is fork, but workers cannot be forks here: {why}"


def _read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _READ_AT_THE_START.fullmatch(name)}
