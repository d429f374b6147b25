"""Replaces the worker process by a program that is not Python."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

from hpc_elastic.worker.failure import ErrorReporter

NOT_FOUND = 127  # the exit codes that a shell gives for these
NOT_EXECUTABLE = 126


def become(program: str, arguments: Sequence[str], reporter: ErrorReporter) -> int:
    """Replace this process by the program, which is looked up on PATH as a shell does.

    Returns:
        Only if that fails: 127 if there is no such program, 126 if it cannot be executed, as a
        shell does, after one line on standard error and an error file of class `start_failed`.
    """
    # Python ignores these two signals, and an exec would keep them ignored: `yes | head` would hang.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        exit_code = NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else NOT_EXECUTABLE
        message = f"{program}: {_reason(program, error)}"
        print(f"hpc-elastic: {message}", file=sys.stderr)
        reporter.report_start_failure(error, exit_code=exit_code, message=message)
        return exit_code


def _reason(program: str, error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return "neither a binary of this machine nor a script with a #! line"
    if isinstance(error, FileNotFoundError) and os.path.exists(program):
        return "its #! line names an interpreter that does not exist"
    if isinstance(error, FileNotFoundError) and os.sep not in program:
        return "command not found on PATH; a Python script belongs under `script:`"
    return error.strerror or str(error)
