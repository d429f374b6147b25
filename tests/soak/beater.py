"""A worker that writes down the latest moment at which its code ran, and so does a process that it starts.

    python beater.py FOLDER

The moment is that of `hpc_elastic.clock`, in eight bytes of FOLDER/<process id>, mapped, so that nothing is lost when
the process is killed.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

from hpc_elastic.clock import now

BEATS_EVERY_S = 0.001


def beat(folder: Path) -> None:
    """Writes the time down again and again; does not return."""
    with (folder / f"{os.getpid()}.new").open("w+b") as file:
        file.truncate(8)
        moment = memoryview(mmap.mmap(file.fileno(), 8)).cast("d")
    moment[0] = now()
    (folder / f"{os.getpid()}.new").rename(folder / str(os.getpid()))
    while True:
        moment[0] = now()
        time.sleep(BEATS_EVERY_S)


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()  # as a data loader that was started as a daemon: no signal to the worker's group reaches it
    beat(Path(sys.argv[1]))
