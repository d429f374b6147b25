"""Puts the folders of a session's tests into memory, where root may do so and no Slurm is tried.

Theory of operation. What agents write is synced, some 2,000 times in a hundred tests of the command line. A disk that
others use answers a sync in a tenth of a second, and now and then not for a minute: then tests take four times as long,
and some fail for a bound that has nothing to do with what they try. So the controller of a session gets a mount
namespace of its own, in which a file system in memory lies over the folder in which pytest makes those of tests; what
it starts (xdist's workers, agents) inherits that, and the mount ends with the last of them. Nothing of it is seen from
outside, or left.

A session that runs tests of a Slurm has its folders on a disk, as clusters have theirs: there each answer takes a
while, and what agents do until it comes is part of what these tests try. So has one with `--basetemp`, and one that a
test has started, whose files would be hidden. On a disk the folders of tests that failed stay.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import subprocess
import tempfile
from pathlib import Path

NEEDED_BYTES = 4 << 30  # of memory that is free: the files take 0.2 GiB, and the tests need theirs
OF_A_TEST = "PYTEST_CURRENT_TEST"  # set while pytest runs one, for what that starts
_CLONE_NEWNS = 0x00020000


def use_memory() -> bool:
    """Put the folder of pytest's folders into memory, for this process and all that it starts; return whether it is.

    Not so for who is not root, in a container that may not mount, or with little memory.
    """
    available = available_bytes()
    if os.environ.get(OF_A_TEST) or os.geteuid() or available < NEEDED_BYTES or ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        return False
    folder = Path(tempfile.gettempdir(), f"pytest-of-{getpass.getuser()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    options = f"mode=0700,size={available // 2}"
    private = ["mount", "--make-rslave", "/"]  # what is mounted here stays here
    memory = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return all(subprocess.run(command, capture_output=True).returncode == 0 for command in (private, memory))


def available_bytes() -> int:
    """Return the memory that programs can still have, as proc_meminfo(5) says it; 0 if it does not."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] << 10 if found else 0
