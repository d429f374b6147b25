"""Fetches the training states of a node's ranks from the keeper of another node, before the workers start."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence

from hpc_elastic.agent.keeper.channel import Channel, ChannelError, Dial
from hpc_elastic.agent.keeper.transfer import TransferError, parse_offer, receive_states
from hpc_elastic.cgroup_memory import read_room
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import KEPT_FREE, create_memory

BROKEN_OFF = "it was broken off"
WITHIN_S = 600.0  # as long as the writing of a state may take


class BreakOff:
    """What breaks off a fetch that is under way in another thread, which waits for the other machine no longer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_asked = False

    @property
    def is_asked(self) -> bool:
        """Whether the fetch is to end."""
        return self._is_asked

    def ask(self) -> None:
        """Have the fetch end; wait for nothing."""
        with self._lock:
            self._is_asked = True
            if self._channel is not None:
                self._channel.abort()

    @contextlib.contextmanager
    def over(self, channel: Channel) -> Iterator[Channel]:
        """Fetch over a channel, which is closed at the end.

        Raises:
            ChannelError: the fetch is to end.
        """
        try:
            with self._lock:
                if self._is_asked:
                    raise ChannelError(BROKEN_OFF)
                self._channel = channel
            yield channel
        finally:
            with self._lock:
                self._channel = None
            channel.close()


def fetch_states(
    dial: Dial,
    holders: Sequence[Endpoint],
    parts: Sequence[str],
    version: StateVersion,
    workers: int,
    most: int,
    breaking: BreakOff | None = None,
) -> list[int]:
    """Return the descriptors of new memories by local rank, with the states of that version in them.

    The caller owns the descriptors. A state that is the same on all ranks is only in the memory of local rank 0.

    Args:
        dial: connects to a keeper.
        holders: the keepers that may have them, which are asked in this order.
        parts: whose they are: the node's part of the world, and, for what is the same on all ranks, its role.
        version: which states.
        workers: how many ranks the node has.
        most: how many bytes may be fetched.
        breaking: breaks it off.

    Raises:
        TransferError: no keeper has them, complete and undamaged, or there is no room; the message says of each.
    """
    problems, breaking = [], BreakOff() if breaking is None else breaking
    for holder in holders:
        if breaking.is_asked:
            problems.append(BROKEN_OFF)
            break
        where = f"{holder.address}:{holder.port}"
        try:
            with breaking.over(dial(holder.address, holder.port)) as channel:
                for part in parts:
                    if (found := _fetch(channel, part, version, workers, most)) is not None:
                        return found
            problems.append(f"{where} has it not")
        except (ChannelError, TransferError, OSError) as error:
            problems.append(f"{where}: {error}")
    raise TransferError("; ".join(problems) or "no node has it")


def _fetch(channel: Channel, part: str, version: StateVersion, workers: int, most: int) -> list[int] | None:
    channel.send({"do": "get", "part": part, "attempt": version.attempt, "step": version.step})
    answer = channel.receive()
    if answer.get("missing") is not False:
        return None
    offer = parse_offer(answer)
    count = 1 if offer.is_replicated else workers
    if offer.version != (version.attempt, version.step) or offer.part != part or len(offer.lengths) != count:
        raise TransferError("it has sent another state than it was asked for")
    needed, room = sum(offer.lengths), read_room()
    if needed > min(most, room.free - int(KEPT_FREE * room.total)):
        raise TransferError(f"the states have {needed} bytes, for which there is no room in memory")
    memories: list[int] = []
    try:
        for local_rank in range(workers):
            memories.append(create_memory(local_rank))
        receive_states(channel, offer, memories[:count], slot=0, until=time.monotonic() + WITHIN_S)
    except BaseException:
        for descriptor in memories:
            os.close(descriptor)
        raise
    return memories
