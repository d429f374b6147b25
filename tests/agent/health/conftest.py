from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Starts processes with these variables in their environment, which are no children of this one."""
    pids: list[int] = []

    def start(**variables: str) -> int:
        done = subprocess.run(
            ["bash", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        pids.append(int(done.stdout))
        return pids[-1]

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
