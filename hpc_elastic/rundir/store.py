"""Reads and writes files of the run directory: atomic replacement, exclusive claims, tolerant readers.

The shared file system may be NFS. A rename there is atomic, a hard link is exclusive also when the
reply is lost and the request sent again, and a name that was absent may stay absent for 30 s and
more in a client's cache. Hence: every write is a complete temporary file and a rename; a claim is
a hard link to a complete temporary file; to learn whether a claim exists, a process tries to make it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from json.encoder import encode_basestring
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir.new_names import open_anew

if TYPE_CHECKING:
    from hpc_elastic.codec import Json  # `status` and `logs` start without the dataclasses behind it

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_NEVER_MADE: set[str] = set()  # run directories that this process found
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def dump_json(data: Json) -> bytes:
    """Format a record as a file's content: a line for each field, and one for each item of a list.

    json's own `indent` takes several times as long, for which a round of thousands of nodes would wait.
    """
    return _encode(f"{_lay_out(data, '')}\n")


def _encode(text: str) -> bytes:
    """Encode JSON text; a lone surrogate, which UTF-8 cannot hold, becomes the escape that JSON has for it."""
    return text.encode("utf-8", "backslashreplace")


def _lay_out(data: Json, indent: str) -> str:
    if type(data) in (str, int):  # most values: the encoder would prepare for a whole tree each time
        return encode_basestring(data) if type(data) is str else str(data)
    deeper = f"{indent}  "
    if isinstance(data, dict) and data:
        fields = (f"{deeper}{encode_basestring(str(key))}: {_lay_out(value, deeper)}" for key, value in data.items())
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(data, (list, tuple)) and data:
        return "[\n" + ",\n".join(deeper + _ENCODER.encode(item) for item in data) + f"\n{indent}]"
    return _ENCODER.encode(data)


def write_bytes(path: str, content: bytes, *, mode: int = FILE_MODE, is_durable: bool = True) -> None:
    """Write `content` to `path` atomically: a reader finds the old file or the new one.

    Args:
        path: the file.
        content: all of it.
        mode: the permissions of a new file.
        is_durable: whether the file survives a loss of power from now on, which costs a millisecond, or many on NFS.

    Raises:
        RunDirectoryError: the file cannot be written; the old file is unchanged.
    """
    with file_system_errors(path), _complete_temporary_file(path, content, mode, is_durable=is_durable) as temporary:
        os.replace(temporary, path)
        if is_durable:
            _sync_directory(os.path.dirname(path))


def write_json(path: str, data: Json, *, is_durable: bool = True) -> None:
    """Write a record as `write_bytes` does."""
    write_bytes(path, dump_json(data), is_durable=is_durable)


def rename(old: str, new: str) -> None:
    """Rename a complete file within its directory, atomically and durably.

    Raises:
        RunDirectoryError: the file cannot be renamed; it keeps its old name.
    """
    with file_system_errors(new):
        os.replace(old, new)
        _sync_directory(os.path.dirname(new))


def remove(path: str) -> None:
    """Remove a file; do nothing if there is none.

    Raises:
        RunDirectoryError: the file exists and cannot be removed.
    """
    with file_system_errors(path, "remove"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def claim(path: str, data: Json) -> bool:
    """Create `path` with a record in it, unless the file exists.

    Returns:
        Whether the claim is the caller's: of all callers on all machines, one gets True. That caller gets True
        again if it calls again with the same content, as it has to after a failure of the file system.

    Raises:
        RunDirectoryError: the file system failed; the claim's owner is unknown.
    """
    return claim_bytes(path, dump_json(data))


def claim_bytes(path: str, content: bytes) -> bool:
    """Claim `path` as `claim` does, with any content."""
    with file_system_errors(path), _complete_temporary_file(path, content, FILE_MODE) as temporary:
        try:
            os.link(temporary, path)
        except OSError as error:
            won = _is_made(temporary, path, content)
            if error.errno in _NO_HARD_LINKS and not won:
                won = _create_exclusively(path, content)
            elif not (won or isinstance(error, FileExistsError)):
                raise
        else:
            won = True
        if won:
            _sync_directory(os.path.dirname(path))
        return won


def _is_made(temporary: str, path: str, content: bytes) -> bool:
    """Return whether the claim is ours although the link failed: it may have been made and only its reply lost.

    It is ours if the temporary file has two names, or if an earlier try has left the same content there.
    """
    if os.stat(temporary).st_nlink == 2:
        return True
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except FileNotFoundError:
        return False


def append_line(path: str, data: Json) -> None:
    """Append a record as one line.

    Raises:
        RunDirectoryError: the line cannot be written.
    """
    append_lines(path, [data])


def append_lines(path: str, records: Iterable[Json]) -> None:
    """Append records, one on each line, with one `write` call, so that lines of several writers do not mix.

    A full disk may take only a part. The part is removed again, because an incomplete line would corrupt the next one.

    Raises:
        RunDirectoryError: the lines cannot be written.
    """
    lines = _encode("".join(json.dumps(data, ensure_ascii=False) + "\n" for data in records))
    with file_system_errors(path):
        make_directory(os.path.dirname(path))
        descriptor = _open_to_append(path)
        try:
            written = os.write(descriptor, lines)
            try:
                write_all(descriptor, lines[written:])
            except OSError:
                _take_back(descriptor, written)
                raise
        finally:
            os.close(descriptor)


def _open_to_append(path: str) -> int:
    """Open a file whose end is written to, and make it if it is absent; root follows no link that somebody has put."""
    flags = os.O_WRONLY | os.O_APPEND
    if os.geteuid() == 0:
        flags |= os.O_NOFOLLOW
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # somebody has just made it
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
            _give_to_owner(descriptor, os.path.dirname(path))
            return descriptor
    return os.open(path, flags | os.O_CREAT, FILE_MODE)


def may_be_shared(path: str) -> bool:
    """Return whether a file is not on a disk of this machine, nor in its memory.

    File systems of a network have no device of their own. Where that cannot be found out it may be.
    """
    try:
        device = os.stat(path).st_dev
        return os.major(device) == 0 and not _is_in_memory(device)
    except OSError:
        return True


def _is_in_memory(device: int) -> bool:
    """Return whether a file system is one in memory, by `/proc/self/mountinfo` (proc_pid_mountinfo(5))."""
    number = f" {os.major(device)}:{os.minor(device)} "
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(number in line and line.rpartition(" - ")[2].startswith("tmpfs ") for line in file)


def _take_back(descriptor: int, written: int) -> None:
    """Cut an incomplete line off again, unless another process has appended since."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if end == os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end - written)


def never_make(path: str) -> None:
    """Take a directory as one that is there: this process makes neither it nor what is above it from now on."""
    _NEVER_MADE.add(path)


def may_make(path: str) -> None:
    """Take back `never_make`: another run of this process begins in that directory."""
    _NEVER_MADE.discard(path)


def make_directory(path: str) -> None:
    """Make a directory and its parents, each with mode 0700, unless they exist."""
    if not os.path.isdir(path):
        if path in _NEVER_MADE and not os.path.lexists(path):
            raise FileNotFoundError(errno.ENOENT, f"{path} is gone: it was moved or removed", path)
        parent = os.path.dirname(path)
        if parent and parent != path:
            make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)


def read_json(path: str) -> Any:
    """Read the JSON value in a file; None if there is no such file, or its content is incomplete.

    Raises:
        RunDirectoryError: the file exists and cannot be read.
    """
    with file_system_errors(path, "read"):
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                return json.loads(file.read())
        except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
            return None  # ValueError: no JSON, no UTF-8, or a number of thousands of digits


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would wait for its writer


def find_json(path: str) -> Any:
    """Read the JSON value in a file that another machine may have created just now, else as `read_json`.

    An NFS client may report a new name as absent for 30 s. Opening the directory makes it ask the server again.
    """
    data = read_json(path)
    return data if data is not None else read_json_anew(path)


def read_json_anew(path: str) -> Any:
    """Read as `find_json`, with one question less where the file is absent: for one that is awaited for hours."""
    with (
        file_system_errors(path, "read"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(os.path.dirname(path)),
    ):
        pass
    return read_json(path)


def read_lines(path: str) -> Iterator[Any]:
    """Yield the JSON values in a file of lines, as `find_json` finds it; incomplete lines are left out."""
    with file_system_errors(path, "read"):
        try:
            with open(path, "rb", opener=open_anew) as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return
    for line in content.splitlines():
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):  # no JSON, no UTF-8, or a number of thousands of digits
            continue
        yield value


def list_numbers(directory: str, *, above: int = -1) -> list[int]:
    """Return the numbers of a directory's entries `0001`, `0002.json` ..., in order.

    Args:
        directory: the directory's path.
        above: only larger numbers are returned; the others, perhaps thousands, take no memory.

    Raises:
        RunDirectoryError: the directory exists and cannot be read.
    """
    with file_system_errors(directory, "read"):
        try:
            with os.scandir(directory) as entries:
                numbers = []
                for entry in entries:
                    stem = entry.name.partition(".")[0]
                    if stem.isascii() and stem.isdigit() and (number := int(stem)) > above:  # int() reads no ²
                        numbers.append(number)
                numbers.sort()
                return numbers
        except (FileNotFoundError, NotADirectoryError):
            return []


@contextlib.contextmanager
def _complete_temporary_file(path: str, content: bytes, mode: int, *, is_durable: bool = True) -> Iterator[str]:
    """Make a temporary file beside `path` with all of `content`, on disk if durable; its name is removed afterwards."""
    directory, name = os.path.split(path)
    make_directory(directory)
    temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            _give_to_owner(descriptor, directory)
            write_all(descriptor, content)
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _give_to_owner(descriptor: int, directory: str) -> None:
    """Let a file that root has just made in somebody's directory be theirs: they could not read it else.

    It must be new: one that was there may be a link to what its owner may not have.
    """
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a file system without owners, or one that takes root for nobody
            owner = os.stat(directory)
            if owner.st_uid != 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of `content` to a descriptor, past Python's buffers."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _create_exclusively(path: str, content: bytes) -> bool:
    """Claim `path` on a file system without hard links; a reader may find the file before it is complete."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        return False
    try:
        try:
            _give_to_owner(descriptor, os.path.dirname(path))
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        os.unlink(path)  # an incomplete claim would belong to no agent for ever
        raise
    return True


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the file system cannot sync a directory
            raise
    finally:
        os.close(descriptor)


_TIPS = {
    errno.ENOSPC: "free some space, or choose another place with --run-dir",
    errno.EDQUOT: "your quota is used up: free some space, or choose another place with --run-dir",
    errno.EFBIG: "`ulimit -f` says how large a file may be: raise it, or submit from another shell",
    errno.EACCES: "choose a directory that you may write to with --run-dir",
    errno.EROFS: "choose a directory that can be written to with --run-dir",
}
_TIPS_OF_READS = {errno.EACCES: "it belongs to another user: ask its owner"}


def file_system_errors(path: str, verb: str = "write") -> AbstractContextManager[None]:
    """Turn an error of the file system at `path` into a FileSystemError with a tip."""
    return _FileSystemErrors(path, verb)


class _FileSystemErrors(AbstractContextManager[None]):
    """A head reads files all the time: a `contextlib.contextmanager` takes several times as long as this."""

    __slots__ = ("_path", "_verb")

    def __init__(self, path: str, verb: str) -> None:
        self._path = path
        self._verb = verb

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, OSError):
            return
        tips = _TIPS_OF_READS if self._verb == "read" else _TIPS
        message, tip = f"cannot {self._verb} {self._path}: {error.strerror or error}", tips.get(error.errno or 0)
        if error.errno == errno.ENOSPC and (lack := _missing_inodes(self._path)):
            message, tip = f"{message} ({lack})", "delete some of its files, or choose another place with --run-dir"
        raise FileSystemError(message, tip=tip) from error


def _missing_inodes(path: str) -> str:
    from hpc_elastic.rundir.full_disk import describe_missing_inodes  # for an error that most commands do not meet

    return describe_missing_inodes(path)
