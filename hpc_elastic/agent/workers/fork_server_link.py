"""The agent's side of the fork server: starts it, asks it for forks, and replaces it when it has ended.

Theory of operation. `worker.fork_server` has the protocol. The server is started, asked and replaced in the
thread for processes, one after the other. So no request uses a socket that is being replaced, and a
fork is known as a worker before a search for orphans runs. The server's first message makes the socket readable, its
end makes the pidfd readable, and then another server is started at once. If servers end again and again without a
single fork in between, the agent gives up and reports that as it reports a ready server, with `unsafe`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hpc_elastic.agent.node.node_environment import NodeEnvironment
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt, adopt_process
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.spawn import Stream, WorkerOrder, python_options
from hpc_elastic.agent.workers.start_choice import ServerReport, parse_report
from hpc_elastic.deadline import Deadline
from hpc_elastic.frames import receive_frame, send_frame

ANSWER_BOUND_S = 30.0  # a fork takes milliseconds, but its working directory may be on a slow file system
ENDS_BEFORE_GIVEN_UP = 3
WAITS_SAID_EVERY_S = 30.0


class ForkServerLink:
    """The agent's handle of the current fork server, or of the one that replaces it.

    Args:
        package_dir: the folder of this package.
        preload: modules that the server imports besides torch.
        node: the environment and the working directory that the server starts with.
        deadline: the time until which workers may run, which a fork checks before it runs the user's code.
        thread: starts the server and sends requests to it; the server's parent-death signal comes when that
            thread ends.
        say: takes a line for the agent's log.
        on_report: called whenever a server is ready, or when there will be none.
        waits_said_every_s: how often `report` logs that it still waits, in seconds.
    """

    name: Literal["fork", "spawn"] = "fork"

    def __init__(
        self,
        package_dir: str,
        *,
        preload: Sequence[str],
        node: NodeEnvironment,
        deadline: Deadline,
        thread: BackgroundThread,
        say: Callable[[str], None],
        on_report: Callable[[ServerReport], None],
        waits_said_every_s: float = WAITS_SAID_EVERY_S,
    ) -> None:
        preloads = [word for name in preload for word in ("--preload", name)]
        preloads += [word for name in sorted(node.varying) for word in ("--own", name)]
        launch = os.path.join(package_dir, "launch.py")
        ties = ["--parent", str(os.getpid()), "--deadline", str(deadline.descriptor)]
        python = [sys.executable, *python_options(node.variables)]
        self._command = [*python, launch, "hpc_elastic.worker.fork_server", *ties, *preloads]
        self._deadline = deadline
        self._node = node
        self._thread = thread
        self._say = say
        self._on_report = on_report
        self._waits_said_every_s = waits_said_every_s
        self._loop = asyncio.get_running_loop()
        self._report: asyncio.Future[ServerReport] = self._loop.create_future()
        self._server: Child | None = None
        self._link: socket.socket | None = None
        self._has_ended = False  # the server has ended and is not replaced yet
        self._ends = 0  # how many servers have ended since the last fork
        self._is_closed = False
        self._changing = asyncio.Lock()
        self._tasks = Tasks()

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment that the server was started with."""
        return self._node.variables

    def pids(self) -> list[int]:
        """Return the server's process id, if there is a server; must be called in the thread for processes."""
        return [self._server.pid] if self._server is not None else []

    async def start(self) -> None:
        """Start the server; return at once, while the server still imports torch and the preloads."""
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        try:
            await self._thread.call(self._spawn)
        except OSError as error:
            self._settle(ServerReport(unsafe=f"the fork server could not be started: {error.strerror or error}"))
            return
        self._has_ended = False
        if self._server is not None and self._link is not None:
            self._loop.add_reader(self._server.pidfd, self._ended)
            self._loop.add_reader(self._link, self._hear, self._link)

    async def report(self) -> ServerReport:
        """Wait until the server, or the one that replaces it, is ready, and return its report."""
        began = self._loop.time()
        while not self._report.done():
            future = self._report
            await asyncio.wait([future], timeout=self._waits_said_every_s)
            if not future.done():
                waited = self._loop.time() - began
                self._say(f"still waiting, after {waited:.0f} s, for the process that imports torch for the workers")
        return self._report.result()

    def start_worker(self, order: WorkerOrder, *, stdout: Stream, stderr: Stream) -> Child:
        """Fork a worker; runs in the thread for processes.

        Raises:
            OSError: the worker could not be set up, or there is no server.
        """
        request = {
            "do": "worker",
            "parent": os.getpid(),
            "kind": order.kind,
            "target": order.target,
            "arguments": list(order.arguments),
            "environment": dict(order.environment),
            "directory": order.directory,
            "stdout": stdout if isinstance(stdout, str) else "file",
            "stderr": stderr if isinstance(stderr, str) else "file",
            "heartbeat": "none" if order.heartbeat is None else "file",
            "stack": "none" if order.heartbeat is None else "file",
            "state": "none" if order.state is None else "file",
            "node_state": "none" if order.state is None else "file",
        }
        files = [] if order.heartbeat is None else [order.heartbeat.memory, order.heartbeat.stack]
        files += [] if order.state is None else [order.state.own, order.state.node]
        streams = [stream for stream in (stdout, stderr) if isinstance(stream, int)]
        return self._fork(request, [*streams, *files])

    def start_store_host(self, link: socket.socket) -> Child:
        """Fork a store host that serves this link; runs in the thread for processes.

        Raises:
            OSError: the store host could not be forked, or there is no server.
        """
        return self._fork({"do": "store", "parent": os.getpid()}, [link.fileno()])

    async def close(self) -> None:
        """End the server, also while it still imports; its forks go on running."""
        self._is_closed = True
        async with self._changing:
            if self._server is not None:
                self._forget(self._server)
                self._server.kill()
                await self._thread.call(self._collect)
        self._settle(ServerReport(unsafe="this agent leaves"))

    def _spawn(self) -> None:
        """Start the server's process; runs in the thread for processes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                process = subprocess.Popen(
                    self._command,
                    env=dict(self._node.variables),
                    cwd=self._node.directory,
                    stdin=theirs.fileno(),
                    pass_fds=[self._deadline.descriptor],
                    start_new_session=True,
                )
            self._server = adopt_process(process)
        except OSError:
            ours.close()
            raise
        ours.settimeout(ANSWER_BOUND_S)
        self._link = ours

    def _hear(self, link: socket.socket) -> None:
        """Handle a readable link: the server's first message, or its end, which `_ended` handles."""
        self._loop.remove_reader(link)
        self._tasks.run(self._read_report())

    async def _read_report(self) -> None:
        try:
            message = await self._thread.call(self._receive)
        except TimeoutError:  # the server stalled within its message: callers of `report` go on waiting
            return
        if message is not None and not self._has_ended:
            self._settle(parse_report(message))

    def _receive(self) -> dict[str, Any] | None:
        """Receive one message of the server, None if it has ended; runs in the thread for processes."""
        received = receive_frame(self._link) if self._link is not None else None
        return received[0] if received is not None else None

    def _settle(self, report: ServerReport) -> None:
        if not self._report.done():
            self._report.set_result(report)
            if not self._is_closed:
                self._on_report(report)

    def _forget(self, server: Child) -> None:
        self._loop.remove_reader(server.pidfd)
        if self._link is not None:
            self._loop.remove_reader(self._link)

    def _ended(self) -> None:
        server = self._server
        if server is None:
            return
        self._forget(server)
        self._has_ended = True
        if self._report.done():
            self._report = self._loop.create_future()  # from now on, starts of workers wait for the next report
        self._tasks.run(self._replace())

    async def _replace(self) -> None:
        async with self._changing:
            if self._server is not None:
                await self._replace_server()

    async def _replace_server(self) -> None:
        exitcode = await self._thread.call(self._collect)
        self._ends += 1
        how = f"exit code {exitcode}" if exitcode >= 0 else f"killed by signal {-exitcode}"
        if self._ends >= ENDS_BEFORE_GIVEN_UP:
            why = f"the fork server ended {self._ends} times without a fork between ({how})"
            self._settle(ServerReport(unsafe=why))
        elif not self._is_closed:
            self._say(f"the fork server ended ({how}); starting it again")
            await self._start()

    def _collect(self) -> int:
        """Collect the dead server's exit code and close its socket.

        Runs in the thread for processes: no request uses the socket meanwhile, and no search for orphans collects the
        server.
        """
        server, self._server = self._server, None
        link, self._link = self._link, None
        if link is not None:
            link.close()
        return server.collect() if server is not None else 0

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> Child:
        if self._link is None or self._server is None or not self._report.done():
            raise ConnectionResetError(errno.ECONNRESET, "the fork server is gone")
        try:
            send_frame(self._link, request, descriptors)
            answer = self._receive()
        except TimeoutError as error:
            self._server.kill()  # its next message may be the late answer to this request
            raise TimeoutError(
                errno.ETIMEDOUT, f"the fork server gave no answer within {ANSWER_BOUND_S:g} s"
            ) from error
        except OSError:
            answer = None
        if answer is None:
            raise ConnectionResetError(errno.ECONNRESET, "the fork server is gone")
        if "pid" not in answer:
            raise OSError(answer["errno"], answer["message"], answer.get("filename"))
        self._ends = 0
        return adopt(answer["pid"])
