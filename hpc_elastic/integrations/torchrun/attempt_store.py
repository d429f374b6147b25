"""The store of one attempt, as torch's agent uses it: no call waits for a round that is over."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from hpc_elastic.integrations.torchrun.exchange import Exchange, Round, StoppedError
from hpc_elastic.integrations.torchrun.store_calls import StoreCalls
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.worker.store_host import open_store

T = TypeVar("T")
CONNECTS_FOR_S = 15.0  # to a socket that listens already
CONNECT_TIMEOUT = timedelta(seconds=3)  # of one try: torch's client cannot be called off, and tries again by itself
PROBE_TIMEOUT_S = 1.0
ANSWER_TIMEOUT = timedelta(minutes=5)  # of the other nodes, which are lost before that if they are dead
TERMINAL_STATE = "torchelastic/agent/terminal_state"  # torch's _TERMINAL_STATE_SYNC_ID
ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
# Of a round that is over: global rank, world size, role rank, its size. No worker is rank 0, or alone, with these.
NO_RANKS = json.dumps([1, 2, 1, 2]).encode()


class AttemptStore:
    """A TCPStore of one attempt, for torch's agent only; the workers reach it by address and port.

    Theory of operation. torch's agent exchanges its nodes' sizes over the store, and waits there for the others when
    its workers are done. From there it cannot rendezvous again: an error ends it, and a node that dies meanwhile would
    take all of them along. So each call is over when the round is, with an answer that lets torch's agent go on to
    where it asks whether it has to stop. The exit barrier is membership's: it ends when the workers of all nodes are
    done, or with an error, which torch's agent only logs, when the run goes on without this node.

    Args:
        exchange: with membership.
        calls: how the store is called.
        current: the round.
        store: torch's TCPStore.
        finish: waits for the end of the run; an exception if that is no success.
    """

    def __init__(
        self, exchange: Exchange, calls: StoreCalls, current: Round, store: Any, *, finish: Callable[[], None]
    ) -> None:
        self._exchange = exchange
        self._calls = calls
        self._round = current
        self._store = store
        self._finish = finish
        self._role_info = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def timeout(self) -> timedelta:
        """Of torch.distributed.Store."""
        return self._store.timeout  # type: ignore[no-any-return]

    def set(self, key: str, value: Any) -> None:
        """Of torch.distributed.Store."""
        if key.startswith(ROLE_INFO):
            self._role_info = value if isinstance(value, bytes) else str(value).encode()
        self._call(lambda: self._store.set(key, value), None)

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Of torch.distributed.Store."""
        self._call(lambda: self._store.multi_set(keys, values), None)

    def get(self, key: str) -> Any:
        """Of torch.distributed.Store."""
        return self._call(lambda: self._store.get(key), NO_RANKS if key.startswith(ASSIGNED_RANKS) else b"")

    def multi_get(self, keys: Sequence[str]) -> Any:
        """Of torch.distributed.Store."""
        return self._call(lambda: self._store.multi_get(keys), [self._role_info] * len(keys))

    def add(self, key: str, amount: int) -> int:
        """Of torch.distributed.Store."""
        if key.startswith(TERMINAL_STATE):
            return 0  # nobody is the last one: membership says when all are here
        return self._call(lambda: int(self._store.add(key, amount)), 0)

    def wait(self, keys: Sequence[str], *timeout: timedelta) -> None:
        """Of torch.distributed.Store."""
        if keys and keys[0].startswith(TERMINAL_STATE):
            self._finish()
        else:
            self._call(lambda: self._store.wait(keys, *timeout), None)

    def _call(self, function: Callable[[], T], otherwise: T) -> T:
        try:
            return self._calls.call(self._round, function)
        except StoppedError:
            return otherwise
        except Exception:
            if self._exchange.stands(self._round):
                raise
            return otherwise


def open_attempt_store(
    exchange: Exchange,
    calls: StoreCalls,
    current: Round,
    *,
    finish: Callable[[], None],
) -> AttemptStore:
    """Serves the round's store, if it is to be here, or connects to it.

    Args:
        exchange: says when the round is over.
        calls: makes each call of the store end with the round.
        current: the round.
        finish: called before the store is waited at for the last time.

    Raises:
        StoppedError: the round was stopped before.
        OSError: nobody listens there.
        RuntimeError: it does not answer (torch.distributed.DistError and its kind).
    """
    master, listener = current.assign.master, current.listener

    def connect() -> Any:
        if listener is not None:
            store = open_store(master.address, master.port, listener.detach())
        else:
            store = _connect(master, lambda: exchange.stands(current))
        store.set_timeout(ANSWER_TIMEOUT)
        return store

    return AttemptStore(exchange, calls, current, calls.call(current, connect), finish=finish)


def _connect(master: Endpoint, may_go_on: Callable[[], bool]) -> Any:
    """A client of the store there: in short tries, for the store may be closed while torch's client connects.

    Raises:
        OSError: the round is over, or nobody listens there.
        RuntimeError: it does not answer.
    """
    from torch.distributed import TCPStore

    gives_up_at = time.monotonic() + CONNECTS_FOR_S
    while True:
        _probe(master, may_go_on)
        try:
            return TCPStore(
                master.address, master.port, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT
            )
        except RuntimeError:
            if time.monotonic() > gives_up_at or not may_go_on():
                raise


def _probe(master: Endpoint, may_go_on: Callable[[], bool]) -> None:
    """Waits until the other machine answers at all: torch's own connect cannot be called off.

    Raises:
        OSError: the round is over, or nobody listens there.
    """
    while True:
        try:
            socket.create_connection((master.address, master.port), timeout=PROBE_TIMEOUT_S).close()
            return
        except TimeoutError:
            if not may_go_on():
                raise
