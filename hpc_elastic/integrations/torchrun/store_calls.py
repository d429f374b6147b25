"""Makes calls of torch's store that end with the round, and leave no thread behind.

Theory of operation. A call has no useful time limit: it may wait for a key that a dead node will never set, or for an
answer of a machine without power. So each runs in a thread, and torch's agent waits for the thread or for the end of
the round. A thread that is still in a call when the interpreter ends delays its exit, then aborts the process (torch
2.13: the store's destructor waits for the call). So the store's connection is shut down from the outside: the call
ends with an error, and the thread with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hpc_elastic.integrations.torchrun.exchange import Exchange, Round, StoppedError
from hpc_elastic.rundir.records import Endpoint

T = TypeVar("T")
ENDS_WITHIN_S = 0.2  # for a call whose connection was shut down; a call that connects retries for some seconds
HANGS_UP_EVERY_S = 0.1


class StoreCalls:
    """The store calls of one process, in all its rounds.

    Args:
        exchange: knows when a round is over.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._left: list[tuple[threading.Thread, Endpoint]] = []

    def call(self, current: Round, function: Callable[[], T]) -> T:
        """Call a function that uses the round's store, and return its value.

        Raises:
            StoppedError: the round was stopped before the function returned.
        """
        outcome: list[tuple[Any, BaseException | None]] = []

        def work() -> None:
            try:
                outcome.append((function(), None))
            except BaseException as error:
                outcome.append((None, error))
            self._exchange.touch()

        thread = threading.Thread(target=work, name="store", daemon=True)
        thread.start()
        try:
            is_done = self._exchange.wait_while_it_stands(current, lambda: bool(outcome))
        except BaseException:  # a signal: torch's agent ends
            self._let_go(thread, current.assign.master)
            raise
        if not is_done:
            self._let_go(thread, current.assign.master)
            raise StoppedError
        value, error = outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def close(self, within_s: float) -> bool:
        """End the calls that are left, in `within_s` seconds at most; return whether all have ended."""
        deadline = time.monotonic() + within_s
        while left := [(thread, store) for thread, store in self._left if thread.is_alive()]:
            if time.monotonic() > deadline:
                return False
            for thread, store in left:
                hang_up(store)
                thread.join(HANGS_UP_EVERY_S)
        return True

    def _let_go(self, thread: threading.Thread, store: Endpoint) -> None:
        hang_up(store)
        thread.join(ENDS_WITHIN_S)
        self._left = [(each, its) for each, its in self._left if each.is_alive()]
        if thread.is_alive():
            self._left.append((thread, store))


def hang_up(store: Endpoint) -> None:
    """Shut down this process's connections to a store; each round has another port."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                address, port = connection.getpeername()[:2]
                if port == store.port and _plain(address) == store.address:
                    connection.shutdown(socket.SHUT_RDWR)


def _plain(address: str) -> str:
    """Convert an IPv4 address as an IPv6 socket reports it, ::ffff:10.0.0.1, to its plain form."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
