"""Exchanges state between torch's agent and this package's membership, each in its own thread, under one lock.

Theory of operation. torch's agent cannot be called: it calls the handler at its own times, and acts on the
answers. So each side writes its state here, and waits here for what it needs:

    IDLE      torch's agent is in `next_rendezvous`, or has not called it yet: it has no workers
    AT_WORK   `next_rendezvous` has returned: it starts workers, or has some
    FINISHED  all its workers exited 0; it waits for the other nodes' workers, and cannot start workers again
    GONE      it ends, mostly after a failure

    IDLE --takes the round--> AT_WORK --asks for the next round--> IDLE
    AT_WORK --the exit barrier--> FINISHED, --shutdown after a failure--> GONE

Membership offers a round and later stops it. A stop is carried out by `num_nodes_waiting() > 0`: torch's agent then
stops its workers and asks for the next round, which shows that no worker is left. When membership is over, every wait
here ends, too.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpc_elastic.membership.messages import Assign, StopManner

ASKS_AGAIN_S = 1.0  # whether workers may start, as a start of our own workers does


class TorchAgentStage(Enum):
    """The stage of torch's agent; the module's docstring has the transitions."""

    IDLE = "idle"
    AT_WORK = "at work"
    FINISHED = "finished"
    GONE = "gone"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Round:
    """This node's part in one attempt, and the socket of the attempt's store if this node serves it."""

    assign: Assign
    listener: socket.socket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why torch's agent gives up: a worker failed when no restart was left, or something other than a worker failed.

    `exitcode` is negative for a signal; `error` is the content of the file that torch's `@record` has written, if any.
    `message` says why no worker could be started; then `pid` is 0.
    """

    rank: int
    local_rank: int
    pid: int
    exitcode: int
    error: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The end of this node's part in the run; `error` is the exception that ended it before the run was over."""

    exit_code: int = 0
    cause: str = ""
    error: BaseException | None = None


class StoppedError(Exception):
    """Raised when the round is over, or membership is."""


class Exchange:
    """The exchange of one node, between torch's agent and membership."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stage = TorchAgentStage.IDLE
        self._round: Round | None = None
        self._is_taken = False
        self._stop: StopManner | None = None
        self._is_told = False  # whether torch's agent was told of the stop, and stops its workers
        self._failure: Failure | None = None
        self._over: Over | None = None
        self.why = ""  # the reason with which torch's agent last became IDLE
        self._hear: Callable[[TorchAgentStage], None] = lambda _: None

    # Called by torch's agent.

    def next_round(self, why: str = "") -> Round:
        """Wait, while there are no workers, for the next round in which this node takes part.

        Args:
            why: why the round before is over for torch's agent, if membership does not know the reason.

        Raises:
            StoppedError: membership is over.
        """
        with self._changed:
            self.why = why
            self._enter(TorchAgentStage.IDLE)
            self._changed.wait_for(lambda: self._over is not None or self._is_offered())
            if self._over is not None or self._round is None:
                raise StoppedError
            return self._round

    def take(self, offered: Round, *, may_start: Callable[[], bool] = lambda: True) -> bool:
        """Take an offered round if it is not over and `may_start`, called last, allows it; return whether it did.

        In a process that was paused workers may not start for a moment: membership stops the round, or hears that they
        may, which nobody tells this thread.
        """
        with self._changed:
            while self._stands(offered):
                if may_start():
                    self._is_taken = True
                    self._enter(TorchAgentStage.AT_WORK)
                    return True
                self._changed.wait(ASKS_AGAIN_S)
            return False

    def asked_to_stop(self) -> StopManner | None:
        """Return how torch's agent has to stop its workers, None if it does not; the caller must then stop them."""
        with self._changed:
            manner = StopManner.FENCE if self._over is not None else self._stop
            self._is_told = manner is not None
            return manner

    def wait_while_it_stands(self, current: Round, is_done: Callable[[], bool]) -> bool:
        """Wait until `is_done()` or the end of the round; return `is_done()`. Whatever changes that calls `touch`."""
        with self._changed:
            self._changed.wait_for(lambda: is_done() or not self._stands(current))
            return is_done()

    def touch(self) -> None:
        """Wake all waiting threads, so that they check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def stands(self, current: Round) -> bool:
        """Return whether the round is neither over nor stopped."""
        with self._changed:
            return self._stands(current)

    def finish(self) -> None:
        """Note that all workers of this node exited 0."""
        with self._changed:
            if self._stage is TorchAgentStage.AT_WORK:
                self._enter(TorchAgentStage.FINISHED)

    def fail(self, failure: Failure) -> None:
        """Note that torch's agent gives up because of a failure, and has no workers any more."""
        with self._changed:
            if self._stage is not TorchAgentStage.FINISHED:
                self._failure = failure
                self._enter(TorchAgentStage.GONE)

    def leave(self) -> None:
        """Note that torch's agent ends, and has no workers any more."""
        with self._changed:
            if self._stage not in (TorchAgentStage.FINISHED, TorchAgentStage.GONE):
                self._enter(TorchAgentStage.GONE)

    def wait_until_over(self, timeout_s: float | None = None) -> Over | None:
        """Wait for the end of this node's part and return it; None if it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None, timeout_s)
            return self._over

    @property
    def over(self) -> Over | None:
        """The end of this node's part; None if it has not come."""
        with self._changed:
            return self._over

    # Called by membership.

    def listen(self, hear: Callable[[TorchAgentStage], None]) -> None:
        """Set `hear`, which is called with each new stage of torch's agent, under the lock and in its thread."""
        with self._changed:
            self._hear = hear

    @property
    def stage(self) -> TorchAgentStage:
        """The stage of torch's agent."""
        with self._changed:
            return self._stage

    @property
    def failure(self) -> Failure | None:
        """The failure because of which torch's agent has given up, None if it has not."""
        with self._changed:
            return self._failure

    def offer(self, offered: Round) -> None:
        """Offer the next round to torch's agent."""
        with self._changed:
            self._round, self._stop, self._is_told, self._is_taken = offered, None, False, False
            self._changed.notify_all()

    def stop(self, manner: StopManner) -> bool:
        """Stop the round; return whether torch's agent stops its workers already, perhaps in a softer manner."""
        with self._changed:
            self._stop = manner
            self._changed.notify_all()
            return self._is_told

    def withdraw(self) -> None:
        """Remove the round, which is over and of which no worker is left."""
        with self._changed:
            if self._round is not None and self._round.listener is not None:
                self._round.listener.close()  # unless the store has taken it over
            self._round = None
            self._changed.notify_all()

    def end(self, over: Over) -> None:
        """End this node's part, and with it every wait."""
        with self._changed:
            self._over = self._over or over
            self._changed.notify_all()

    # Called with the lock held.

    def _enter(self, stage: TorchAgentStage) -> None:
        self._stage = stage
        self._hear(stage)

    def _is_offered(self) -> bool:
        return self._round is not None and self._stop is None and not self._is_taken

    def _stands(self, current: Round) -> bool:
        return self._over is None and self._round is current and self._stop is None
