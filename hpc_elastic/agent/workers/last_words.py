"""Hears at once that an uncaught exception ends a worker; see `hpc_elastic.last_word`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpc_elastic.last_word import NAME_VARIABLE, name_of, open_receiver, receive_last_words


class LastWords:
    """The agent's socket for last words, on the running event loop.

    Args:
        hear: told the process id and the attempt of each that says one.
    """

    def __init__(self, hear: Callable[[int, int], None]) -> None:
        self._hear = hear
        self._receiver = open_receiver()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._receiver, self._receive)

    @property
    def variables(self) -> dict[str, str]:
        """What a worker needs in its environment to be heard."""
        return {NAME_VARIABLE: name_of(self._receiver)}

    def close(self) -> None:
        """Hears nothing any more."""
        self._loop.remove_reader(self._receiver)
        self._receiver.close()

    def _receive(self) -> None:
        for pid, attempt in receive_last_words(self._receiver):
            self._hear(pid, attempt)
