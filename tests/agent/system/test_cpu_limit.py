"""Which signal the kernel sends at a limit of CPU time."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

LIMITS = "import resource; print(*resource.getrlimit(resource.RLIMIT_CPU))"
WARN = "from hpc_elastic.agent.system.cpu_limit import warn_before_cpu_limit; warn_before_cpu_limit()"
INFINITE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def run(code: str, limits: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, limits)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    command = [sys.executable, "-c", f"{WARN}\n{code}"]
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "expected"),
    [((60, 60), (59, 60)), ((30, 60), (30, 60)), (INFINITE, INFINITE)],
    ids=["equal", "apart", "none"],
)
def test_the_soft_limit_is_below_the_hard_one(limits: tuple[int, int], expected: tuple[int, int]) -> None:
    assert run(LIMITS, limits).stdout.split() == [str(limit) for limit in expected]


@pytest.mark.long
def test_a_process_over_its_limit_of_cpu_time_gets_the_signal_that_says_so() -> None:
    assert run("while True: pass", (2, 2)).returncode == -signal.SIGXCPU
