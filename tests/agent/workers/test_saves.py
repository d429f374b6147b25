"""A worker that saves is not cut short by a stop because of somebody else's failure, but by a fence."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.lifecycle import Explained
from hpc_elastic.membership.messages import StopManner
from tests.agent.conftest import is_running
from tests.agent.workers.test_lifecycle import HELPED, IGNORES_TERM, SAVES, SLEEPS, Scene, helper_pid, play

# Has a helper, waits for the file `saved`, and then takes a TERM as its end.
SAVES_WITH_HELPER = """
import signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", {source!r}], stdout=subprocess.PIPE)
helper.stdout.readline()
print("helper", helper.pid, flush=True)
time.sleep(60)
"""


async def begin_stop(made: Scene, manner: StopManner) -> asyncio.Future[tuple[int, ...]]:
    return asyncio.ensure_future(made.workers.stop_workers(manner, is_terminated=False))


@pytest.mark.long
def test_the_others_are_stopped_while_one_saves_and_it_gets_its_term_then(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, SLEEPS)
        stop = await begin_stop(made, StopManner.RESTART)
        await made.told.wait()
        await asyncio.sleep(0.3)
        assert made.exits == [(1, -15)]
        assert made.output() == "ready\n"
        made.saving = set()
        assert await stop == ()

    made = play(tmp_path, scene, restart_grace_s=5)
    assert made.exits == [(1, -15), (0, 0)]
    assert made.output() == "ready\nsaved\n"


@pytest.mark.long
def test_a_stop_waits_for_a_save_as_long_as_for_one_at_the_end(tmp_path: Path) -> None:
    began = time.monotonic()

    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(IGNORES_TERM)
        assert await made.workers.stop_workers(StopManner.RESTART, is_terminated=False) == ()

    made = play(tmp_path, scene, grace_s=1.5, restart_grace_s=0.1)
    assert made.exits == [(0, -9)]
    assert time.monotonic() - began >= 1.6


@pytest.mark.long
def test_a_worker_that_ignores_its_term_is_killed_while_another_saves(tmp_path: Path) -> None:
    """Its failure would be put down to nobody: the stop explains it."""

    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, IGNORES_TERM)
        stop = await begin_stop(made, StopManner.RESTART)
        await made.told.wait()
        assert made.exits == [(1, -9)]
        assert made.explained == [Explained.YES]
        made.saving = set()
        await stop

    assert play(tmp_path, scene, restart_grace_s=0.2).output() == "ready\nsaved\n"


@pytest.mark.long
def test_what_a_saving_worker_has_started_is_left_alone_too(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES_WITH_HELPER.format(source=SLEEPS), SLEEPS)
        stop = await begin_stop(made, StopManner.RESTART)
        await made.told.wait()
        await asyncio.sleep(0.5)
        assert is_running(helper_pid(made))
        made.saving = set()
        await stop
        assert not is_running(helper_pid(made))

    play(tmp_path, scene, restart_grace_s=0.2)


@pytest.mark.long
def test_what_an_ended_worker_left_behind_is_stopped_while_another_saves(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {1}
        await made.start(HELPED.format(source=SLEEPS, exitcode=1), SAVES)
        await made.told.wait()
        stop = await begin_stop(made, StopManner.RESTART)
        while is_running(helper_pid(made)):
            await asyncio.sleep(0.01)
        assert made.output(1) == "ready\n"
        made.saving = set()
        await stop

    play(tmp_path, scene, restart_grace_s=0.2)


@pytest.mark.long
def test_a_save_that_begins_after_the_term_is_waited_for(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(IGNORES_TERM)
        stop = await begin_stop(made, StopManner.RESTART)
        await asyncio.sleep(0)
        made.saving = {0}
        await asyncio.sleep(0.5)
        assert not made.exits
        made.saving = set()
        await stop

    assert play(tmp_path, scene, restart_grace_s=0.2).exits == [(0, -9)]


@pytest.mark.long
def test_a_fence_does_not_wait_for_a_save(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES)
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    assert play(tmp_path, scene).exits == [(0, -9)]


@pytest.mark.long
def test_a_stop_that_becomes_a_fence_waits_no_more(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES)
        stop = await begin_stop(made, StopManner.RESTART)
        await asyncio.sleep(0.1)
        made.workers.hurry()
        await stop

    assert play(tmp_path, scene).exits == [(0, -9)]


@pytest.mark.long
def test_a_stop_at_the_end_leaves_a_save_alone_but_for_the_last_of_its_grace(tmp_path: Path) -> None:
    """The whole grace is the bound: Slurm kills the job when that is over."""
    began = time.monotonic()

    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, IGNORES_TERM)
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=False)

    made = play(tmp_path, scene, grace_s=1.5, restart_grace_s=1)
    assert sorted(made.exits) == [(0, 0), (1, -9)]
    assert time.monotonic() - began >= 1.5


@pytest.mark.long
def test_a_worker_that_fails_in_its_save_ends_the_wait(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        source = (
            "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nexit(3)"
        )
        await made.start(source, SLEEPS)
        stop = await begin_stop(made, StopManner.RESTART)
        await made.told.wait()
        (tmp_path / "go").touch()
        await stop

    made = play(tmp_path, scene)
    assert made.exits == [(1, -15), (0, 3)]
    assert made.explained == [Explained.YES, Explained.PERHAPS]


@pytest.mark.long
def test_the_others_are_killed_at_once_after_the_death_of_an_agent_and_who_saves_may_finish(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, IGNORES_TERM)
        stop = await begin_stop(made, StopManner.LOSS)
        await made.told.wait()
        assert (made.exits, made.explained) == ([(1, -9)], [Explained.YES])
        await asyncio.sleep(0.3)
        assert (made.exits, made.output()) == ([(1, -9)], "ready\n")
        made.saving = set()
        assert await stop == ()

    assert len(play(tmp_path, scene, restart_grace_s=5).exits) == 2


@pytest.mark.long
def test_nobody_has_time_after_the_death_of_an_agent_where_nobody_saves(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(SAVES, IGNORES_TERM)
        assert await made.workers.stop_workers(StopManner.LOSS, is_terminated=False) == ()

    assert sorted(play(tmp_path, scene).exits) == [(0, -9), (1, -9)]


@pytest.mark.long
def test_a_save_has_no_more_time_after_the_death_of_an_agent_than_after_a_failure(tmp_path: Path) -> None:
    began = time.monotonic()

    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(IGNORES_TERM)
        assert await made.workers.stop_workers(StopManner.LOSS, is_terminated=False) == ()

    assert play(tmp_path, scene, grace_s=1.0).exits == [(0, -9)]
    assert time.monotonic() - began >= 1.0


@pytest.mark.long
def test_the_death_of_an_agent_during_a_stop_leaves_time_only_to_who_saves(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, IGNORES_TERM)
        stop = await begin_stop(made, StopManner.RESTART)
        await asyncio.sleep(0.1)
        assert made.exits == []
        made.workers.hurry(spares_savers=True)
        await made.told.wait()
        assert made.exits == [(1, -9)]
        await asyncio.sleep(0.3)
        assert made.output() == "ready\n"
        made.saving = set()
        assert await stop == ()

    assert len(play(tmp_path, scene, restart_grace_s=30).exits) == 2


@pytest.mark.long
def test_a_fence_does_not_wait_for_who_saves_after_the_death_of_an_agent(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.saving = {0}
        await made.start(SAVES, SLEEPS)
        stop = await begin_stop(made, StopManner.LOSS)
        await made.told.wait()
        made.workers.hurry()
        assert await stop == ()

    assert play(tmp_path, scene, grace_s=60).exits == [(1, -9), (0, -9)]
