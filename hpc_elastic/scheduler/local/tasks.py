"""The tasks of an array on this machine: which wait, how one is withdrawn, and which processes are whose.

Theory of operation: the array's script starts the tasks, so many at a time. Who creates a task's output
file decides over it: the script, which starts it then, or whoever cancels it, and it never starts. So
what has no output file waits, as long as the script lives. Its working directory is the array's folder,
and the kernel tells it, so that nobody needs to know the folder to ask for a task.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hpc_elastic.job_ids import array_task_id
from hpc_elastic.processes import Process, read_environment
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.scheduler.local.step import JOB_ID_VARIABLE

ARRAY_TASK_VARIABLE = "HPC_ELASTIC_LOCAL_ARRAY_TASK"  # an array's script sets it for a task's


class WaitingTasks:
    """The tasks of an array whose script lives.

    Args:
        array: its id.
        folder: where its run directories are.
    """

    def __init__(self, array: str, folder: str) -> None:
        self._array = array
        self._layout = ArrayLayout(folder)

    @classmethod
    def of(cls, array: str, script: Process) -> WaitingTasks | None:
        """Those of this script; None if it has ended meanwhile."""
        with contextlib.suppress(OSError):
            return cls(array, os.readlink(f"/proc/{script.pid}/cwd"))
        return None

    @property
    def is_in_place(self) -> bool:
        """Whether the script has come to the array's folder; none of its tasks has started before."""
        return os.path.isfile(self._layout.task(0).plan)

    def has(self, task: int) -> bool:
        """Whether this task waits."""
        return os.path.isfile(self._layout.task(task).plan) and not os.path.exists(self._output(task))

    def all(self) -> Iterator[int]:
        """The tasks that wait; none if the script is that of a single run."""
        with contextlib.suppress(OSError):
            numbers = [int(name) for name in os.listdir(self._layout.root) if name.isdecimal()]
            yield from (number for number in sorted(numbers, reverse=True) if self.has(number))

    def withdraw(self, task: int) -> None:
        """Sees to it that the task never starts; nothing if it did."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._output(task), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, b"hpc_elastic: cancelled before it started\n")
            os.close(descriptor)

    def _output(self, task: int) -> str:
        return self._layout.task(task).script_output(array_task_id(self._array, task))


def carries(process: Process, job_id: str) -> bool:
    """Whether the process was started for this job, or for a task of this array; not of another user's."""
    ours = tuple(f"{name}={job_id}".encode() for name in (JOB_ID_VARIABLE, ARRAY_TASK_VARIABLE))
    return any(
        entry in ours or entry.startswith(tuple(own + b"_" for own in ours))
        for entry in read_environment(process.pid).split(b"\0")
    )
