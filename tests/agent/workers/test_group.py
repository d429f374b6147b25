"""A node's workers: started and ended with real processes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.node.environment import NodeFacts
from hpc_elastic.agent.node.preparation import NodeReport
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.workers import group
from hpc_elastic.agent.workers.group import START_AGAIN_S, START_TRIES, LocalWorkers
from hpc_elastic.agent.workers.spawn import StartFailedError
from hpc_elastic.agent.workers.state_files import StatePart, write_states
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.state_records import Flush, StateVersion
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.state_memory import SlotState, fill_slot
from tests.agent import stand_in
from tests.agent.conftest import DEADLINE, PACKAGE, is_running
from tests.membership.script import an_assign
from tests.plans import make_run_plan


class Scene:
    """The workers of one node, which sleep."""

    def __init__(self, root: Path, *, start_again_s: float = START_AGAIN_S, keeper: Any = None, **changes: Any) -> None:
        self.may_start = True
        self.exits: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()  # attempt, process id, exit code
        self.thread = BackgroundThread("processes", asyncio.get_running_loop())
        entrypoint = EntrypointPlan(kind="command", target="sleep", args=("60",))
        self.said: list[str] = []
        usual = {"entrypoint": entrypoint, "package_dir": str(PACKAGE), "workdir": str(root / "workdir")}
        plan = make_run_plan(root, workers_per_node=2, **{**usual, **changes})
        (root / "workdir").mkdir()
        place = Allocation(
            job_id="local-1", restart_count=0, array_task=None, node_id=0, nodes=("local0",), is_local=True
        )
        self.worker_start = WorkerStart(
            plan, place, os.environ, thread=self.thread, deadline=DEADLINE, say=lambda *_: None
        )
        facts = NodeFacts(node="local0", role=plan.roles[0], gloo_interface="lo")
        self.workers = LocalWorkers(
            plan,
            place,
            NodeReport(address="127.0.0.2", facts=facts, versions={}, problem=None),
            thread=self.thread,
            start=self.worker_start,
            guard=lambda: [os.getpid()],
            say=self.said.append,
            on_exit=self._exited,
            on_broken=print,
            may_start=lambda: self.may_start,
            keeper=keeper,
            start_again_s=start_again_s,
        )

    def _exited(self, attempt: int, local_rank: int, exitcode: int, _: bool) -> None:
        self.exits.put_nowait((attempt, self.workers.order_of(local_rank)[1], exitcode))

    async def start(self, attempt: int = 1) -> None:
        await self.workers.initialize_workers(an_assign(attempt=attempt))

    async def until_all_sleep(self) -> None:
        """Until every worker has become what it was to run: else one that could not start would pass for one."""
        for pid in self.workers.pids().values():
            while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                assert is_running(pid)
                await asyncio.sleep(0.01)


def play(root: Path, scene: Callable[[Scene], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        made = Scene(root, **changes)
        await made.worker_start.start()
        await asyncio.wait_for(scene(made), 30)
        await made.workers.shut_down()
        await made.thread.close(5)

    asyncio.run(main())


@pytest.mark.long
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


class BusyKeeper:
    """A keeper that takes its time to hear of an attempt."""

    port = 1

    def __init__(self) -> None:
        self.is_done = asyncio.Event()

    def pids(self) -> list[int]:
        return []

    def bytes_taken(self) -> int:
        return 0

    def dial(self, *_: object) -> None:
        raise AssertionError

    async def begin(self, *_: object) -> None:
        await self.is_done.wait()

    async def close(self) -> None:
        pass


@pytest.mark.long
def test_a_worker_that_ends_before_the_keeper_has_heard_of_it_does_not_pass_for_one_that_did_not_start(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        keeper = BusyKeeper()
        made = Scene(tmp_path, keeper=keeper, entrypoint=EntrypointPlan(kind="command", target="false", args=()))
        await made.worker_start.start()
        starting = asyncio.ensure_future(made.start())
        exits = [await asyncio.wait_for(made.exits.get(), 30) for _ in range(2)]
        assert not starting.done()
        assert [(attempt, exitcode) for attempt, _, exitcode in exits] == [(1, 1), (1, 1)]
        assert all(pid > 0 for _, pid, _ in exits)
        keeper.is_done.set()
        await starting
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)
        await made.workers.shut_down()
        await made.thread.close(5)

    asyncio.run(scene())


LATE = "the time until which this node's workers may run is over; none is started now"


def test_an_agent_that_was_paused_on_its_way_to_start_workers_starts_none(tmp_path: Path) -> None:
    """And says so: the stop that comes in a moment is what ends the start."""

    async def scene(made: Scene) -> None:
        made.may_start = False
        starting = asyncio.ensure_future(made.start())
        while not made.said:
            await asyncio.sleep(0.01)
        assert made.said == [LATE]
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        await starting
        assert made.workers.pids() == {}

    play(tmp_path, scene)


def test_that_workers_may_not_run_is_no_failure_of_theirs_however_long_the_stop_takes(tmp_path: Path) -> None:
    """The head of a network that is cut hears late that its members are lost, and an end for a failure was wrong."""

    async def scene(made: Scene) -> None:
        asked = 0

        def may_start() -> bool:
            nonlocal asked
            asked += 1
            return False

        made.workers._may_start = may_start
        starting = asyncio.ensure_future(made.start())
        while asked <= 2 * START_TRIES:
            await asyncio.sleep(0.01)
        assert made.said == [LATE]
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        await starting
        assert made.workers.pids() == {}

    play(tmp_path, scene, start_again_s=0.01)


@pytest.mark.long
def test_an_agent_that_may_start_its_workers_again_does_so(tmp_path: Path) -> None:
    """It has heard its head in the moment after it was too late."""

    async def scene(made: Scene) -> None:
        made.may_start = False

        def say(_: str) -> None:
            made.may_start = True

        made.workers._say = say
        await made.start()
        assert len(made.workers.pids()) == 2
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    play(tmp_path, scene)


def test_workers_that_are_to_be_stopped_before_they_started_do_not_start(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        goes_on = threading.Event()
        made.thread.best_effort(goes_on.wait)
        starting = asyncio.ensure_future(made.start())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(made.workers.stop_workers(StopManner.FENCE, is_terminated=False))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(starting, stopping)
        assert made.workers.pids() == {}

    play(tmp_path, scene)


@pytest.mark.long
def test_workers_that_start_after_a_term_from_outside_are_terminated(tmp_path: Path) -> None:
    """Slurm set the head's node DOWN, and ended the job just as its successor's next attempt started."""

    async def scene(made: Scene) -> None:
        starts, goes_on = threading.Event(), threading.Event()

        def may_start() -> bool:
            starts.set()
            return goes_on.wait()

        made.workers._may_start = may_start
        starting = asyncio.ensure_future(made.start())
        while not starts.is_set():
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(made.workers.stop_workers(StopManner.GRACE, is_terminated=True))
        await asyncio.sleep(0)
        goes_on.set()
        await starting
        assert len(made.workers.pids()) == 2
        assert await stopping == ()
        assert len(made.workers.ended_by_stop()) == 2

    play(tmp_path, scene, signals=replace(make_run_plan(tmp_path).signals, grace_s=60.0))


@pytest.mark.long
def test_a_passing_trouble_is_said_and_tried_again(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        workdir = tmp_path / "workdir"
        workdir.rmdir()

        def say(text: str) -> None:
            made.said.append(text)
            workdir.mkdir()

        made.workers._say = say
        await made.start()
        assert made.said == [
            f"rank 2 could not be started (No such file or directory: {workdir}); try 2 of {START_TRIES} follows"
        ]
        assert len(made.workers.pids()) == 2
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    play(tmp_path, scene)


@pytest.mark.long
def test_what_is_no_passing_trouble_fails_after_all_tries(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (tmp_path / "workdir").rmdir()
        with pytest.raises(StartFailedError, match=r"No such file or directory: .*workdir"):
            await made.start()
        assert len(made.said) == START_TRIES - 1

    play(tmp_path, scene)


def test_a_stop_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (tmp_path / "workdir").rmdir()
        starting = asyncio.ensure_future(made.start())
        while not made.said:
            await asyncio.sleep(0.01)
        (tmp_path / "workdir").mkdir()
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        await starting
        assert made.workers.pids() == {}

    play(tmp_path, scene, start_again_s=3600)


def test_a_stop_does_not_wait_for_a_fork_server_that_still_imports(tmp_path: Path) -> None:
    shutil.copy(stand_in.__file__, tmp_path / "launch.py")

    async def scene(made: Scene) -> None:
        starting = asyncio.ensure_future(made.start())
        await asyncio.sleep(0)
        assert not starting.done()
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        await starting
        assert made.workers.pids() == {}

    script = EntrypointPlan(kind="script", target="train.py")
    play(tmp_path, scene, entrypoint=script, package_dir=str(tmp_path), env={"STAND_IN": "waits"})


@pytest.mark.long
def test_what_an_attempt_left_in_cycles_is_gone_when_the_next_one_has_started(tmp_path: Path) -> None:
    class Left:
        itself: Left

    async def scene(made: Scene) -> None:
        left = Left()
        left.itself = left
        watch = weakref.ref(left)
        del left
        gc.disable()
        try:
            await made.start()
            assert watch() is None
        finally:
            gc.enable()
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    play(tmp_path, scene)


@pytest.mark.long
@pytest.mark.parametrize("within_s", [0.0, None])
def test_the_writing_of_a_state_is_given_up_when_the_head_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float | None
) -> None:
    state = SlotState(slot=0, sequence=1, attempt=1, step=7, length=3, is_replicated=True, crc=None)
    may_write = threading.Event()
    if within_s is None:
        may_write.set()

    def write_when_it_may(layout: RunLayout, flush: Flush, parts: Sequence[StatePart]) -> str:
        may_write.wait(20)
        return write_states(layout, flush, parts)

    monkeypatch.setattr(group, "write_states", write_when_it_may)

    async def scene(made: Scene) -> None:
        await made.start()
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)
        states = made.workers._states
        with fill_slot(states._numbers[0], states._files[0], state) as write:
            write(memoryview(b"abc"), 0)
        flush = Flush(ended=1, state=StateVersion(attempt=1, step=7), within_s=within_s)
        try:
            line = await made.workers.flush_state(flush)
        finally:
            may_write.set()
        if within_s is None:
            assert line.startswith("kept step 7 for the next allocation: ")
        else:
            assert line == ("step 7 is not kept for the next allocation: its writing was broken off (0 s are over)")

    play(tmp_path, scene)
