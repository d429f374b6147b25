"""The agent's side of the guard: starts it, moves its deadline, and starts it again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from hpc_elastic.agent.guard.process import BYE, NEARER, forget
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE, agent_id
from hpc_elastic.deadline import Deadline
from hpc_elastic.processes import has_pending

LEAVES_WITHIN_S = 2.0
AGAIN_AFTER_S = 1.0  # a node without memory would kill the next guard at once, too


class GuardLink:
    """The agent's handle of a running guard (see `agent.guard.process`).

    The pipe to the guard closes when this agent dies, in whatever way.

    Args:
        package_dir: the folder of this package.
        run_dir: the run's directory. By this and the node's name the guard finds the workers.
        node: this node's name.
        deadline: the time until which the workers may run; workers that start read it, too.
    """

    def __init__(self, package_dir: str, *, run_dir: str, node: str, deadline: Deadline) -> None:
        launch = os.path.join(package_dir, "launch.py")
        self._command = [
            sys.executable,
            launch,
            "hpc_elastic.agent.guard.process",
            str(deadline.descriptor),
            run_dir,
            node,
            agent_id(os.getpid()),
        ]
        self._deadline = deadline
        self._pipe = -1
        self._changing = threading.Lock()  # once the pipe is closed, another file may get its descriptor number
        self._child: Child | None = None
        self._start()

    def pids(self) -> list[int]:
        """Return the guard's process id, if there is a guard; must be called in the thread for processes."""
        return [self._child.pid] if self._child is not None else []

    def has_got(self, number: signal.Signals) -> bool:
        """Return whether the guard has got a TERM, USR1 or USR2, as the workers have if the whole step was sent it."""
        child = self._child
        return child is not None and has_pending(child.pid, number)

    def forget(self, number: signal.Signals) -> None:
        """Have the guard forget that it got a USR1 or USR2, so that the next one can be seen."""
        self._write(forget(number))

    def set_deadline(self, deadline: float) -> None:
        """Set the time until which the workers may run unless it is moved again, by `clock.now`."""
        is_nearer = deadline < self._deadline.value
        self._deadline.set(deadline)
        if is_nearer:
            self._write(NEARER)

    async def keep(self, thread: BackgroundThread, say: Callable[[str], None]) -> None:
        """Start another guard whenever the current one ends, in the thread for processes; does not return.

        If a guard cannot be started, or ends at once, the start is tried again every second: a node without memory
        may have some by then.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            if self._child is not None:
                await _wait_for_end(self._child)
            how = await thread.call(self._collect)
            say(f"the guard of the workers ended ({how}); starting another one")
            if loop.time() < began + AGAIN_AFTER_S:
                await asyncio.sleep(AGAIN_AFTER_S)
            began = loop.time()
            while not await thread.call(self._starts_again):
                await asyncio.sleep(AGAIN_AFTER_S)

    def dismiss(self) -> None:
        """End the guard, when no worker is left; kill it if it does not end by itself."""
        self._write(BYE)
        if self._child is not None:
            ending = select.poll()
            ending.register(self._child.pidfd, select.POLLIN)
            if not ending.poll(LEAVES_WITHIN_S * 1000):
                self._child.kill()
        self._collect()

    def _start(self) -> None:
        """Start a guard.

        Raises:
            OSError: the guard cannot be started.
        """
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=reader,
                env={name: value for name, value in os.environ.items() if name != ATTEMPT_VARIABLE},  # it is no worker
                pass_fds=[self._deadline.descriptor],
                start_new_session=True,
            )
            os.set_blocking(writer, False)
            child = adopt_process(process)
        except OSError:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        with self._changing:
            self._child, self._pipe = child, writer

    def _starts_again(self) -> bool:
        try:
            self._start()
        except OSError:
            return False
        return True

    def _collect(self) -> str:
        """Wait for the guard's end and return how it ended, in words for the log."""
        with self._changing:
            child, self._child = self._child, None
            if child is None:
                return "it was not there"
            os.close(self._pipe)
        exitcode = child.collect()
        return f"exit code {exitcode}" if exitcode >= 0 else f"killed by signal {-exitcode}"

    def _write(self, word: bytes) -> None:
        """Write to the guard, unless the pipe is full or closed.

        The pipe is full only if the guard is paused; it reads the deadline when it goes on.
        """
        with self._changing, contextlib.suppress(BrokenPipeError, BlockingIOError):
            if self._child is not None:
                os.write(self._pipe, word)


async def _wait_for_end(child: Child) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(child.pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(child.pidfd)
