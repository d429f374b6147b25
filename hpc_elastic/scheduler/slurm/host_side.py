"""Runs Slurm's commands for an agent in an image: outside of it, where the batch script's shell on that node answers.

Theory of operation. The shell that has started the container makes a folder on the node's own disk, which the image
mounts, with a pipe in it. A question is a file with the limit in seconds, a folder and the command's words, each ended
by a NUL; its number goes into the pipe. The answer is complete when the file with the exit status is there. A second
pipe carries a line for each signal (TERM, CONT, USR1, USR2) that the shell got: where Slurm signals the tasks of a
step only, no other process of the node gets one. The other half is `hpc_elastic_answer` of
`templates/slurm/container.sh.j2`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Mapping, MutableMapping, Sequence

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.runner import MissingProgramError, no_answer, run_command

HOST_SIDE_VARIABLE = "HPC_ELASTIC_HOST_SIDE"  # the folder, in the environment of an agent in an image
HOST_PROCESS_VARIABLE = "HPC_ELASTIC_HOST_PROCESS"  # the shell outside: its process id, and its start as in /proc
SIGNALS = "terms"  # when it had its name, TERM was all that was handed on
COMMAND_NOT_FOUND = 127
LOOKS_EVERY_S = 0.01
KILLED_AFTER_S = 1.0  # beyond the limit, so that it is this side that says that there was no answer
_numbers = itertools.count(1)


def enter(directory: str, environ: MutableMapping[str, str]) -> None:
    """Take over what the shell outside has left for an agent in an image: the step's variables, and where it answers.

    Raises:
        OSError: the folder is not there, or cannot be read.
    """
    path = os.path.join(directory, "environ")
    with open(path, "rb") as file:
        entries = file.read().split(b"\0")
    if not any(entry.startswith(os.fsencode(f"{HOST_PROCESS_VARIABLE}=")) for entry in entries[:-1]):  # the last one
        raise OSError(errno.ENOSPC, "it is not complete; the disk of the node may be full", path)
    for name, equals, value in (os.fsdecode(entry).partition("=") for entry in entries):
        if equals:
            environ[name] = value
    environ[HOST_SIDE_VARIABLE] = directory


def run_from_node(
    command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> CommandOutput:
    """Run a command of Slurm, as `run_command` does, outside of the image where this process is in one.

    There the environment is that of the step on the node, without the variables that are another job's.

    Raises:
        SchedulerError: the command cannot be started, or did not end in time.
    """
    directory = os.environ.get(HOST_SIDE_VARIABLE)
    if directory is None:
        return run_command(command, environ=environ, timeout_s=timeout_s, cwd=cwd)
    return ask_host_side(directory, command, timeout_s=timeout_s, cwd=cwd)


def ask_host_side(directory: str, command: Sequence[str], *, timeout_s: float, cwd: str | None = None) -> CommandOutput:
    """Have the shell outside of the image run a command, and return how it ended.

    Raises:
        SchedulerError: nobody is there to run it, it cannot be started, or it did not end in time.
    """
    number = f"{os.getpid()}-{next(_numbers)}"
    place = os.path.join(directory, number)
    try:
        _ask(directory, number, (f"{timeout_s + KILLED_AFTER_S:.3f}", cwd or "/", *command))
        ends_at = time.monotonic() + timeout_s
        while (status := _read_status(f"{place}.status")) is None:
            if time.monotonic() >= ends_at:
                raise no_answer(command, timeout_s, _read(f"{place}.err") if os.path.exists(f"{place}.err") else "")
            time.sleep(LOOKS_EVERY_S)
        done = CommandOutput(returncode=status, stdout=_read(f"{place}.out"), stderr=_read(f"{place}.err"))
    except OSError as error:
        raise SchedulerError(f"cannot run {command[0]} outside of the image: {error.strerror or error}") from error
    finally:
        for end in ("asked", "began", "out", "err", "status"):
            with contextlib.suppress(OSError):
                os.unlink(f"{place}.{end}")
    if done.returncode == COMMAND_NOT_FOUND:
        raise MissingProgramError(f"cannot run {command[0]}: the node has no such program outside of the image")
    return done


def open_signals(environ: Mapping[str, str]) -> int | None:
    """Return the pipe with a line for each signal which the shell outside of the image got; None outside of one.

    It is open for reads that do not block, and the caller closes it.
    """
    directory = environ.get(HOST_SIDE_VARIABLE)
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return None if directory is None else os.open(os.path.join(directory, SIGNALS), flags)
    except OSError:  # a site's own copy of the template makes none; there the shell ignores them
        return None


def _ask(directory: str, number: str, words: Sequence[str]) -> None:
    with open(os.path.join(directory, f"{number}.asked"), "wb") as file:
        file.write(b"".join(os.fsencode(word) + b"\0" for word in words))
    try:
        pipe = os.open(os.path.join(directory, "requests"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "the shell that has started the container has ended") from error
        raise
    try:
        os.write(pipe, f"{number}\n".encode())  # shorter than PIPE_BUF, so that two questions never mix
    finally:
        os.close(pipe)


def _read_status(path: str) -> int | None:
    try:
        return int(_read(path))
    except FileNotFoundError:
        return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
