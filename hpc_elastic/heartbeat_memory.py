"""What a node's workers and their agent tell each other by memory: heartbeats, and the notice of a stop that comes.

Each local rank has a slot of sixteen 64-bit numbers, which a processor reads and writes at once because they are
aligned: no lock is needed, and a worker that is killed within a heartbeat leaves a slot that can be read. The memory
has no name; a worker gets its descriptor by inheritance, and it is freed with the last process that maps it.

Of each number there is one writer: the rank, but for `POLLS_FROM`, `BEATS_FROM`, `REASON`, `STOPS_NS` and
`NOTICE_SIGNAL`, which the agent writes. How these make all ranks hear of a notice at the same poll,
`membership.notice_rounds` says.
"""

from __future__ import annotations

import mmap
import os

VARIABLE = "HPC_ELASTIC_HEARTBEAT"  # MEMORY:SLOT:STACK, two descriptors and a number; of `command:` entrypoints only
MEMORY_NAME = "hpc-elastic-heartbeat"
STACK_NAME = "hpc-elastic-stack"

# The numbers of a slot.
COUNT = 0  # heartbeats so far
STEP = 1
TIME_NS = 2  # of the latest one, by CLOCK_MONOTONIC, which all processes of a machine share
PID = 3  # the process that beats and that takes the signal, 0 as long as there is none
SIGNAL = 4  # the signal at which that process writes its stacks, 0 if it has no handler
POLLS = 5  # calls of `notice_received` that have begun
POLLS_FROM = 6  # the first call that is answered by the notice; NO_NOTICE, or WAIT
BEATS_FROM = 7  # the first heartbeat that calls the functions of `on_notice`; NO_NOTICE, or WAIT
REASON = 8  # of the notice: its place in REASONS
STOPS_NS = 9  # when the workers are stopped, by CLOCK_MONOTONIC; 0: that is not known
SAVING = 10  # how many blocks of `saving` the rank is in
NOTICE_SIGNAL = 11  # the signal that the agent sends at a notice, 0 if job.yaml asks for none
FIRST_STEP = 12  # of the first heartbeat that named a step
FIRST_NS = 13  # when that was, by CLOCK_MONOTONIC; 0: none has
SLOT_NUMBERS = 16

NO_STEP = -(2**63)
NO_NOTICE = 0
WAIT = -1  # a notice is given, and the agents agree on the first call that is answered by it
REASONS = (
    "time_limit",
    "preemption",
    "operator",
)  # as `rundir.records.NOTICE_REASONS`, whose import scripts are spared
_NUMBER_BYTES = 8


def create_memory(slots: int) -> int:
    """Create the memory for so many local ranks and return its descriptor, which the caller owns."""
    descriptor = os.memfd_create(MEMORY_NAME)
    os.truncate(descriptor, max(1, slots) * SLOT_NUMBERS * _NUMBER_BYTES)
    numbers = map_memory(descriptor)
    for slot in range(slots):
        numbers[slot * SLOT_NUMBERS + STEP] = NO_STEP
    return descriptor


def create_stack_file() -> int:
    """Create the file in memory to which a worker writes its stacks, and return its descriptor, which appends."""
    descriptor = os.memfd_create(STACK_NAME)
    appending = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    os.close(descriptor)
    return appending


def map_memory(descriptor: int) -> memoryview:
    """Return the numbers of all slots; the descriptor may be closed afterwards.

    Raises:
        OSError: the descriptor is not of a memory that can be mapped.
        ValueError: the memory is empty.
    """
    return memoryview(mmap.mmap(descriptor, 0)).cast("q")


def is_memory(descriptor: int) -> bool:
    """Return whether a descriptor, which an environment variable names, is really that of a heartbeat memory."""
    return _is_named(descriptor, MEMORY_NAME)


def is_stack_file(descriptor: int) -> bool:
    """Return whether a descriptor, which an environment variable names, is really that of a file for stacks."""
    return _is_named(descriptor, STACK_NAME)


def _is_named(descriptor: int, name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{name}")
    except OSError:
        return False
