"""Starts worker processes, each as a new Python or as a fork; blocking, so it runs in a thread."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.workers.heartbeats import HeartbeatFiles
from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.rank_states import StateFiles
from hpc_elastic.deadline import Deadline
from hpc_elastic.plan.roles import EntrypointKind
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.error_file import read_log_tail
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import ask_anew_in
from hpc_elastic.rundir.store import FILE_MODE, make_directory

Stream = int | Literal["null", "inherit"]  # a descriptor, /dev/null, or the agent's own stream


class RankOutput(Protocol):
    """The way of one worker's output into logs that the agent writes."""

    def open(self, stream: Std) -> int:
        """Return a descriptor for a stream of the worker, which the caller closes.

        Raises:
            OSError: there is none to be had.
        """

    def stderr_tail(self) -> str:
        """Return the end of what the worker has written to standard error; blocks for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """The values with which one worker is started.

    `target` is the path of a script, the name of a module, the program of a command, or the file that holds a function.
    `heartbeat` are the descriptors for its heartbeats and stacks, `state` those for its training states in memory; the
    worker inherits them. `output` is where its redirected streams go; None: to files of its own. `has_folder` says that
    the rank's folder is made at its start.
    """

    rank: int
    local_rank: int
    attempt: int
    kind: EntrypointKind
    target: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    destinations: LogDestinations = field(default_factory=LogDestinations)
    heartbeat: HeartbeatFiles | None = None
    state: StateFiles | None = None
    output: RankOutput | None = None
    has_folder: bool = True

    def stderr_tail(self, layout: RunLayout) -> str:
        """Return the end of what the worker has written to standard error; "" if that did not go to a log.

        A command that has written nothing there may join its streams (`python train.py 2>&1 | tee train.log`): then
        it is the end of its standard output.
        """
        if self.output is not None and Std.ERR & self.destinations.redirected:
            return self.output.stderr_tail()
        tail = read_log_tail(layout.stderr(self.attempt, self.rank))
        is_joined = self.kind == "command" and not tail.strip()
        return read_log_tail(layout.stdout(self.attempt, self.rank)) if is_joined else tail


class StartFailedError(Exception):
    """Raised if a worker could not be started, so that none of its node's workers runs.

    `is_passing` says that the cause may be gone in a second: no memory, or a file system that does not answer.
    """

    def __init__(self, order: WorkerOrder, why: str, *, is_passing: bool) -> None:
        super().__init__(why)
        self.order = order
        self.is_passing = is_passing


class SpawnedWorker(Child):
    """A worker process, with the order that it was started with, and when that was (monotonic)."""

    __slots__ = ("order", "started")

    def __init__(self, order: WorkerOrder, child: Child) -> None:
        self.order = order
        self.pid, self.pidfd = child.pid, child.pidfd
        self.started = time.monotonic()


class Starter(Protocol):
    """A way to start a worker; its name is a value of the plan's `start`."""

    @property
    def name(self) -> Literal["fork", "spawn"]:
        """The name of this way: fork or spawn."""

    def start_worker(self, order: WorkerOrder, *, stdout: Stream, stderr: Stream) -> Child:
        """Start a worker, in a session of its own.

        Raises:
            OSError: the worker does not run, and nothing is left of it.
        """


def python_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options of the Python of workers with this environment.

    As under torchrun they hold no output back, which would come late, and would be lost if a signal ends them; unless
    PYTHONUNBUFFERED is set and empty.
    """
    return [] if environment.get("PYTHONUNBUFFERED") == "" else ["-u"]


class Spawner:
    """Starts a worker as a new Python process, which imports what the worker needs.

    Args:
        package_dir: the folder of this package.
        deadline: the time until which workers may run, which a new worker checks before it runs the user's code.
    """

    name: Literal["fork", "spawn"] = "spawn"

    def __init__(self, package_dir: str, deadline: Deadline) -> None:
        self._deadline = deadline
        self._bootstrap = [os.path.join(package_dir, "launch.py"), "hpc_elastic.worker.bootstrap"]

    def start_worker(self, order: WorkerOrder, *, stdout: Stream, stderr: Stream) -> Child:
        """Implement `Starter`: start a worker, in a session of its own."""
        ties = ["--parent", str(os.getpid()), "--deadline", str(self._deadline.descriptor)]
        inherited = [self._deadline.descriptor]
        if (files := order.heartbeat) is not None:
            ties += ["--heartbeat", str(files.memory), "--stack", str(files.stack)]
            inherited += [files.memory, files.stack]
        if (states := order.state) is not None:
            ties += ["--state", str(states.own), "--node-state", str(states.node)]
            inherited += [states.own, states.node]
        python = [sys.executable, *python_options(order.environment)]
        process = subprocess.Popen(
            [*python, *self._bootstrap, *ties, f"--{order.kind}", order.target, "--", *order.arguments],
            env=order.environment,
            cwd=order.directory,
            stdin=subprocess.DEVNULL,
            stdout=_popens(stdout),
            stderr=_popens(stderr),
            pass_fds=inherited,
            start_new_session=True,
        )
        return adopt_process(process)


def spawn_workers(orders: Sequence[WorkerOrder], layout: RunLayout, starter: Starter) -> list[SpawnedWorker]:
    """Start all of a node's workers, or none.

    Args:
        orders: what the workers are started with.
        layout: the file names for their output.
        starter: the way to start them.

    Raises:
        StartFailedError: a worker could not be started.
    """
    for folder in {layout.root, *(order.directory for order in orders)}:
        ask_anew_in(folder)  # else a checkpoint that the last attempt wrote elsewhere may be hidden from these workers
    spawned: list[SpawnedWorker] = []
    for order in orders:
        try:
            spawned.append(_start(order, layout, starter))
        except OSError as error:
            for worker in spawned:
                worker.kill()
                worker.collect()
            why = f"{error.strerror or error}: {error.filename or order.target}"
            raise StartFailedError(order, why, is_passing=True) from error
    return spawned


def _start(order: WorkerOrder, layout: RunLayout, starter: Starter) -> SpawnedWorker:
    if order.has_folder:
        make_directory(layout.rank(order.attempt, order.rank))
    with contextlib.ExitStack() as files:
        stdout = _open_stream(files, order, Std.OUT, layout.stdout(order.attempt, order.rank))
        stderr = _open_stream(files, order, Std.ERR, layout.stderr(order.attempt, order.rank))
        return SpawnedWorker(order, starter.start_worker(order, stdout=stdout, stderr=stderr))


def _open_stream(files: contextlib.ExitStack, order: WorkerOrder, stream: Std, path: str) -> Stream:
    if stream & order.destinations.redirected:
        if order.output is not None:
            descriptor = order.output.open(stream)
            files.callback(os.close, descriptor)
            return descriptor
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        files.callback(os.close, descriptor)
        return descriptor
    return "null" if stream & order.destinations.dropped else "inherit"


def _popens(stream: Stream) -> int | None:
    if isinstance(stream, int):
        return stream
    return subprocess.DEVNULL if stream == "null" else None
