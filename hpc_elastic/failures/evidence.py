"""What is known of a worker that failed, as values: the ground on which `classify` decides."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.failures.xid import Xid


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a memory cgroup says: how many of its processes the kernel killed since the start of the attempt.

    `peak` and `limit` are in bytes, None if unknown or without a limit.
    """

    oom_kills: int
    peak: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """How much a file system had left right after the failure, in bytes; `place` is its path, as people know it.

    `files` is how many files it has where it has no inode for another one, else 0.
    """

    place: str
    free: int
    total: int
    files: int = 0

    @property
    def is_full(self) -> bool:
        """Whether less than a thousandth, or less than a megabyte, is free."""
        return self.total > 0 and self.free < max(self.total // 1000, min(1 << 20, self.total // 10))

    @property
    def takes_no_file(self) -> bool:
        """Whether a new file finds no room: it is full, or has no inode left."""
        return self.is_full or self.files > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureEvidence:
    """What is known of a worker that failed.

    Attributes:
        exit_code: its exit status, None if a signal ended it.
        signal_name: that signal, such as `SIGKILL`.
        is_started: False if it could not be started at all; then `message` says why.
        written_by: who wrote an error file: `bootstrap`, `record` (torch's @record), or "" for nobody.
        failure_class: the class in the error file, "" for none.
        message: the error file's message.
        exception_type: the qualified name of the exception that ended it, as far as the error file has it.
        traceback: the error file's traceback.
        stderr_tail: the end of its standard error.
        memory: what its memory cgroup says; None if it cannot be read.
        host_oom_kills: how many processes of the whole node the kernel has killed for memory meanwhile.
        free: the file systems that were measured right after.
        sent_signal: the last signal with which the agent stopped it, "" if it did not.
        has_survived_kill: whether it was still there some time after a KILL.
        directory: the worker's working directory, from which files are named.
        xids: the errors of GPUs in the node's kernel log since the start of the attempt.
    """

    exit_code: int | None = None
    signal_name: str | None = None
    is_started: bool = True
    written_by: str = ""
    failure_class: str = ""
    message: str = ""
    exception_type: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    memory: MemoryUse | None = None
    host_oom_kills: int = 0
    free: tuple[FreeSpace, ...] = ()
    sent_signal: str = ""
    has_survived_kill: bool = False
    directory: str = ""
    xids: tuple[Xid, ...] = ()

    def full(self, place: str) -> FreeSpace | None:
        """Return the measure of a file system that has no space left, if that is so."""
        return next((space for space in self.free if space.place == place and space.is_full), None)
