"""Starts worker processes; blocking, so it runs in a thread."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpc_elastic.agent.log_destinations import LogDestinations
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import FILE_MODE, make_directory

START_TRIES = 3
START_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What one worker is started with."""

    rank: int
    local_rank: int
    attempt: int
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    destinations: LogDestinations = field(default_factory=LogDestinations)


class StartFailedError(Exception):
    """A worker could not be started, after all tries; none of its node's workers runs."""

    def __init__(self, order: WorkerOrder, cause: OSError) -> None:
        super().__init__(f"{cause.strerror or cause}: {cause.filename or order.command[0]}")
        self.order = order


class SpawnedWorker:
    """A worker process and its pidfd."""

    __slots__ = ("_process", "order", "pid", "pidfd")

    def __init__(self, order: WorkerOrder, process: subprocess.Popen[bytes]) -> None:
        self.order = order
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self._process = process

    def collect(self) -> int:
        """Takes the exit code of a worker that has ended; negative for a signal, as in torch."""
        status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if status is None:
            raise ChildProcessError(f"worker {self.pid} has no exit status")
        exitcode = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self._process.returncode = exitcode  # else Popen thinks that it still runs
        return exitcode


def spawn_workers(
    orders: Sequence[WorkerOrder],
    layout: RunLayout,
    *,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
) -> list[SpawnedWorker]:
    """Starts all of a node's workers, or none.

    What may be the node's passing trouble (no memory, a file system that does not answer) is tried
    again after a second.

    Args:
        orders: what the workers are started with.
        layout: where their output goes.
        say: told of each try that failed.
        pause: waits so many seconds.

    Raises:
        StartFailedError: it did not work in `START_TRIES` tries.
    """
    for attempt in range(START_TRIES):
        spawned: list[SpawnedWorker] = []
        for order in orders:
            try:
                spawned.append(_spawn(order, layout))
            except OSError as error:
                _kill(spawned)
                if attempt + 1 == START_TRIES:
                    raise StartFailedError(order, error) from error
                why = f"{error.strerror or error}: {error.filename or order.command[0]}"
                say(f"rank {order.rank} could not be started ({why}); try {attempt + 2} of {START_TRIES} follows")
                pause(START_AGAIN_S)
                break
        else:
            return spawned
    raise AssertionError("unreachable: the last try returns or raises")


def _spawn(order: WorkerOrder, layout: RunLayout) -> SpawnedWorker:
    process = _start(order, layout)
    try:
        return SpawnedWorker(order, process)
    except OSError:  # no file descriptor is left for its pidfd
        process.kill()
        process.wait()
        raise


def _start(order: WorkerOrder, layout: RunLayout) -> subprocess.Popen[bytes]:
    make_directory(layout.rank(order.attempt, order.rank))
    with contextlib.ExitStack() as files:
        stdout = _open_stream(files, order, Std.OUT, layout.stdout(order.attempt, order.rank))
        stderr = _open_stream(files, order, Std.ERR, layout.stderr(order.attempt, order.rank))
        return subprocess.Popen(
            order.command,
            env=order.environment,
            cwd=order.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def _open_stream(files: contextlib.ExitStack, order: WorkerOrder, stream: Std, path: str) -> int | None:
    """A descriptor for a worker's stream; None for the agent's own."""
    if stream & order.destinations.redirected:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        files.callback(os.close, descriptor)
        return descriptor
    return subprocess.DEVNULL if stream & order.destinations.dropped else None


def _kill(spawned: Sequence[SpawnedWorker]) -> None:
    for worker in spawned:
        os.kill(worker.pid, signal.SIGKILL)
        worker.collect()
