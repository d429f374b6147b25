"""Runs a GPU vendor's tool for a verb; one that hangs in the driver is left behind."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence


def ask_tool(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Return the exit code and the standard output of a tool.

    Raises:
        OSError: it is not there, or gives no answer.
    """
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    try:
        stdout, _ = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            child.kill()
        raise TimeoutError(f"{command[0]} gave no answer within {within_s:g} s") from None
    return child.returncode, stdout
