"""Waits for a function or a program for a bounded time, and leaves behind what does not answer."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class LateError(Exception):
    """A function or a program gave no answer within its time; its text says so."""

    def __init__(self, within_s: float) -> None:
        super().__init__(f"no answer within {within_s:g} s")


def answer_within(function: Callable[[], T], within_s: float, *, name: str = "bounded") -> T:
    """Return what a function returns, or raise what it raises.

    The function runs in a daemon thread: a file system or a name server that does not answer blocks that thread in the
    kernel, and nobody else.

    Raises:
        LateError: it has not returned in time; it is left to itself.
    """
    answers: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        value, error = answers.get(timeout=max(0.0, within_s))
    except queue.Empty:
        raise LateError(within_s) from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # the pair has one of the two


def run_program(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Run a program and return its exit code and its standard output.

    Nothing here waits by a clock but `answer_within`: `subprocess` would sleep between two looks at the program, which
    fails where a library has put the clock forward.

    Raises:
        LateError: it did not end in time; it is killed with all that it started, and may live on in the kernel.
        OSError: it cannot be started.
    """
    started: list[subprocess.Popen[str]] = []
    is_late = threading.Event()

    def run() -> tuple[int, str]:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        started.append(child)
        if is_late.is_set():  # it took that long to start it
            _kill(child)
        stdout, _ = child.communicate()
        return child.returncode, stdout

    try:
        return answer_within(run, within_s, name=f"run {command[0]}")
    except LateError:
        is_late.set()
        for child in started:
            _kill(child)
        raise


def _kill(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
