"""A folder that machines see through a file server which can stop answering, as a network file system does.

Each machine mounts it with bindfs (FUSE), whose process stands for that machine's way to the server.
A process that is stopped answers nothing: whoever reads, writes or looks up there waits in the kernel
until it goes on. This machine, the login node, sees the folder itself and never waits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Sequence

from tests.slurm_sandbox.cluster import Cluster
from tests.slurm_sandbox.sandbox import wait_until


def why_no_remote_folder() -> str | None:
    """Why no machine can mount one; None if they can."""
    if not shutil.which("bindfs"):
        return "not installed: bindfs (Debian: bindfs)"
    return None if os.path.exists("/dev/fuse") else "no FUSE in this kernel"


class RemoteFolder:
    """A mounted folder.

    Args:
        cluster: the machines' sandbox.
        path: the folder, the same on every machine.
        machines: who mounts it.
    """

    def __init__(self, cluster: Cluster, path: str | os.PathLike[str], machines: Sequence[str]) -> None:
        self._cluster = cluster
        self._path = os.fspath(path)
        self._machines = tuple(machines)
        self._servers: dict[str, int] = {}

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, cluster: Cluster, path: str | os.PathLike[str], machines: Sequence[str]) -> Iterator[RemoteFolder]:
        """Mounts it for a while; whoever is still in there afterwards gets errors."""
        folder = cls(cluster, path, machines)
        try:
            for machine in folder._machines:
                folder._mount(machine)
            yield folder
        finally:
            for machine in folder._servers:
                folder._unmount(machine)

    @contextlib.contextmanager
    def stalled(self, *machines: str) -> Iterator[None]:
        """Nothing is answered on these machines, or on all of them, for a while."""
        servers = [self._servers[machine] for machine in machines or self._machines]
        for server in servers:
            os.kill(server, signal.SIGSTOP)
        try:
            yield
        finally:
            for server in servers:
                os.kill(server, signal.SIGCONT)

    def _mount(self, machine: str) -> None:
        before = self._cluster.processes(machine)
        self._cluster.run_on(machine, "bindfs", self._path, self._path)
        started = {
            pid for pid, line in self._cluster.processes(machine).items() if pid not in before and "bindfs " in line
        }
        (self._servers[machine],) = started

    def _unmount(self, machine: str) -> None:
        server = self._servers[machine]
        self._cluster.run_on(machine, "umount", "--lazy", self._path, check=False)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{server}"), f"the file server of {machine} is gone")
