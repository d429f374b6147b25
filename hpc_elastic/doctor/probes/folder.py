"""A program that tries what a run does in its directory: `folder.py DIRECTORY NAME`, and prints a JSON object.

It runs as a process of its own, because a call to a file system that hangs cannot be interrupted. It imports nothing of
this package, so that it starts within some milliseconds under any Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence

_OCTAL = re.compile(r"\\([0-7]{3})")  # how mountinfo writes a space


def try_folder(directory: str, name: str) -> dict[str, object]:
    """Return what works in a directory: `problems` by step, `took_ms` by step, `free` bytes and the `kind` of it.

    Args:
        directory: the directory.
        name: how the files begin that are made there, and removed again.
    """
    problems: dict[str, str] = {}
    took_ms: dict[str, float] = {}
    first, second = (os.path.join(directory, f"{name}.{number}") for number in (1, 2))
    steps: list[tuple[str, Callable[[], str]]] = [
        ("write", lambda: _write(first, b"one\n")),
        ("exclusive create", lambda: _create_again(first)),
        ("append", lambda: _append(first)),
        ("rename", lambda: _replace(first, second)),
    ]
    try:
        for step, attempt in steps:
            began = time.monotonic()
            try:
                problem = attempt()
            except OSError as error:
                problem = error.strerror or str(error)
            took_ms[step] = round(1000 * (time.monotonic() - began), 3)
            if problem:
                problems[step] = problem
                break  # the next ones need this one
    finally:
        for path in (first, second) if "write" not in problems else ():  # else nothing was made
            with contextlib.suppress(OSError):
                os.unlink(path)
    return {"problems": problems, "took_ms": took_ms, "free": _free(directory), "kind": find_kind(directory)}


def _write(path: str, content: bytes) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _create_again(path: str) -> str:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return ""
    return "a file that exists was created a second time"


def _append(path: str) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"two\n")
    finally:
        os.close(descriptor)
    return _other_content(path, b"one\ntwo\n")


def _replace(old: str, new: str) -> str:
    _write(new, b"before\n")
    os.replace(old, new)
    return _other_content(new, b"one\ntwo\n") or ("the old name is still there" if os.path.lexists(old) else "")


def _other_content(path: str, expected: bytes) -> str:
    with open(path, "rb") as file:
        found = file.read()
    return "" if found == expected else f"{found!r} was read back, {expected!r} was written"


def _free(directory: str) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None  # some network file systems do not say


def find_kind(directory: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system that a directory is in, "" if the kernel does not say."""
    path, best, kind = os.path.realpath(directory), "", ""
    with contextlib.suppress(OSError), open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields = before.split(" ")
            if len(fields) < 5:
                continue
            point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4])
            is_above = path == point or path.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= len(best):  # the last one of a place lies over the others
                best, kind = point, after.split(" ")[0]
    return kind


def main(arguments: Sequence[str]) -> int:
    """Print what works in a directory."""
    directory, name = arguments
    sys.stdout.write(json.dumps(try_folder(directory, name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
