"""What the agent makes of a store host's end, whenever it comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.workers.store_link import StoreLink
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.conftest import DEADLINE
from tests.plans import make_run_plan

# A store host without torch that leaves before, or after, it could have read its first order; or that crashes.
NO_TORCH = 'host.send(b\'{"state": "no_torch", "message": "there is none"}\')'
HOST = """
import select, socket, sys
host = socket.socket(fileno=0)
before, after = {before!r}, {after!r}
exec(before)
select.select([host], [], [])
exec(after)
"""


class Listener:
    """What the link told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.broken: list[str] = []
        self.news = asyncio.Event()

    def hear(self, text: str) -> None:
        self.said.append(text)
        self.news.set()

    def hear_of_end(self, why: str) -> None:
        self.broken.append(why)
        self.news.set()


def _wait_for_end(pid: int) -> None:
    """Blocks the event loop meanwhile: what the host said is read afterwards only, as on a busy machine."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def _serve(package: Path, *, is_gone_first: bool) -> Listener:
    told, pids = Listener(), list[int]()

    def explain(killed: int) -> str:
        assert [killed] == pids
        return "killed by the out-of-memory killer: 251 of 256 MiB"

    thread = BackgroundThread("processes", asyncio.get_running_loop())
    plan = make_run_plan(package, package_dir=str(package), start="spawn")
    place = Allocation(job_id="1", restart_count=0, array_task=None, node_id=0, nodes=("node1",), is_local=True)
    start = WorkerStart(plan, place, os.environ, thread=thread, deadline=DEADLINE, say=lambda *_: None)
    link = StoreLink(str(package), start=start, thread=thread, say=told.hear, on_broken=told.hear_of_end)
    link.explain_kill = explain
    await link.start()
    pids += link.pids()
    (pid,) = pids
    if is_gone_first:
        _wait_for_end(pid)
    await link.serve(1, Endpoint(address="127.0.0.1", port=1), socket.create_server(("127.0.0.1", 0)))
    if not is_gone_first:
        _wait_for_end(pid)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(told.news.wait(), 10)
    await link.close()
    await thread.close(10)
    return told


@pytest.mark.parametrize("is_gone_first", [False, True])
def test_a_host_without_torch_is_no_failure(tmp_path: Path, is_gone_first: bool) -> None:
    """It leaves with our order unread, or was gone before there was one."""
    before, after = (f"{NO_TORCH}; sys.exit()", "") if is_gone_first else ("", NO_TORCH)
    (tmp_path / "launch.py").write_text(HOST.format(before=before, after=after))
    told = asyncio.run(_serve(tmp_path, is_gone_first=is_gone_first))
    assert told.broken == []
    assert [line.rpartition(": ")[2] for line in told.said] == ["there is none"]


def test_a_host_that_crashes_breaks_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(HOST.format(before="", after="sys.exit(3)"))
    told = asyncio.run(_serve(tmp_path, is_gone_first=False))
    assert told.broken == ["the store host ended (exit code 3)"]


def test_a_host_that_the_kernel_has_killed_for_memory_is_told_so(tmp_path: Path) -> None:
    after = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "launch.py").write_text(HOST.format(before="", after=after))
    told = asyncio.run(_serve(tmp_path, is_gone_first=False))
    assert told.broken == ["the store host was killed by the out-of-memory killer: 251 of 256 MiB"]
