"""What workers said to an agent's socket, for tests."""

from __future__ import annotations

import socket

from hpc_elastic.last_word import WordKind, receive_words


def last_words(receiver: socket.socket) -> list[tuple[int, int]]:
    """Return process id and attempt of each last word that has arrived."""
    return [(word.pid, word.attempt) for word in receive_words(receiver) if word.kind is WordKind.LAST]
