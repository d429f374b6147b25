"""Sends and receives the datagrams with which a worker tells its agent, before it ends, of an exception that ends it.

Theory of operation. The agent has a datagram socket with a name in the abstract namespace, which the
kernel chooses: there is no file, and no other socket has the name. A worker finds the name in its environment and
removes it before the user's code runs; it opens a socket only when it has something to send. The kernel adds the
sender's process id to a datagram, which a process cannot forge (SO_PASSCRED, unix(7)), so a datagram counts for the
worker that sent it and for no other. Each has the attempt's number, because a process id may be used again.

A last word says that the worker has failed. The other words are about an exception that may end the worker, and count
only if it then does not succeed: FAILING with the exit code and the error file's content, CLOSING the same when
the worker is about to close its connections with the exception in flight, CLOSED when they are, and HANDLED when the
worker opens connections anew, so that the exception did not end it.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

NAME_VARIABLE = "HPC_ELASTIC_LAST_WORD"
LONGEST_RECORD = 96 * 1024  # bytes; the kernel takes 208 KiB (net.core.wmem_default)
LONGEST_WORD = LONGEST_RECORD + 64
SENT_WITHIN_S = 0.5  # the queue is short (net.unix.max_dgram_qlen), and the agent notices the worker's end in any case
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_FORM = re.compile(rb"(?:([a-z]{4,7}) )?(\d{1,9})(?: (-?\d{1,3})\n(.*))?", re.DOTALL)


class WordKind(str, Enum):
    """What a worker says."""

    LAST = ""
    FAILING = "failing"
    CLOSING = "closing"
    CLOSED = "closed"
    HANDLED = "handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A datagram of a worker: `exit_code` and `record` are those of FAILING and CLOSING, else 1 and empty."""

    pid: int
    attempt: int
    kind: WordKind
    exit_code: int = 1
    record: bytes = b""


def open_receiver() -> socket.socket:
    """Open the agent's socket."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    receiver.bind("")  # the kernel chooses the name
    receiver.setblocking(False)
    return receiver


def name_of(receiver: socket.socket) -> str:
    """Return the socket's name, as `NAME_VARIABLE` holds it."""
    name: bytes = receiver.getsockname()
    return name[1:].decode()


def send_last_word(name: str, attempt: int) -> None:
    """Tell the agent that this process, a worker of this attempt, ends with exit code 1. Never raises."""
    _send(name, str(attempt).encode())


def send_word(name: str, kind: WordKind, attempt: int) -> None:
    """Tell the agent that connections are CLOSED, or that the exception was HANDLED. Never raises."""
    _send(name, f"{kind.value} {attempt}".encode())


def send_failing(name: str, kind: WordKind, attempt: int, *, exit_code: int, record: bytes) -> bool:
    """Tell the agent of an exception that may end this process, FAILING or CLOSING. Never raises.

    Args:
        name: the agent's socket.
        kind: FAILING or CLOSING.
        attempt: the attempt's number.
        exit_code: the exit code that the exception gives, negative for a signal.
        record: the content of the error file, as JSON; empty if there is none.

    Returns:
        Whether the datagram was not too long.
    """
    return _send(name, f"{kind.value} {attempt} {exit_code}\n".encode() + record)


def _send(name: str, word: bytes) -> bool:
    if len(word) > LONGEST_WORD:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SENT_WITHIN_S)
            sender.sendto(word, b"\0" + name.encode())
    except OSError as error:
        return error.errno != errno.EMSGSIZE
    except ValueError:
        pass
    return True


def receive_words(receiver: socket.socket) -> Iterator[Word]:
    """Yield the words that workers have sent; other datagrams are ignored."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size)
    while True:
        try:
            text, ancillary, _, _ = receiver.recvmsg(LONGEST_WORD, space)
        except BlockingIOError:
            return
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                word = _parse(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0], text)
                if word is not None:
                    yield word


def _parse(pid: int, text: bytes) -> Word | None:
    if (found := _FORM.fullmatch(text)) is None:
        return None
    name, attempt, exit_code, record = found.groups()
    with contextlib.suppress(ValueError):
        kind = WordKind((name or b"").decode())
        if (exit_code is not None) == (kind in (WordKind.FAILING, WordKind.CLOSING)):
            code, content = int(exit_code or 1), record or b""
            return Word(pid=pid, attempt=int(attempt), kind=kind, exit_code=code, record=content)
    return None
