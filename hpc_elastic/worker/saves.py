"""Says that a rank writes a checkpoint, which a stop then does not cut short: `with saving():`."""

from __future__ import annotations

import os
import threading
from time import monotonic_ns
from types import TracebackType

from hpc_elastic.heartbeat_memory import SAVING, TIME_NS
from hpc_elastic.worker import heartbeat_writer

_lock = threading.Lock()


class saving:  # noqa: N801  a context manager, which reads as a verb where it is used
    """Mark a block of code in which this rank saves: `with saving(): ...`.

    If another rank fails meanwhile, this one gets its TERM only when the block ends, or when `signals.grace` is over.
    A node that may no longer be in the world kills its workers all the same. Within the block a rank counts as stalled
    only after ten times `stall_timeout`. Blocks may be nested, in any number of threads, and a block may end in another
    thread than the one in which it began. Outside of a run it does nothing.
    """

    __slots__ = ("_slot",)

    def __enter__(self) -> None:
        self._slot = heartbeat_writer.rank_slot()
        self._count(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        slot = self._slot
        if slot is None or heartbeat_writer.rank_slot() is not slot:  # a fork of the rank leaves a block that it began
            return
        with _lock:
            slot[SAVING] += change
        if slot[TIME_NS]:
            slot[TIME_NS] = monotonic_ns()  # it is alive, even if it has made no heartbeat since


def _forget() -> None:
    """Make the lock anew in a process that was forked, perhaps while another thread held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
