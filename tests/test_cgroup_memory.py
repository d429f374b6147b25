"""How much memory there is: the least of the node and of every cgroup above this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cgroup_memory import MemoryRoom, read_room

MEMINFO = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    800 kB\n"
V2 = "30 1 0:26 / /cg rw - cgroup2 cgroup2 rw\n"
V1 = "31 1 0:27 / /cg rw - cgroup cgroup rw,memory\n"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_machine(root: Path, mounts: str, cgroup: str) -> None:
    write(root, "proc/meminfo", MEMINFO)
    write(root, "proc/self/mountinfo", mounts)
    write(root, "proc/self/cgroup", cgroup)


def write_level(root: Path, level: str, version: int, limit: str, used: int, files: int) -> None:
    limit_name, used_name = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    total = "total_" if version == 1 else ""
    write(root, f"{level}/{limit_name}", f"{limit}\n")
    write(root, f"{level}/{used_name}", f"{used}\n")
    write(root, f"{level}/memory.stat", f"anon 1\n{total}inactive_file {files}\n{total}active_file 1\n")


def test_without_a_cgroup_it_is_the_nodes(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", MEMINFO)
    assert read_room(str(tmp_path)) == MemoryRoom(total=1000 * 1024, free=800 * 1024)


@pytest.mark.parametrize(
    ("version", "mounts", "cgroup", "none"),
    [(2, V2, "0::/job/step\n", "max"), (1, V1, "4:memory:/job/step\n", "9223372036854771712")],
)
def test_the_tightest_level_counts_and_files_are_free(
    version: int, mounts: str, cgroup: str, none: str, tmp_path: Path
) -> None:
    write_machine(tmp_path, mounts, cgroup)
    write_level(tmp_path, "cg/job/step", version, none, 500, 0)
    write_level(tmp_path, "cg/job", version, "409600", 204801, 1024)
    write_level(tmp_path, "cg", version, none, 9, 0)
    assert read_room(str(tmp_path)) == MemoryRoom(total=409600, free=409600 - 204801 + 1025)


def test_a_cgroup_that_is_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    write_machine(tmp_path, V2, "0::/\n")
    write_level(tmp_path, "cg", 2, "100", 500, 0)
    assert read_room(str(tmp_path)) == MemoryRoom(total=100, free=0)


@pytest.mark.parametrize(("most", "high", "total"), [("900000", "800000", 800000), ("max", "800000", 800000)])
def test_where_the_kernel_slows_processes_down_memory_ends(most: str, high: str, total: int, tmp_path: Path) -> None:
    """Not where it kills one of them: a training that stands still is lost as well."""
    write_machine(tmp_path, V2, "0::/job\n")
    write_level(tmp_path, "cg/job", 2, most, 300000, 0)
    write(tmp_path, "cg/job/memory.high", f"{high}\n")
    assert read_room(str(tmp_path)) == MemoryRoom(total=total, free=total - 300000 + 1)
