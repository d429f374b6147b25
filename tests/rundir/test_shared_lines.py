"""Lines of several machines in one file, of which an NFS client writes one over another's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir.shared_lines import ARRIVED_AFTER_S, TRIES, append_shared_line, append_shared_lines
from hpc_elastic.rundir.store import append_line, may_be_shared, read_lines

OURS = {"kind": "stop", "by": "ada@login1"}
THEIRS = {"kind": "save"}


class OtherMachine:
    """Writes its line where it believed the end of the file to be, as often as it is to."""

    def __init__(self, path: Path, times: int) -> None:
        self._path = path
        self._times = times
        self.paused: list[float] = []

    def __call__(self, pause_s: float) -> None:
        self.paused.append(pause_s)
        if len(self.paused) <= self._times:
            end = self._path.read_bytes().rindex(b'{"kind": "stop"')
            with open(self._path, "r+b") as file:
                file.seek(end)
                file.write(b'{"kind": "save"}\n')


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_line_is_appended_again_if_another_machine_has_written_over_it(times: int, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    append_line(str(path), {"kind": "start"})
    other = OtherMachine(path, times)
    append_shared_line(str(path), OURS, pause=other, is_shared=True)
    assert list(read_lines(str(path))) == [{"kind": "start"}, *[THEIRS] * times, OURS]
    assert other.paused == [ARRIVED_AFTER_S] * (times + 1)


def test_a_line_that_is_always_overwritten_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with pytest.raises(FileSystemError, match="other machines write over it"):
        append_shared_line(str(path), OURS, pause=OtherMachine(path, TRIES), is_shared=True)


def test_nobody_waits_where_no_other_machine_can_write(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    other = OtherMachine(path, 1)
    append_shared_line(str(path), OURS, pause=other, is_shared=False)
    assert list(read_lines(str(path))) == [OURS]
    assert other.paused == []


def test_a_line_that_was_written_is_no_error_where_the_file_cannot_be_read(tmp_path: Path) -> None:
    """Whoever is told that it was not written asks again, or takes a stop that comes for refused."""
    path, kept = tmp_path / "requests.jsonl", tmp_path / "kept.jsonl"

    def make_unreadable(_pause_s: float) -> None:
        path.rename(kept)
        path.mkdir()

    append_shared_line(str(path), OURS, pause=make_unreadable, is_shared=True)
    assert list(read_lines(str(kept))) == [OURS]


def test_a_thousand_lines_take_no_longer_than_one(tmp_path: Path) -> None:
    """`cancel` of an array asks each of its tasks, before Slurm is asked to start no more of them."""
    paths = [tmp_path / str(number) for number in range(1000)]
    other = OtherMachine(paths[7], 1)
    append_shared_lines([(str(path), OURS) for path in paths], pause=other, is_shared=True)
    assert [list(read_lines(str(path))) for path in paths] == [[OURS]] * 7 + [[THEIRS, OURS]] + [[OURS]] * 992
    assert other.paused == [ARRIVED_AFTER_S] * 2


def test_a_file_in_the_memory_of_this_machine_is_written_by_no_other_one() -> None:
    """It has no device, like one of a network's file system."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        assert not may_be_shared(file.name)


@pytest.mark.parametrize("path", ["/proc/self/stat", "/nowhere"])
def test_a_file_of_which_nothing_says_that_it_is_on_this_machine_may_be_shared(path: str) -> None:
    assert may_be_shared(path)
