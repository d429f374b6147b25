"""Makes standard streams usable that are full, closed or limited in their encoding."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hpc_elastic.lossy_stderr import make_stderr_lossy

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def replace_closed_streams() -> None:
    """Open the descriptors 0, 1 and 2 that the shell has closed, so that no other file gets these numbers.

    A closed standard output refuses what is written, as a full one does; what goes to a closed standard
    error is lost. Python has None there, and `print` to None is silent or goes elsewhere.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # the lowest that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def make_streams_tolerant() -> None:
    """Make writes to standard error never fail, and escape characters that the encoding of standard output lacks.

    Characters are escaped as in JSON, so that `--json` stays JSON.
    """
    make_stderr_lossy()
    if isinstance(sys.stdout, io.TextIOWrapper):
        keeps_bytes = sys.stdout.errors == "surrogateescape"  # a path that is no text goes out as it is then
        codecs.register_error("hpc_elastic", _escape_and_keep_bytes if keeps_bytes else _escape)
        sys.stdout.reconfigure(errors="hpc_elastic")


class _RunsOutput(io.FileIO):
    """Standard output of a run that must not end with its reader or its disk: it takes what cannot be written."""

    _is_told = False

    def write(self, content: Any, /) -> int:
        """Write the content, or say once why that cannot be."""
        left = memoryview(content).cast("B")
        with left:
            size = left.nbytes
            try:
                while left.nbytes:
                    written: int | None = super().write(left)
                    if written is None:  # a pipe or terminal that does not block
                        select.select((), (self,), ())
                    left = left[written or 0 :]
            except OSError as error:
                self._tell(error)
        return size

    def _tell(self, error: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            why = f"cannot write the output: {error.strerror}; the run goes on, and `hpc-elastic logs` shows all of it"
            print(f"hpc-elastic: {why}", file=sys.stderr)


def open_runs_output() -> io.TextIOWrapper:
    """Return standard output for a run that goes on, and is waited for, if nobody takes its output any more."""
    raw = io.BufferedWriter(_RunsOutput(1, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding=sys.stdout.encoding, errors=sys.stdout.errors, line_buffering=True)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return the escapes of characters that an encoding lacks: as in JSON, in two parts beyond 16 bits."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


def _escape_and_keep_bytes(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and "\udc80" <= error.object[error.start] <= "\udcff":
        return bytes([ord(error.object[error.start]) - 0xDC00]), error.start + 1
    if isinstance(error, UnicodeEncodeError):
        error.end = error.start + 1
    return _escape(error)


def print_json(data: Any) -> None:
    """Print a value as JSON, with the characters that control a terminal as JSON's own escapes."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    if not text.replace("\n", "").isprintable():
        text = "".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text)
    print(text)


def write_whole(path: str, text: str, *, mode: Literal["w", "x"] = "w") -> None:
    """Write a text file, or leave nothing of it: half a page, or half a site file, is of no use.

    Raises:
        OSError: it cannot be opened, and is as it was, or written, and a regular file is removed.
    """
    with open(path, mode, encoding="utf-8", errors="replace") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            if os.path.isfile(path):
                os.unlink(path)
            raise


def is_output_error(error: BaseException) -> bool:
    """Return whether a write to standard output failed: the error has no file name, as an error of a file has."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS


def drop_output() -> None:
    """Drop the output that could not be written; Python would try to write it again at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def said_at_least(line: str, *, is_waited_for: bool) -> Iterator[None]:
    """Print a line on standard error if the block cannot write its output, or is interrupted.

    Args:
        line: what must be known.
        is_waited_for: whether to go on without a reader, for the exit code says more than the output.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(line) from None
    except OSError as error:
        is_gone = isinstance(error, BrokenPipeError)
        if is_gone or is_output_error(error):
            print(line, file=sys.stderr, flush=True)
        if not (is_gone and is_waited_for):
            raise
        drop_output()
