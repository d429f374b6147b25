"""Repeats the output of some ranks in the agent's log, a line at a time, with who wrote it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping

SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
CHUNK_BYTES = 64 * 1024
LONGEST_LINE = 64 * 1024


class Tee:
    """Follows files that others append to, in a thread of its own.

    It looks again soon while something comes, and once a second while nothing does.

    Args:
        prefixes: what stands before each line, by the file's path.
    """

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._files = [_Followed(path, prefix) for path, prefix in prefixes.items()]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Repeats what is left, and ends; nobody may write to the files any more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        pause = SHORTEST_PAUSE_S
        while not self._is_over.wait(pause):
            came = [file.copy() for file in self._files]
            pause = SHORTEST_PAUSE_S if any(came) else min(LONGEST_PAUSE_S, pause * 2)
        for file in self._files:
            file.copy()
            file.finish()


class _Followed:
    """One file, from its beginning on; it may not exist yet."""

    def __init__(self, path: str, prefix: str) -> None:
        self._path = path
        self._prefix = prefix.encode()
        self._offset = 0
        self._rest = b""

    def copy(self) -> bool:
        """Prints the lines that are complete; whether anything came."""
        came = False
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._offset)
            while chunk := file.read(CHUNK_BYTES):
                came = True
                self._offset += len(chunk)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                if len(self._rest) > LONGEST_LINE:
                    lines.append(self._rest)
                    self._rest = b""
                self._print(lines)
        return came

    def finish(self) -> None:
        """Prints a last line that has no end."""
        if self._rest:
            self._print([self._rest])

    def _print(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(b"".join(self._prefix + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
