"""File systems are measured, and one that hangs does not hold the agent."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.system.free_space import FreeSpaceProbe, parse_local_mounts, read_local_mounts


def test_each_file_system_is_measured_and_a_missing_one_left_out(tmp_path: Path) -> None:
    probe = FreeSpaceProbe({"here": str(tmp_path), "nowhere": str(tmp_path / "missing")})
    (space,) = probe.measure(10)
    assert space.place == "here"
    assert 0 <= space.free <= space.total


@pytest.fixture
def scarce(tmp_path: Path) -> Iterator[Path]:
    """A file system with an inode for one file."""
    folder = tmp_path / "scarce"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=2", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root and a machine that allows it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_file_system_without_an_inode_for_another_file_has_the_number_of_its_files(scarce: Path) -> None:
    probe = FreeSpaceProbe({"here": str(scarce)})
    assert [space.files for space in probe.measure(10)] == [0]
    (scarce / "file").touch()
    (space,) = probe.measure(10)
    assert (space.files, space.is_full, space.takes_no_file) == (2, False, True)


def test_a_file_system_that_hangs_is_left_out_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers, asked, real = threading.Event(), [], os.statvfs

    def hang(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "hung":
            answers.wait(60)
        return real(tmp_path)

    monkeypatch.setattr(os, "statvfs", hang)
    probe = FreeSpaceProbe({"hung": "hung", "well": "well"})
    try:
        assert [space.place for space in probe.measure(0.2)] == ["well"]
        assert [space.place for space in probe.measure(0.2)] == ["well"]
        assert asked.count("hung") == 1
    finally:
        answers.set()


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 0:25 / /opt/image ro,nosuid - tmpfs image ro,size=4k
30 27 254:0 /etc/hosts /etc/hosts rw - ext4 /dev/vda rw
31 27 0:51 / /scratch rw - lustre mds@tcp:/scratch rw
32 27 0:52 / /home rw - nfs4 server:/home rw,hard
33 27 0:60 / /local\040disk rw - xfs /dev/nvme0n1 rw
34 27 0:61 / /net rw - autofs /etc/auto.net rw
35 27 7:0 / /snap/x ro - squashfs /dev/loop0 ro
torn line
"""


def test_the_local_mounts_are_those_that_can_be_written_to_and_cannot_hang() -> None:
    assert parse_local_mounts(MOUNTS) == ("/", "/local disk")


def test_the_local_mounts_of_this_machine_can_be_asked() -> None:
    assert all(os.path.isabs(place) for place in read_local_mounts())


def test_more_places_are_measured_each_file_system_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"/run": (1, 50), "/a": (2, 60), "/b": (2, 60), "/again": (1, 50), "/image": (0, 70)}
    real = os.statvfs(tmp_path)

    def measured(path: str) -> os.statvfs_result:
        free, total = sizes[path]
        flags = os.ST_RDONLY if path == "/image" else 0
        fields = (*real[:1], 1, total, free, free, *real[5:8], flags, real[9])
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", measured)
    found = FreeSpaceProbe({"run": "/run"}).measure(10, ["/a", "/b", "/again", "/image"])
    assert [(space.place, space.free) for space in found] == [("run", 1), ("/a", 2)]
