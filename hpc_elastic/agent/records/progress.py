"""Computes a digest of the files that show progress, by which a change of them is noticed."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import BadReferenceError, expand_references


def progress_digest(plan: LaunchPlan) -> str | None:
    """Return a digest of names, sizes and times of the files that show progress; None if the plan names none."""
    pattern = plan.progress_file
    if pattern is None:
        return None
    try:
        directory = expand_references(plan.workdir, {**os.environ, **plan.env})
    except BadReferenceError:
        return None
    digest = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]
