"""The classes of failures: what each means, and whether it can be the cause of the failures of other ranks.

The value of a class is the word in `error.json` and in the records; words are only ever added. The rules by which a
failure gets its class are in `classify`; the choice of the cause among many failures is in `root_cause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Blame(int, Enum):
    """How far a failure can be the cause of an attempt's end; a lower one goes before a higher one."""

    CULPRIT = 0  # it failed by itself
    VICTIM = 1  # it failed because another rank failed, did not take part, or could not be reached
    STOPPED = 2  # it was stopped by an agent or from outside, because the run stopped


class FailureClass(str, Enum):
    """What ended a worker, or a node's part in an attempt."""

    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    BUS_ERROR = "bus_error"
    SHARED_MEMORY_FULL = "shared_memory_full"
    SEGMENTATION_FAULT = "segmentation_fault"
    ABORTED = "aborted"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    PEER_LOST = "peer_lost"
    STALLED = "stalled"
    UNKILLABLE = "unkillable"
    TORN_DOWN = "torn_down"
    SILENT = "silent"
    NODE_LOST = "node_lost"
    AGENT_LOST = "agent_lost"
    DISK_FULL = "disk_full"
    FILE_SYSTEM = "file_system"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    IMPORT_ERROR = "import_error"
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    CUDA_HARDWARE = "cuda_hardware"
    CUDA_ILLEGAL_ACCESS = "cuda_illegal_access"
    CUDA_NO_DEVICE = "cuda_no_device"
    CUDA_ERROR = "cuda_error"
    PORT_IN_USE = "port_in_use"
    RENDEZVOUS = "rendezvous"
    START_FAILED = "start_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a class says: a phrase for people, its blame, and what to do next."""

    phrase: str
    blame: Blame
    advice: str


_C, _V, _S = Blame.CULPRIT, Blame.VICTIM, Blame.STOPPED

MEANINGS: dict[FailureClass, Meaning] = {
    FailureClass.EXCEPTION: Meaning(
        phrase="an exception that nothing caught", blame=_C, advice="read the traceback in its error.json"
    ),
    FailureClass.EXIT_CODE: Meaning(
        phrase="an exit code other than 0, without an exception",
        blame=_C,
        advice="look for sys.exit or os._exit in the script, and at the end of its standard error",
    ),
    FailureClass.SIGNAL: Meaning(
        phrase="a signal from outside of the run",
        blame=_C,
        advice="ask who sent it: another program of yours, an epilog, a node's cleanup, an administrator",
    ),
    FailureClass.OUT_OF_MEMORY: Meaning(
        phrase="the kernel's out-of-memory killer",
        blame=_C,
        advice="ask for more memory (sbatch.mem), or use less: fewer data loader workers, a smaller batch",
    ),
    FailureClass.BUS_ERROR: Meaning(
        phrase="a bus error: memory that a file or a device no longer backs",
        blame=_C,
        advice="look whether a mapped file was truncated, or its file system filled up or went away",
    ),
    FailureClass.SHARED_MEMORY_FULL: Meaning(
        phrase="no room in shared memory (/dev/shm)",
        blame=_C,
        advice="use fewer data loader workers or smaller batches, or ask for more shared memory on the node",
    ),
    FailureClass.SEGMENTATION_FAULT: Meaning(
        phrase="a segmentation fault in native code",
        blame=_C,
        advice="read the stack in its standard error; compare extensions and libraries between the nodes",
    ),
    FailureClass.ABORTED: Meaning(
        phrase="native code that gave up (SIGABRT)",
        blame=_C,
        advice="read the lines before the end of its standard error: an assertion or a C++ exception",
    ),
    FailureClass.COLLECTIVE_TIMEOUT: Meaning(
        phrase="a collective that timed out, because another rank did not take part",
        blame=_V,
        advice="look at the ranks that were silent: where they were is in their stacks",
    ),
    FailureClass.PEER_LOST: Meaning(
        phrase="a connection to another rank that broke",
        blame=_V,
        advice="look at the other rank or its node; this one is a consequence",
    ),
    FailureClass.STALLED: Meaning(
        phrase="no heartbeat within stall_timeout",
        blame=_C,
        advice="read the grouped stacks: what the rank waited for when it was stopped",
    ),
    FailureClass.UNKILLABLE: Meaning(
        phrase="a process that survived KILL",
        blame=_C,
        advice="it waits in the kernel, usually for a file system or a device: the node needs its administrator",
    ),
    FailureClass.TORN_DOWN: Meaning(
        phrase="stopped by its agent, because another rank failed", blame=_S, advice="it is a consequence"
    ),
    FailureClass.SILENT: Meaning(
        phrase="neither failed nor took part",
        blame=_C,
        advice="look where it was when it was stopped: a slow file, a lock, a branch that only this rank took",
    ),
    FailureClass.NODE_LOST: Meaning(
        phrase="a node that could not be reached any more",
        blame=_C,
        advice="ask the administrator about the node: power, network, kernel",
    ),
    FailureClass.AGENT_LOST: Meaning(
        phrase="an agent, or a process of it, that ended while its node lived",
        blame=_C,
        advice="look at the end of the agent's output, and whether the node ran out of memory",
    ),
    FailureClass.DISK_FULL: Meaning(
        phrase="no space, or no quota, where it wrote",
        blame=_C,
        advice="free space or raise the quota; remove old checkpoints",
    ),
    FailureClass.FILE_SYSTEM: Meaning(
        phrase="a file system that failed: stale, gone, read-only, or with an input/output error",
        blame=_C,
        advice="ask the administrator about the file system on that node",
    ),
    FailureClass.TIME_LIMIT: Meaning(
        phrase="the job's time limit", blame=_S, advice="ask for more time, or requeue at the limit"
    ),
    FailureClass.PREEMPTED: Meaning(
        phrase="preemption by another job", blame=_S, advice="requeue on preemption, or use another partition"
    ),
    FailureClass.CANCELLED: Meaning(phrase="a stop that a person asked for", blame=_S, advice=""),
    FailureClass.IMPORT_ERROR: Meaning(
        phrase="a module that could not be imported",
        blame=_C,
        advice="compare the environment of that node with the others: a missing package, path or library",
    ),
    FailureClass.CUDA_OUT_OF_MEMORY: Meaning(
        phrase="a GPU without enough free memory",
        blame=_C,
        advice="use a smaller batch, or look whether another process holds the GPU",
    ),
    FailureClass.CUDA_HARDWARE: Meaning(
        phrase="a GPU that failed: an uncorrectable memory error, or one that has fallen off the bus",
        blame=_C,
        advice="leave the node out (sbatch.exclude) and tell its administrator",
    ),
    FailureClass.CUDA_ILLEGAL_ACCESS: Meaning(
        phrase="an illegal memory access, or a failed assertion, in a GPU kernel",
        blame=_C,
        advice="run once with CUDA_LAUNCH_BLOCKING=1; look for an index out of range",
    ),
    FailureClass.CUDA_NO_DEVICE: Meaning(
        phrase="no GPU where one was expected",
        blame=_C,
        advice="compare resources.gpus_per_node with what the node has, and ask its administrator",
    ),
    FailureClass.CUDA_ERROR: Meaning(
        phrase="another error of CUDA, or of a library of it", blame=_C, advice="read the traceback in its error.json"
    ),
    FailureClass.PORT_IN_USE: Meaning(
        phrase="a network port that another process holds",
        blame=_C,
        advice="do not fix a port in the script: use MASTER_PORT, which is free",
    ),
    FailureClass.RENDEZVOUS: Meaning(
        phrase="a process group that did not come about",
        blame=_V,
        advice="look whether every rank reached init_process_group, and at the interface names",
    ),
    FailureClass.START_FAILED: Meaning(
        phrase="a program that could not be started", blame=_C, advice="check the entrypoint and the Python of the node"
    ),
}


def blame_of(word: str) -> Blame:
    """Return the blame of a class by its word in a record; a word that only a newer version knows is a culprit's."""
    try:
        return MEANINGS[FailureClass(word)].blame
    except ValueError:
        return Blame.CULPRIT
