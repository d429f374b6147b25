"""Sends and receives JSON messages with file descriptors over a stream socket between two processes of a node.

A frame is four bytes, the length of what follows as a big-endian number, and a JSON object in UTF-8.
Descriptors (SCM_RIGHTS, unix(7)) come with the four bytes, so no frame can be read without its own descriptors.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">I")
MOST_DESCRIPTORS = 8


def send_frame(stream: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one frame; the receiver gets its own copies of the descriptors.

    Raises:
        OSError: the other side does not read any more.
    """
    body = json.dumps(message).encode()  # ASCII: bytes of an environment that are no text are lone surrogates here
    length = _LENGTH.pack(len(body))
    if descriptors:
        socket.send_fds(stream, [length], descriptors)
        stream.sendall(body)
    else:
        stream.sendall(length + body)


def receive_frame(stream: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for one frame, and return it with its descriptors; None when the other side has closed."""
    try:
        length, descriptors, _, _ = socket.recv_fds(stream, _LENGTH.size, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not length:
            return None
        length += _receive_exactly(stream, _LENGTH.size - len(length))
        body = _receive_exactly(stream, _LENGTH.unpack(length)[0])
    except (ConnectionResetError, EOFError):
        return None
    return json.loads(body), list(descriptors)


def _receive_exactly(stream: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = stream.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
