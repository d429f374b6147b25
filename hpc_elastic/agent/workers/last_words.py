"""Receives the messages with which workers say that an uncaught exception ends them; see `hpc_elastic.last_word`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpc_elastic.last_word import NAME_VARIABLE, name_of, open_receiver, receive_last_words


class LastWords:
    """The agent's socket for the last words of workers, on the running event loop.

    Args:
        hear: called with the process id and the attempt of each worker that sends a last word.
    """

    def __init__(self, hear: Callable[[int, int], None]) -> None:
        self._hear = hear
        self._receiver = open_receiver()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._receiver, self._receive)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which a worker finds the socket."""
        return {NAME_VARIABLE: name_of(self._receiver)}

    def close(self) -> None:
        """Close the socket; later last words are not received."""
        self._loop.remove_reader(self._receiver)
        self._receiver.close()

    def _receive(self) -> None:
        for pid, attempt in receive_last_words(self._receiver):
            self._hear(pid, attempt)
