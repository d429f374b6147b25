"""Says that a rank makes progress: `heartbeat(step)`, which scripts import from `hpc_elastic.worker`.

Theory of operation. The agent has made a memory with a slot for each of its workers (`hpc_elastic.heartbeat_memory`). A
worker that this package starts is given it by its bootstrap, which calls `begin`; a program of a `command:` entrypoint
finds it by a variable of its environment at its first heartbeat. From then on a heartbeat is three writes to memory.
There is one writer a rank: a process that was forked from it does nothing, and the variable and its descriptors do not
reach other programs that it starts.

After a notice each heartbeat first calls what `worker.notices` has put into `at_notice`, if anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns

from hpc_elastic.heartbeat_memory import (
    BEATS_FROM,
    COUNT,
    FIRST_NS,
    FIRST_STEP,
    PID,
    SLOT_NUMBERS,
    STEP,
    TIME_NS,
    VARIABLE,
    is_memory,
    is_stack_file,
    map_memory,
)

at_notice: Callable[[memoryview], None] | None = None  # what a heartbeat calls once a notice is given
_slot: memoryview | None = None
_has_looked = False


def heartbeat(step: int | None = None) -> None:
    """Say that this rank makes progress. It costs less than 2 microseconds, and does nothing outside of a run.

    Call it once a step, on every rank, from any thread. `stall_timeout` of the job file counts from the latest call.
    After a notice it calls the functions of `on_notice`, whose exceptions it lets through.

    Args:
        step: the number of the step that is done, by which slow ranks and those that stopped first are found.

    Raises:
        TypeError: `step` is neither a whole number nor None.
    """
    slot = _slot
    if slot is None:
        slot = _find()
        if slot is None:
            return
    if step is not None:
        try:
            slot[STEP] = step
        except (TypeError, ValueError):
            raise TypeError(f"heartbeat: found step {step!r}, expected a whole number") from None
        if not slot[FIRST_NS]:
            slot[FIRST_STEP] = step
            slot[FIRST_NS] = monotonic_ns()
    slot[TIME_NS] = monotonic_ns()
    slot[COUNT] += 1
    if slot[BEATS_FROM] and at_notice is not None:
        at_notice(slot)


def rank_slot() -> memoryview | None:
    """Return the slot of this process's rank, None outside of a run and in a process that a rank has forked."""
    return _find() if _slot is None else _slot


def begin(memory: int, number: int) -> memoryview:
    """Use slot `number` of the memory with this descriptor, which may be closed then; return the slot.

    Raises:
        OSError, ValueError: the memory cannot be mapped, or has no such slot.
    """
    global _slot, _has_looked
    slot = map_memory(memory)[number * SLOT_NUMBERS : (number + 1) * SLOT_NUMBERS]
    if len(slot) != SLOT_NUMBERS:
        raise ValueError(f"the heartbeat memory has no slot {number}")
    slot[PID] = os.getpid()
    _slot, _has_looked = slot, True
    return slot


def _find() -> memoryview | None:
    """Look once for the memory that the environment names; None outside of a run, or if another process beats."""
    global _has_looked
    if _has_looked:
        return None
    _has_looked = True
    words = os.environ.pop(VARIABLE, "").split(":")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return None
    memory, number, stack = map(int, words)
    if not is_memory(memory):
        return None
    try:
        if _is_taken(map_memory(memory)[number * SLOT_NUMBERS + PID]):
            return None
        slot = begin(memory, number)
        os.close(memory)
    except (OSError, ValueError, IndexError):
        return None
    if is_stack_file(stack):
        from hpc_elastic.worker.stack_signal import write_stacks_at_signal

        write_stacks_at_signal(stack, slot)
    return slot


def _is_taken(pid: int) -> bool:
    """Return whether another process than this one beats for the rank already."""
    return pid not in (0, os.getpid()) and os.path.exists(f"/proc/{pid}")


def _forget() -> None:
    """Beat no more, in a process that was forked, such as one that loads data: it is not the rank."""
    global _slot, _has_looked
    _slot, _has_looked = None, True


os.register_at_fork(after_in_child=_forget)
