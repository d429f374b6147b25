"""Answers the other nodes of the job while they meet this one: with its clock, and by making a file for them.

Three words are known, each a line: `clock` is answered with this node's time, `show K` by making an empty file for node
K, and with `met K` node K takes its leave. Whoever sends another word is cut off.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from hpc_elastic.doctor.probes.bounded import LateError, answer_within

WORD_S = 20.0  # between two words of a node
DISK_S = 5.0
_WORD = 64  # bytes


class ProbeListener:
    """The threads that answer on a listening socket; they end with the process.

    Args:
        listener: the socket.
        folder: where the files are made.
        nodes: how many nodes there are.
    """

    def __init__(self, listener: socket.socket, *, folder: str, nodes: int) -> None:
        self._folder = folder
        self._nodes = nodes
        self._met: set[int] = set()
        self._connected = 0
        self._meeting = threading.Condition()
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def wait_until_left(self, visitors: set[int], until: float) -> None:
        """Wait until all have left, but beyond the time only for those that are connected."""
        with self._meeting:
            while self._met < visitors or self._connected:
                left = (until + WORD_S if self._connected else until) - time.monotonic()
                if left <= 0:
                    return
                self._meeting.wait(left)

    def _serve(self, listener: socket.socket) -> None:
        listener.setblocking(True)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        self._count(+1)
        try:
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(WORD_S)
                for word in _words(connection):
                    if (said := self._reply(word)) is None:
                        return
                    connection.sendall(f"{said}\n".encode())
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        with self._meeting:
            self._connected += step
            self._meeting.notify_all()

    def _reply(self, word: str) -> str | None:
        """Return the answer to a word; None for one that no node says.

        Raises:
            ValueError: a number is none.
        """
        verb, _, number = word.partition(" ")
        if verb == "clock":
            return repr(time.time())
        if not 0 <= int(number) < self._nodes:
            return None
        if verb == "show":
            return self._show(int(number))
        with self._meeting:
            self._met.add(int(number))
            self._meeting.notify_all()
        return "met"

    def _show(self, number: int) -> str:
        def write() -> None:
            path = os.path.join(self._folder, f"shown-{number}")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.fsync(descriptor)
            os.close(descriptor)

        try:
            answer_within(write, DISK_S)
        except OSError as error:
            return error.strerror or str(error)
        except LateError as late:
            return str(late)
        return "written"


def ask(connection: socket.socket, word: str) -> str:
    """Send a word to another node and return its answer.

    Raises:
        OSError: there is none.
    """
    connection.sendall(f"{word}\n".encode())
    return next(_words(connection))


def _words(connection: socket.socket) -> Iterator[str]:
    """Yield the lines that the other side sends, until it closes.

    Raises:
        OSError: it sends nothing in time, or more than a word.
    """
    held = b""
    while True:
        while b"\n" not in held:
            part = connection.recv(_WORD)
            if not part or len(held) > _WORD:
                raise ConnectionResetError(f"closed after {len(held)} bytes")
            held += part
        word, _, held = held.partition(b"\n")
        yield word.decode("ascii", "replace")
