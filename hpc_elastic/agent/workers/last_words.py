"""Receives the messages with which workers say that an exception ends them; see `hpc_elastic.last_word`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpc_elastic.last_word import NAME_VARIABLE, Word, name_of, open_receiver, receive_words


class LastWords:
    """The agent's socket for the words of workers, on the running event loop.

    Args:
        hear: called with each word.
    """

    def __init__(self, hear: Callable[[Word], None]) -> None:
        self._hear = hear
        self._receiver = open_receiver()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._receiver, self._receive)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which a worker finds the socket."""
        return {NAME_VARIABLE: name_of(self._receiver)}

    def close(self) -> None:
        """Close the socket; later words are not received."""
        self._loop.remove_reader(self._receiver)
        self._receiver.close()

    def _receive(self) -> None:
        for word in receive_words(self._receiver):
            self._hear(word)
