"""The agent's side of the guard: starts it, moves its deadline, and starts it again when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable

from hpc_elastic.agent.guard.process import BYE, NEARER
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE
from hpc_elastic.deadline import Deadline

LEAVES_WITHIN_S = 2.0
AGAIN_AFTER_S = 1.0  # a node without memory would kill the next one at once, too


class GuardLink:
    """A running guard; see `agent.guard.process`. Its end of the pipe closes when this agent dies, however it dies.

    Args:
        package_dir: the folder of this package.
        run_dir: the run's directory, and
        node: this node's name, by which the workers are found.
        deadline: until when the workers may run, which new ones look at, too.
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
        ]
        self._deadline = deadline
        self._pipe = -1
        self._changing = threading.Lock()  # the pipe is another one's number once it is closed
        self._child: Child | None = None
        self._start()

    def pids(self) -> list[int]:
        """The guard's process id, if there is one; to be asked in the thread."""
        return [self._child.pid] if self._child is not None else []

    def set_deadline(self, deadline: float) -> None:
        """Until when the workers may run without another word, by `clock.now`."""
        is_nearer = deadline < self._deadline.value
        self._deadline.set(deadline)
        if is_nearer:
            self._write(NEARER)

    async def keep(self, thread: BackgroundThread, say: Callable[[str], None]) -> None:
        """Starts another guard whenever this one ends, in the thread for processes; does not return.

        One that cannot be started, or ends at once, is tried again every second: a node without memory
        may have some then.
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
        """No worker is left: the guard goes, and one that does not is killed."""
        self._write(BYE)
        if self._child is not None:
            ending = select.poll()
            ending.register(self._child.pidfd, select.POLLIN)
            if not ending.poll(LEAVES_WITHIN_S * 1000):
                self._child.kill()
        self._collect()

    def _start(self) -> None:
        """Starts a guard.

        Raises:
            OSError: it cannot be started.
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
        """Waits for its end; returns how it was."""
        with self._changing:
            child, self._child = self._child, None
            if child is None:
                return "it was not there"
            os.close(self._pipe)
        exitcode = child.collect()
        return f"exit code {exitcode}" if exitcode >= 0 else f"killed by signal {-exitcode}"

    def _write(self, word: bytes) -> None:
        """A guard that has not read what is there already is paused, and looks at the deadline when it goes on."""
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
