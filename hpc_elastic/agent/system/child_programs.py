"""Runs programs that may hang in the kernel: one that does not end in time is killed, and never waited for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Sequence

from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE


class NoAnswerError(Exception):
    """A program did not end within its time."""


class ChildPrograms:
    """The programs that were run, and those of them that hang."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._running: list[subprocess.Popen[str]] = []

    def pids(self) -> list[int]:
        """Return the process ids of the programs that run or hang: they are no workers; any thread may ask."""
        with self._changing:
            self._running = [child for child in self._running if child.returncode is None]
            return [child.pid for child in self._running]

    def run(self, command: Sequence[str], within_s: float) -> tuple[int, str]:
        """Run a program and return its exit code and its standard output.

        Raises:
            NoAnswerError: it did not end in time; it is killed, and may live on in the kernel.
            OSError: it cannot be started.
        """
        # Without the lock: a program on a file system that hangs may never be started, and nobody is to wait for that.
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != ATTEMPT_VARIABLE},  # it is no worker
        )
        with self._changing:
            self._running.append(child)
        try:
            stdout, _ = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(OSError):
                if child.stdout is not None:
                    child.stdout.close()
            threading.Thread(target=child.wait, name=f"wait for {command[0]}", daemon=True).start()
            raise NoAnswerError from None
        return child.returncode, stdout
