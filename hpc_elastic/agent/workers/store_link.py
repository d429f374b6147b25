"""The agent's side of the store host: starts it, and passes it a listening socket for each attempt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.workers.fork_server_link import ForkServerLink
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.rundir.records import Endpoint

LARGEST_PACKET = 64 * 1024


class StoreLink:
    """The store host of this node, which serves the TCPStore when rank 0 is here.

    The listening socket exists before its port is published, so a client that connects before the
    host has imported torch waits in the socket's backlog. Without torch there is no store, and
    the socket is closed: clients are refused instead of waiting. `worker.store_host` has the
    protocol. If there is a fork server, the host is a fork of it, because that has imported torch already.

    Args:
        package_dir: the folder of this package.
        start: decides how workers are started, and has the fork server.
        thread: starts the host, whose parent-death signal comes when that thread ends.
        say: takes a line for the agent's log.
        on_broken: called with the reason if there is no store any more, although there is torch.
    """

    def __init__(
        self,
        package_dir: str,
        *,
        start: WorkerStart,
        thread: BackgroundThread,
        say: Callable[[str], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._package_dir = package_dir
        self._start = start
        self._thread = thread
        self._say = say
        self._on_broken = on_broken
        # Tells in the thread how the process with this id was killed that a SIGKILL ended; it may block.
        self.explain_kill: Callable[[int], str] = lambda _: "killed by SIGKILL"
        self._host: Child | None = None
        self._link: socket.socket | None = None
        self._start_lock = asyncio.Lock()
        self._has_torch = True
        self._is_closed = False
        self._ending: asyncio.Future[None] | None = None

    def pids(self) -> list[int]:
        """Return the host's process id, if there is a host."""
        return [self._host.pid] if self._host is not None else []

    async def start(self) -> None:
        """Start the host, so that it imports torch while the agents still gather."""
        async with self._start_lock:  # the first attempt may come while the host still starts
            if self._host is not None or not self._has_torch:
                return
            server, no_torch = await self._start.forking_server()
            if no_torch is not None:
                self._miss_torch(no_torch)
            if no_torch is not None or self._is_closed:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                await self._thread.call(lambda: self._begin(server, theirs))
            ours.setblocking(False)
            self._link = ours
            asyncio.get_running_loop().add_reader(ours, self._receive)

    async def serve(self, attempt: int, endpoint: Endpoint, listener: socket.socket) -> None:
        """Pass a listening socket to the host, which serves this attempt's store and drops the earlier one."""
        await self.start()
        order = {"attempt": attempt, "address": endpoint.address, "port": endpoint.port}
        with listener:
            if self._link is None:
                return
            try:
                socket.send_fds(self._link, [json.dumps(order).encode()], [listener.fileno()])
            except (BrokenPipeError, ConnectionResetError):
                return  # the host has ended; `_receive` may still read its last message, that there is no torch
            except OSError as error:
                self._on_broken(f"the store host takes no orders: {error.strerror}")

    async def close(self) -> None:
        """End the host, also one that still imports torch and would not see the end of its link."""
        self._is_closed = True
        if self._host is not None:
            self._host.kill()
        await self._ended()

    def _begin(self, server: ForkServerLink | None, link: socket.socket) -> None:
        # Set in the thread that also searches for processes, so that no stop takes the host for a worker's process.
        if server is not None:
            with contextlib.suppress(OSError):  # the fork server has just ended
                self._host = server.start_store_host(link)
                return
        launch = os.path.join(self._package_dir, "launch.py")
        command = [sys.executable, launch, "hpc_elastic.worker.store_host", "--parent", str(os.getpid())]
        self._host = adopt_process(subprocess.Popen(command, stdin=link.fileno(), start_new_session=True))

    def _receive(self) -> None:
        if self._link is None:
            return
        try:
            data = self._link.recv(LARGEST_PACKET)
        except (BlockingIOError, ConnectionResetError):
            return  # an order that the host left unread raises once; the host's earlier messages follow
        if not data:
            self._ending = asyncio.ensure_future(self._broke())
            return
        packet = json.loads(data)
        state = packet.get("state")
        if state == "no_torch":
            self._miss_torch(packet.get("message"))
        elif state == "failed":
            self._on_broken(f"the store of attempt {packet.get('attempt')} failed: {packet.get('message')}")

    def _miss_torch(self, why: str) -> None:
        self._has_torch = False
        self._say(f"no store is served, workers can only do without one: {why}")

    async def _broke(self) -> None:
        pid = self._host.pid if self._host is not None else 0
        returncode = await self._ended()
        if self._has_torch and not self._is_closed:
            how = _how_it_ended(returncode)
            if returncode == -signal.SIGKILL:
                how = f"was {await self._thread.call(lambda: self.explain_kill(pid))}"
            self._on_broken(f"the store host {how}")

    async def _ended(self) -> int | None:
        """Close the link, which ends the host, and return its exit code."""
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link)
            self._link.close()
            self._link = None
        host = self._host
        return await self._thread.call(self._collect) if host is not None else None

    def _collect(self) -> int | None:
        """Collect the host's exit code, in the thread, so that no search for orphans collects it first."""
        host, self._host = self._host, None
        return host.collect() if host is not None else None


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"ended (exit code {returncode})"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"
