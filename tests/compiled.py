"""Compiles the tests, before all processes of `make test` would each do so with all of them, and at the same time.

    python -m tests.compiled

pytest compiles a test with its asserts rewritten, and keeps what comes out in `__pycache__`, where another process
finds it. On a clean checkout six processes that collect the same tests find nothing there, and take three times as
long. So here one process for each core collects a share of the tests first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def is_compiled(test: Path) -> bool:
    """Whether pytest has compiled a test under this Python since it was changed last."""
    pattern = f"{test.stem}.{sys.implementation.cache_tag}-pytest-*.pyc"
    changed = test.stat().st_mtime
    return any(found.stat().st_mtime >= changed for found in (test.parent / "__pycache__").glob(pattern))


def shares(tests: list[Path], count: int) -> list[list[Path]]:
    """As many shares of about the same size, without those that would be empty."""
    largest_first = sorted(tests, key=lambda test: -test.stat().st_size)
    return [share for share in (largest_first[number::count] for number in range(count)) if share]


def main(folder: Path = TESTS) -> None:
    """Collects what is not compiled; what cannot be collected is told by the run that follows."""
    wanted = [test for test in folder.rglob("test_*.py") if not is_compiled(test)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    processes = [
        subprocess.Popen([*command, *share], cwd=TESTS.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for share in shares(wanted, os.cpu_count() or 1)
    ]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
