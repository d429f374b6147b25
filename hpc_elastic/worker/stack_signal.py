"""Lets a worker write the Python stacks of all its threads when its agent signals it.

The signal is SIGURG. Its default is to be ignored, so it harms no process that has lost the handler, as after an exec,
and none that never had one; nothing else sends it, but for sockets with urgent data whose owner asked for it.
The handler is faulthandler's, in C: it works while the GIL is held, in a blocked system call, and in a collective.
System calls are restarted after it where the kernel can do that; C's `sleep` returns early.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal

from hpc_elastic.heartbeat_memory import SIGNAL

STACK_SIGNAL = signal.SIGURG
_OUT_OF_THE_WAY = 200  # a script that closes all descriptors and opens files gets the lowest numbers


def write_stacks_at_signal(descriptor: int, slot: memoryview) -> None:
    """Have this process write its stacks to the file, which it takes over, and say so in its slot.

    Args:
        descriptor: the file; its number changes.
        slot: this rank's numbers in the heartbeat memory.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = _OUT_OF_THE_WAY if limit == resource.RLIM_INFINITY or limit > _OUT_OF_THE_WAY else 3
    try:
        kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        os.close(descriptor)
        faulthandler.register(STACK_SIGNAL, file=kept, all_threads=True)
    except (OSError, RuntimeError, AttributeError):  # a rank without stacks is better than none
        return
    slot[SIGNAL] = STACK_SIGNAL
