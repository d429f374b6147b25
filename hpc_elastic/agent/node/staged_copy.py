"""Makes one complete copy of an environment on the node's own disk, for all jobs and starts that want the same one.

Theory of operation. A copy has a name that its source and its user decide: where it is, its fingerprint, and whose it
is. It is made beside that name, forced to disk, and renamed: what has the name is complete, whatever died when. A copy
has two locks. One is shared by every job that makes or uses it, as long as its agent lives, and is held exclusively by
whoever removes it: so one of an older state of the source is removed only when nobody uses it. The other is the turn to
make it, so that it is made once however many want it. One lock for both would have to be taken exclusively by a job
that shares it already; flock gives up the first for the second, and another job that comes in between and stays would
never let it in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence

_SQUASHFS = b"hsqs"  # https://docs.kernel.org/filesystems/squashfs.html
_SQUASHFS_NAMES = (".squashfs", ".sqfs", ".sqsh", ".squash")
_TAR_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
_REMOVABLE = _OF_THE_USER = 0o700


class StageError(Exception):
    """There can be no copy; the message is one line."""


def fingerprint(source: str) -> str:
    """Return what changes when the source does: of a file its size and time, of a folder those of all that is in it.

    Raises:
        StageError: the source is not there, cannot be read, or is a pipe, a socket or a device.
    """
    try:
        real, told = os.path.realpath(source), hashlib.sha256()
        kind = os.stat(real).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise StageError(f"{source} is neither a file nor a folder")
        for line in _entries(real):
            told.update(line.encode(errors="surrogateescape"))
        return told.hexdigest()[:16]
    except OSError as error:
        raise StageError(f"cannot read {error.filename or source}: {error.strerror}") from error


def copy_name(source: str, key: str) -> str:
    """Return the name of the copy of a source with this fingerprint."""
    return f"{_stem(source)}-{key}"


def make_copy(source: str, target: str, key: str, lock: int) -> tuple[str, bool]:
    """Make the copy, if it is not there; block until nobody else makes it.

    Args:
        source: a folder, a tar archive, a squashfs image, or any other file.
        target: the folder for copies.
        key: the fingerprint of the source.
        lock: the open lock of this copy; it is shared when this returns.

    Returns:
        The path of the copy, and whether it was there already.

    Raises:
        StageError: it cannot be made; what was made of it is removed.
    """
    path = os.path.join(target, copy_name(source, key))
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)  # nobody removes the copy from here on
        turn = _open_lock(_turn_of(path))
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if os.path.lexists(path):
                return _own(path), True
            _remove_unused(source, target)
            _make(source, path, key)
            return path, False
        finally:
            os.close(turn)
    except OSError as error:
        raise StageError(f"cannot write {error.filename or path}: {error.strerror}") from error


def open_lock(source: str, target: str, key: str) -> int:
    """Open the lock of a copy, which every process that this one starts by exec keeps; make the folder for copies.

    Raises:
        StageError: it cannot be made.
    """
    path = _lock_of(os.path.join(target, copy_name(source, key)))
    try:
        os.makedirs(target, _REMOVABLE, exist_ok=True)
        lock = _open_lock(path)
    except OSError as error:
        raise StageError(f"cannot write {error.filename or target}: {error.strerror}") from error
    os.set_inheritable(lock, True)
    return lock


def _stem(source: str) -> str:
    """Return the part of a copy's name that its source has in every state, for this user."""
    real = os.path.realpath(source)
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(real)).strip(".-")[:40] or "copy"
    of_whom = hashlib.sha256(os.fsencode(f"{os.geteuid()}\0{real}"))  # `/tmp` is everybody's, and so may be the source
    return f"{base}-{of_whom.hexdigest()[:8]}"


def _lock_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.lock")


def _turn_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.turn")


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _own(path: str) -> str:
    """Return the path if it is of this user; another one could have put anything there.

    Raises:
        StageError: it belongs to somebody else.
    """
    owner = os.lstat(path).st_uid
    if owner != os.geteuid():
        raise StageError(f"{path} is there already and belongs to user {owner}; choose another stage.target")
    return path


def _entries(path: str, below: str = "") -> Iterator[str]:
    """Yield a line for a file or a link, and for a folder one for all that is in it, in a fixed order."""
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    if stat.S_ISDIR(kind):
        yield f"{below}\0{found.st_mode}\n"
        for name in sorted(os.listdir(path)):
            yield from _entries(os.path.join(path, name), f"{below}/{name}")
    else:
        pointed = os.readlink(path) if stat.S_ISLNK(kind) else ""
        yield f"{below}\0{found.st_mode}\0{found.st_size}\0{found.st_mtime_ns}\0{pointed}\n"


def _make(source: str, path: str, key: str) -> None:
    """Make a complete copy at a path where there is none; this process has the turn to make it.

    Raises:
        StageError, OSError: it cannot be made.
    """
    folder, name = os.path.split(path)
    begun = os.path.join(folder, f".{name}.part")
    _remove(begun)  # of somebody who died while it was made
    is_folder = os.path.isdir(source)  # which is walked by the script alone
    if not is_folder and fingerprint(source) != key:
        raise StageError(f"{source} has changed since the job has looked at it")
    try:
        for command in _commands(source, begun):
            _run(command)
        _run(["sync", "-f", begun])  # a node that loses its power keeps the new name, perhaps with empty files
        if not is_folder and fingerprint(source) != key:
            raise StageError(f"{source} has changed while it was copied")
        os.chmod(begun, stat.S_IMODE(os.stat(begun).st_mode) & _OF_THE_USER)  # `target` may be everybody's
        os.rename(begun, path)
    except BaseException:
        _remove(begun)
        raise


def _commands(source: str, path: str) -> list[list[str]]:
    """Return the commands that make a copy of a source at a path."""
    if os.path.isdir(source):
        return [["cp", "-a", "--", os.path.join(source, "."), path]]
    names = (
        source.lower(),
        os.path.realpath(source).lower(),
    )  # a link, such as `current`, may not say what it leads to
    if any(name.endswith(_TAR_NAMES) for name in names):
        return [["mkdir", "-m", "700", "--", path], ["tar", "-x", "-f", source, "--no-same-owner", "-C", path]]
    if any(name.endswith(_SQUASHFS_NAMES) for name in names) or _begins_with(source, _SQUASHFS):
        return [["unsquashfs", "-no-progress", "-no-xattrs", "-d", path, source]]
    return [["cp", "--preserve=mode,timestamps", "--", source, path]]


def _begins_with(path: str, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _run(command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        StageError: it failed, in its own words.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise StageError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise StageError(
            _cause((done.stderr or done.stdout).splitlines()) or f"{command[0]} ended with {done.returncode}"
        )


def _cause(lines: Sequence[str]) -> str:
    """Return the line that says what was wrong: a full disk or quota, else the first one, which others follow."""
    told = [line.strip() for line in lines if line.strip() and "Ignoring unknown" not in line]
    full = (line for line in told if any(os.strerror(number) in line for number in (errno.ENOSPC, errno.EDQUOT)))
    return next(full, told[0] if told else "")


def _remove_unused(source: str, target: str) -> None:
    """Remove the copies of other states of a source that no job uses, to make room."""
    copies = re.compile(rf"{re.escape(_stem(source))}-[0-9a-f]{{16}}")
    for name in os.listdir(target):
        path = os.path.join(target, name)
        if not copies.fullmatch(name):
            continue
        with contextlib.suppress(OSError), open(_lock_of(path), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # in use: EWOULDBLOCK
            if os.lstat(path).st_uid != os.geteuid():
                continue
            aside = os.path.join(target, f".{name}.part")
            _remove(aside)
            os.rename(path, aside)
            _remove(aside)


def _remove(path: str) -> None:
    """Remove a file or a folder, also one whose folders are read-only, as far as that is possible."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, _REMOVABLE)
    shutil.rmtree(path, ignore_errors=True)
