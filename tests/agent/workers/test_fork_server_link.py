"""Workers and store hosts as forks of a server that is a real process, and what happens when it misbehaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.node.node_environment import node_environment
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, WorkerSearch, find_workers
from hpc_elastic.agent.workers.fork_server_link import ForkServerLink
from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.spawn import SpawnedWorker, Spawner, StartFailedError, WorkerOrder, spawn_workers
from hpc_elastic.agent.workers.store_link import StoreLink
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.membership.actions import Level
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent import stand_in
from tests.agent.conftest import DEADLINE, is_running, marks_of, wait_until_gone
from tests.plans import make_run_plan

pytestmark = pytest.mark.usefixtures("subreaper")
FORKS = "workers are forks of a process that has torch 2.13.0 imported (1.9 s, 1,800 modules)"
UNSAFE = "2 threads run in the process that would be forked"


class Scene:
    """A node whose fork server is the stand-in."""

    def __init__(self, root: Path, behaviour: str, **changes: Any) -> None:
        self.root = root
        shutil.copy(stand_in.__file__, root / "launch.py")
        self.said: list[str] = []
        self.thread = BackgroundThread("processes", asyncio.get_running_loop())
        self.plan = make_run_plan(root, package_dir=str(root), workdir=str(root), **changes)
        place = Allocation(job_id="1", restart_count=0, array_task=None, node_id=0, nodes=("node1",), is_local=True)
        environ = {**os.environ, "STAND_IN": behaviour}
        self.start = WorkerStart(self.plan, place, environ, thread=self.thread, deadline=DEADLINE, say=self.hear)
        self.node = node_environment(environ, self.plan, place)
        self.variables = dict(self.node.variables)

    def hear(self, text: str, level: Level) -> None:
        self.said.append(text if level == "info" else f"{level}: {text}")

    def order(self, source: str, *, rank: int = 0, **changes: Any) -> WorkerOrder:
        script = self.root / f"script{rank}.py"
        script.write_text(source)
        values: dict[str, Any] = {
            "rank": rank,
            "local_rank": rank,
            "attempt": 1,
            "kind": "script",
            "target": str(script),
            "arguments": ["--lr", "0.1"],
            "environment": {**self.variables, **marks_of(self.root)},
            "directory": str(self.root),
        }
        return WorkerOrder(**{**values, **changes})

    async def fork(self, *orders: WorkerOrder) -> list[SpawnedWorker]:
        starter = await self.start.choose(orders)
        assert not isinstance(starter, Spawner), self.said
        return await self.thread.call(lambda: spawn_workers(orders, RunLayout(self.root), starter))

    async def server_pid(self) -> int:
        await self.start.ready()
        (pid,) = await self.thread.call(self.start.pids)
        return pid


def play(root: Path, scene: Callable[[Scene], Awaitable[None]], behaviour: str = "", **changes: Any) -> Scene:
    async def main() -> Scene:
        made = Scene(root, behaviour, **changes)
        try:
            await made.start.start()
            await asyncio.wait_for(scene(made), 60)
        finally:
            pids = await made.thread.call(made.start.pids)
            await made.start.close()
            await made.thread.close(10)
            for process in find_workers(Marks(run_dir=str(root), node="node1")).values():
                os.kill(process.pid, signal.SIGKILL)
        assert not any(map(is_running, pids))
        return made

    return asyncio.run(main())


def end_of(worker: SpawnedWorker) -> int:
    os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOWAIT)
    return worker.collect()


def test_a_worker_is_a_fork_with_its_own_files_folder_arguments_and_variables(tmp_path: Path) -> None:
    source = (
        "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['MINE']); print('x', file=sys.stderr); exit(3)"
    )

    async def scene(made: Scene) -> None:
        order = made.order(source)
        (worker,) = await made.fork(made.order(source, environment={**order.environment, "MINE": "\udce9 ü"}))
        assert end_of(worker) == 3

    made = play(tmp_path, scene)
    seen = os.fsdecode(Path(RunLayout(tmp_path).stdout(1, 0)).read_bytes())
    assert seen == f"{tmp_path} ['--lr', '0.1'] \udce9 ü\n"
    assert Path(RunLayout(tmp_path).stderr(1, 0)).read_text() == "x\n"
    assert made.said == [FORKS]


def test_streams_that_are_dropped_or_the_agents_own_need_no_file(tmp_path: Path) -> None:
    source = "import os; os.write(1, os.readlink('/proc/self/fd/2').encode())"

    async def scene(made: Scene) -> None:
        nowhere = LogDestinations(redirected=Std.OUT, dropped=Std.ERR)
        own = LogDestinations(redirected=Std.OUT)
        for worker in await made.fork(
            made.order(source, destinations=nowhere), made.order(source, rank=1, destinations=own)
        ):
            assert end_of(worker) == 0

    play(tmp_path, scene)
    assert Path(RunLayout(tmp_path).stdout(1, 0)).read_text() == os.devnull
    assert Path(RunLayout(tmp_path).stdout(1, 1)).read_text() == os.readlink("/proc/self/fd/2")


def test_a_fork_that_ended_at_once_is_no_orphan_to_the_agent(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (worker,) = await made.fork(made.order("raise SystemExit(7)"))
        os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOWAIT)
        search = WorkerSearch(Marks(run_dir=str(tmp_path), node="node1"), ancestor=os.getpid())
        await made.thread.call(lambda: search.find(spared=made.start.pids(), known=[worker.pid]))
        assert worker.collect() == 7

    play(tmp_path, scene)


def test_a_stop_finds_the_forks_and_spares_the_server(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (worker,) = await made.fork(made.order("import time; time.sleep(60)"))
        spared = await made.thread.call(made.start.pids)
        marks = Marks(run_dir=str(tmp_path), node="node1")
        assert {*WorkerSearch(marks).find(spared=spared)} == {worker.pid}
        mine = WorkerSearch(marks, ancestor=os.getpid()).find(spared=spared)
        assert worker.pid in mine
        assert not {*spared} & {*mine}
        assert {*find_workers(marks)} == {worker.pid}, "the guard takes the server for a worker"
        worker.kill()
        assert worker.collect() == -signal.SIGKILL

    play(tmp_path, scene)


def test_none_is_left_if_one_cannot_be_set_up_and_the_server_goes_on(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        gone = str(tmp_path / "gone")
        orders = [made.order("import time; time.sleep(60)"), made.order("", rank=1, directory=gone)]
        with pytest.raises(StartFailedError, match=f"^No such file or directory: {gone}$") as caught:
            await made.fork(*orders)
        assert caught.value.order.rank == 1
        assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))
        (worker,) = await made.fork(made.order("pass"))
        assert end_of(worker) == 0

    play(tmp_path, scene)


def test_a_server_that_is_killed_is_replaced_at_once(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        first = await made.server_pid()
        (worker,) = await made.fork(made.order("import time; time.sleep(60)"))
        os.kill(first, signal.SIGKILL)
        assert wait_until_gone(first)
        while (second := await made.server_pid()) == first:
            await asyncio.sleep(0)
        assert is_running(second)
        assert is_running(worker.pid), "a fork ended with its server"
        (other,) = await made.fork(made.order("pass", rank=1))
        assert end_of(other) == 0

    said = play(tmp_path, scene).said
    assert said == [FORKS, "the fork server ended (killed by signal 9); starting it again"]


def test_a_start_that_meets_a_dead_server_fails_and_the_next_one_does_not(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        with pytest.raises(StartFailedError, match="the fork server is gone"):
            await made.fork(made.order("pass"))
        while (await made.thread.call(made.start.pids)) == []:
            await asyncio.sleep(0.01)
        while True:
            try:
                (worker,) = await made.fork(made.order("pass"))
            except StartFailedError:  # its end is not noticed yet
                await asyncio.sleep(0.01)
            else:
                break
        assert end_of(worker) == 0

    play(tmp_path, scene, "dies when asked first")


@pytest.mark.parametrize("behaviour", ["dies", "dies when asked"])
def test_a_server_that_never_forks_is_given_up(tmp_path: Path, behaviour: str) -> None:
    async def scene(made: Scene) -> None:
        while not any(line.startswith("workers are spawned") for line in made.said):
            order = made.order("pass")
            starter = await made.start.choose([order])
            if not isinstance(starter, Spawner):
                with pytest.raises(StartFailedError):
                    await made.fork(order)
            await asyncio.sleep(0.01)

    said = play(tmp_path, scene, behaviour).said
    assert said[-1] == ("workers are spawned: the fork server ended 3 times without a fork between (exit code 3)")
    assert said.count("the fork server ended (exit code 3); starting it again") == 2


def test_a_server_that_is_not_safe_is_ended_and_workers_are_spawned(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        (pid,) = await made.thread.call(made.start.pids)
        assert isinstance(await made.start.choose([made.order("pass")]), Spawner)
        assert wait_until_gone(pid)

    assert play(tmp_path, scene, "unsafe").said == [f"workers are spawned: {UNSAFE}"]


def test_fork_insists_and_says_why_it_cannot_be_had(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        with pytest.raises(StartFailedError, match=f"^start is fork, but .*: {UNSAFE}$") as caught:
            await made.start.choose([made.order("pass")])
        assert not caught.value.is_passing

    play(tmp_path, scene, "unsafe", start="fork")


def test_spawn_starts_no_server(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        assert await made.thread.call(made.start.pids) == []
        assert isinstance(await made.start.choose([made.order("pass")]), Spawner)

    assert play(tmp_path, scene, start="spawn").said == ["workers are spawned: start is spawn"]


def test_a_preload_that_cannot_be_imported_is_a_warning(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.start.ready()

    said = play(tmp_path, scene, preload=("numpyy", "b")).said
    assert said[0] == (
        "warning: preload: numpyy cannot be imported (ModuleNotFoundError: no); workers that import it will fail"
    )
    assert len(said) == 3


def test_the_server_is_told_of_which_variables_each_worker_has_its_own_value(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        words = Path(f"/proc/{await made.server_pid()}/cmdline").read_text().split("\0")
        assert words[words.index("--own") + 1] == "GPU"

    play(tmp_path, scene, env={"GPU": "${LOCAL_RANK}", "LR": "0.1"}, workers_per_node=2)


def test_a_wait_for_a_server_that_still_imports_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    async def scene(made: Scene) -> None:
        link = ForkServerLink(
            str(tmp_path),
            preload=(),
            node=made.node,
            deadline=DEADLINE,
            thread=made.thread,
            say=said.append,
            on_report=lambda _: None,
            waits_said_every_s=0.01,
        )
        await link.start()
        waiting = asyncio.ensure_future(link.report())
        while not said:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        waiting.cancel()
        await link.close()

    play(tmp_path, scene, "waits", start="spawn")
    assert said[0] == "still waiting, after 0 s, for the process that imports torch for the workers"


class Host:
    """A store link whose host is a fork."""

    def __init__(self, scene: Scene) -> None:
        self.broken: asyncio.Queue[str] = asyncio.Queue()
        self.link = StoreLink(
            str(scene.root),
            start=scene.start,
            thread=scene.thread,
            say=scene.said.append,
            on_broken=self.broken.put_nowait,
        )

    async def serve(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        await self.link.serve(1, Endpoint(address="127.0.0.1", port=1), listener)


def test_the_store_host_is_a_fork_of_the_server_and_outlives_it(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        host = Host(made)
        await host.serve()
        assert await host.broken.get() == "the store of attempt 1 failed: of a fork"
        (pid,) = host.link.pids()
        server = await made.server_pid()
        os.kill(server, signal.SIGKILL)
        assert wait_until_gone(server)
        await host.serve()
        assert await host.broken.get() == "the store of attempt 1 failed: of a fork"
        assert host.link.pids() == [pid]
        os.kill(pid, signal.SIGKILL)
        assert await host.broken.get() == "the store host was killed by SIGKILL"
        await host.link.close()

    play(tmp_path, scene)


def test_without_torch_in_the_server_no_store_is_served(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        host = Host(made)
        await host.serve()
        assert host.link.pids() == []
        await host.link.close()

    said = play(tmp_path, scene, "no torch").said
    assert said[1] == (
        "no store is served, workers can only do without one: ModuleNotFoundError: No module named 'torch'"
    )
