"""The watch over heartbeats: pauses of the agent itself, what a report holds, slow ranks, and the end of a watch."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.agent.workers.stalls import Stalls, StallTimes
from hpc_elastic.heartbeat_memory import COUNT, SLOT_NUMBERS, STEP, TIME_NS, map_memory
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_role, make_run_plan

QUICK = StallTimes(look_every_s=0.05, hold_s=0.1, others_s=0.0, compare_every_s=0.1)
LONG = StallTimes(others_s=600.0)  # a stop that waits for the stacks of other nodes does not end in time


class Scene:
    """Two workers, processes that sleep; their heartbeats are made by the test."""

    def __init__(
        self, root: Path, *, stall_s: float | None, restart: str, nodes: tuple[str, ...], times: StallTimes
    ) -> None:
        self.layout = RunLayout(root)
        entrypoint = EntrypointPlan(kind="command", target="sleep", args=("60",))
        role = make_role("default", 1, 2, entrypoint=entrypoint, restart=restart)
        plan = make_run_plan(root, roles=(role,), stall_timeout_s=stall_s)
        place = Allocation(job_id="local-1", restart_count=0, array_task=None, node_id=0, nodes=nodes, is_local=True)
        self.heartbeats = Heartbeats()
        self.numbers = map_memory(self.heartbeats.begin([0, 1])[0].memory)
        self.notes: list[Note] = []
        self.failures: list[FailureRecord] = []
        self.said: list[str] = []
        self.reported = asyncio.Event()
        self.disk = BackgroundThread("disk", asyncio.get_running_loop())
        self.workers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
        self.stalls = Stalls(
            plan,
            place,
            heartbeats=self.heartbeats,
            disk=self.disk,
            say=self.said.append,
            note=self.notes.append,
            report=self._report,
            times=times,
        )
        self.begin(1)

    def begin(self, attempt: int) -> None:
        orders = [
            WorkerOrder(
                rank=rank,
                local_rank=rank,
                attempt=attempt,
                kind="command",
                target="sleep",
                arguments=(),
                environment={},
                directory="/",
            )
            for rank in range(2)
        ]
        self.stalls.begin(orders, lambda: {rank: worker.pid for rank, worker in enumerate(self.workers)})

    def _report(self, failure: FailureRecord) -> None:
        self.failures.append(failure)
        self.reported.set()

    def beat(self, rank: int, step: int) -> None:
        slot = self.numbers[rank * SLOT_NUMBERS : (rank + 1) * SLOT_NUMBERS]
        slot[STEP], slot[TIME_NS] = step, time.monotonic_ns()
        slot[COUNT] += 1

    async def close(self) -> None:
        await self.stalls.close()
        for worker in self.workers:
            worker.kill()
            worker.wait()
        await self.disk.close(5)
        self.heartbeats.close()


def play(
    root: Path,
    scene: Callable[[Scene], Awaitable[None]],
    *,
    stall_s: float | None,
    restart: str = "restart_all",
    nodes: tuple[str, ...] = ("local0",),
    times: StallTimes = QUICK,
) -> None:
    async def main() -> None:
        made = Scene(root, stall_s=stall_s, restart=restart, nodes=nodes, times=times)
        try:
            await asyncio.wait_for(scene(made), 30)
        finally:
            await made.close()

    asyncio.run(main())


async def beat_until(scene: Scene, ranks: tuple[int, ...], is_enough: Callable[[], bool]) -> None:
    step = 0
    while not is_enough():
        step += 1
        for rank in ranks:
            scene.beat(rank, step)
        await asyncio.sleep(0.01)


@pytest.mark.long
def test_a_silent_rank_is_reported_with_its_error_file(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.beat(1, 41)
        await beat_until(made, (0,), made.reported.is_set)
        (failure,) = made.failures
        assert (failure.rank, failure.failure_class, failure.exitcode) == (1, "stalled", 9)
        assert failure.detail.startswith("no heartbeat for ")
        assert failure.detail.endswith(" s after step 41")
        error = json.loads(Path(failure.error_file).read_text())
        assert (error["class"], error["rank"], error["exit_code"]) == ("stalled", 1, 9)
        assert error["message"]["message"] == failure.message
        text = Path(made.layout.stack(1, 1)).read_text()
        assert text == "no stack: it is no Python program that beats\n"
        assert [note.name for note in made.notes] == ["stacks.taken", "ranks.stalled"]

    play(tmp_path, scene, stall_s=0.5)


@pytest.mark.long
def test_an_agent_that_was_paused_calls_no_rank_stalled_that_was_paused_with_it(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        for rank in (0, 1):
            made.beat(rank, 1)
        await asyncio.sleep(0.2)
        time.sleep(3)  # the pause: this thread is the agent
        began = time.monotonic()
        await asyncio.sleep(0.3)  # the workers begin again a little later than the agent
        await beat_until(made, (0, 1), lambda: time.monotonic() - began > 2)
        assert made.failures == []
        await beat_until(made, (0,), made.reported.is_set)
        assert [failure.rank for failure in made.failures] == [1]

    play(tmp_path, scene, stall_s=1.0)


@pytest.mark.long
def test_a_stop_ends_the_watch_and_takes_stacks_of_ranks_that_are_silent(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.beat(0, 1)
        await asyncio.sleep(1.1)
        await made.stalls.before_stop(StopManner.RESTART)
        assert [note.name for note in made.notes] == ["stacks.taken"]
        assert os.path.exists(made.layout.stack(1, 0))
        await asyncio.sleep(1.5)
        assert made.failures == []

    play(tmp_path, scene, stall_s=2.0)


def test_a_stop_for_a_hang_takes_stacks_of_ranks_that_make_no_heartbeats(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.stalls.before_stop(StopManner.RESTART, takes_stacks=True)
        assert [note.name for note in made.notes] == ["stacks.taken"]
        assert made.stalls.waiting == frozenset()  # they are in no collective

    play(tmp_path, scene, stall_s=None)


def test_a_fence_takes_no_stacks(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.stalls.before_stop(StopManner.FENCE, takes_stacks=True)
        assert made.notes == []

    play(tmp_path, scene, stall_s=None, nodes=("local0", "local1"), times=LONG)


@pytest.mark.parametrize("manner", [StopManner.RESTART, StopManner.FENCE])
def test_a_stop_of_ranks_that_beat_takes_no_time(tmp_path: Path, manner: StopManner) -> None:
    async def scene(made: Scene) -> None:
        made.beat(0, 1)
        made.beat(1, 1)
        await made.stalls.before_stop(manner)
        assert made.notes == []

    play(tmp_path, scene, stall_s=60.0, nodes=("local0", "local1"), times=LONG)


@pytest.mark.long
def test_a_role_whose_failures_are_ignored_loses_its_stalled_worker(tmp_path: Path) -> None:
    """Nobody would stop it else; its end by KILL finds the error file that says why."""

    async def scene(made: Scene) -> None:
        made.beat(1, 1)
        await beat_until(made, (0,), lambda: made.workers[1].poll() is not None)
        assert made.workers[1].returncode == -9
        assert made.failures == []
        assert json.loads(Path(made.layout.error(1, 1)).read_text())["class"] == "stalled"

    play(tmp_path, scene, stall_s=0.5, restart="ignore")


def test_a_rank_of_another_node_that_falls_behind_is_an_event_and_no_failure(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        write_samples(made.layout, "local0", {0: 4, 1: 4})
        write_samples(made.layout, "local1", {2: 1})
        while not made.notes:
            await asyncio.sleep(0.005)
        assert made.notes[0].name == "ranks.slow"
        told = re.fullmatch(r"rank 2 on local1 is (\S+) steps behind the median and falls back", made.notes[0].message)
        assert told is not None, made.notes[0].message
        assert float(told[1]) >= 180  # at the last samples, and three more for each second that passed since
        assert list(made.notes[0].metadata["ranks"]) == ["2"]
        assert made.notes[0].metadata["nodes"] == {"2": "local1"}
        assert made.failures == []

    play(tmp_path, scene, stall_s=60.0, nodes=("local0", "local1"))


def write_samples(layout: RunLayout, node: str, rates: Mapping[int, int]) -> None:
    """Write a minute of samples of a node's ranks, the last of them now, by their steps a second."""
    path = Path(layout.samples(node))
    path.parent.mkdir(parents=True, exist_ok=True)
    ended = time.time_ns()
    lines = []
    for second in range(0, 61, 10):
        ranks = [{"rank": rank, "step": rate * second, "age_s": 0.0} for rank, rate in rates.items()]
        lines.append(json.dumps({"time_ns": ended - (60 - second) * 10**9, "attempt": 1, "ranks": ranks}))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_watch_of_an_attempt_that_is_over_leaves_no_task(tmp_path: Path, is_stopped: bool) -> None:
    async def scene(made: Scene) -> None:
        before = {task for task in asyncio.all_tasks() if "Stalls._watch" in repr(task)}
        assert len(before) == 2
        if is_stopped:
            await made.stalls.before_stop(StopManner.FENCE)
        else:
            made.begin(2)
        await asyncio.wait(before, timeout=10)
        assert not [task for task in before if not task.done()]

    slow = StallTimes(look_every_s=600.0, hold_s=0.1, others_s=0.0, compare_every_s=600.0)
    play(tmp_path, scene, stall_s=6000.0, times=slow)
