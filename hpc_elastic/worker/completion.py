"""Completes a saved state beside the training: commits it when its devices have copied it, and computes its checksum.

The checksum takes longer than the copy (0041), and nobody waits for it: an agent takes a state without one for what it
is. So a save that needs the memory of a state ends its checksum, which is computed piece by piece for that; a training
that saves more often than checksums can be computed has states without one, and is not slowed down.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable

from hpc_elastic.state_memory import CRC, CRC_OF, SEQUENCE

PIECE_BYTES = 8 * 1024 * 1024  # some milliseconds, for which a save may wait


class Completion(threading.Thread):
    """The thread for one state, in a slot of a rank's memory; zlib lets other threads run meanwhile.

    Args:
        memory: the state.
        header: of its slot.
        sequence: the number of its commit.
        wait: returns when the copy from devices is there, and raises a RuntimeError if a device has failed; None if the
            state is there and committed already.
    """

    def __init__(
        self, memory: memoryview, header: memoryview, sequence: int, wait: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name="hpc-elastic-checksum", daemon=True)
        self._memory, self._header, self._sequence, self._wait = memory, header, sequence, wait
        self._is_copied = threading.Event()
        self._is_in_vain = False

    def run(self) -> None:
        """Commit the state, unless a device has failed, and compute its checksum."""
        try:
            self.commit()
        except RuntimeError:  # the training gets the same error
            return
        crc = 0
        for begin in range(0, len(self._memory), PIECE_BYTES):
            if self._is_in_vain:
                return
            crc = zlib.crc32(self._memory[begin : begin + PIECE_BYTES], crc)
        self._header[CRC] = crc
        self._header[CRC_OF] = self._sequence

    def commit(self) -> None:
        """Wait until the state is copied, and commit it; without effect if it was committed from the start.

        Raises:
            RuntimeError: a device has failed; the state is not committed.
        """
        try:
            if self._wait is not None:
                self._wait()
                self._header[SEQUENCE] = self._sequence
        finally:
            self._is_copied.set()

    def await_commit(self) -> None:
        """Wait until the state is copied from its devices and committed, or a device has failed."""
        self._is_copied.wait()

    def end(self) -> None:
        """End the thread; its state is no longer needed, or has its checksum."""
        self._is_in_vain = True
        self.join()
