"""Finds out whether a run's scripts have changed between two of its allocations."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.rundir.records import AllocationClaim


def script_digests(plan: LaunchPlan) -> dict[str, str]:
    """Return a digest of each script that is an entrypoint, by its name in the plan; none of what cannot be read."""
    digests: dict[str, str] = {}
    with contextlib.suppress(BadReferenceError):
        directory = expand_references(plan.workdir, {**os.environ, **plan.env})
        for role in plan.roles:
            if role.entrypoint.kind == "script":
                with contextlib.suppress(OSError), open(os.path.join(directory, role.entrypoint.target), "rb") as file:
                    digests[role.entrypoint.target] = hashlib.sha256(file.read()).hexdigest()[:16]
    return digests


def changed_scripts(before: AllocationClaim | None, now: Mapping[str, str]) -> tuple[str, ...]:
    """Return which scripts differ from those of an earlier start's claim; one that it does not know does not."""
    known = before.scripts if before is not None else {}
    return tuple(name for name, digest in now.items() if known.get(name, digest) != digest)


def describe_changed(scripts: tuple[str, ...]) -> str:
    """Return for people that scripts have changed."""
    names = ", ".join(scripts)
    verb = "has" if len(scripts) == 1 else "have"
    return f"{names} {verb} changed since the job's last start: workers run what is there now (snapshot: true keeps it)"
