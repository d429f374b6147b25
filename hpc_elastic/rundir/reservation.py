"""Reserves disk space for a record that must not fail, because it is written after the job was submitted."""

from __future__ import annotations

import contextlib
import os

from hpc_elastic.rundir import store

_SIZE = 4096


class Reservation:
    """A file of random bytes beside `path`, later overwritten with the record, which takes no more space on most disks.

    Args:
        path: the record's path.

    Raises:
        RunDirectoryError: there is no disk space.
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
        """Turn the file into the record, atomically and durably.

        Raises:
            RunDirectoryError: the file system failed in spite of the reservation.
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
        """Free the reserved space."""
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)
