"""Which file systems have no space left, by what statvfs says of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir.full_disk import describe_lack, describe_refusal, is_full, why_refused
from hpc_elastic.rundir.store import file_system_errors
from tests.observe.builders import refuse_writes

FIELDS = (
    "f_bsize",
    "f_frsize",
    "f_blocks",
    "f_bfree",
    "f_bavail",
    "f_files",
    "f_ffree",
    "f_favail",
    "f_flag",
    "namemax",
)
FREE = {"f_blocks": 1000, "f_bavail": 10, "f_files": 100, "f_favail": 10, "f_flag": 0}


def full_disk(patch: pytest.MonkeyPatch, root: str, **more: int) -> None:
    """Have statvfs say of a folder that no block is left, or what is given; of other folders the truth."""
    really_ask = os.statvfs
    found = {**FREE, "f_bavail": 0, **more}
    said = os.statvfs_result(found.get(name, 0) for name in FIELDS)
    patch.setattr(os, "statvfs", lambda path: said if path == root else really_ask(path))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (FREE, False),
        ({"f_bavail": 0}, True),
        ({**FREE, "f_favail": 0}, True),
        ({**FREE, "f_files": 0, "f_favail": 0}, False),
        ({"f_bavail": 0, "f_flag": os.ST_RDONLY}, False),
        ({"f_bavail": 0, "f_blocks": 0}, False),
    ],
    ids=["free", "no block", "no inode", "inodes are not counted", "read only", "blocks are not counted"],
)
def test_a_file_system_is_full_if_it_has_no_block_or_no_inode_left(
    said: dict[str, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, "/runs", **said)
    assert is_full("/runs") is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (FREE, ""),
        ({"f_bavail": 0}, "no space is left on the file system of /runs: free some"),
        (
            {**FREE, "f_favail": 0},
            (
                "no inode is left on the file system of /runs, which cannot hold more than its 100 files and folders: "
                "delete some"
            ),
        ),
        # XFS makes inodes out of free blocks: it is the data that fills it.
        ({"f_bavail": 0, "f_favail": 0}, "no space is left on the file system of /runs: free some"),
    ],
    ids=["free", "no block", "no inode", "neither"],
)
def test_what_a_full_file_system_lacks_is_named(
    said: dict[str, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, "/runs", **said)
    assert describe_lack("/runs") == expected


def test_a_file_that_needs_an_inode_where_none_is_left_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "cannot write {}: No space left on device"
    lack = " (no inode is left, as its file system cannot hold more than its 100 files and folders)"
    path = str(tmp_path / "new" / "record.json")
    for left, more in ((10, ""), (0, lack)):
        full_disk(monkeypatch, str(tmp_path), **{**FREE, "f_favail": left})
        with pytest.raises(FileSystemError) as caught, file_system_errors(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert caught.value.message == said.format(path) + more
        assert (caught.value.tip or "").startswith("delete some of its files" if more else "free some space")


def test_a_folder_that_is_not_there_is_not_full(tmp_path: Path) -> None:
    assert not is_full(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "no space is left on the file system of {}: free some"),
        (errno.EDQUOT, "your quota is used up on the file system of {}: free some space"),
        (errno.EACCES, ""),
    ],
)
def test_what_refuses_a_small_file_is_named_as_a_full_file_system_is(
    number: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, str(tmp_path), number)
    assert describe_refusal(str(tmp_path)) == expected.format(tmp_path)


@pytest.mark.parametrize(
    ("number", "is_refused"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False), (errno.EIO, False)]
)
def test_a_folder_where_no_small_file_can_be_written_for_want_of_space_refuses_to_write(
    number: int, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse_writes(patch, str(tmp_path), number)
        assert why_refused(str(tmp_path)) == (os.strerror(number) if is_refused else "")
    assert not why_refused(str(tmp_path))
    assert not why_refused(str(tmp_path / "gone"))
    assert list(tmp_path.iterdir()) == []
