"""Lists the attempts of a run that were opened."""

from __future__ import annotations

import os

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import list_numbers


def list_attempts(layout: RunLayout) -> list[int]:
    """Return the numbers of a run's attempts, in order, without one that nobody has claimed.

    The folder of an attempt is made before its claim, and stays where the head dies between the two.

    Raises:
        RunDirectoryError: the folder of attempts exists and cannot be read.
    """
    numbers = list_numbers(layout.attempts)
    while numbers and not _is_claimed(layout.claim(numbers[-1])):
        numbers.pop()
    return numbers


def _is_claimed(path: str) -> bool:
    if os.path.lexists(path):
        return True
    try:  # an NFS client may report a new name as absent, until the folder is opened
        return os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:  # another user's folder: nobody can tell
        return True
