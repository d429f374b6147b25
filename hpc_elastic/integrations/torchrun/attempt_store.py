"""Provides the store of one attempt to torch's agent, in which no call outlasts the attempt's round."""

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
CONNECTS_FOR_S = 15.0  # in all, to a socket that listens already
CONNECT_TIMEOUT = timedelta(seconds=3)  # of one try: torch's client cannot be cancelled, and tries again by itself
PROBE_TIMEOUT_S = 1.0
ANSWER_TIMEOUT = timedelta(minutes=5)  # for values of other nodes; a dead node counts as lost before that
TERMINAL_STATE = "torchelastic/agent/terminal_state"  # torch's _TERMINAL_STATE_SYNC_ID
ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
# Answer once a round is over: global rank, world size, role rank, role size. No worker is rank 0 or alone.
NO_RANKS = json.dumps([1, 2, 1, 2]).encode()


class AttemptStore:
    """A wrapper of one attempt's TCPStore, for torch's agent only; the workers reach the store by address and port.

    Theory of operation. torch's agent exchanges its nodes' sizes over the store, and waits there for the others when
    its workers are done. It cannot rendezvous again from within such a call: an error ends torch's agent, so a node
    that dies meanwhile would end the agents of all nodes. So each call returns when the round is over, with an answer
    that lets torch's agent go on to where it asks whether it has to stop. Membership provides the exit barrier: it ends
    when the workers of all nodes are done, or with an error, which torch's agent only logs, when the run goes on
    without this node.

    Args:
        exchange: the exchange with membership.
        calls: makes the calls of the store.
        current: the round.
        store: torch's TCPStore.
        finish: waits for the end of the run; raises an exception if the run did not succeed.
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
        """The timeout of the store, as in torch.distributed.Store."""
        return self._store.timeout  # type: ignore[no-any-return]

    def set(self, key: str, value: Any) -> None:
        """Implement torch.distributed.Store: does nothing if the round is over."""
        if key.startswith(ROLE_INFO):
            self._role_info = value if isinstance(value, bytes) else str(value).encode()
        self._call(lambda: self._store.set(key, value), None)

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Implement torch.distributed.Store: does nothing if the round is over."""
        self._call(lambda: self._store.multi_set(keys, values), None)

    def get(self, key: str) -> Any:
        """Implement torch.distributed.Store: return harmless ranks or an empty value if the round is over."""
        return self._call(lambda: self._store.get(key), NO_RANKS if key.startswith(ASSIGNED_RANKS) else b"")

    def multi_get(self, keys: Sequence[str]) -> Any:
        """Implement torch.distributed.Store: return this node's own role info if the round is over."""
        return self._call(lambda: self._store.multi_get(keys), [self._role_info] * len(keys))

    def add(self, key: str, amount: int) -> int:
        """Implement torch.distributed.Store: return 0 if the round is over, and at the exit barrier."""
        if key.startswith(TERMINAL_STATE):
            return 0  # no node counts as the last at the barrier: membership decides when all are done
        return self._call(lambda: int(self._store.add(key, amount)), 0)

    def wait(self, keys: Sequence[str], *timeout: timedelta) -> None:
        """Implement torch.distributed.Store: wait at the exit barrier for the end of the run."""
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
    """Serve the round's store if this node has to, else connects to it.

    Args:
        exchange: knows when the round is over.
        calls: makes each call of the store end with the round.
        current: the round.
        finish: waits at the exit barrier, in place of the store.

    Raises:
        StoppedError: the round was stopped before the store was open.
        OSError: nothing listens at the store's address.
        RuntimeError: the store does not answer (torch.distributed.DistError and its subclasses).
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
    """Connect a client to a store, in short tries, for the store may be closed while torch's client connects.

    Raises:
        OSError: the round is over, or nothing listens there.
        RuntimeError: the store does not answer.
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
    """Wait until the other machine accepts a connection: torch's own connect cannot be cancelled.

    Raises:
        OSError: the round is over, or nothing listens there.
    """
    while True:
        try:
            socket.create_connection((master.address, master.port), timeout=PROBE_TIMEOUT_S).close()
            return
        except TimeoutError:
            if not may_go_on():
                raise
