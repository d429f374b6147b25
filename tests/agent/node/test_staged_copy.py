from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.agent.node.staged_copy import StageError, copy_name, fingerprint, make_copy, open_lock

Maker = Callable[[Path, Path], Path]


def write_environment(folder: Path) -> Path:
    """A folder as environments are: with a program, a link, an empty folder and a name with a blank."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "a b").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\n")
    (folder / "bin" / "python").chmod(0o755)
    (folder / "lib" / "a b" / "x.py").write_text("x = 1\n")
    (folder / "lib" / "link.py").symlink_to("a b/x.py")
    (folder / "empty").mkdir()
    return folder


def as_folder(environment: Path, _: Path) -> Path:
    return environment


def as_tar(suffix: str) -> Maker:
    def make(environment: Path, place: Path) -> Path:
        path = place / f"environment.{suffix}"
        subprocess.run(["tar", "-c", "-a", "-f", path, "-C", environment, "."], check=True)
        return path

    return make


def as_squashfs(environment: Path, place: Path) -> Path:
    path = place / "environment.img"  # known by what is in it
    subprocess.run(["mksquashfs", environment, path, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    return path


def has(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"there is no {', '.join(missing)}")


FORMS = [
    pytest.param(as_folder, id="folder"),
    pytest.param(as_tar("tar"), id="tar"),
    pytest.param(as_tar("tar.gz"), id="gz"),
    pytest.param(as_tar("tar.zst"), id="zst", marks=has("zstd")),
    pytest.param(as_squashfs, id="squashfs", marks=has("mksquashfs", "unsquashfs")),
]


@contextmanager
def locked(source: Path, target: Path) -> Iterator[int]:
    lock = open_lock(str(source), str(target), fingerprint(str(source)))
    yield lock
    os.close(lock)


def stage(source: Path, target: Path) -> tuple[Path, bool]:
    """The copy, and whether it was there; nobody uses it afterwards."""
    with locked(source, target) as lock:
        path, was_there = make_copy(str(source), str(target), fingerprint(str(source)), lock)
    return Path(path), was_there


def listing(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else (path.stat().st_mode, path.is_dir())
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_has_all_of_its_source_and_is_found_again(form: Maker, tmp_path: Path) -> None:
    environment = write_environment(tmp_path / "environment")
    source, target = form(environment, tmp_path), tmp_path / "disk" / "of the node"
    path, was_there = stage(source, target)
    assert listing(path) == listing(environment)
    assert not was_there
    assert stage(source, target) == (path, True)


@pytest.mark.parametrize("form", [*FORMS, pytest.param(lambda folder, _: folder / "lib" / "a b" / "x.py", id="file")])
def test_a_copy_is_its_users_alone(form: Maker, tmp_path: Path) -> None:
    """A source is often private by a folder above it, as in a home of mode 0700; above the copy may be `/tmp`."""
    environment = write_environment(tmp_path / "environment")
    environment.chmod(0o755)
    path, _ = stage(form(environment, tmp_path), tmp_path / "disk")
    assert path.stat().st_mode & 0o077 == 0
    assert path.stat().st_mode & 0o600 == 0o600


def test_an_archive_is_unpacked_by_whichever_link_it_is_named(tmp_path: Path) -> None:
    archive = as_tar("tar")(write_environment(tmp_path / "environment"), tmp_path)
    (tmp_path / "current").symlink_to(archive.name)
    path, _ = stage(tmp_path / "current", tmp_path / "disk")
    assert (path / "bin" / "python").is_file()
    assert stage(archive, tmp_path / "disk") == (path, True)


def test_any_other_file_is_copied_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "image.sif"
    source.write_bytes(b"#!/usr/bin/env run-singularity\nhsqs")
    path, _ = stage(source, tmp_path / "disk")
    assert path.read_bytes() == source.read_bytes()


def test_a_source_that_has_changed_is_copied_anew_and_an_old_copy_goes_when_nobody_uses_it(tmp_path: Path) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    first, _ = stage(source, target)
    (source / "lib" / "a b" / "x.py").write_text("x = 22\n")
    with open(target / f".{first.name}.lock", "rb") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        second, was_there = stage(source, target)
        assert not was_there
        assert (second / "lib" / "a b" / "x.py").read_text() == "x = 22\n"
        assert (first / "lib" / "a b" / "x.py").read_text() == "x = 1\n", "a job runs from it"
    (source / "new.py").touch()
    third, _ = stage(source, target)
    assert sorted(path.name for path in target.iterdir() if path.is_dir()) == [third.name]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "lib" / "a b" / "x.py").chmod(0o755),
        lambda folder: (folder / "bin" / "python").unlink(),
        lambda folder: (folder / "empty").rmdir(),
        lambda folder: os.utime(folder / "bin" / "python", ns=(1, 1)),
        lambda folder: (folder / "lib" / "a b").rename(folder / "lib" / "c"),
    ],
)
def test_any_change_of_a_folder_has_another_fingerprint(change: Callable[[Path], object], tmp_path: Path) -> None:
    source = write_environment(tmp_path / "environment")
    before = fingerprint(str(source))
    assert fingerprint(str(source)) == before
    change(source)
    assert fingerprint(str(source)) != before


def test_two_sources_of_one_name_have_copies_of_their_own(tmp_path: Path) -> None:
    one, other = write_environment(tmp_path / "a" / "env"), write_environment(tmp_path / "b" / "env")
    assert stage(one, tmp_path / "disk")[0] != stage(other, tmp_path / "disk")[0]
    assert len([path for path in (tmp_path / "disk").iterdir() if path.is_dir()]) == 2


def test_a_half_made_copy_of_somebody_who_died_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    name = copy_name(str(source), fingerprint(str(source)))
    half = target / f".{name}.part"
    (half / "bin").mkdir(parents=True)
    (half / "bin").chmod(0o500)
    path, was_there = stage(source, target)
    assert not was_there
    assert listing(path) == listing(source)
    assert not half.exists()


def test_many_at_once_make_one_copy(tmp_path: Path) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: stage(source, target), range(8)))
    assert len({path for path, _ in found}) == 1
    assert [was_there for _, was_there in found].count(False) == 1


def test_a_copy_is_made_also_while_others_that_want_it_hold_its_lock(tmp_path: Path) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    name = copy_name(str(source), fingerprint(str(source)))
    target.mkdir()
    with ThreadPoolExecutor(1) as pool, open(target / f".{name}.lock", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # it has looked for the copy, and stays until its agent ends
        path, was_there = pool.submit(stage, source, target).result(timeout=20)
    assert not was_there
    assert listing(path) == listing(source)


def test_what_cannot_be_unpacked_leaves_nothing_and_is_told_in_one_line(tmp_path: Path) -> None:
    source, target = tmp_path / "environment.tar.gz", tmp_path / "disk"
    source.write_bytes(b"no archive")
    with pytest.raises(StageError, match=r"gzip|tar archive") as caught:
        stage(source, target)
    assert "\n" not in str(caught.value)
    assert [path.name for path in target.iterdir() if not path.name.endswith((".lock", ".turn"))] == []


def test_a_cut_archive_is_no_copy(tmp_path: Path) -> None:
    source = tmp_path / "environment.tar"
    with tarfile.open(source, "w") as archive:
        archive.add(os.path.realpath(sys.executable), "python")
    with open(source, "rb+") as file:
        file.truncate(source.stat().st_size // 2)
    with pytest.raises(StageError, match="Unexpected EOF"):
        stage(source, tmp_path / "disk")


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=f"cannot read {tmp_path}/none: No such file"):
        fingerprint(str(tmp_path / "none"))


def test_a_target_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    source = write_environment(tmp_path / "environment")
    (tmp_path / "file").touch()
    with pytest.raises(StageError, match=f"cannot write {tmp_path}/file.*: (File exists|Not a directory)"):
        stage(source, tmp_path / "file")


def test_two_users_of_one_source_have_copies_and_locks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    stage(source, target)
    of_one_user = set(os.listdir(target))
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    with locked(source, target):
        assert copy_name(str(source), fingerprint(str(source))) not in of_one_user
        assert len(set(os.listdir(target)) - of_one_user) == 1  # the lock: that of the first one is not theirs to open


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_a_copy_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    source, target = write_environment(tmp_path / "environment"), tmp_path / "disk"
    path, _ = stage(source, target)
    os.chown(path, 4711, 4711)
    with pytest.raises(StageError, match=r"belongs to user 4711; choose another stage\.target"):
        stage(source, target)


def test_a_file_that_has_changed_since_the_job_looked_at_it_is_no_copy_of_it(tmp_path: Path) -> None:
    source, target = tmp_path / "image.sif", tmp_path / "disk"
    source.write_text("one")
    with locked(source, target) as lock:
        key = fingerprint(str(source))
        source.write_text("another")
        with pytest.raises(StageError, match=f"{source} has changed since the job has looked at it"):
            make_copy(str(source), str(target), key, lock)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_cause_of_a_copy_that_does_not_fit_is_the_line_that_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = as_tar("tar")(write_environment(tmp_path / "environment"), tmp_path)
    tar = tmp_path / "programs" / "tar"
    tar.parent.mkdir()
    tar.write_text(f"#!/bin/sh\necho 'tar: a: Cannot open' >&2\necho 'tar: b: {os.strerror(number)}' >&2\nexit 2\n")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(StageError, match=f"tar: b: {os.strerror(number)}"):
        stage(archive, tmp_path / "disk")
