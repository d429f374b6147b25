"""A node's workers: started and ended with real processes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import hpc_elastic
from hpc_elastic.agent.allocation import Allocation
from hpc_elastic.agent.background import BackgroundThread
from hpc_elastic.agent.environment import NodeFacts
from hpc_elastic.agent.group import LocalWorkers
from hpc_elastic.agent.preparation import NodeReport
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.roles import EntrypointPlan
from tests.agent.conftest import is_running
from tests.membership.script import an_assign
from tests.plans import make_run_plan

PACKAGE = str(Path(hpc_elastic.__file__).parent)


class Scene:
    """The workers of one node, which sleep."""

    def __init__(self, root: Path) -> None:
        self.may_start = True
        self.thread = BackgroundThread("processes", asyncio.get_running_loop())
        entrypoint = EntrypointPlan(kind="command", target="sleep", args=("60",))
        plan = make_run_plan(root, entrypoint=entrypoint, workers_per_node=2, package_dir=PACKAGE)
        place = Allocation(
            job_id="local-1", restart_count=0, array_task=None, node_id=0, nodes=("local0",), is_local=True
        )
        facts = NodeFacts(node="local0", role=plan.roles[0], gloo_interface="lo")
        self.workers = LocalWorkers(
            plan,
            place,
            NodeReport(address="127.0.0.2", facts=facts, versions={}, problem=None),
            thread=self.thread,
            guard_pid=os.getpid(),
            say=print,
            on_exit=lambda *_: None,
            on_broken=print,
            may_start=lambda: self.may_start,
        )

    async def start(self, attempt: int = 1) -> None:
        await self.workers.initialize_workers(an_assign(attempt=attempt))

    async def until_all_sleep(self) -> None:
        """Until every worker has become what it was to run: else one that could not start would pass for one."""
        for pid in self.workers.pids().values():
            while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                assert is_running(pid)
                await asyncio.sleep(0.01)


def play(root: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        made = Scene(root)
        await asyncio.wait_for(scene(made), 30)
        await made.workers.shut_down()
        await made.thread.close(5)

    asyncio.run(main())


def test_a_fence_leaves_no_worker(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start()
        pids = list(made.workers.pids().values())
        assert [is_running(pid) for pid in pids] == [True, True]
        await made.until_all_sleep()
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        assert [is_running(pid) for pid in pids] == [False, False]
        await made.start(2)
        assert len(made.workers.pids()) == 2
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    play(tmp_path, scene)


def test_an_agent_that_was_paused_on_its_way_to_start_workers_starts_none(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.may_start = False
        await made.start()
        assert made.workers.pids() == {}
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()

    play(tmp_path, scene)


def test_workers_that_are_to_be_stopped_before_they_started_do_not_start(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        goes_on = threading.Event()
        made.thread.spare(goes_on.wait)
        starting = asyncio.ensure_future(made.start())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(made.workers.stop_workers(StopManner.FENCE, is_terminated=False))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(starting, stopping)
        assert made.workers.pids() == {}

    play(tmp_path, scene)
