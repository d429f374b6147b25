"""Checks what a job runs on which nodes, by itself or in its roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_elastic.job.conflicts import Conflict, check_entrypoint, check_nodes
from hpc_elastic.job.problems import KeyPath, format_path
from hpc_elastic.job.spec import JobSpec, RoleSpec
from hpc_elastic.plan.log_prefix import PREFIX_VARIABLE

_EACH_ROLES_OWN = ("entrypoint", "role", "nodes", "workers_per_node")


def check_work(job: JobSpec) -> Iterator[Conflict]:
    """Yield the conflicts of a job: it must say once, by itself or in its roles, what runs on which nodes."""
    if job.roles is None:
        yield from check_entrypoint(job.entrypoint)
        return
    for key in _EACH_ROLES_OWN:
        if getattr(job, key) is not None:
            instead = "the name of a role" if key == "role" else f"{key} of each role"
            yield Conflict((key,), f"not beside roles; give it as {instead}", ())
    yield from check_roles(job.roles)


def check_no_function(job: JobSpec) -> Iterator[Conflict]:
    """Yield a conflict for each function that a job names: no file can hold one."""
    roles = [(("roles", index), role.entrypoint) for index, role in enumerate(job.roles or ())]
    for at, entrypoint in [((), job.entrypoint), *roles]:
        if entrypoint is not None and entrypoint.function is not None:
            path: KeyPath = (*at, "entrypoint", "function")
            message = "a function comes from Python: hpc_elastic.submit(function); expected script, module or command"
            yield Conflict(path, message, (format_path(path),))


def check_roles(roles: Sequence[RoleSpec]) -> Iterator[Conflict]:
    """Yield the conflicts of each role, and of all of them together."""
    names: dict[str, int] = {}
    if not roles:
        yield Conflict(("roles",), "expected at least one role, found none", ("roles",))
    for index, role in enumerate(roles):
        at = ("roles", index)
        if role.name is None:
            yield Conflict((*at, "name"), "missing; expected the role's name", (format_path((*at, "name")),))
        elif names.setdefault(role.name, index) != index:
            message = f"expected a name that no other role has, found {role.name!r}, as of roles[{names[role.name]}]"
            yield Conflict((*at, "name"), message, ())
        yield from check_entrypoint(role.entrypoint, at)
        if PREFIX_VARIABLE in (role.env or {}):
            yield Conflict((*at, "env", PREFIX_VARIABLE), "it is for all roles; give it in the job's env", ())
        yield from check_nodes(role.nodes, role.workers_per_node, at=at)
    if roles and all(role.restart == "ignore" for role in roles):
        message = "expected restart_all or restart_role for one role at least, found ignore for all: nothing could fail"
        yield Conflict(("roles",), message, tuple(f"roles[{index}].restart" for index in range(len(roles))))
