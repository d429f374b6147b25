"""`python -m tests.simulation.against REV [--KIND] --seed N` prints what in a schedule happens otherwise than at REV.

That is a diff of all its events. The record (`recorded`) says which schedules are different; this says what is, for
whoever has changed the code and whoever reads the change. The schedule may be drawn otherwise at REV: then that is what
differs.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).parents[2]
FOLDERS = "hpc_elastic", "tests", "templates", "site-configs"  # that a simulated run reads
CONTEXT = 1  # lines: each has a message whole


def events(checkout: Path, words: Sequence[str]) -> list[str]:
    """All that happens in a schedule, as the code of a checkout plays it."""
    command = [sys.executable, "-m", "tests.simulation", "-v", *words]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if not ended.stdout:  # a run that breaks a rule has an exit code of 1, and its events besides
        sys.exit(f"{checkout}: {' '.join(command)} printed nothing, and ended with {ended.returncode}:\n{ended.stderr}")
    return ended.stdout.splitlines()


def main(words: Sequence[str] | None = None) -> int:
    """Print the diff; 1 if there is one."""
    revision, *schedule = sys.argv[1:] if words is None else words
    with TemporaryDirectory() as folder:
        made = subprocess.run(
            ["git", "archive", revision, *FOLDERS], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=made.stdout, check=True)
        before = events(Path(folder), schedule)
    lines = list(difflib.unified_diff(before, events(REPOSITORY, schedule), revision, "now", n=CONTEXT, lineterm=""))
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
