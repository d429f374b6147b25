"""Finds out whether a run's scripts have changed between two of its allocations."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import BadReferenceError, expand_references, referenced_names
from hpc_elastic.plan.roles import RolePlan
from hpc_elastic.rundir.records import AllocationClaim


def script_digests(plan: LaunchPlan) -> dict[str, str]:
    """Return a digest of each script that is an entrypoint, by its name in the plan; none of what cannot be read."""
    digests: dict[str, str] = {}
    for role in plan.roles:
        if role.entrypoint.kind == "script":
            with contextlib.suppress(BadReferenceError, OSError):
                path = os.path.join(_directory(plan, role), role.entrypoint.target)
                with open(path, "rb") as file:
                    digests[role.entrypoint.target] = hashlib.sha256(file.read()).hexdigest()[:16]
    return digests


def _directory(plan: LaunchPlan, role: RolePlan) -> str:
    """Return where the workers of a role start.

    Raises:
        BadReferenceError: `workdir` names a variable that is not set here.
    """
    values = {name: value for name, value in {**plan.env, **role.env}.items() if value is not None}
    environ: dict[str, str] = dict(os.environ)
    for name in referenced_names(plan.workdir):
        if name in values:
            environ[name] = expand_references(values[name], os.environ)
    return expand_references(plan.workdir, environ)


def changed_scripts(before: AllocationClaim | None, now: Mapping[str, str]) -> tuple[str, ...]:
    """Return which scripts differ from those of an earlier start's claim; one that it does not know does not."""
    known = before.scripts if before is not None else {}
    return tuple(name for name, digest in now.items() if known.get(name, digest) != digest)


def describe_changed(scripts: tuple[str, ...]) -> str:
    """Return for people that scripts have changed."""
    names = ", ".join(scripts)
    verb = "has" if len(scripts) == 1 else "have"
    return f"{names} {verb} changed since the job's last start: workers run what is there now (snapshot: true keeps it)"
