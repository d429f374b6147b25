"""Makes a run's name out of what it runs, where nobody has named it."""

from __future__ import annotations

import os
import re

LONGEST_NAME = 64


def name_of_file(file: str) -> str:
    """Return a name made of a file's, without its suffix: `my-job` for `my job.yaml`."""
    return fit_name(os.path.splitext(os.path.basename(file))[0])


def fit_name(text: str) -> str:
    """Return a text as a name that a directory and a Slurm job can have; `job` if nothing of it is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip(".-_")[:LONGEST_NAME].rstrip(".-_") or "job"
