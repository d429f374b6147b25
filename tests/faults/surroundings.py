"""The surroundings of a whole run: a mount namespace with a small disk, a memory cgroup, a network of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_REMOVED_WITHIN_S = 10.0
_MOUNT = 'mount -t tmpfs -o size="$0" tmpfs "$1"; shift; exec "$@"'
_MOUNT_READ_ONLY = 'mount -t tmpfs tmpfs "$0" && mount -o remount,ro "$0"; exec "$@"'
_NETWORK = 'ip link set lo up; exec "$@"'
_CGROUP = 'echo $$ >"$0/cgroup.procs"; exec "$@"'


class CannotBeMadeError(Exception):
    """This machine lacks what a fault needs; the message says what."""


class Surroundings:
    """What a run is started in, and what has to be undone when it is over.

    Args:
        words: what and with what arguments, as in a `Fault`.
        folder: the run's project folder.
    """

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        self.undo: list[Callable[[], None]] = []
        self.prefix: tuple[str, ...] = ()
        if not words:
            return
        if os.geteuid() != 0:
            raise CannotBeMadeError("needs root")
        private = ("unshare", "--mount", "--propagation", "private", "bash", "-c")
        kind, *arguments = words
        if kind == "tmpfs":
            place, size = arguments
            self.prefix = (*private, _MOUNT, size, str(_place(folder, place)))
        elif kind == "read_only":
            self.prefix = (*private, _MOUNT_READ_ONLY, str(_place(folder, arguments[0])))
        elif kind == "network":
            self.prefix = ("unshare", "--net", "bash", "-c", _NETWORK, "-")
        elif kind == "memory":
            cgroup = memory_cgroup(arguments[0])
            self.undo.append(lambda: remove_cgroup(cgroup))
            self.prefix = ("bash", "-c", _CGROUP, str(cgroup))
        else:
            raise ValueError(f"no surroundings are called {kind}")

    def leave(self) -> None:
        """Undo what a namespace's end does not."""
        for action in reversed(self.undo):
            action()


def memory_cgroup(limit: str) -> Path:
    """Make a memory cgroup of version 1 with a limit, such as 64M."""
    cgroup = _new_cgroup("memory")
    (cgroup / "memory.limit_in_bytes").write_text(limit)
    return cgroup


def freezer_cgroup() -> Path:
    """Make a freezer cgroup of version 1: what it holds while FROZEN does not die of KILL."""
    return _new_cgroup("freezer")


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup, which can be done a moment after the end of its last process."""
    end = time.monotonic() + _REMOVED_WITHIN_S
    while cgroup.exists() and time.monotonic() < end:
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        time.sleep(0.01)


def drop_packets(pid: int, *addresses: str) -> None:
    """In the network of a process, let no packet from or to these addresses pass.

    All agents of a network share its loopback device, and dial from one address, so all that these listen at is cut.
    """
    rules = ["add table inet cable", "add chain inet cable in { type filter hook input priority 0; }"]
    for address in addresses:
        rules += [f"add rule inet cable in ip {end} {address} drop" for end in ("saddr", "daddr")]
    subprocess.run(["nsenter", "--net", "--target", str(pid), "nft", "; ".join(rules)], check=True)


def _new_cgroup(controller: str) -> Path:
    root = CGROUPS / controller
    if os.geteuid() != 0 or not (root / "cgroup.procs").exists():
        raise CannotBeMadeError(f"needs root and a hierarchy of cgroups of version 1 of {controller}")
    cgroup = root / f"hpc-elastic-{os.getpid()}-{time.monotonic_ns()}"
    cgroup.mkdir()
    return cgroup


def _place(folder: Path, name: str) -> Path:
    place = folder / name  # an absolute name stays what it is
    place.mkdir(exist_ok=True)
    return place
