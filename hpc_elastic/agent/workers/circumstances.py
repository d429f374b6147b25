"""Gathers what the node says around a worker's end: kills for memory, full file systems, errors of GPUs."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from hpc_elastic.agent.system.free_space import FreeSpaceProbe, read_local_mounts
from hpc_elastic.agent.system.kernel_log import KernelLogEnd
from hpc_elastic.agent.system.memory import MemoryWatch
from hpc_elastic.failures.classify import classify
from hpc_elastic.failures.evidence import FailureEvidence, FreeSpace, MemoryUse
from hpc_elastic.failures.xid import Xid, parse_xid

MEASURE_WITHIN_S = 0.5  # the head waits for the failure's record
SHELL_KILLED = 128 + signal.SIGKILL
_IS_OF_KILLED_CHILD = re.compile(r"SIGKILL|Killed|terminated abruptly|unexpectedly")
_IS_OF_SPACE = re.compile(
    r"No space|quota|inline_container|Bus error|bus error|shared memory|write|iostream error|StorageFull"
)
_IS_OF_GPU = re.compile(r"CUDA|NCCL|cuBLAS|cuDNN|GPU|nccl")
_QUOTED = re.compile(r"""["']([^"'\n:]{1,1024})["']""")
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured after a worker's end, as far as its end gives a reason to."""

    memory: MemoryUse | None = None
    host_oom_kills: int = 0
    free: tuple[FreeSpace, ...] = ()
    xids: tuple[Xid, ...] = ()


class Circumstances:
    """The circumstances on this node of the workers of one attempt after the other.

    Args:
        run_dir: the run directory.
        memory: the kernel's word on memory.
        root: the folder in which `dev/kmsg` is looked for.
    """

    def __init__(self, run_dir: str, memory: MemoryWatch | None = None, root: str = "") -> None:
        self._log = KernelLogEnd(root)
        self._xids: list[Xid] = []  # of the attempt, as far as the log was read
        self._memory = memory or MemoryWatch()
        places = {"/dev/shm": "/dev/shm", "the run directory": run_dir}
        scratch = os.environ.get("TMPDIR") or "/tmp"  # `tempfile` would write there, and wait for a disk that hangs
        self._space = FreeSpaceProbe(places | {f"TMPDIR ({scratch})": scratch})

    def mark(self) -> None:
        """Remember what is so before an attempt's workers start."""
        self._memory.mark()
        self._log.skip()
        self._xids.clear()

    def measure(self, pid: int, exitcode: int, text: str, directory: str = "") -> Measured:
        """Measure what can have to do with a worker's end.

        Args:
            pid: the worker's process id.
            exitcode: its exit code, negative for a signal.
            text: its last words: the exception and the end of its standard error.
            directory: its working directory.
        """
        memory, host_kills = None, 0
        free: tuple[FreeSpace, ...] = ()
        if exitcode in (-signal.SIGKILL, SHELL_KILLED) or _IS_OF_KILLED_CHILD.search(text):
            memory, host_kills = self._memory.look(pid if exitcode == -signal.SIGKILL else 0)
        if exitcode == -signal.SIGBUS or _IS_OF_SPACE.search(text):
            free = self._space.measure(MEASURE_WITHIN_S, (*named_folders(text, directory), *read_local_mounts()))
        is_of_gpu = _IS_OF_GPU.search(text) is not None
        xids = self._read_xids() if is_of_gpu else ()
        return Measured(memory=memory, host_oom_kills=host_kills, free=free, xids=xids)

    def explain_kill(self, pid: int) -> str:
        """Return how a process of the agent ended that a SIGKILL ended: for memory, as far as the kernel says so.

        Its kills count since the last mark.
        """
        memory, host_kills = self._memory.look(pid)
        found = classify(FailureEvidence(signal_name="SIGKILL", memory=memory, host_oom_kills=host_kills))
        is_told = not found.detail or found.detail in found.message
        return found.message if is_told else f"{found.message} ({found.detail})"

    def _read_xids(self) -> tuple[Xid, ...]:
        new = (xid for record in self._log.read() if (xid := parse_xid(record)) is not None)
        self._xids = [*dict.fromkeys((*self._xids, *new))]
        return tuple(self._xids)


def named_folders(text: str, directory: str) -> tuple[str, ...]:
    """Return the working directory, and the folders of files that a text quotes, such as `"data/last.pt"`.

    A traceback quotes the names of source files too, in lines of their own; a program does not write there.

    Args:
        text: what a program left: a traceback with lines of its source, an error message.
        directory: its working directory, from which names are resolved; "" if it is not known.
    """
    lines = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("File "))
    names = [name for name in _QUOTED.findall(lines) if "/" in name.strip("/") or name.startswith("/")]
    paths = [os.path.normpath(os.path.join(directory, os.path.dirname(name))) for name in names]
    found = [path for path in dict.fromkeys((directory, *paths[-_MOST_NAMED:])) if path.startswith("/")]
    return tuple(found)
