"""The process beside the agent that copies its ranks' training states to another node, and keeps those of others.

    PYTHON <package>/launch.py hpc_elastic.agent.keeper.process < SOCKET

Standard input is a socket of the agent (`agent.keeper.link` has what it says), at whose end this process ends, and with
it all memory that only it holds; the kernel kills one that is frozen then. It imports no torch and no asyncio, and none
of its threads is the agent's: neither a network that is slow nor a state that is large holds up the lease.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.agent.keeper.channel import STALLS_S, Channel, ChannelError, dial_keeper
from hpc_elastic.agent.keeper.copies import Copies, close_sources
from hpc_elastic.agent.keeper.own_states import OwnStates
from hpc_elastic.agent.keeper.sender import Sender
from hpc_elastic.agent.keeper.transfer import (
    NotNowError,
    Offer,
    OvertakenError,
    RankSource,
    SendingRate,
    TransferError,
    offer_of,
    parse_offer,
    receive_states,
    send_states,
)
from hpc_elastic.cgroup_memory import read_room
from hpc_elastic.death_signal import NOT_CHECKED, die_with_parent
from hpc_elastic.frames import MOST_DESCRIPTORS, receive_frame, send_frame
from hpc_elastic.membership.authentication import Scope, Side
from hpc_elastic.state_memory import KEPT_FREE

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
NICENESS = 5  # the training goes first
MOST_UNAUTHENTICATED = 32
FETCHES_WITHIN_S = 60.0  # from the begin of an attempt
IDLE_S = 3600.0  # a node that saves that seldom dials again


def main(arguments: Sequence[str]) -> int:  # noqa: ARG001  as of every program of ours
    """Serve the agent until it ends."""
    with contextlib.suppress(OSError):
        die_with_parent(NOT_CHECKED)  # an agent that has ended before has closed the socket
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Keeper(socket.socket(fileno=os.dup(0))).serve()
    sys.stderr.flush()
    os._exit(0)  # threads may wait for other machines


def _in_a_thread_after(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer.cancel


class Keeper:
    """The keeper of one node.

    Args:
        link: the socket of the agent.
        after: calls a function after so many seconds, and returns one that calls it off.
    """

    def __init__(
        self,
        link: socket.socket,
        *,
        after: Callable[[float, Callable[[], None]], Callable[[], None]] = _in_a_thread_after,
    ) -> None:
        self._link = link
        self._after = after
        self._saying = threading.Lock()
        self._changing = threading.Lock()  # of what is below
        self._own: OwnStates | None = None
        self._leaving: OwnStates | None = None  # the part that this node had before: another node may ask for it now
        self._call_off: Callable[[], None] = lambda: None  # calls off the timer that forgets that part
        self._sender: Sender | None = None
        self._secret, self._scope = b"", Scope(run="", job_id="", restart_count=0)
        self._pace = SendingRate(None)
        self._most, self._takes_copies = 0, True
        self.copies = Copies(self._find_room, opened=self._opened, freed=lambda part: self._answer({"freed": part}))

    def serve(self) -> None:
        """Do what the agent says, until it has ended."""
        memories: list[int] = []
        copies: list[int] = []
        while (frame := receive_frame(self._link)) is not None:
            message, descriptors = frame
            what = message.get("do")
            if what == "serve":
                self._begin_to_serve(message)
            elif what == "listen":
                listener = socket.socket(fileno=descriptors[0])
                threading.Thread(target=self._listen, args=(listener,), name="listener", daemon=True).start()
            elif what == "memory":
                memories += descriptors
            elif what == "begin":
                self._begin(message, memories)
                memories = []
            elif what == "restore":
                copies += descriptors
                if message["is_last"]:
                    self.copies.restore(message["part"], copies)
                    copies = []
            elif what == "answer":
                self._answer({"is_here": True})
            elif what == "copies":
                held = [[part, *version] for part, version in self.copies.held()]
                self._answer({"copies": held, "question": message.get("question")})

    def _begin_to_serve(self, message: dict[str, Any]) -> None:
        self._secret = bytes.fromhex(message["secret"])
        self._scope = Scope(**message["scope"])
        self._pace, self._most = SendingRate(message["rate"]), message["most"]

    def _begin(self, message: dict[str, Any], memories: list[int]) -> None:
        """Take over the memories of an attempt, and forget all states but the one that it begins with."""
        version = tuple(message["version"]) if message["version"] else None
        own = OwnStates(attempt=message["attempt"], part=message["part"], shared=message["shared"], memories=memories)
        with self._changing:
            before, self._own = self._own, own
            sender, self._sender = self._sender, None
            leaving, self._leaving = self._leaving, None
            if before is not None and message["is_source"] and before.part != own.part:
                self._leaving = before.copy()
        if leaving is not None:
            self._call_off()
            leaving.close()
        if (former := self._leaving) is not None:
            self._call_off = self._after(FETCHES_WITHIN_S, lambda: self._leave(former))
        if sender is not None:
            sender.stop()
        elif before is not None:
            before.close()
        self._takes_copies = message["takes_copies"]
        if not self._takes_copies and not message["is_source"]:
            self.copies.begin(message["attempt"], None)
        self.copies.begin(message["attempt"], version)
        if (target := message["copies_to"]) is not None:
            address, port = target
            self._sender = Sender(
                own,
                lambda: dial_keeper(address, port, secret=self._secret, scope=self._scope),
                pace=self._pace,
                say=self._say,
            )
            self._sender.start()

    def _leave(self, former: OwnStates) -> None:
        """Free what this node's ranks had saved for another part, unless a later attempt has done so."""
        with self._changing:
            if self._leaving is not former:
                return
            self._leaving = None
        former.close()

    def _find_room(self, reserved: int) -> int:
        """Return how many bytes more copies may take that take `reserved` already."""
        if not self._takes_copies:
            return 0
        own, room = self._own, read_room()
        left = self._most - reserved - (own.reserved if own is not None else 0)
        return min(left, room.free - int(KEPT_FREE * room.total))

    def _opened(self, part: str, memories: Sequence[int]) -> None:
        """Give the agent the memories of copies, too, which then outlive this process."""
        for first in range(0, len(memories), MOST_DESCRIPTORS):
            self._answer({"opened": part, "is_first": not first}, memories[first : first + MOST_DESCRIPTORS])

    def _say(self, text: str) -> None:
        self._answer({"say": text})

    def _answer(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        with self._saying, contextlib.suppress(OSError):
            send_frame(self._link, message, descriptors)

    # Other keepers, and agents that fetch a state.

    def _listen(self, listener: socket.socket) -> None:
        open_ones = threading.BoundedSemaphore(MOST_UNAUTHENTICATED)
        listener.setblocking(True)
        while True:
            open_ones.acquire()
            try:
                accepted, _ = listener.accept()
                threading.Thread(target=self._serve_one, args=(accepted, open_ones), daemon=True).start()
            except (OSError, RuntimeError):  # no descriptors or threads are left
                open_ones.release()
                threading.Event().wait(0.2)

    def _serve_one(self, accepted: socket.socket, open_ones: threading.BoundedSemaphore) -> None:
        """Serve a connection; only one that is not authenticated yet counts among the open ones."""
        try:
            try:
                channel = Channel(accepted, Side.LISTENING, secret=self._secret, scope=self._scope)
            finally:
                open_ones.release()
            try:
                while True:
                    channel.wait(IDLE_S)
                    message = channel.receive()
                    channel.wait(STALLS_S)
                    if message.get("do") == "put":
                        self._take(channel, message)
                    else:
                        self._give(channel, message)
            finally:
                channel.close()
        except (ChannelError, TransferError, OvertakenError, OSError):
            pass  # whoever has dialled says so

    def _take(self, channel: Channel, message: dict[str, Any]) -> None:
        """Receive a copy of another node's states.

        Raises:
            ChannelError: the other side is gone, or has been overtaken.
        """
        offer = parse_offer(message)
        if self.copies.has(offer):
            channel.send({"take": False, "every": self._hear(message)})
            return
        try:
            with self.copies.take(offer) as (memories, slot):
                channel.send({"take": True, "every": self._hear(message)})
                receive_states(channel, offer, memories, slot)
        except NotNowError:
            channel.send({"take": False, "is_later": True, "every": self._hear(message)})
            return
        except TransferError as error:
            channel.send({"take": False, "why": str(error), "every": self._hear(message)})
            return
        channel.send({"every": self._hear(message)})

    def _hear(self, message: dict[str, Any]) -> int:
        """Take over each how manieth save the other side copies, if that is fewer, and return how it is here.

        A node that is in another attempt has nothing to say of this one, and gets 0.
        """
        with self._changing:
            own, every = self._own, message.get("every")
            if own is None or self._sender is None or message.get("during", own.attempt) != own.attempt:
                return 0
            if isinstance(every, int):
                own.raise_every(every)
            return own.every

    def _give(self, channel: Channel, message: dict[str, Any]) -> None:
        """Send states that are here.

        Raises:
            ChannelError: the other side is gone.
            OvertakenError: they were overwritten meanwhile.
        """
        part, version = str(message.get("part")), (message.get("attempt"), message.get("step"))
        if not isinstance(version[0], int) or not isinstance(version[1], int):
            raise TransferError(f"no version of a state: {message}")
        sources = self._find(part, (version[0], version[1]))
        if not sources:
            channel.send({"missing": True})
            return
        try:
            channel.send(_complete(offer_of(part, sources)))
            send_states(channel, sources)
        finally:
            close_sources(sources)

    def _find(self, part: str, version: tuple[int, int]) -> list[RankSource] | None:
        with self._changing:
            mine = (own.find(part, version) for own in (self._own, self._leaving) if own is not None)
            found = next(filter(None, mine), None)
        return found or self.copies.find(part, version)


def _complete(offer: Offer) -> dict[str, Any]:
    return {**offer.to_message(), "missing": False}
