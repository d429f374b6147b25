"""Sends the states of a node's ranks over a channel, and receives them into memories, each with its checksum.

First comes a message with whose they are, which version, and the length of each rank's. The pieces of each follow,
and after them its checksum: the one that the rank has computed when it saved, so that a copy of damaged memory is
found out where it arrives, as well as damage on the way.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpc_elastic.agent.keeper.channel import PIECE, Channel, ChannelError
from hpc_elastic.codec import Json
from hpc_elastic.state_memory import SlotState, fill_slot, is_held, map_control, set_checksum, slot_offset

LARGEST = 1 << 40
MOST_RANKS = 4096  # of a node


class TransferError(Exception):
    """A state cannot be sent or taken; the message says what was found."""


class NotNowError(TransferError):
    """A state cannot be taken yet, and may be in a moment."""


class OvertakenError(Exception):
    """The state that was being sent is overwritten with a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSource:
    """A rank's state, and the memory that it is in."""

    descriptor: int
    numbers: memoryview
    state: SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The states of a node's ranks that are sent: whose they are, which version, and how long each is."""

    part: str
    attempt: int
    step: int
    lengths: tuple[int, ...]
    is_replicated: bool = False

    @property
    def version(self) -> tuple[int, int]:
        """The attempt in which it was saved, and its step."""
        return self.attempt, self.step

    def to_message(self) -> Json:
        """Return the offer as a part of a message."""
        return {
            "part": self.part,
            "attempt": self.attempt,
            "step": self.step,
            "lengths": list(self.lengths),
            "is_replicated": self.is_replicated,
        }


def offer_of(part: str, sources: Sequence[RankSource]) -> Offer:
    """Return what says which states follow."""
    first = sources[0].state
    return Offer(
        part=part,
        attempt=first.attempt,
        step=first.step,
        lengths=tuple(source.state.length for source in sources),
        is_replicated=first.is_replicated,
    )


def parse_offer(message: Json) -> Offer:
    """Return the offer in a message.

    Raises:
        TransferError: there is none, or it has numbers that no state has.
    """
    try:
        offer = Offer(
            part=str(message["part"]),
            attempt=int(message["attempt"]),
            step=int(message["step"]),
            lengths=tuple(map(int, message["lengths"])),
            is_replicated=bool(message["is_replicated"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TransferError(f"no offer of states: {message}") from error
    is_sound = 0 < len(offer.lengths) <= MOST_RANKS and all(0 < length < LARGEST for length in offer.lengths)
    if not is_sound or not 0 <= offer.attempt < 1 << 62 or not 0 <= offer.step < 1 << 62:
        raise TransferError("an offer of states with impossible numbers")
    return offer


def send_states(channel: Channel, sources: Sequence[RankSource], sent: Callable[[int], None] = lambda _: None) -> None:
    """Send these states, and after each of them its checksum.

    Args:
        channel: the connection.
        sources: the states.
        sent: is called with the bytes of each piece that is sent; it may wait, or end the transfer with an exception.

    Raises:
        ChannelError: the other side is gone.
        OvertakenError: one is overwritten meanwhile.
        OSError: the memory cannot be read.
    """
    memory = _buffer(PIECE)
    for source in sources:
        state, crc, offset = source.state, 0, 0
        while offset < state.length:
            wanted = memory[: min(PIECE, state.length - offset)]
            count = os.preadv(source.descriptor, [wanted], slot_offset(state.slot) + offset)
            if not count or not is_held(source.numbers, state):
                raise OvertakenError
            crc = zlib.crc32(wanted[:count], crc)
            channel.send_piece(wanted[:count])
            offset += count
            sent(count)
        if not is_held(source.numbers, state):
            raise OvertakenError
        channel.send({"crc": crc, "is_whole": state.crc is None or state.crc == crc})


def receive_states(
    channel: Channel, offer: Offer, memories: Sequence[int], slot: int, *, until: float = float("inf")
) -> None:
    """Receive the states of an offer into a slot of these memories, with none of which a worker works.

    Args:
        channel: the connection.
        offer: what is sent.
        memories: the memories of the ranks.
        slot: the slot.
        until: when it is given up, in monotonic seconds.

    Raises:
        ChannelError: the other side is gone, or has stalled.
        TransferError: one of them is damaged; all that was sent has been read.
        OSError: there is no memory for them.
    """
    is_damaged = False
    for length, descriptor in zip(offer.lengths, memories, strict=False):
        numbers = map_control(descriptor)
        state = SlotState(
            slot=slot,
            sequence=1,
            attempt=offer.attempt,
            step=offer.step,
            length=length,
            is_replicated=offer.is_replicated,
            crc=None,
        )
        with contextlib.suppress(_DamagedError), fill_slot(numbers, descriptor, state) as write:
            crc = _receive_one(channel, length, write, until)
        if is_held(numbers, state):
            set_checksum(numbers, state, crc)
        else:
            is_damaged = True
    if is_damaged:
        raise TransferError("it is damaged")


class _DamagedError(Exception):
    pass


def _receive_one(channel: Channel, length: int, write: Callable[[memoryview, int], object], until: float) -> int:
    memory, crc, offset = _buffer(min(PIECE, length)), 0, 0
    while offset < length:
        piece = channel.receive_piece(memory[: length - offset])
        if time.monotonic() > until:
            raise ChannelError("it takes too long")
        if not piece:
            raise ChannelError("an empty piece")
        crc = zlib.crc32(piece, crc)
        write(piece, offset)
        offset += len(piece)
    trailer = channel.receive()
    if trailer.get("crc") != crc or trailer.get("is_whole") is not True:
        raise _DamagedError
    return crc


def _buffer(size: int) -> memoryview:
    """Return memory that the kernel has back as soon as nobody uses it.

    Of a bytearray the C library would keep one for each thread that had one.
    """
    return memoryview(mmap.mmap(-1, size))


class SendingRate:
    """Keeps what is sent below a rate: `wait` is called with the bytes that were sent.

    Args:
        rate: bytes a second; None: as fast as it goes.
        pause: waits for so many seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._pause = pause
        self._clock = clock
        self._due = 0.0  # when what was sent so far is paid for

    def wait(self, count: int) -> None:
        """Wait until the next piece may be sent."""
        if self._rate is None:
            return
        now = self._clock()
        self._due = max(self._due, now) + count / self._rate
        self._pause(self._due - now)
