"""Finds and withdraws the waiting tasks of an array on this machine, and finds the processes of a task.

Theory of operation: the array's script starts the tasks, a limited number at a time. The process that creates a
task's output file decides over the task: if it is the script, it starts the task; if it is a process that cancels
the task, the task never starts. So a task without an output file waits, as long as the script lives. The script's
working directory is the array's folder and is read from /proc, so that a caller needs only the task's id.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hpc_elastic.job_ids import array_task_id
from hpc_elastic.processes import Process, read_environment
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.scheduler.local.step import JOB_ID_VARIABLE

ARRAY_TASK_VARIABLE = "HPC_ELASTIC_LOCAL_ARRAY_TASK"  # set by an array's script for the script of a task


class WaitingTasks:
    """The tasks of an array whose script lives.

    Args:
        array: the array's id.
        folder: the folder of its run directories.
    """

    def __init__(self, array: str, folder: str) -> None:
        self._array = array
        self._layout = ArrayLayout(folder)

    @classmethod
    def of(cls, array: str, script: Process) -> WaitingTasks | None:
        """Return the tasks of this array's script; None if the script has ended meanwhile."""
        with contextlib.suppress(OSError):
            return cls(array, os.readlink(f"/proc/{script.pid}/cwd"))
        return None

    @property
    def is_in_place(self) -> bool:
        """Whether the script has changed to the array's folder; before that, none of its tasks has started."""
        return os.path.isfile(self._layout.task(0).plan)

    def has(self, task: int) -> bool:
        """Return whether this task waits to be started."""
        return os.path.isfile(self._layout.task(task).plan) and not os.path.exists(self._output(task))

    def all(self) -> Iterator[int]:
        """Yield the tasks that wait; none if the script is that of a single run."""
        with contextlib.suppress(OSError):
            numbers = [int(name) for name in os.listdir(self._layout.root) if name.isdecimal()]
            yield from (number for number in sorted(numbers, reverse=True) if self.has(number))

    def withdraw(self, task: int) -> None:
        """Make sure that the task never starts; do nothing if it has started."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._output(task), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, b"hpc_elastic: cancelled before it started\n")
            os.close(descriptor)

    def _output(self, task: int) -> str:
        return self._layout.task(task).script_output(array_task_id(self._array, task))


def carries(process: Process, job_id: str) -> bool:
    """Return whether the process was started for this job or a task of this array; False for another user's."""
    ours = tuple(f"{name}={job_id}".encode() for name in (JOB_ID_VARIABLE, ARRAY_TASK_VARIABLE))
    return any(
        entry in ours or entry.startswith(tuple(own + b"_" for own in ours))
        for entry in read_environment(process.pid).split(b"\0")
    )
