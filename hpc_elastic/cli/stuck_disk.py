"""Says that a command waits for a disk or a file server: while it does, the command itself can say nothing."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable

LOOK_EVERY_S = 1.0
LOOKS = 5  # in a row, in which the main thread waits for a disk
NOTE = "a disk or file server has not answered for 5 s: this command waits for it"


def start_watch() -> None:
    """Watch the main thread of this process from now on, in a thread that ends with the process."""
    _thread.start_new_thread(watch_disk, (lambda note: print(f"hpc-elastic: {note}", file=sys.stderr, flush=True),))


def watch_disk(
    say: Callable[[str], None],
    *,
    read_state: Callable[[], str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Say once that the main thread waits for a disk, if it has done so for some seconds; return then.

    Args:
        say: what is called with the note.
        read_state: returns the main thread's state, one letter of proc_pid_stat(5); empty if it is not known.
        sleep: waits for so many seconds.
    """
    stuck = 0
    while stuck < LOOKS:
        sleep(LOOK_EVERY_S)
        state = (read_state or read_main_state)()
        if not state:
            return
        stuck = stuck + 1 if state == "D" else 0
    say(NOTE)


def read_main_state() -> str:
    """Return the state of this process's main thread; D: a wait for a disk, which nothing interrupts."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
