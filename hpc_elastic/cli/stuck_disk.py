"""Says that a command waits for a disk or a file server: while it does, the command itself can say nothing."""

from __future__ import annotations

import _thread
import contextlib
import sys
from collections.abc import Callable, Iterator

LOOK_EVERY_S = 1.0
LOOKS = 5  # in a row, in which the main thread waits for a disk
NOTE = "a disk or file server has not answered for 5 s: this command waits for it"


@contextlib.contextmanager
def watched_disk() -> Iterator[None]:
    """Watch the main thread of this process during the block, in a thread that ends with it."""
    over = _thread.allocate_lock()
    over.acquire()
    _thread.start_new_thread(watch_disk, (_say, lambda seconds: over.acquire(timeout=seconds)))
    try:
        yield
    finally:
        over.release()


def watch_disk(
    say: Callable[[str], None],
    is_over_within: Callable[[float], bool],
    *,
    read_state: Callable[[], str] | None = None,
) -> None:
    """Say once that the main thread waits for a disk, if it has done so for some seconds; return then.

    Args:
        say: what is called with the note.
        is_over_within: waits for so many seconds at most; returns whether the command is over.
        read_state: returns the main thread's state, one letter of proc_pid_stat(5); empty if it is not known.
    """
    stuck = 0
    while stuck < LOOKS:
        if is_over_within(LOOK_EVERY_S):
            return
        state = (read_state or read_main_state)()
        if not state:
            return
        stuck = stuck + 1 if state == "D" else 0
    say(NOTE)


def _say(note: str) -> None:
    print(f"hpc-elastic: {note}", file=sys.stderr, flush=True)


def read_main_state() -> str:
    """Return the state of this process's main thread; D: a wait for a disk, which nothing interrupts."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
