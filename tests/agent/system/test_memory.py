"""The kernel's kills for memory are found in cgroups of both versions, in its log, and for the whole node."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.system.memory import MemoryWatch
from hpc_elastic.cgroup_memory import MemoryMount, find_levels, parse_cgroup, parse_mounts
from hpc_elastic.failures.evidence import MemoryUse

MIB = 1 << 20
V1 = Path("/sys/fs/cgroup/memory")
MOUNTS_V1 = (
    "33 31 0:31 / /cg/memory rw,relatime - cgroup cgroup rw,memory\n32 31 0:30 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
)
MOUNTS_V2 = "40 31 0:33 / /cg rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
STEP = "slurm/uid_7/job_3/step_0/task_0"  # Slurm's cgroup plugin of version 1
SCOPE = "system.slice/slurmstepd.scope/job_3/step_0/user/task_0"  # of version 2


class Node:
    """The files of a node in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 5\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def has_version_1(self) -> None:
        self.write("proc/self/mountinfo", MOUNTS_V1)
        self.write("proc/self/cgroup", f"4:memory:/{STEP}\n1:cpu:/elsewhere\n0::/\n")
        self.write(f"cg/memory/{STEP}/memory.limit_in_bytes", "9223372036854771712\n")
        self.write("cg/memory/slurm/uid_7/job_3/memory.limit_in_bytes", f"{256 * MIB}\n")
        self.write("cg/memory/slurm/uid_7/job_3/memory.max_usage_in_bytes", f"{251 * MIB}\n")
        self.kills_1(0)

    def kills_1(self, count: int) -> None:
        self.write(f"cg/memory/{STEP}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")

    def has_version_2(self) -> None:
        self.write("proc/self/mountinfo", MOUNTS_V2)
        self.write("proc/self/cgroup", f"0::/{SCOPE}\n")
        self.write(f"cg/{SCOPE}/memory.max", "max\n")
        self.write("cg/system.slice/slurmstepd.scope/job_3/memory.max", f"{64 * MIB}\n")
        self.write("cg/system.slice/slurmstepd.scope/job_3/memory.peak", f"{63 * MIB}\n")
        self.kills_2(2)

    def kills_2(self, count: int) -> None:
        self.write(f"cg/{SCOPE}/memory.events", f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {count}\noom_group_kill 0\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_kill_in_the_own_cgroup_of_version_1_is_counted_since_the_mark(node: Node) -> None:
    node.has_version_1()
    node.kills_1(3)
    watch = MemoryWatch(str(node.root))
    watch.mark()
    assert watch.look(0) == (MemoryUse(oom_kills=0, peak=251 * MIB, limit=256 * MIB), 0)
    node.kills_1(4)
    assert watch.look(0)[0] == MemoryUse(oom_kills=1, peak=251 * MIB, limit=256 * MIB)


def test_a_kill_in_the_own_cgroup_of_version_2_is_counted_since_the_mark(node: Node) -> None:
    node.has_version_2()
    watch = MemoryWatch(str(node.root))
    watch.mark()
    node.kills_2(4)
    assert watch.look(0)[0] == MemoryUse(oom_kills=2, peak=63 * MIB, limit=64 * MIB)


def test_without_a_cgroup_only_the_nodes_kills_are_known(node: Node) -> None:
    watch = MemoryWatch(str(node.root))
    watch.mark()
    node.write("proc/vmstat", "oom_kill 7\n")
    assert watch.look(4711) == (None, 2)


def test_the_kernels_log_names_a_process_of_another_cgroup(node: Node) -> None:
    node.has_version_1()
    watch = MemoryWatch(str(node.root))
    watch.mark()
    node.write("proc/vmstat", "oom_kill 6\n")
    node.write("cg/memory/other/memory.oom_control", "oom_kill 1\n")
    node.write("cg/memory/other/memory.limit_in_bytes", f"{MIB}\n")
    node.write(
        "dev/kmsg",
        "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/other,"
        "task_memcg=/other,task=python,pid=4711,uid=0\n"
        "3,2,3,-;Memory cgroup out of memory: Killed process 4711 (python)\n",
    )
    assert watch.look(4711) == (MemoryUse(oom_kills=1, limit=MIB), 1)
    found, _ = watch.look(12)
    assert found is not None
    assert found.oom_kills == 0, "another process was killed"


def _kill_line(cgroup: str, pid: int) -> str:
    return (
        f"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={cgroup},"
        f"task_memcg={cgroup},task=python,pid={pid},uid=0\n"
    )


def _killed_line(pid: int) -> str:
    return f"3,2,3,-;Memory cgroup out of memory: Killed process {pid} (python)\n"


@pytest.mark.parametrize("is_named", [True, False])
def test_of_a_process_id_that_came_again_the_newest_kill_counts(node: Node, is_named: bool) -> None:
    node.has_version_1()
    watch = MemoryWatch(str(node.root))
    watch.mark()
    node.write("proc/vmstat", "oom_kill 6\n")
    for name, limit in (("earlier", 1), ("now", 2)):
        node.write(f"cg/memory/{name}/memory.oom_control", "oom_kill 1\n")
        node.write(f"cg/memory/{name}/memory.limit_in_bytes", f"{limit * MIB}\n")
    earlier = _kill_line("/earlier", 4711) + _killed_line(4711)
    # Of many kills in a few seconds the kernel prints the first line only ten times (its rate limit for this text).
    node.write("dev/kmsg", earlier + (_kill_line("/now", 4711) if is_named else "") + _killed_line(4711))
    found, _ = watch.look(4711)
    assert found == MemoryUse(oom_kills=1, limit=2 * MIB if is_named else None)


def test_a_kill_that_the_kernels_log_names_counts_before_another_one_in_the_own_cgroup(node: Node) -> None:
    node.has_version_1()
    watch = MemoryWatch(str(node.root))
    watch.mark()
    node.kills_1(1)
    node.write("proc/vmstat", "oom_kill 7\n")
    node.write("cg/memory/other/memory.oom_control", "oom_kill 1\n")
    node.write("cg/memory/other/memory.limit_in_bytes", f"{MIB}\n")
    node.write("dev/kmsg", _kill_line("/other", 4711) + _killed_line(4711))
    assert watch.look(4711)[0] == MemoryUse(oom_kills=1, limit=MIB)


@pytest.mark.parametrize("text", ["", "x", "oom_kill many", "oom_kill -1", "\0"])
def test_files_that_say_something_else_are_no_evidence(node: Node, text: str) -> None:
    node.has_version_1()
    node.write(f"cg/memory/{STEP}/memory.oom_control", text)
    node.write("proc/vmstat", text)
    watch = MemoryWatch(str(node.root))
    watch.mark()
    assert watch.look(1) == (None, 0)


def test_a_cgroup_that_the_mount_does_not_show_has_no_levels() -> None:
    mount = MemoryMount(version=2, point="/cg", root="/docker/a")
    assert find_levels(mount, "/docker/a/b") == ["/cg/b", "/cg"]
    assert find_levels(mount, "/docker/ab") == []
    assert find_levels(mount, "/../b") == []


def test_the_mount_of_version_1_comes_first_where_both_are_mounted() -> None:
    assert [mount.version for mount in parse_mounts(MOUNTS_V2 + MOUNTS_V1 + "torn")] == [1, 2]
    assert parse_cgroup("5:cpu,memory:/a\n0::/b\n", 1) == "/a"
    assert parse_cgroup("5:cpu,memory:/a\n0::/b\n", 2) == "/b"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of version 1 with 64 MiB."""
    folder = V1 / f"hpc-elastic-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            if (folder / name).exists():
                (folder / name).write_text(str(64 * MIB))
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    yield folder
    folder.rmdir()


EATER = (
    "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); x = []\nwhile True: x.append(bytearray(1 << 20))"
)


@pytest.mark.cgroups
def test_a_real_kill_in_a_real_cgroup_is_found_with_its_peak_and_limit(cgroup: Path, tmp_path: Path) -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    watch = MemoryWatch()
    watch.mark()
    process = subprocess.Popen([sys.executable, "-c", EATER, str(cgroup / "cgroup.procs")])
    assert process.wait(30) == -9
    found, host = watch.look(process.pid)
    assert found is not None
    assert (found.oom_kills, found.limit) == (1, 64 * MIB)
    assert found.peak is not None
    assert 60 * MIB < found.peak <= 64 * MIB
    assert host >= 1
