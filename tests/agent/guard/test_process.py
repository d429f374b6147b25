"""The guard as the real process that it is."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.agent.guard.link import AGAIN_AFTER_S, GuardLink
from hpc_elastic.agent.guard.process import KILL_AGAIN_S, LOOKS_BEFORE_S, Guard
from hpc_elastic.agent.net.listener import allow_connections
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, find_workers
from hpc_elastic.agent.workers.spawn import Spawner, WorkerOrder
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from tests.agent.conftest import Spawn, is_running, marks_of, wait_until_gone
from tests.slurm_sandbox.cluster import wait_until

PACKAGE = str(Path(hpc_elastic.__file__).parent)


class Guarded:
    """A guard, and the deadline that it shares with whoever starts workers."""

    def __init__(self, run_dir: Path) -> None:
        self.deadline = Deadline.create()
        self.link = GuardLink(PACKAGE, run_dir=str(run_dir), node="node1", deadline=self.deadline)

    @property
    def pid(self) -> int:
        (pid,) = self.link.pids()
        return pid

    def hang_up(self) -> None:
        """What the kernel does when the agent is killed."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.link._pipe)
        os.close(null)

    def end(self) -> None:
        for pid in self.link.pids():
            os.kill(pid, signal.SIGKILL)
        self.link._collect()
        self.deadline.close()

    def is_idle(self) -> bool:
        """Whether it has read all that it was told, and sleeps until its deadline or the next word."""
        unread = array.array("i", [0])
        fcntl.ioctl(self.link._pipe, termios.FIONREAD, unread)
        return unread[0] == 0 and state_of(self.pid) == "S"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.end()


def test_kills_the_workers_if_the_agent_is_gone(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker, neighbour = spawn(environment=marks_of(tmp_path)), spawn(environment=marks_of(tmp_path, node="node2"))
    guarded.hang_up()
    assert worker.wait(20) == -signal.SIGKILL
    assert wait_until_gone(guarded.pid)
    assert is_running(neighbour.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="users may lock little memory")
def test_the_guards_memory_stays_where_it_is(guarded: Guarded) -> None:
    """A node whose memory is full may have to read from a disk what has been moved out, or cannot."""
    wait_until(guarded.is_idle, "the guard is ready")
    sizes = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB", Path(f"/proc/{guarded.pid}/status").read_text(), re.M))
    assert int(sizes["VmLck"]) > int(sizes["VmRSS"]) / 2


def test_spares_what_is_left_if_the_agent_says_bye(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.dismiss()
    assert is_running(worker.pid)


@pytest.mark.long
def test_a_guard_that_is_paused_does_not_hold_the_agent(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    os.kill(guarded.pid, signal.SIGSTOP)
    for number in range(100_000):  # far more words than a pipe takes
        guarded.link.set_deadline(now() + 600 - number / 1000)
    guarded.link.set_deadline(now())
    os.kill(guarded.pid, signal.SIGCONT)
    assert worker.wait(20) == -signal.SIGKILL


@pytest.mark.long
def test_a_guard_that_is_paused_does_not_hold_an_agent_that_leaves(guarded: Guarded) -> None:
    pid = guarded.pid
    os.kill(pid, signal.SIGSTOP)
    guarded.link.dismiss()
    assert not is_running(pid)


AGENT = """
import sys
from hpc_elastic.agent.guard.link import GuardLink
from hpc_elastic.deadline import Deadline
link = GuardLink(sys.argv[1], run_dir=sys.argv[2], node="node1", deadline=Deadline.create())
link.set_deadline(0.0)
print(*link.pids(), flush=True)
sys.stdin.read()
"""


def test_a_guard_that_is_stopped_ends_if_its_agent_is_killed(spawn: Spawn, tmp_path: Path) -> None:
    """As in a job that is suspended: nobody else lets it go on where Slurm does not find it any more."""
    command = [sys.executable, "-c", AGENT, PACKAGE, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(PACKAGE).parent)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as agent:
        assert agent.stdout is not None
        guard = int(agent.stdout.readline())
        assert spawn(environment=marks_of(tmp_path)).wait(20) == -signal.SIGKILL  # it is at work
        os.kill(guard, signal.SIGSTOP)
        wait_until(lambda: state_of(guard) == "T", "the guard is stopped")
        agent.kill()
    assert wait_until_gone(guard)


def test_kills_the_workers_if_the_deadline_passes_and_guards_on(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    first = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now() + 0.05)
    assert first.wait(20) == -signal.SIGKILL
    second = spawn(environment=marks_of(tmp_path))
    assert is_running(guarded.pid)
    guarded.link.set_deadline(now())
    assert second.wait(20) == -signal.SIGKILL


def test_kills_what_starts_after_the_deadline(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    guarded.link.set_deadline(now() - 1)
    for _ in range(3):
        assert spawn(environment=marks_of(tmp_path)).wait(20) == -signal.SIGKILL


@pytest.mark.variant(of="test_kills_what_starts_after_the_deadline")
@pytest.mark.long
def test_kills_what_becomes_a_worker_long_after_its_start(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    """A search that knows a process to be none of the run's does not look at it again."""
    marks = [f"{name}={value}" for name, value in marks_of(tmp_path).items()]
    command = ["env", *marks, "sleep", "60"]
    source = f"import os, time; print('ready', flush=True); time.sleep(11); os.execvp('env', {command})"
    late = spawn(source=source)
    guarded.link.set_deadline(now() + 10.5)  # by when it is a stranger, settled
    assert late.wait(30) == -signal.SIGKILL


@pytest.mark.long
def test_spares_workers_that_started_after_the_agent_had_set_a_later_deadline(spawn: Spawn, tmp_path: Path) -> None:
    """The next attempt, which starts while the guard still looks for workers of the one before."""
    for _ in range(12):
        guarded = Guarded(tmp_path)
        old = spawn(environment=marks_of(tmp_path))
        guarded.link.set_deadline(now())
        assert old.wait(20) == -signal.SIGKILL
        guarded.link.set_deadline(over := now() + 0.01)
        while now() < over + 0.002:
            pass
        guarded.link.set_deadline(float("inf"))
        new = spawn(environment=marks_of(tmp_path))
        guarded.link.dismiss()
        assert is_running(new.pid)
        new.kill()
        new.wait()
        guarded.deadline.close()


@pytest.mark.parametrize("newest", [1000.0, float("inf")])
def test_waits_for_the_newest_deadline(guarded: Guarded, spawn: Spawn, tmp_path: Path, newest: float) -> None:
    """Also where it goes on only after one that has passed meanwhile."""
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now() + 1000)
    wait_until(guarded.is_idle, "the guard has read its first deadline")
    os.kill(guarded.pid, signal.SIGSTOP)
    guarded.link.set_deadline(now())
    guarded.link.set_deadline(now() + newest)
    os.kill(guarded.pid, signal.SIGCONT)
    wait_until(guarded.is_idle, "the guard has acted on what it has read")
    assert is_running(worker.pid)
    guarded.link.set_deadline(now())
    assert worker.wait(20) == -signal.SIGKILL


def test_the_signals_that_end_an_agent_do_not_end_its_guard(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now())  # the worker's death says that the guard is ready for signals
    assert worker.wait(20) == -signal.SIGKILL
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(guarded.pid, number)
    last = spawn(environment=marks_of(tmp_path))
    guarded.hang_up()
    assert last.wait(20) == -signal.SIGKILL
    assert wait_until_gone(guarded.pid)


def test_the_guard_tells_whether_it_got_a_signal(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now())  # the worker's death says that the guard is ready for signals
    assert worker.wait(20) == -signal.SIGKILL
    told = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
        os.kill(guarded.pid, number)
        assert not any(map(guarded.link.has_got, told))
    for number in told:
        os.kill(guarded.pid, number)
        assert guarded.link.has_got(number)


def test_the_guard_forgets_the_signal_that_it_is_to_forget_and_tells_of_the_next_one(
    guarded: Guarded, spawn: Spawn, tmp_path: Path
) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now())  # the worker's death says that the guard is ready for signals
    assert worker.wait(20) == -signal.SIGKILL
    for _ in range(2):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(guarded.pid, number)
        guarded.link.forget(signal.SIGUSR1)
        wait_until(lambda: not guarded.link.has_got(signal.SIGUSR1), "it has forgotten it")
        assert guarded.link.has_got(signal.SIGTERM)
        assert guarded.link.has_got(signal.SIGUSR2)
    guarded.link.forget(signal.SIGUSR1)  # of which it has none
    last = spawn(environment=marks_of(tmp_path))
    guarded.hang_up()
    assert last.wait(20) == -signal.SIGKILL


def test_kills_although_nobody_reads_its_standard_error(spawn: Spawn, tmp_path: Path) -> None:
    """It has the agent's, whose reader may be what is frozen."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    with redirected_errors(writer):
        guarded = Guarded(tmp_path)
    try:
        for _ in range(2):
            worker = spawn(environment=marks_of(tmp_path))
            guarded.link.set_deadline(now())
            assert worker.wait(20) == -signal.SIGKILL
            guarded.link.set_deadline(float("inf"))
    finally:
        guarded.end()
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def redirected_errors(descriptor: int) -> Iterator[None]:
    """What starts meanwhile has this as its standard error."""
    mine = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(mine, 2)
        os.close(mine)


def test_says_that_it_has_killed(spawn: Spawn, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    guarded = Guarded(tmp_path)
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now())
    assert worker.wait(20) == -signal.SIGKILL
    said = [""]

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return said[-1] != ""

    wait_until(is_said, "the guard says it")
    guarded.end()
    assert "".join(said) == (
        "hpc-elastic guard: the workers of node1 may not run any longer, and the agent has not ended them: killed\n"
    )


async def keep(guarded: Guarded, until: Callable[[], bool], *, lines: int = 0) -> list[str]:
    """What an agent says while it keeps its guard, until it has said so many lines too."""
    loop = asyncio.get_running_loop()
    thread = BackgroundThread("processes", loop)
    said: list[str] = []
    keeping = loop.create_task(guarded.link.keep(thread, said.append))
    while not until() or len(said) < lines:
        assert not keeping.done()
        await asyncio.sleep(0.01)
    keeping.cancel()
    await thread.close(20)
    return said


@pytest.mark.long
def test_a_guard_that_was_killed_is_started_again_and_guards(guarded: Guarded, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    guarded.link.set_deadline(now() + 600)
    pid = guarded.pid
    os.kill(pid, signal.SIGKILL)
    said = asyncio.run(keep(guarded, lambda: guarded.link.pids() not in ([], [pid])))
    assert said == ["the guard of the workers ended (killed by signal 9); starting another one"]
    guarded.link.set_deadline(now())
    assert worker.wait(20) == -signal.SIGKILL


@pytest.mark.long
def test_a_guard_that_ends_again_and_again_is_started_once_a_second(guarded: Guarded) -> None:
    guarded.link._command[1] = os.devnull  # an empty program, which ends at once
    os.kill(guarded.pid, signal.SIGKILL)
    began = time.monotonic()
    said = asyncio.run(keep(guarded, lambda: True, lines=3))
    assert len(said) == 3
    assert time.monotonic() - began > 1.9 * AGAIN_AFTER_S


@pytest.mark.long
def test_an_agent_with_a_thousand_connections_dismisses_its_guard(guarded: Guarded) -> None:
    """The next guard's descriptor is above what select takes."""
    allow_connections(2000)
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        pid = guarded.pid
        os.kill(pid, signal.SIGKILL)
        asyncio.run(keep(guarded, lambda: guarded.link.pids() not in ([], [pid])))
        guarded.link.dismiss()
        assert guarded.link.pids() == []
    finally:
        for descriptor in others:
            os.close(descriptor)


@pytest.mark.long
def test_a_deadline_that_passes_while_there_is_no_guard_is_kept_by_the_next_one(
    guarded: Guarded, spawn: Spawn, tmp_path: Path
) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    pid = guarded.pid
    os.kill(pid, signal.SIGKILL)
    guarded.link.set_deadline(now())
    asyncio.run(keep(guarded, lambda: guarded.link.pids() not in ([], [pid])))
    assert worker.wait(20) == -signal.SIGKILL


def test_a_guard_that_was_killed_is_no_trouble_for_an_agent_that_leaves(guarded: Guarded) -> None:
    os.kill(guarded.pid, signal.SIGKILL)
    assert wait_until_gone(guarded.pid)
    guarded.link.set_deadline(1.0)
    guarded.link.dismiss()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["script", "module", "command"])
def test_a_worker_that_is_spawned_too_late_does_not_run(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text("print('the code of the user')\n")
    target, arguments = {
        "script": (str(tmp_path / "train.py"), []),
        "module": ("train", []),
        "command": ("echo", ["the code of the user"]),
    }[kind]
    order = WorkerOrder(
        rank=0,
        local_rank=0,
        attempt=1,
        kind=kind,  # type: ignore[arg-type]
        target=target,
        arguments=arguments,
        environment={**os.environ, **marks_of(tmp_path)},
        directory=str(tmp_path),
    )
    deadline = Deadline.create()
    spawner, output = Spawner(PACKAGE, deadline), tmp_path / "output"
    for moment, expected in ((float("inf"), (0, "the code of the user\n")), (now(), (-signal.SIGKILL, ""))):
        deadline.set(moment)
        with output.open("wb") as file:
            exitcode = spawner.start_worker(order, stdout=file.fileno(), stderr="null").collect()
        assert (exitcode, output.read_text()) == expected
    deadline.close()


# A guard in a process of its own, which stands still as soon as it lists all processes of the node.
COLD = """
import sys, time
from hpc_elastic.agent.guard.process import Guard
from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.deadline import Deadline
deadline = Deadline.create()
guard = Guard(Marks(run_dir={run_dir!r}, node="node1"), deadline)
print("ready", flush=True)
sys.stdin.readline()
everything = ("os.scandir", ("/proc",))
sys.addaudithook(lambda *event: time.sleep(3600) if event == everything else None)
deadline.set(0.0)
guard.watch()
"""
# One that stands still from its start on when it lists them.
FRESH = """
import sys, time
from hpc_elastic.agent.guard.process import Guard
from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.deadline import Deadline
everything = ("os.scandir", ("/proc",))
sys.addaudithook(lambda *event: time.sleep(3600) if event == everything else None)
deadline = Deadline.create()
deadline.set(0.0)
print("ready", flush=True)
Guard(Marks(run_dir={run_dir!r}, node="node1"), deadline).watch()
"""
# The first look at them finds no free descriptor; how many looks there are until the deadline.
REFUSED = """
import errno, sys
from hpc_elastic.agent.guard.process import LOOKS_BEFORE_S, Guard
from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
lists, everything = [], ("os.scandir", ("/proc",))
def refuse_first(*event):
    if event == everything:
        lists.append(event)
        if len(lists) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
sys.addaudithook(refuse_first)
deadline = Deadline.create()
deadline.set(now() + 2 * LOOKS_BEFORE_S)
guard = Guard(Marks(run_dir={run_dir!r}, node="node1"), deadline)
while len(lists) < 2 and not deadline.has_passed:
    guard._listen(guard._act())
print(len(lists))
"""
# Its rounds one after the other, long after the deadline; how long it would pause, and how often it lists them all.
ROUNDS = """
import sys
from hpc_elastic.agent.guard.process import Guard
from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.deadline import Deadline
deadline = Deadline.create()
guard = Guard(Marks(run_dir={run_dir!r}, node="node1"), deadline)
deadline.set(0.0)
lists, everything = [], ("os.scandir", ("/proc",))
sys.addaudithook(lambda *event: lists.append(event) if event == everything else None)
print(max(guard._act() for _ in range(100)), len(lists))
"""


def kill_a_worker_and_stand_still(spawn: Spawn, tmp_path: Path) -> None:
    """Has a guard kill a worker before it looks at all processes of the node, at which it stands still."""
    guard = spawn(COLD.format(run_dir=str(tmp_path)))
    worker = spawn(environment=marks_of(tmp_path))
    assert guard.stdin is not None
    guard.stdin.write(b"\n")
    guard.stdin.flush()
    assert worker.wait(20) == -signal.SIGKILL


def test_kills_the_agents_workers_before_it_looks_at_all_processes_of_the_node(spawn: Spawn, tmp_path: Path) -> None:
    """Which takes long where there are ten thousand, and none of their files is cached."""
    kill_a_worker_and_stand_still(spawn, tmp_path)


def test_one_that_takes_the_place_of_another_kills_before_it_has_looked_at_all_processes(
    spawn: Spawn, tmp_path: Path
) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    spawn(FRESH.format(run_dir=str(tmp_path)))
    assert worker.wait(20) == -signal.SIGKILL


def test_kills_the_agents_late_workers_while_it_looks_at_all_processes_of_the_node(
    spawn: Spawn, tmp_path: Path
) -> None:
    """A worker that was in the middle of its exec shows no marks in the look before."""
    kill_a_worker_and_stand_still(spawn, tmp_path)
    assert spawn(environment=marks_of(tmp_path)).wait(20) == -signal.SIGKILL


def test_looks_for_late_workers_of_the_agent_often_and_for_others_seldom(tmp_path: Path) -> None:
    """torch's agent starts workers that look at no deadline."""
    source = ROUNDS.format(run_dir=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    longest_pause_s, lists = done.stdout.split()
    assert float(longest_pause_s) <= KILL_AGAIN_S
    assert int(lists) < 50


@pytest.mark.long
def test_a_look_ahead_that_fails_is_not_the_last_one(tmp_path: Path) -> None:
    source = REFUSED.format(run_dir=str(tmp_path))
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


@pytest.mark.long
def test_a_look_ahead_is_not_the_last_one_if_the_deadline_is_never_far(tmp_path: Path) -> None:
    """With a lease below 3 s: what is found by an old look may be gone, and what came since is not known."""
    deadline = Deadline.create()
    guard, looked = Guard(Marks(run_dir=str(tmp_path), node="node1"), deadline), threading.Semaphore(0)
    look = guard._look

    def and_tell() -> None:
        look()
        looked.release()

    guard._look = and_tell  # type: ignore[method-assign]
    for _ in range(2):
        over = now() + 2 * LOOKS_BEFORE_S
        while now() < over:
            deadline.set(now() + 1.5)
            guard._act()
            if looked.acquire(timeout=0.05):
                break
        else:
            pytest.fail("it has not looked")
    deadline.close()


@pytest.mark.long
def test_a_guard_that_was_started_again_carries_no_workers_marks(
    guarded: Guarded, spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's process has them in its environment, for the workers."""
    for name, value in marks_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    pid = guarded.pid
    os.kill(pid, signal.SIGKILL)
    asyncio.run(keep(guarded, lambda: guarded.link.pids() not in ([], [pid])))
    worker = spawn()
    assert set(find_workers(Marks(run_dir=str(tmp_path), node="node1"))) == {worker.pid}
