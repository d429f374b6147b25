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

    Raises:
        LateError: it did not end in time; it is killed with all that it started, and may live on in the kernel.
        OSError: it cannot be started.
    """
    return answer_within(lambda: _run(command, within_s), within_s + 1.0, name=f"run {command[0]}")


def _run(command: Sequence[str], within_s: float) -> tuple[int, str]:
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, _ = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()
        threading.Thread(target=child.wait, name=f"wait for {command[0]}", daemon=True).start()
        raise LateError(within_s) from None
    return child.returncode, stdout
