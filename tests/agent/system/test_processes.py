"""Finding what a run's workers left behind, among real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.agent.system import processes
from hpc_elastic.agent.system.processes import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    Marks,
    WorkerSearch,
    agent_id,
    find_below,
    find_workers,
    signal_all,
)
from hpc_elastic.processes import Process, find_environment, find_process, read_children
from tests.agent.conftest import SLEEP, Spawn, marks_of
from tests.slurm_sandbox.cluster import wait_until

# Starts a grandchild that leaves the session and clears its environment, and ends: an orphan.
RUNAWAY = f"""
import os, subprocess, sys
child = subprocess.Popen(["setsid", "env", "-i", sys.executable, "-c", {SLEEP!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
{{last}}
"""
# Runs another program in the same process, with the marks that it was given.
LATE = """
import os, sys
print(flush=True)
sys.stdin.readline()
os.execve(sys.executable, [sys.executable, "-c", {source!r}], {environment!r})
"""
# An agent in small: a subreaper whose worker dies and leaves a runaway.
AGENT = """
import subprocess, sys
from hpc_elastic.agent.system.processes import become_subreaper
become_subreaper()
worker = subprocess.run([sys.executable, "-c", {runaway!r}], stdout=subprocess.PIPE, text=True)
print(worker.stdout.strip(), flush=True)
input()
"""


def first_number(process: object) -> int:
    return int(process.first_line)  # type: ignore[attr-defined]


def test_an_orphan_without_session_and_environment_is_found_by_its_ancestor(spawn: Spawn, tmp_path: Path) -> None:
    agent = spawn(AGENT.format(runaway=RUNAWAY.format(last="os._exit(1)")))
    orphan = first_number(agent)
    try:
        marks = Marks(run_dir=str(tmp_path), node="node1")
        assert set(WorkerSearch(marks, ancestor=agent.pid).find()) == {orphan}
        assert set(find_workers(marks)) == set()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_shared_memory_of_killed_workers_is_removed_by_its_tracker(spawn: Spawn, tmp_path: Path) -> None:
    source = (
        "from multiprocessing.shared_memory import SharedMemory\nimport time\n"
        "memory = SharedMemory(create=True, size=16)\nprint(memory.name, flush=True)\ntime.sleep(60)\n"
    )
    worker = spawn(source, environment=marks_of(tmp_path))
    memory = Path("/dev/shm", worker.first_line)  # type: ignore[attr-defined]
    assert memory.exists()
    found = find_workers(Marks(run_dir=str(tmp_path), node="node1"))
    assert set(found) == {worker.pid}
    signal_all(found.values(), signal.SIGKILL)
    wait_until(lambda: not memory.exists(), f"{memory} is removed")


def test_a_marked_process_is_found_without_an_ancestor(spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn(environment=marks_of(tmp_path))
    assert set(find_workers(Marks(run_dir=str(tmp_path), node="node1"))) == {worker.pid}


def test_a_mark_behind_a_large_environment_is_found(spawn: Spawn, tmp_path: Path) -> None:
    large = {f"FILLS_{number:02}": "x" * 60_000 for number in range(4)}
    worker = spawn(environment={**large, **marks_of(tmp_path)})
    assert set(find_workers(Marks(run_dir=str(tmp_path), node="node1"))) == {worker.pid}


def test_a_folder_of_another_name_that_begins_alike_is_another_run(spawn: Spawn, tmp_path: Path) -> None:
    spawn(environment=marks_of(f"{tmp_path}-2"))
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))


def test_other_nodes_and_other_runs_are_not_touched(spawn: Spawn, tmp_path: Path) -> None:
    spawn(environment=marks_of(tmp_path, node="node10"))
    spawn(environment=marks_of(tmp_path / "other"))
    agents = {name: value for name, value in marks_of(tmp_path).items() if name != ATTEMPT_VARIABLE}
    spawn(environment=agents)
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))


def test_workers_of_another_agent_are_left_alone_until_that_agent_is_dead(spawn: Spawn, tmp_path: Path) -> None:
    other = spawn()
    theirs = spawn(environment=marks_of(tmp_path) | {AGENT_VARIABLE: agent_id(other.pid)})
    mine = agent_id(os.getpid())
    ours = spawn(environment=marks_of(tmp_path) | {AGENT_VARIABLE: mine})
    marks = Marks(run_dir=str(tmp_path), node="node1", agent=mine)
    search = WorkerSearch(marks)
    assert set(find_workers(marks)) == set(search.find()) == {ours.pid}
    other.kill()  # not yet collected: a zombie does not live
    wait_until(lambda: set(find_workers(marks)) == {ours.pid, theirs.pid}, "the dead agent's worker counts")
    other.wait()
    assert set(find_workers(marks)) == {ours.pid, theirs.pid}


def test_the_process_id_of_a_dead_agent_may_be_that_of_a_later_process(spawn: Spawn, tmp_path: Path) -> None:
    later = spawn()
    worker = spawn(environment=marks_of(tmp_path) | {AGENT_VARIABLE: f"{later.pid}:1"})
    marks = Marks(run_dir=str(tmp_path), node="node1", agent=agent_id(os.getpid()))
    assert set(find_workers(marks)) == {worker.pid}


@pytest.mark.parametrize("agent", ["", "x", "1", ":", "99999999999999999999:1", "-1:1"])
def test_a_worker_whose_agent_cannot_be_told_counts(agent: str) -> None:
    environ = f"HPC_ELASTIC_RUN_DIR=/r\0HPC_ELASTIC_NODE=n\0HPC_ELASTIC_ATTEMPT=1\0HPC_ELASTIC_AGENT={agent}\0"
    assert Marks(run_dir="/r", node="n", agent=agent_id(os.getpid())).match(environ.encode())


def test_the_spared_and_what_is_below_them_do_not_count(spawn: Spawn, tmp_path: Path) -> None:
    host = spawn(RUNAWAY.format(last="input()"), marks_of(tmp_path))
    helper = first_number(host)
    marks = Marks(run_dir=str(tmp_path), node="node1")
    try:
        search = WorkerSearch(marks, ancestor=os.getpid())
        assert set(search.find()) >= {host.pid, helper}
        assert not set(search.find(spared=[host.pid])) & {host.pid, helper}
    finally:
        os.kill(helper, signal.SIGKILL)


def test_a_process_that_gets_the_marks_by_a_program_that_it_becomes_is_found(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(LATE.format(source=SLEEP, environment=marks_of(tmp_path)))
    search = WorkerSearch(Marks(run_dir=str(tmp_path), node="node1"))
    assert not search.find()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    assert set(search.find()) == {process.pid}


@pytest.mark.long
def test_a_worker_is_found_from_the_moment_on_at_which_its_agent_may_have_died(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An exec closes the agent's pipes before the kernel shows the environment: in a third of the looks none is there.

    To that moment belongs the end of a guard's input whose agent was killed while it started a worker. The search is
    given no other process here, since to read those takes longer than the rest of the exec.
    """
    listed: dict[int, int] = {}
    monkeypatch.setattr("hpc_elastic.agent.system.processes._list_processes", listed.copy)
    marks = Marks(run_dir=str(tmp_path), node="node1")
    environment = {**os.environ, **marks_of(tmp_path)}
    for _ in range(100):
        with subprocess.Popen(["/bin/sleep", "60"], env=environment) as worker:  # comes back at that moment
            listed[worker.pid] = 1
            try:
                assert set(find_workers(marks)) == {worker.pid}
            finally:
                worker.kill()


def test_whoever_has_no_environment_at_all_is_not_waited_for(spawn: Spawn, tmp_path: Path) -> None:
    ended = spawn("print()")
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    threads_of_the_kernel = [
        pid for pid in (2, *map(int, read_children(2, 2))) if not os.path.exists(f"/proc/{pid}/exe")
    ]
    with subprocess.Popen(["/bin/cat"], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        assert bare.stdin is not None
        assert bare.stdout is not None
        bare.stdin.write(b"the exec is over\n")
        bare.stdin.flush()
        bare.stdout.readline()
        assert [find_environment(pid) for pid in (bare.pid, ended.pid)] == [b"", b""]
        assert None not in map(find_environment, threads_of_the_kernel)
        _, paths = what_is_read("find_workers(marks)", tmp_path)
        assert len([path for path in paths if path.startswith(f"/proc/{bare.pid}/")]) == len(
            ["environ", "cmdline", "environ"]
        )


def test_an_exec_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[int] = []
    monkeypatch.setattr("hpc_elastic.agent.system.processes.find_environment", looks.append)  # None for all
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"), exec_ends_within_s=0.05)
    assert len(looks) > len(set(looks))


def test_an_exec_is_looked_at_again_however_long_the_first_look_took(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of ten thousand processes that takes longer than an exec, and the guard of a dead agent looks no more."""
    worker = spawn(environment=marks_of(tmp_path))
    looks: list[int] = []

    def in_an_exec_at_first(pid: int) -> bytes | None:
        looks.append(pid)
        return None if looks.count(pid) == 1 else find_environment(pid)

    monkeypatch.setattr("hpc_elastic.agent.system.processes.find_environment", in_an_exec_at_first)
    assert set(find_workers(Marks(run_dir=str(tmp_path), node="node1"), exec_ends_within_s=0.0)) == {worker.pid}


def test_a_stranger_that_has_run_for_a_while_is_read_once(tmp_path: Path) -> None:
    """A node has thousands; here init, which a second look does not open."""
    source = f"""
import sys
from hpc_elastic.agent.system.processes import Marks, WorkerSearch
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
search = WorkerSearch(Marks(run_dir={str(tmp_path)!r}, node="node1"))
for _ in range(2):
    search.find()
    print(sum(path.startswith("/proc/1/") for path in opened))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2"]


def test_a_dead_process_does_not_count(spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn("print()", marks_of(tmp_path))
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert not find_workers(Marks(run_dir=str(tmp_path), node="node1"))


def test_orphans_that_ended_are_reaped_and_known_children_are_left(spawn: Spawn, tmp_path: Path) -> None:
    known, orphan = spawn("print()"), spawn("print()")
    for process in (known, orphan):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    WorkerSearch(Marks(run_dir=str(tmp_path), node="node1"), ancestor=os.getpid()).find(known=[known.pid])
    assert os.waitpid(known.pid, 0)[0] == known.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan.pid, 0)


@pytest.mark.parametrize(
    ("environ", "is_worker"),
    [
        (b"HPC_ELASTIC_RUN_DIR=/r\0HPC_ELASTIC_NODE=n\0HPC_ELASTIC_ATTEMPT=1\0", True),
        (b"X=1\0HPC_ELASTIC_ATTEMPT=12\0HPC_ELASTIC_NODE=n\0HPC_ELASTIC_RUN_DIR=/r", True),
        (b"HPC_ELASTIC_RUN_DIR=/r\0HPC_ELASTIC_NODE=n\0", False),
        (b"XHPC_ELASTIC_RUN_DIR=/r\0HPC_ELASTIC_NODE=n\0HPC_ELASTIC_ATTEMPT=1", False),
        (b"", False),
    ],
)
def test_what_makes_a_worker(environ: bytes, is_worker: bool) -> None:
    assert Marks(run_dir="/r", node="n").match(environ) is is_worker


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_users_process_below_the_agent_does_not_end_the_agent(spawn: Spawn) -> None:
    """A worker may start a set-user-id program."""
    process = spawn()
    others = Process(pid=process.pid, parent=os.getpid(), session=0, start=0, is_alive=True)
    mine = find_process(process.pid)
    assert mine is not None
    os.setresuid(65534, 65534, 0)  # the real user counts too, see kill(2)
    try:
        signal_all([mine, others], signal.SIGKILL)
    finally:
        os.setresuid(0, 0, 0)
    assert process.poll() is None


# Runs `search` with every file that is opened counted, and says whose they were.
READS = """
import os, sys
from hpc_elastic.agent.system.processes import Marks, find_below, find_workers
READING = ("open", "os.scandir", "os.listdir")
marks, parent, read = Marks(run_dir={run_dir!r}, node="node1"), os.getppid(), []
sys.addaudithook(lambda event, arguments: read.append(str(arguments[0])) if event in READING else None)
found = {search}
paths = [path for path in read if path.startswith("/proc")]
print(*sorted(found), "|", *paths)
"""


def what_is_read(search: str, run_dir: Path) -> tuple[set[int], list[str]]:
    source = READS.format(run_dir=str(run_dir), search=search)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    found, _, paths = done.stdout.partition("|")
    return {int(pid) for pid in found.split()}, paths.split()


def test_workers_below_an_agent_are_found_without_a_look_at_any_other_process(spawn: Spawn, tmp_path: Path) -> None:
    """A node may have ten thousand; one that clears its environment is found by who has started it."""
    host = spawn(RUNAWAY.format(last="input()"), marks_of(tmp_path))
    helper, stranger = first_number(host), spawn()
    try:
        found, paths = what_is_read("find_below(parent, marks)", tmp_path)
    finally:
        os.kill(helper, signal.SIGKILL)
    assert {host.pid, helper} <= found
    assert stranger.pid not in found
    below = {os.getpid(), *(int(path.split("/")[2]) for path in paths)} - {os.getpid()}
    assert all(is_below(pid) for pid in below if Path(f"/proc/{pid}").exists())
    assert "/proc" not in paths


def is_below(pid: int) -> bool:
    """Whether this process has started it, or one that this process has started."""
    while pid > 1 and pid != os.getpid():
        process = find_process(pid)
        pid = process.parent if process is not None else os.getpid()  # it has ended meanwhile
    return pid == os.getpid()


# Starts a child that keeps the marks, and waits.
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
input()
"""


def test_an_orphan_that_comes_to_the_ancestor_during_the_look_is_found(
    spawn: Spawn, subreaper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent ended after the ancestor's list was read and before its own was: neither had it."""
    parent = spawn(PARENT, marks_of(tmp_path))
    orphan, list_children = first_number(parent), processes._list_children

    def list_late(pid: int) -> list[int]:
        if pid == parent.pid and parent.returncode is None:
            parent.kill()
            parent.wait()
        return list_children(pid)

    monkeypatch.setattr(processes, "_list_children", list_late)
    try:
        assert orphan in find_below(os.getpid(), Marks(run_dir=str(tmp_path), node="node1"))
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.waitpid(orphan, 0)


def test_a_look_below_ends_though_orphans_come_to_the_ancestor_all_the_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six processes that start others and leave them kept a fence of a busy node looking until somebody ended them."""
    lists: list[int] = []

    def list_another(pid: int) -> list[int]:
        assert len(lists) < 100
        lists.append(2**22 + 1 + len(lists))  # no process has such a number
        return lists[:]

    monkeypatch.setattr(processes, "_list_children", list_another)
    assert find_below(os.getpid(), Marks(run_dir=str(tmp_path), node="node1")) == {}


def test_where_the_kernel_lists_no_children_none_is_found_below(tmp_path: Path) -> None:
    assert find_below(2**22 + 1, Marks(run_dir=str(tmp_path), node="node1")) == {}


def test_of_a_process_that_is_none_of_the_runs_one_file_is_read(spawn: Spawn, tmp_path: Path) -> None:
    worker, stranger = spawn(environment=marks_of(tmp_path)), spawn()
    found, paths = what_is_read("find_workers(marks)", tmp_path)
    assert found == {worker.pid}
    assert [path for path in paths if path.startswith(f"/proc/{stranger.pid}/")] == [f"/proc/{stranger.pid}/environ"]
