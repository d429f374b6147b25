"""Memory that is collapsed into huge pages stays what it was; a server does so when it has nothing to do."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.worker.forking import LAUNCH, WAIT_S, collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

ALLOCATE = "memory = bytearray(range(256)) * (16 * 4096)\n"  # 16 MiB
COLLAPSE = f"""
import sys
sys.path.insert(0, {str(LAUNCH.parents[1])!r})
from hpc_elastic.worker.huge_pages import collapse_memory
{ALLOCATE}
asked = []
assert collapse_memory(is_interrupted=lambda: bool(asked.append(1)) or len(asked) > 2) <= 4 << 20
assert len(asked) == 3
print(collapse_memory())
assert memory == bytearray(range(256)) * (16 * 4096)
"""


def huge_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"AnonHugePages: *(\d+)", text)[0])


def collapsed_bytes() -> int:
    done = subprocess.run([sys.executable, "-c", COLLAPSE], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


def test_collapsed_memory_keeps_its_content() -> None:
    collapsed = collapsed_bytes()
    if not collapsed:
        pytest.skip("this kernel has no MADV_COLLAPSE (Linux 6.1), or no huge page left")
    assert collapsed >= 12 << 20


@pytest.mark.long
def test_server_collapses_its_memory_if_no_order_comes_and_forks_on(runner: Runner) -> None:
    if not collapsed_bytes():
        pytest.skip("this kernel has no MADV_COLLAPSE (Linux 6.1), or no huge page left")
    runner.write("site/torch.py", ALLOCATE)
    script = str(runner.write("script.py", "import torch, sys; sys.exit(torch.memory[255])"))
    environment = {**runner.environment, "PYTHONPATH": str(runner.directory / "site")}
    with fork_server(runner.directory, environment) as server:
        deadline = time.monotonic() + WAIT_S
        while huge_kib(server.process.pid) < 12 << 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert huge_kib(server.process.pid) >= 12 << 10
        answer = server.fork_worker("script", script, directory=runner.directory, environment=environment)
        assert collect(answer["pid"]) == 255
