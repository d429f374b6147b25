"""Tells a script that its workers will be stopped soon: `notice_received()` and `on_notice(function)`.

Theory of operation. A notice reaches this process as numbers in its slot of the heartbeats' memory, which the agent
writes. All ranks have to hear of it at the same call, or a save in which all take part would wait for ever. So the
agent first writes WAIT, and a call that sees it waits. By then every call that saw nothing has counted itself in the
slot. The agents read these counts and agree on the next number; a call that waited goes on and compares its own number
with that. A wait lasts as long as two messages between agents take, and ends with this process if the agents cannot
agree: then one of them is lost, and all workers are killed.

The call's own number is written before WAIT is looked for. A processor may let the two change places for some
nanoseconds, and the agent reads the counts some milliseconds after it has written WAIT.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from hpc_elastic.heartbeat_memory import (
    BEATS_FROM,
    COUNT,
    NO_NOTICE,
    POLLS,
    POLLS_FROM,
    REASON,
    REASONS,
    STOPS_NS,
    WAIT,
)
from hpc_elastic.worker import heartbeat_writer
from hpc_elastic.worker.saves import saving

F = TypeVar("F", bound="Callable[[Notice], object]")
FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.02

_functions: list[Callable[[Notice], object]] = []  # of `on_notice`, those that are not called yet
_is_calling = False


@dataclass(frozen=True, slots=True)
class Notice:
    """The notice that this run's workers will be stopped soon.

    `reason` is `time_limit`, `preemption` or `operator`.
    """

    reason: Literal["time_limit", "preemption", "operator"]
    _stops_ns: int

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left now until the workers are stopped, never below 0; None if that is not known."""
        return max(0.0, (self._stops_ns - time.monotonic_ns()) / 1e9) if self._stops_ns else None


def notice_received() -> Notice | None:
    """Return the notice that the workers will be stopped soon, None as long as there is none.

    The n-th call has the same answer on every rank, so that all ranks can save together; hence call it at the same
    place of every step, on all ranks or on one only. Before a notice it costs less than 2 microseconds. Once there is
    one, every later call returns it. Outside of a run, and in a process that a rank has forked, there is never one.
    """
    slot = heartbeat_writer.rank_slot()
    if slot is None:
        return None
    slot[POLLS] = number = slot[POLLS] + 1
    if slot[POLLS_FROM] == NO_NOTICE:
        return None
    return _read(slot) if _is_from(slot, POLLS_FROM, number) else None


def on_notice(function: F) -> F:
    """Have a function called, once and with the notice, when the workers will be stopped soon.

    It is called by `heartbeat`, at the same heartbeat on every rank and never within a signal handler, so it can save
    as the script itself can; meanwhile the rank counts as `saving`. An exception that it raises is raised by that
    heartbeat. Without heartbeats it is never called. It can be used as a decorator.

    Returns:
        The function.
    """
    _functions.append(function)
    heartbeat_writer.at_notice = _call_functions
    return function


def _call_functions(slot: memoryview) -> None:
    """Call each function once, if this heartbeat, which has just counted itself, is one that hears of the notice."""
    global _is_calling
    if not _functions or _is_calling or not _is_from(slot, BEATS_FROM, slot[COUNT]):
        return
    _is_calling = True
    try:
        while _functions:
            function = _functions.pop(0)
            with saving():
                function(_read(slot))
    finally:
        _is_calling = False


def _is_from(slot: memoryview, first: int, number: int) -> bool:
    """Return whether the call with this number is answered by the notice; wait until the agents have agreed on that.

    Args:
        slot: this rank's.
        first: where in the slot the first such number stands.
        number: the call's own.
    """
    pause_s = FIRST_PAUSE_S
    while (named := slot[first]) == WAIT:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if heartbeat_writer.rank_slot() is not slot:  # a signal handler has forked this process
            return False
    return number >= named > NO_NOTICE


def _read(slot: memoryview) -> Notice:
    return Notice(REASONS[slot[REASON]], slot[STOPS_NS])  # type: ignore[arg-type]


def _forget() -> None:
    """Call nothing in a process that was forked."""
    global _is_calling
    _functions.clear()
    _is_calling = False


os.register_at_fork(after_in_child=_forget)
