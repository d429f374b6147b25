"""The moment until which a node's workers may run, in memory that the agent, its guard and new workers share.

The memory is eight bytes. The agent writes them; a process that is about to kill a worker, or to become one, reads the
value that holds at that very moment, whichever of the processes was paused meanwhile. The memory has no name, and is
freed with the last process that maps it.
"""

from __future__ import annotations

import mmap
import os

from hpc_elastic.clock import now

_SIZE = 8  # of a double, which a processor reads and writes at once if it is aligned


class Deadline:
    """A shared deadline, a moment of `clock.now`, which all processes of a machine share; `inf` means no deadline.

    Args:
        descriptor: the memory's file descriptor; the caller owns it, and later reads do not need it.
        is_writable: whether `set` may be called.
    """

    def __init__(self, descriptor: int, *, is_writable: bool = False) -> None:
        self.descriptor = descriptor
        access = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
        self._memory = mmap.mmap(descriptor, _SIZE, prot=access)
        self._value = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls) -> Deadline:
        """Create the memory, which a child gets by `pass_fds`, with the deadline `inf`."""
        descriptor = os.memfd_create("hpc-elastic-deadline")
        os.truncate(descriptor, _SIZE)
        deadline = cls(descriptor, is_writable=True)
        deadline.set(float("inf"))
        return deadline

    @property
    def value(self) -> float:
        """The deadline, as a moment of `clock.now`."""
        return self._value[0]

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed, so that no worker may run or start now."""
        return now() >= self.value

    def set(self, moment: float) -> None:
        """Move the deadline to `moment`."""
        self._value[0] = moment

    def close(self) -> None:
        """Free the memory and close the descriptor."""
        self._value.release()
        self._memory.close()
        os.close(self.descriptor)
