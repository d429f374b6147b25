"""Memories with states in them, for tests of what copies states between nodes."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace

from hpc_elastic.agent.keeper.transfer import Offer, RankSource
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.state_memory import (
    COPY_EVERY,
    SlotState,
    create_memory,
    fill_slot,
    map_control,
    read_slots,
    set_checksum,
    slot_offset,
)

SECRET = bytes(range(32))
SCOPE = Scope(run="train", job_id="7", restart_count=0)
PART = "2+2/4 2/4 default"


def state_in(
    descriptor: int,
    slot: int,
    step: int,
    content: bytes,
    *,
    attempt: int = 1,
    ordinal: int | None = None,
    is_replicated: bool = False,
) -> SlotState:
    """Save a state as a rank does, with its checksum."""
    state = SlotState(
        slot=slot,
        sequence=step + 1,
        attempt=attempt,
        step=step,
        length=len(content),
        is_replicated=is_replicated,
        crc=None,
        ordinal=step if ordinal is None else ordinal,
    )
    numbers = map_control(descriptor)
    with fill_slot(numbers, descriptor, state) as write:
        write(memoryview(content), 0)
    set_checksum(numbers, state, zlib.crc32(content))
    return replace(state, crc=zlib.crc32(content))


def a_memory(copy_every: int = 1) -> int:
    descriptor = create_memory(0)
    map_control(descriptor)[COPY_EVERY] = copy_every
    return descriptor


def content_of(descriptor: int, step: int) -> bytes | None:
    """The content of the state of a step in a memory, None if it is not there."""
    state = next((each for each in read_slots(map_control(descriptor)) if each.step == step), None)
    return None if state is None else os.pread(descriptor, state.length, slot_offset(state.slot))


def source_of(descriptor: int, state: SlotState) -> RankSource:
    return RankSource(descriptor=descriptor, numbers=map_control(descriptor), state=state)


def an_offer(step: int, *lengths: int, attempt: int = 1, part: str = PART) -> Offer:
    return Offer(part=part, attempt=attempt, step=step, lengths=lengths or (100, 200))
