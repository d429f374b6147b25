"""The agent's side of the guard: starts it and moves its deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from hpc_elastic.agent.guard import BYE


class GuardLink:
    """A running guard; see `agent.guard`. Its end of the pipe closes when this agent dies, however it dies."""

    def __init__(self, package_dir: str, *, run_dir: str, node: str) -> None:
        launch = os.path.join(package_dir, "launch.py")
        command = [sys.executable, launch, "hpc_elastic.agent.guard", run_dir, node]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        self.deadline = self._known = float("inf")

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._process.pid

    def set_deadline(self, deadline: float) -> None:
        """Until when the workers may run without another word, in monotonic seconds."""
        self.deadline = deadline
        if deadline != self._known and self._write(f"{deadline!r}\n"):
            self._known = deadline

    def dismiss(self) -> None:
        """No worker is left; the guard may go."""
        self._write(f"{BYE}\n")
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> bool:
        """Whether the guard will read it: nobody waits for one that is paused, and the agent itself fences still."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._process.stdin.fileno(), line.encode())
                return True
        return False
