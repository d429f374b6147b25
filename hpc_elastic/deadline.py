"""Until when a node's workers may run: eight bytes of memory that the agent, its guard and new workers share.

The agent writes; whoever is about to kill a worker, or to become one, reads what holds at that very moment,
whichever of the processes was paused meanwhile. The memory has no name and goes with the last process that has it.
"""

from __future__ import annotations

import mmap
import os

from hpc_elastic.clock import now

_SIZE = 8  # of a double, which a processor reads and writes at once if it is aligned


class Deadline:
    """A moment of `clock.now`, which all processes of a machine share; `inf` while nothing ends.

    Args:
        descriptor: of the memory; the caller's, and not needed for what is read later.
        is_writable: whether `set` may be called.
    """

    def __init__(self, descriptor: int, *, is_writable: bool = False) -> None:
        self.descriptor = descriptor
        access = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
        self._memory = mmap.mmap(descriptor, _SIZE, prot=access)
        self._value = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls) -> Deadline:
        """Memory that a child gets by `pass_fds`, with the moment `inf`."""
        descriptor = os.memfd_create("hpc-elastic-deadline")
        os.truncate(descriptor, _SIZE)
        deadline = cls(descriptor, is_writable=True)
        deadline.set(float("inf"))
        return deadline

    @property
    def value(self) -> float:
        """The moment, by `clock.now`."""
        return self._value[0]

    @property
    def has_passed(self) -> bool:
        """Whether no worker may run, or start, now."""
        return now() >= self.value

    def set(self, moment: float) -> None:
        """Moves it."""
        self._value[0] = moment

    def close(self) -> None:
        """Gives the memory and the descriptor back."""
        self._value.release()
        self._memory.close()
        os.close(self.descriptor)
