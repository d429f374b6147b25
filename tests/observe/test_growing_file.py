"""A log that is cut while it is read: each byte once, and a gap where the writer was faster."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.log_writer import LogWriter
from hpc_elastic.observe import growing_file
from hpc_elastic.observe.growing_file import GrowingFile
from hpc_elastic.rundir.layout import RunLayout
from tests.nfs_client import NfsClient
from tests.tiers import variants

MOST = 64 * 1024


class Follower:
    """Reads lines that are numbers."""

    def __init__(self, path: str) -> None:
        self.file = GrowingFile(path)
        self.seen: list[int] = []
        self.gaps = 0
        self._partial = b""

    def look(self) -> None:
        for chunk in self.file.chunks(4096):
            if chunk.is_after_gap:
                self.gaps += 1
                self._partial = b""
            *lines, self._partial = (self._partial + chunk.content).split(b"\n")
            self.seen += [int(line.split()[0]) for line in lines]


def a_writer(path: Path) -> LogWriter:
    return LogWriter(str(path), RunLayout.earlier(str(path)), MOST)


@pytest.mark.parametrize(
    "seed",
    [*range(5), *variants(*range(5, 30), of="test_a_follower_sees_each_line_once_however_the_log_is_cut")],
)
def test_a_follower_sees_each_line_once_however_the_log_is_cut(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path, written = tmp_path / "log", 0
    writer, follower = a_writer(path), Follower(str(path))
    largest = chance.choice([10, 400, 3000])  # lines between two looks; a cut comes after some 800
    for _ in range(60):
        for _ in range(chance.randint(0, largest)):
            writer.append(b"%d %s\n" % (written, b"x" * chance.choice([0, 30, 70])))
            written += 1
        follower.look()
    assert follower.seen == sorted(set(follower.seen))
    assert follower.seen[-1] == written - 1
    if not follower.gaps:
        assert follower.seen == list(range(written))
    if largest <= 400:
        assert follower.gaps == 0


FLOOD = f"""
import sys
from hpc_elastic.agent.workers.log_writer import LogWriter
writer = LogWriter(sys.argv[1], sys.argv[1] + ".1", {MOST})
for number in range(int(sys.argv[2])):
    writer.append(b"%d xxxxxxxxxxxxxxxxxxxxxxxxxx\\n" % number)
"""


@pytest.mark.long
def test_a_follower_beside_a_writer_that_cuts_as_fast_as_it_can_repeats_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "log", 200_000
    follower = Follower(str(path))
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(path), str(count)]) as writer:
        while writer.poll() is None:
            follower.look()
    follower.look()
    assert writer.returncode == 0
    assert follower.seen == sorted(set(follower.seen))
    assert follower.seen[-1] == count - 1
    missing = count - len(follower.seen)
    assert (missing > 0) == (follower.gaps > 0)
    kept = Path(f"{path}.1").read_bytes() + path.read_bytes()
    numbers = [int(line.split()[0]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], count))


def test_parts_of_which_nobody_knows_whether_one_follows_the_other_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1 aaaa\n2 aaaa\n")
    follower = Follower(str(path))
    follower.look()
    path.rename(f"{path}.1")
    path.write_bytes(b"7 bbbb\n")
    monkeypatch.setattr(growing_file, "OPEN_TRIES", 0)  # as if the writer cut between each two calls
    follower.look()
    assert (follower.seen, follower.gaps) == ([1, 2, 7], 1)


def test_what_is_added_while_a_log_is_read_is_left_to_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1 aaaa\n2 aaaa\n")
    file, seen = GrowingFile(str(path)), []
    for chunk in file.chunks(4):
        seen.append(chunk.content)
        with open(path, "ab") as more:
            more.write(b"3\n")
    assert b"".join(seen) == b"1 aaaa\n2 aaaa\n"
    assert b"".join(chunk.content for chunk in file.chunks(4096)) == b"3\n" * len(seen)


def test_a_cut_between_two_chunks_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1 aaaa\n2 aaaa\n")
    file, seen = GrowingFile(str(path)), b""
    for chunk in file.chunks(5):
        assert not chunk.is_after_gap
        seen += chunk.content
        if len(seen) == 5:
            path.rename(f"{path}.1")
            path.write_bytes(b"3 bbbb\n")
    assert seen + b"".join(chunk.content for chunk in file.chunks(5)) == b"1 aaaa\n2 aaaa\n3 bbbb\n"


def test_a_gap_is_told_with_the_next_bytes_if_the_log_was_cut_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1 aaaa\n2 aa")
    follower = Follower(str(path))
    follower.look()
    os.truncate(path, 0)
    follower.look()
    path.write_bytes(b"7 bbbb\n")
    follower.look()
    assert (follower.seen, follower.gaps) == ([1, 7], 1)


def test_a_file_that_has_the_inode_of_one_that_was_read_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1 aaaa\n2 aaaa\n")
    follower = Follower(str(path))
    follower.look()
    inode = os.stat(path).st_ino
    with open(path, "r+b") as file:  # as if the inode had been used again
        file.write(b"7 bbbb\n8 bbbb\n9 bbbb\n")
    assert os.stat(path).st_ino == inode
    follower.look()
    assert follower.seen == [1, 2, 7, 8, 9]
    assert follower.gaps == 1


def test_a_line_longer_than_the_log_is_kept_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = a_writer(path)
    writer.append(b"1\n" + b"x" * (3 * MOST) + b"\n2\n")
    kept = Path(f"{path}.1").read_bytes() + path.read_bytes()
    assert kept.endswith(b"x\n2\n")
    assert MOST // 2 <= len(kept) <= MOST


def test_a_log_that_was_there_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n" * (MOST // 4))
    writer = a_writer(path)
    writer.append(b"2\n")
    assert path.read_bytes() == b"2\n"
    assert Path(f"{path}.1").read_bytes() == b"1\n" * (MOST // 4)


def read(file: GrowingFile) -> bytes:
    return b"".join(chunk.content for chunk in file.chunks(4096))


def test_a_log_is_found_although_an_nfs_client_remembers_that_it_and_its_folder_were_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    path = tmp_path / "attempts" / "0001" / "ranks" / "00000" / "stdout.log"
    file = GrowingFile(str(path))
    assert read(file) == b""
    with client.written_elsewhere():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"step 1\n")
    assert not path.exists()
    assert read(file) == b"step 1\n"


def test_a_log_is_read_on_although_an_nfs_client_remembers_its_old_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    path, now = tmp_path / "log", [0.0]
    path.write_bytes(b"step 1\n")
    file = GrowingFile(str(path), clock=lambda: now[0])
    assert read(file) == b"step 1\n"
    for step in (2, 3):
        assert path.stat().st_size == 7 * (step - 1)
        with client.written_elsewhere(), open(path, "ab") as log:
            log.write(b"step %d\n" % step)
        assert path.stat().st_size == 7 * (step - 1)
        now[0] += 1.0
        assert read(file) == b"step %d\n" % step


def test_a_log_that_was_silent_for_long_is_opened_every_three_seconds_and_one_that_grows_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "log", [0.0]
    path.write_bytes(b"step 1\n")
    file = GrowingFile(str(path), clock=lambda: now[0])
    opened: list[float] = []
    real = os.open

    def noted(name: str, *arguments: int) -> int:
        if name == str(path):
            opened.append(now[0])
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", noted)
    for second in range(200):
        now[0] = float(second)
        assert read(file) == (b"" if second else b"step 1\n")
    late = [at for at in opened if at >= 100]
    assert {later - earlier for earlier, later in itertools.pairwise(late)} == {growing_file.ASKED_EVERY_S}
    early = [at for at in opened if at < 8]
    assert sorted(set(early)) == [float(second) for second in range(8)]
