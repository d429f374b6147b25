"""Sends and receives the datagram with which a worker tells its agent, before it ends, of an uncaught exception.

Theory of operation. The agent has a datagram socket with a name in the abstract namespace, which the
kernel chooses: there is no file, and no other socket has the name. A worker finds the name in its environment and
removes it before the user's code runs; it opens a socket only when it has something to send. The kernel adds the
sender's process id to a datagram, which a process cannot forge (SO_PASSCRED, unix(7)), so a datagram counts for the
worker that sent it and for no other. Its content is the attempt's number, because a process id may be used again.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

NAME_VARIABLE = "HPC_ELASTIC_LAST_WORD"
LONGEST_WORD = 32
SENT_WITHIN_S = 0.5  # the queue is short (net.unix.max_dgram_qlen), and the agent notices the worker's end in any case
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


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
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SENT_WITHIN_S)
        sender.sendto(str(attempt).encode(), b"\0" + name.encode())


def receive_last_words(receiver: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield process id and attempt of each worker that has sent its last word; other datagrams are ignored."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size)
    while True:
        try:
            word, ancillary, _, _ = receiver.recvmsg(LONGEST_WORD, space)
        except BlockingIOError:
            return
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and word.isdigit():
                yield _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0], int(word)
