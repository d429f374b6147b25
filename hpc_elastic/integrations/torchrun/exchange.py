"""What torch's agent and this package's membership, each in its own thread, tell each other under one lock.

Theory of operation. torch's agent cannot be told anything: it calls the handler when it wants to, and acts on the
answers. So each side writes here what it knows, and waits here for what it needs:

    IDLE      torch's agent is in `next_rendezvous`, or was not there yet: it has no workers
    AT_WORK   `next_rendezvous` has returned: it starts workers, or has some
    FINISHED  all its workers exited 0, it waits for the other nodes', and cannot start any again
    GONE      it ends, after a failure mostly

    IDLE --takes the round--> AT_WORK --asks for the next round--> IDLE
    AT_WORK --the exit barrier--> FINISHED, --shutdown after a failure--> GONE

Membership offers a round and later stops it. A stop is carried out by `num_nodes_waiting() > 0`: torch's agent then
stops its workers and asks for the next round, which is the sign that none is left. When membership is over, every wait
is, too.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpc_elastic.membership.messages import Assign, StopManner


class Stage(Enum):
    """Where torch's agent stands; the module's docstring has the transitions."""

    IDLE = "idle"
    AT_WORK = "at work"
    FINISHED = "finished"
    GONE = "gone"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Round:
    """One attempt: this node's part in it, and the socket of its store if that is to be here."""

    assign: Assign
    listener: socket.socket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why torch's agent gives up: a worker that failed when no restart was left, or something beside the workers.

    `exitcode` is negative for a signal; `error` is what torch's `@record` has left, if it has. `message` says why no
    worker could be started; then `pid` is 0.
    """

    rank: int
    local_rank: int
    pid: int
    exitcode: int
    error: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The end of this node's part; `error` is what ended it before the run was over."""

    exit_code: int = 0
    cause: str = ""
    error: BaseException | None = None


class StoppedError(Exception):
    """The round is over, or membership is."""


class Exchange:
    """One node's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stage = Stage.IDLE
        self._round: Round | None = None
        self._is_taken = False
        self._stop: StopManner | None = None
        self._is_told = False  # torch's agent has been told of the stop, and is stopping its workers
        self._failure: Failure | None = None
        self._over: Over | None = None
        self.why = ""  # torch's agent was last IDLE
        self._hear: Callable[[Stage], None] = lambda _: None

    # For torch's agent.

    def next_round(self, why: str = "") -> Round:
        """Waits, without workers, for the round that this node has a part in.

        Args:
            why: the round before is over for torch's agent, if membership does not know of a reason.

        Raises:
            StoppedError: membership is over.
        """
        with self._changed:
            self.why = why
            self._enter(Stage.IDLE)
            self._changed.wait_for(lambda: self._over is not None or self._is_offered())
            if self._over is not None or self._round is None:
                raise StoppedError
            return self._round

    def take(self, offered: Round, *, may_start: Callable[[], bool] = lambda: True) -> bool:
        """Whether the round stands still, and is this node's now; `may_start` is asked last."""
        with self._changed:
            if not self._stands(offered):
                return False
            if not may_start():  # this process was paused: the stop comes in a moment
                self._changed.wait_for(lambda: not self._stands(offered))
                return False
            self._is_taken = True
            self._enter(Stage.AT_WORK)
            return True

    def asked_to_stop(self) -> StopManner | None:
        """How torch's agent is to stop its workers, None if it is not; whoever is told does it."""
        with self._changed:
            manner = StopManner.FENCE if self._over is not None else self._stop
            self._is_told = manner is not None
            return manner

    def wait_while_it_stands(self, current: Round, is_done: Callable[[], bool]) -> bool:
        """Whether something is done before the round is stopped; whoever does it calls `touch`."""
        with self._changed:
            self._changed.wait_for(lambda: is_done() or not self._stands(current))
            return is_done()

    def touch(self) -> None:
        """Wakes up who waits."""
        with self._changed:
            self._changed.notify_all()

    def stands(self, current: Round) -> bool:
        """Whether the round is neither over nor stopped."""
        with self._changed:
            return self._stands(current)

    def finish(self) -> None:
        """All workers of this node exited 0."""
        with self._changed:
            if self._stage is Stage.AT_WORK:
                self._enter(Stage.FINISHED)

    def fail(self, failure: Failure) -> None:
        """Torch's agent gives up, and has no workers any more."""
        with self._changed:
            if self._stage is not Stage.FINISHED:
                self._failure = failure
                self._enter(Stage.GONE)

    def leave(self) -> None:
        """Torch's agent ends, and has no workers any more."""
        with self._changed:
            if self._stage not in (Stage.FINISHED, Stage.GONE):
                self._enter(Stage.GONE)

    def wait_until_over(self, timeout_s: float | None = None) -> Over | None:
        """The end of this node's part; None if it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None, timeout_s)
            return self._over

    @property
    def over(self) -> Over | None:
        """The end of this node's part, if it has come."""
        with self._changed:
            return self._over

    # For membership.

    def listen(self, hear: Callable[[Stage], None]) -> None:
        """`hear` is called with each stage that torch's agent comes to, under the lock and in its thread."""
        with self._changed:
            self._hear = hear

    @property
    def stage(self) -> Stage:
        """Where torch's agent stands."""
        with self._changed:
            return self._stage

    @property
    def failure(self) -> Failure | None:
        """Why torch's agent has given up, if it has."""
        with self._changed:
            return self._failure

    def offer(self, offered: Round) -> None:
        """The next round is this one."""
        with self._changed:
            self._round, self._stop, self._is_told, self._is_taken = offered, None, False, False
            self._changed.notify_all()

    def stop(self, manner: StopManner) -> bool:
        """Stops the round; whether torch's agent is stopping its workers already, in a softer manner perhaps."""
        with self._changed:
            self._stop = manner
            self._changed.notify_all()
            return self._is_told

    def withdraw(self) -> None:
        """The round is over, and no worker of it is left."""
        with self._changed:
            if self._round is not None and self._round.listener is not None:
                self._round.listener.close()  # unless the store has taken it over
            self._round = None
            self._changed.notify_all()

    def end(self, over: Over) -> None:
        """Nothing more comes."""
        with self._changed:
            self._over = self._over or over
            self._changed.notify_all()

    # Under the lock.

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._hear(stage)

    def _is_offered(self) -> bool:
        return self._round is not None and self._stop is None and not self._is_taken

    def _stands(self, current: Round) -> bool:
        return self._over is None and self._round is current and self._stop is None
