"""Room on the disk for a record that must not fail: it is written after the scheduler was given what it records."""

from __future__ import annotations

import contextlib
import os

from hpc_elastic.rundir import store

_SIZE = 4096


class Reservation:
    """A file of random bytes beside `path`, which becomes the record in place: that takes no more room on most disks.

    Args:
        path: the record's.

    Raises:
        RunDirectoryError: there is no room.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        directory, name = os.path.split(path)
        self._temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
        try:
            with store.file_system_errors(path):
                descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, store.FILE_MODE)
                try:
                    store.write_all(descriptor, os.urandom(_SIZE))  # a file system may compress zeros away
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except BaseException:
            self.give_up()
            raise

    def fill(self, content: bytes) -> None:
        """Makes it the record, at once and durably.

        Raises:
            RunDirectoryError: the file system failed all the same.
        """
        with store.file_system_errors(self.path):
            descriptor = os.open(self._temporary, os.O_WRONLY)
            try:
                store.write_all(descriptor, content)
                os.ftruncate(descriptor, len(content))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        store.rename(self._temporary, self.path)

    def give_up(self) -> None:
        """Frees the room."""
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)
