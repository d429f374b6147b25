"""Lines of several machines in one file, of which an NFS client writes one over another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir.shared_lines import ARRIVED_AFTER_S, TRIES, append_shared_line
from hpc_elastic.rundir.store import append_line, read_lines

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
