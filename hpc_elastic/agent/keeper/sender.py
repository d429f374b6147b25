"""Sends the newest states of this node's ranks to the keeper of another node, as long as an attempt runs.

Theory of operation. All nodes have to copy the same steps, else a lost node leaves a copy of a step that the others do
not have any more. No keeper asks another one for that: each copies every n-th save of the attempt, with n a power of
two, and ranks do not overwrite the two newest of these. A keeper that finds twice in a row that the next such save is
there before the one before is copied doubles n, and tells the next node with its copy; that one does the same, and the
one before hears of it in the answer. So all nodes come to the n of the slowest, and where copies are as fast as saves
it stays 1. It is halved at the next attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpc_elastic.agent.keeper.channel import Channel, ChannelError
from hpc_elastic.agent.keeper.own_states import OwnStates
from hpc_elastic.agent.keeper.transfer import OvertakenError, RankSource, SendingRate, offer_of, send_states
from hpc_elastic.membership.copy_ledger import Lateness
from hpc_elastic.state_memory import has_missed

LOOKS_EVERY_S = 0.02
IDLE_S = 0.2
LOOK_SHARE = 20.0  # looks take at most one part in so many of the time
DIALS_AGAIN_S = 2.0
LOOKS_AFTER_BYTES = 8 * 1024 * 1024


class Sender:
    """Copies the states of one attempt to one other node, in a thread of its own.

    Args:
        own: the states, which the thread closes at its end.
        dial: connects to the other node's keeper.
        pace: keeps the rate.
        say: takes a line for the agent's log.
    """

    def __init__(
        self,
        own: OwnStates,
        dial: Callable[[], Channel],
        *,
        pace: SendingRate,
        say: Callable[[str], None],
    ) -> None:
        self._own = own
        self._dial = dial
        self._pace = pace
        self._say = say
        self._ending = threading.Event()
        self._channel: Channel | None = None
        self._latest: tuple[int, int] | None = None  # the version that was copied last, or refused
        self._last_ordinal: int | None = None
        self._told = ""
        self._unlooked = 0
        self._lateness, self._is_late = Lateness(), False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """End what is being sent; wait for nothing."""
        self._ending.set()
        if (channel := self._channel) is not None:
            channel.abort()

    def _run(self) -> None:
        try:
            pause_s = LOOKS_EVERY_S
            while not self._ending.wait(pause_s):
                began = time.thread_time()
                has_states = self.look()
                # To look costs little, but a node may have a hundred ranks.
                pause_s = max(LOOKS_EVERY_S if has_states else IDLE_S, LOOK_SHARE * (time.thread_time() - began))
                pause_s = min(pause_s, IDLE_S)
        finally:
            self._hang_up()
            self._own.close()

    def look(self, dials_again_s: float = DIALS_AGAIN_S) -> bool:
        """Copy the newest state, if there is one that is not copied yet; wait a moment if that fails.

        Returns:
            Whether there are states to be copied at all.
        """
        sources = self._own.newest_copied() if self._own.has_room else None
        if sources is None:
            return False
        if sources[0].state.version != self._latest:
            self._copy_unless_missed(sources, dials_again_s)
        return True

    def _copy_unless_missed(self, sources: list[RankSource], dials_again_s: float) -> None:
        missed = has_missed(sources[0].state.ordinal, self._last_ordinal, self._own.every)
        if missed and self._lateness.late():
            self._own.raise_every(2 * self._own.every)
            return
        self._is_late = missed
        every, was_open = self._own.every, self._channel is not None
        try:
            self._copy(sources)
        except OvertakenError:
            self._hang_up()  # the other side waits for the rest
            if not self._ending.is_set() and self._own.every == every:
                self._own.raise_every(2 * every)
        except (ChannelError, OSError) as error:
            self._hang_up()
            if not was_open and not self._ending.is_set():  # one that was open may have been idle for too long
                self._tell(f"no copies of training states on another node: {error}")
                self._ending.wait(dials_again_s)

    def _copy(self, sources: list[RankSource]) -> None:
        """Copy states to the other node.

        Raises:
            OvertakenError: they were overwritten, or need not be copied any more.
            ChannelError, OSError: they could not be.
        """
        if self._channel is None:
            self._channel = self._dial()
        channel, offer = self._channel, offer_of(self._own.part, sources)
        self._last_ordinal = sources[0].state.ordinal
        during = {"every": self._own.every, "during": self._own.attempt}  # the state may be of an attempt before
        channel.send({"do": "put", **during, **offer.to_message()})
        answer = channel.receive()
        self._hear(answer)
        if answer.get("take"):
            self._unlooked = 0
            send_states(channel, sources, lambda count: self._sent(sources, count))
            answer = channel.receive()
            self._hear(answer)
        if answer.get("is_later"):  # the other node has not begun the attempt yet
            self._ending.wait(LOOKS_EVERY_S)
            return
        self._latest = offer.version
        if not self._is_late:
            self._lateness.in_time()
        if answer.get("why"):
            self._tell(f"no copies of training states on another node: {answer['why']}")
        else:
            self._told = ""

    def _sent(self, sources: list[RankSource], count: int) -> None:
        """Keep the rate, and look from time to time whether the state is still wanted."""
        self._pace.wait(count)
        self._unlooked += count
        if self._ending.is_set():
            raise OvertakenError
        if self._unlooked < LOOKS_AFTER_BYTES:
            return
        self._unlooked = 0
        newest = self._own.newest_copied()
        if newest is None or newest[0].state.version == sources[0].state.version or self._is_late:
            return
        self._is_late = True
        if self._lateness.late():
            self._own.raise_every(2 * self._own.every)
            if sources[0].state.ordinal % self._own.every:
                raise OvertakenError

    def _hear(self, answer: dict[str, object]) -> None:
        every = answer.get("every")
        if isinstance(every, int):
            self._own.raise_every(every)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(text)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
