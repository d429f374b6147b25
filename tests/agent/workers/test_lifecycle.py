"""Watching and stopping real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, WorkerSearch, find_workers
from hpc_elastic.agent.workers.last_words import LastWords
from hpc_elastic.agent.workers.lifecycle import (
    CLOSING_BOUND_S,
    MISSES_TERM_S,
    Explained,
    StopTimes,
    WorkerExit,
    Workers,
)
from hpc_elastic.agent.workers.spawn import SpawnedWorker, WorkerOrder, spawn_workers
from hpc_elastic.last_word import NAME_VARIABLE, Word, WordKind, send_last_word
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.processes import Process
from hpc_elastic.rundir.layout import RunLayout
from tests.agent.conftest import SLEEP, SPAWNER, Spawn, is_running, marks_of, own_children, wait_until_gone
from tests.worker.forking import subreaper

IGNORES_TERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(15, save)
os.write(1, b"ready\\n")  # at once: print may be stopped before it ends the line
time.sleep(60)
"""
SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"
# Leaves a helper behind that has a session of its own, and succeeds when the helper is there.
HELPED = """
import subprocess, sys
source = {source!r}
helper = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True)
helper.stdout.readline()
print("helper", helper.pid, flush=True)
sys.exit({exitcode})
"""
# Says its last word, and ends in its own time.
ENDS = """
import os, signal, subprocess, sys
from hpc_elastic.last_word import send_last_word
send_last_word(os.environ["SAYS_TO"], {attempt})
print("ready", flush=True)
{then}
"""
AT_EXIT = """
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
while not os.path.exists("go"):
    pass
print("done", flush=True)
sys.exit({exitcode})
"""


class Scene:
    """Workers of one attempt below this process, which is not their subreaper."""

    def __init__(
        self, root: Path, *, grace_s: float, restart_grace_s: float, closing_bound_s: float = CLOSING_BOUND_S
    ) -> None:
        self.root = root
        self.layout = RunLayout(root)
        self.marks = Marks(run_dir=str(root), node="node1")
        self.exits: list[tuple[int, int]] = []
        self.explained: list[Explained] = []
        self.failing: list[Word | None] = []
        self.all_exited = asyncio.Event()
        self.told = asyncio.Event()
        self.saving: set[int] = set()  # the ranks that are saving
        self.count = 0
        self.spawned: list[SpawnedWorker] = []
        self.thread = BackgroundThread("processes", asyncio.get_running_loop())
        bystanders = own_children()  # of the tests' own process: the keepers of their sandboxes
        self.workers = Workers(
            self.thread,
            marks=self.marks,
            times=StopTimes(grace_s=grace_s, restart_grace_s=restart_grace_s),
            spared=lambda: bystanders,
            on_exit=self._exited,
            closing_bound_s=closing_bound_s,
            saving=lambda: self.saving,
        )
        self.last_words = LastWords(self.workers.hear)

    def _exited(self, worker: SpawnedWorker, ended: WorkerExit) -> None:
        self.exits.append((worker.order.local_rank, ended.exitcode))
        self.explained.append(ended.explained)
        self.failing.append(ended.failing)
        self.told.set()
        if len(self.exits) == self.count:
            self.all_exited.set()

    async def start(self, *sources: str, is_done: threading.Event | None = None) -> list[int]:
        """Starts a worker for each source; returns when each has said its first word, and the start `is_done`."""
        self.count = len(sources)
        orders = [
            WorkerOrder(
                rank=rank,
                local_rank=rank,
                attempt=1,
                kind="command",
                target=sys.executable,
                arguments=["-c", source],
                environment={**os.environ, **marks_of(self.root), "SAYS_TO": self.last_words.variables[NAME_VARIABLE]},
                directory=str(self.root),
            )
            for rank, source in enumerate(sources)
        ]

        def spawn() -> list[SpawnedWorker]:
            spawned = spawn_workers(orders, self.layout, SPAWNER)
            if is_done is not None:
                is_done.wait()
            return spawned

        spawned = self.spawned = await self.workers.start_workers(spawn)
        while not all(self.output(rank) for rank in range(self.count)):
            await asyncio.sleep(0.01)
        return [worker.pid for worker in spawned]

    def output(self, rank: int = 0) -> str:
        path = Path(self.layout.stdout(1, rank))
        return path.read_text() if path.exists() else ""


def play(
    root: Path,
    scene: Callable[[Scene], Awaitable[None]],
    *,
    grace_s: float = 60,
    restart_grace_s: float = 60,
    closing_bound_s: float = CLOSING_BOUND_S,
) -> Scene:
    """Plays a scene; nothing of it is left afterwards."""

    async def main() -> Scene:
        made = Scene(root, grace_s=grace_s, restart_grace_s=restart_grace_s, closing_bound_s=closing_bound_s)
        try:
            await asyncio.wait_for(scene(made), 60)
        finally:
            left = find_workers(made.marks)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            await made.thread.close(10)
            made.last_words.close()
        assert not left
        return made

    return asyncio.run(main())


@pytest.mark.long
def test_each_exit_is_told_with_its_code(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(
            "print('x')",
            "print('x', flush=True); raise SystemExit(3)",
            "import os; print('x', flush=True); os.kill(os.getpid(), 9)",
        )
        await made.all_exited.wait()

    assert sorted(play(tmp_path, scene).exits) == [(0, 0), (1, 3), (2, -9)]


@pytest.mark.long
def test_a_scene_leaves_alone_what_this_process_had_started_before(tmp_path: Path, spawn: Spawn) -> None:
    bystander = spawn(SLEEP)

    async def scene(made: Scene) -> None:
        await made.start(IGNORES_TERM)
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()

    play(tmp_path, scene)
    assert is_running(bystander.pid)


@pytest.mark.long
def test_a_stop_sends_term_and_returns_as_soon_as_all_are_gone(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(SAVES, SLEEPS)
        assert await made.workers.stop_workers(StopManner.RESTART, is_terminated=False) == ()

    made = play(tmp_path, scene)
    assert sorted(made.exits) == [(0, 0), (1, -15)]
    assert made.output(0) == "ready\nsaved\n"


@pytest.mark.long
def test_a_worker_that_ignores_term_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(IGNORES_TERM)
        assert await made.workers.stop_workers(StopManner.GRACE, is_terminated=False) == ()

    assert play(tmp_path, scene, grace_s=0.1).exits == [(0, -9)]


@pytest.mark.long
def test_workers_that_had_their_term_get_no_second_one(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(SAVES)
        asked_at = asyncio.get_running_loop().time() + 2 * MISSES_TERM_S  # as if the worker ran for that long
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=True, asked_at=asked_at)

    made = play(tmp_path, scene, grace_s=0.1)
    assert made.exits == [(0, -9)]
    assert made.output() == "ready\n"


@pytest.mark.long
def test_workers_that_started_as_a_term_came_from_outside_get_one_with_what_they_started(tmp_path: Path) -> None:
    """Its sender has not seen them yet, or they ignored it as new forks do: they ran on until the KILL."""

    async def scene(made: Scene) -> None:
        asked_at = asyncio.get_running_loop().time()
        await made.start(SAVES, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAVES!r}])")
        assert await made.workers.stop_workers(StopManner.GRACE, is_terminated=True, asked_at=asked_at) == ()

    made = play(tmp_path, scene)
    assert sorted(made.exits) == [(0, 0), (1, -15)]
    assert (made.output(0), made.output(1)) == ("ready\nsaved\n", "ready\nsaved\n")


@pytest.mark.long
def test_only_workers_that_started_as_a_term_came_from_outside_get_another_one(tmp_path: Path) -> None:
    """However long the start of both took: a loaded machine needs longer than a worker counts as just started."""

    async def scene(made: Scene) -> None:
        asked_at = asyncio.get_running_loop().time()
        await made.start(SAVES, SAVES)
        made.spawned[0].started = asked_at - 2 * MISSES_TERM_S
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=True, asked_at=asked_at)

    made = play(tmp_path, scene, grace_s=3)
    assert sorted(made.exits) == [(0, -9), (1, 0)]
    assert (made.output(0), made.output(1)) == ("ready\n", "ready\nsaved\n")


@pytest.mark.long
def test_a_fence_kills_at_once(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(SAVES)
        await made.workers.stop_workers(StopManner.FENCE, is_terminated=False)

    assert play(tmp_path, scene).exits == [(0, -9)]


@pytest.mark.long
def test_a_fence_kills_what_a_worker_has_started_before_it_looks_at_the_nodes_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have thousands of them, and workers may work no longer than until their deadline."""
    left: list[bool] = []
    find = WorkerSearch.find

    async def scene(made: Scene) -> None:
        await made.start(
            HELPED.format(source=SLEEPS, exitcode="time.sleep(60)").replace("import sub", "import time, sub")
        )
        helper = int(made.output().split()[1])

        def find_later(self: WorkerSearch, **which: Collection[int]) -> dict[int, Process]:
            left.append(not wait_until_gone(helper, within_s=5))
            return find(self, **which)

        monkeypatch.setattr(WorkerSearch, "find", find_later)
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()

    with subreaper():
        play(tmp_path, scene)
    assert not any(left)
    assert left


@pytest.mark.long
def test_a_hurry_cuts_the_grace_short(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(IGNORES_TERM)
        stop = asyncio.ensure_future(made.workers.stop_workers(StopManner.GRACE, is_terminated=False))
        await asyncio.sleep(0)
        made.workers.hurry()
        await stop

    assert play(tmp_path, scene, grace_s=1000).exits == [(0, -9)]


@pytest.mark.long
def test_a_hurry_that_comes_while_the_workers_still_start_counts(tmp_path: Path) -> None:
    """The stop waits for the start, and the fence that hardens it may come meanwhile."""

    async def scene(made: Scene) -> None:
        made.workers.hurry()
        await made.start(IGNORES_TERM)
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    assert play(tmp_path, scene, restart_grace_s=1000).exits == [(0, -9)]


@pytest.mark.long
def test_a_hurry_is_over_with_the_stop_that_it_was_for(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.workers.hurry()
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=False)
        await made.start(SAVES)
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=False)

    assert play(tmp_path, scene).output() == "ready\nsaved\n"


def helper_pid(made: Scene) -> int:
    return int(made.output().split()[1])


@pytest.mark.long
def test_what_a_failed_worker_left_behind_is_stopped_too(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(HELPED.format(source=SLEEPS, exitcode=1))
        await made.all_exited.wait()
        assert is_running(helper_pid(made))
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)
        assert not is_running(helper_pid(made))

    play(tmp_path, scene)


@pytest.mark.long
def test_what_a_worker_that_succeeded_left_behind_may_finish_first(tmp_path: Path) -> None:
    mark = tmp_path / "uploaded"
    uploads = f"import time; print('ready', flush=True); time.sleep(0.3); open({str(mark)!r}, 'w').close()"

    async def scene(made: Scene) -> None:
        await made.start(HELPED.format(source=uploads, exitcode=0))
        await made.all_exited.wait()
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=False)

    play(tmp_path, scene)
    assert mark.exists()


@pytest.mark.long
def test_the_end_does_not_wait_for_ever_for_what_a_success_left_behind(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(HELPED.format(source=IGNORES_TERM, exitcode=0))
        await made.all_exited.wait()
        await made.workers.stop_workers(StopManner.GRACE, is_terminated=False)
        assert not is_running(helper_pid(made))

    play(tmp_path, scene, grace_s=0.1, restart_grace_s=0.1)


def test_a_stop_with_nothing_to_stop_returns_at_once(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        for manner in StopManner:
            assert await made.workers.stop_workers(manner, is_terminated=False) == ()

    began = time.monotonic()
    play(tmp_path, scene, grace_s=1000, restart_grace_s=1000)
    assert time.monotonic() - began < 500  # it did not sit the grace out


@pytest.mark.long
def test_a_second_attempt_is_watched_like_the_first(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(SLEEPS)
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)
        await made.start("print('x')")
        while len(made.exits) < 2:
            await asyncio.sleep(0.01)

    assert play(tmp_path, scene).exits == [(0, -15), (0, 0)]


@pytest.mark.long
def test_tells_what_a_stop_explains_from_a_kill_by_somebody_else(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        _, killed = await made.start(SLEEPS, IGNORES_TERM)
        stopping = asyncio.ensure_future(made.workers.stop_workers(StopManner.GRACE, is_terminated=False))
        while not made.exits:
            await asyncio.sleep(0.01)
        os.kill(killed, signal.SIGKILL)
        await stopping
        assert dict(zip(made.exits, made.explained, strict=True)) == {(0, -15): Explained.YES, (1, -9): Explained.NO}

    play(tmp_path, scene)


@pytest.mark.long
def test_a_last_word_is_a_failure_before_the_worker_has_ended(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (pid,) = await made.start(ENDS.format(attempt=1, then=AT_EXIT.format(exitcode=1)))
        await made.told.wait()
        assert (made.exits, made.explained, is_running(pid)) == ([(0, 1)], [Explained.NO], True)
        (tmp_path / "go").touch()
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    assert play(tmp_path, scene).exits == [(0, 1)]  # told once


@pytest.mark.long
def test_a_last_word_that_comes_before_all_workers_are_started_counts(tmp_path: Path) -> None:
    """The first worker of a node may raise while the second is still being forked."""

    async def scene(made: Scene) -> None:
        is_done = threading.Event()
        ends = ENDS.format(attempt=1, then=AT_EXIT.format(exitcode=1))
        starting = asyncio.ensure_future(made.start(ends, SLEEPS, is_done=is_done))
        while not made.output(0):
            await asyncio.sleep(0.01)
        made.workers.hear(
            Word(pid=os.getpid(), attempt=1, kind=WordKind.LAST)
        )  # somebody else's counts for nothing, then too
        is_done.set()
        await starting
        await made.told.wait()
        assert (made.exits, made.explained) == ([(0, 1)], [Explained.NO])
        (tmp_path / "go").touch()
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    play(tmp_path, scene)


@pytest.mark.long
def test_a_worker_that_ends_by_itself_gets_no_term_and_has_the_grace_to_do_so(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        _, other = await made.start(ENDS.format(attempt=1, then=AT_EXIT.format(exitcode=1)), SLEEPS)
        await made.told.wait()
        stopping = asyncio.ensure_future(made.workers.stop_workers(StopManner.RESTART, is_terminated=False))
        while is_running(other):
            await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        assert await stopping == ()

    made = play(tmp_path, scene)
    assert made.output() == "ready\ndone\n"
    assert sorted(made.exits) == [(0, 1), (1, -15)]


@pytest.mark.long
def test_a_worker_that_never_ends_after_its_last_word_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(ENDS.format(attempt=1, then=AT_EXIT.format(exitcode=1)))
        await made.told.wait()
        assert await made.workers.stop_workers(StopManner.RESTART, is_terminated=False) == ()

    made = play(tmp_path, scene, restart_grace_s=0.1)
    assert (made.exits, made.explained) == ([(0, 1)], [Explained.NO])


@pytest.mark.long
def test_another_exit_code_than_the_last_words_is_told_too(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(ENDS.format(attempt=1, then=AT_EXIT.format(exitcode=42)))
        await made.told.wait()
        (tmp_path / "go").touch()
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene)
    assert (made.exits, made.explained) == ([(0, 1), (0, 42)], [Explained.NO, Explained.NO])


@pytest.mark.long
def test_what_a_worker_left_behind_that_ended_by_itself_gets_its_term_then(tmp_path: Path) -> None:
    saves = f"""
helper = subprocess.Popen([sys.executable, "-c", {SAVES!r}], stdout=subprocess.PIPE, start_new_session=True)
helper.stdout.readline()
print("helper", helper.pid, flush=True)
helper.stdout = None
os._exit(1)
"""

    async def scene(made: Scene) -> None:
        await made.start(ENDS.format(attempt=1, then=saves))
        await made.told.wait()
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)
        assert not is_running(int(made.output().split()[2]))

    play(tmp_path, scene)


@pytest.mark.long
def test_a_last_word_of_somebody_else_or_of_an_older_attempt_counts_for_nothing(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(ENDS.format(attempt=7, then="sys.exit(3)"))
        send_last_word(made.last_words.variables[NAME_VARIABLE], 1)
        await made.all_exited.wait()

    assert play(tmp_path, scene).exits == [(0, 3)]


@pytest.mark.long
def test_a_last_word_during_a_stop_is_of_the_stop(tmp_path: Path) -> None:
    raises = "signal.signal(15, lambda *_: (send_last_word(os.environ['SAYS_TO'], 1), sys.exit(1)))\n"

    async def scene(made: Scene) -> None:
        source = ENDS.format(attempt=1, then="signal.pause()")
        says = 'send_last_word(os.environ["SAYS_TO"], 1)\n'
        assert says in source
        await made.start(source.replace(says, raises, 1))  # before it says that it is ready to be stopped
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene)
    assert (made.exits, made.explained) == ([(0, 1)], [Explained.PERHAPS])


# Says that it closes its connections with an exception in flight, and goes on as `then` says.
FAILS = """
import os, signal, sys, time
from hpc_elastic.last_word import WordKind, send_failing, send_word
send_failing(os.environ["SAYS_TO"], WordKind.CLOSING, 1, exit_code=3, record=b"{{}}")
{then}
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_rank_that_a_stop_ends_with_an_exception_in_flight_has_failed(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(FAILS.format(then=""), SLEEPS)
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene)
    ended = dict(zip(made.exits, made.explained, strict=True))
    assert ended == {(0, 3): Explained.PERHAPS, (1, -15): Explained.YES}
    assert [word.exit_code for word in made.failing if word is not None] == [3]


@pytest.mark.long
def test_a_rank_that_ignores_term_with_an_exception_in_flight_has_failed_too(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(FAILS.format(then="signal.signal(15, signal.SIG_IGN)"))
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene, restart_grace_s=0.1)
    assert (made.exits, made.explained) == ([(0, 3)], [Explained.PERHAPS])


@pytest.mark.long
def test_a_rank_that_goes_on_after_its_exception_is_stopped_like_any_other(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(FAILS.format(then='send_word(os.environ["SAYS_TO"], WordKind.HANDLED, 1)'))
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene)
    assert (made.exits, made.explained, made.failing) == ([(0, -15)], [Explained.YES], [None])


@pytest.mark.long
def test_a_rank_that_succeeds_after_its_exception_has_not_failed(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(FAILS.format(then="print('ready'); sys.exit(0)"))
        await made.all_exited.wait()

    made = play(tmp_path, scene)
    assert (made.exits, made.explained, made.failing) == ([(0, 0)], [Explained.NO], [None])


@pytest.mark.long
def test_a_later_signal_of_its_own_is_not_put_down_to_an_exception_of_before(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        says = 'send_word(os.environ["SAYS_TO"], WordKind.CLOSED, 1)'
        await made.start(FAILS.format(then=f"{says}\nprint('ready', flush=True)\nos.kill(os.getpid(), 11)"))
        await made.all_exited.wait()

    made = play(tmp_path, scene)
    assert (made.exits, made.failing) == ([(0, -11)], [None])


@pytest.mark.long
def test_a_rank_that_hangs_while_it_closes_counts_as_failed_after_a_bound(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start(FAILS.format(then=""))
        await made.told.wait()
        assert (made.exits, made.explained) == ([(0, 3)], [Explained.NO])
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    assert play(tmp_path, scene, closing_bound_s=0.1).exits == [(0, 3)]  # told once


@pytest.mark.long
def test_a_rank_that_has_ended_before_the_term_failed_by_itself(tmp_path: Path) -> None:
    """The head's stop may be handled before the event that says so."""

    async def scene(made: Scene) -> None:
        (pid,) = await made.start("import os; print('x', flush=True); os._exit(7)")
        while is_running(pid):  # without a turn of the loop, which would tell of the end
            time.sleep(0.01)
        await made.workers.stop_workers(StopManner.RESTART, is_terminated=False)

    made = play(tmp_path, scene)
    assert (made.exits, made.explained) == ([(0, 7)], [Explained.NO])
