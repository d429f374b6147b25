"""Forks a process that becomes the agent's own child, and is either fully set up or does not exist.

Theory of operation. The server forks a middle process, which forks the new process and waits while that one
sets itself up. If that fails, the new process reports the error and ends, and the middle process collects it
and ends as well: nothing is left. Else the server kills and collects the middle process; from then on the
new process is the agent's child, because the agent is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)). Only
then may it go on, and ties its life to its new parent. Signals wait from before the fork until the new
process has its own dispositions: none is lost, and none finds the server's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

from hpc_elastic.death_signal import die_with_parent


def fork_to_agent(set_up: Callable[[], None], *, agent: int) -> int | None:
    """Fork this process, which has one thread, into a child of the agent.

    Args:
        set_up: sets the new process up; called in that process.
        agent: the process that is to be the parent.

    Returns:
        In this process the process id of the new one; in the new process None.

    Raises:
        OSError: the new process could not be made or set up; none is left.
    """
    with contextlib.ExitStack() as pipes:
        told, tell = _open_pipe(pipes)
        released, release = _open_pipe(pipes)
        server = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            middle = fork_quietly()
            if middle == 0:
                release.close()
                _become_new(set_up, tell, released, server=server, agent=agent)
                return None
            tell.close()
            return _see_through(middle, told, release)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _open_pipe(pipes: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
    reader, writer = os.pipe()
    return (
        pipes.enter_context(open(reader, "rb")),
        pipes.enter_context(open(writer, "wb", buffering=0)),
    )


def fork_quietly() -> int:
    """Call `os.fork` without the warning of Python 3.12 about threads, which `fork_safety` looks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _see_through(middle: int, told: BinaryIO, release: BinaryIO) -> int:
    word = _read_word(told.readline())
    if "errno" not in word:
        os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    if "errno" not in word:
        with contextlib.suppress(BrokenPipeError):  # the process was killed meanwhile, and its message is incomplete
            release.write(b"+")
        word = _read_word(told.readline())
    if "errno" in word:
        raise OSError(word["errno"], word["message"], word["filename"])
    return int(word["pid"])


def _read_word(line: bytes) -> dict[str, Any]:
    if not line:
        return _describe(OSError(errno.ECHILD, "the fork ended before it was set up"))
    word: dict[str, Any] = json.loads(line)
    return word


def _become_new(set_up: Callable[[], None], tell: BinaryIO, released: BinaryIO, *, server: int, agent: int) -> None:
    """Fork the new process and set it up; called in the middle process, returns in the new one."""
    try:
        die_with_parent(server)
        new = fork_quietly()
        if new:
            tell.close()
            os.waitpid(new, 0)
            os._exit(0)
        set_up()
        _say(tell, {"pid": os.getpid()})
        if not released.read(1):
            os._exit(1)  # the server is gone
        die_with_parent(agent)
        _say(tell, {"pid": os.getpid()})
    except BaseException as error:
        _say(tell, _describe(error))
        os._exit(1)


def _say(tell: BinaryIO, word: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        tell.write(json.dumps(word).encode() + b"\n")


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno is not None:
        filename = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else None
        return {"errno": error.errno, "message": error.strerror or str(error), "filename": filename}
    return {"errno": errno.EINVAL, "message": f"{type(error).__name__}: {error}", "filename": None}
