"""Writes a worker's `error.json` when its Python code ends with an exception, and tells the agent of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from types import TracebackType

from hpc_elastic.cpu_binding import REAL_LOCAL_RANK
from hpc_elastic.last_word import NAME_VARIABLE, send_last_word
from hpc_elastic.rundir import store
from hpc_elastic.rundir.error_file import FailedWorker, FailureClass, build_error, merge_error, read_log_tail
from hpc_elastic.rundir.layout import RunLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReporter:
    """The identity of this worker and the path of its error file, as the agent set them at its start.

    It is taken from the environment before the user's code runs, which may change it.
    """

    path: str | None
    worker: FailedWorker
    stderr: str | None = None  # the rank's file; standard error itself may be the whole node's log
    agent: str | None = None  # the name of the agent's socket for last words

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> ErrorReporter:
        """Read the variables that the agent sets, and remove the one that is for this process alone.

        Without TORCHELASTIC_ERROR_FILE nothing is written.
        """
        worker = FailedWorker(
            rank=int(environ.get("RANK", "0")),
            local_rank=int(environ.get(REAL_LOCAL_RANK) or environ.get("LOCAL_RANK", "0")),
            pid=os.getpid(),
            node=environ.get("HPC_ELASTIC_NODE", ""),
            attempt=int(environ.get("HPC_ELASTIC_ATTEMPT", "1")),
        )
        run_dir = environ.get("HPC_ELASTIC_RUN_DIR")
        return cls(
            path=environ.get("TORCHELASTIC_ERROR_FILE") or None,
            worker=worker,
            stderr=RunLayout(run_dir).stderr(worker.attempt, worker.rank) if run_dir else None,
            agent=environ.pop(NAME_VARIABLE, None),
        )

    def report_exception(self, error: BaseException) -> None:
        """Record an exception that nothing in the user's code caught. Never raises."""
        self._report("exception", exit_code=1, error=error)

    def tell_agent(self) -> None:
        """Tell the agent that this rank has failed with exit code 1, though it goes on for a while. Never raises.

        What follows are the joins of threads, atexit functions and the interpreter's teardown, for which
        no other node needs to wait.
        """
        if self.agent is not None and os.getpid() == self.worker.pid:
            send_last_word(self.agent, self.worker.attempt)

    def report_start_failure(self, error: BaseException, *, exit_code: int, message: str | None = None) -> None:
        """Record that there was nothing to run, with this message or the error's own. Never raises."""
        self._report("start_failed", exit_code=exit_code, error=error, message=message)

    def _report(
        self, failure_class: FailureClass, *, exit_code: int, error: BaseException, message: str | None = None
    ) -> None:
        # A child that the user's code has forked also gets here: it is not the rank.
        if self.path is None or os.getpid() != self.worker.pid:
            return
        try:
            with _deaf_to_term():
                self._write(self.path, failure_class, exit_code, error, message)
        except BaseException:
            # A full disk, no memory, a signal handler that raises: the traceback on stderr and the
            # exit code matter more, and the agent writes the file of a rank that left none.
            return

    def _write(
        self, path: str, failure_class: FailureClass, exit_code: int, error: BaseException, message: str | None
    ) -> None:
        record = build_error(
            self.worker,
            failure_class=failure_class,
            message=describe(error) if message is None else message,
            callstack=format_traceback(error),
            exit_code=exit_code,
            time_ns=time.time_ns(),
            stderr_tail=read_log_tail(self.stderr) if self.stderr else "",
        )
        # torch's @record may have written the file already.
        store.write_json(path, merge_error(store.read_json(path), record))


@contextlib.contextmanager
def _deaf_to_term() -> Iterator[None]:
    """Ignore TERM while the block runs: the process ends anyway, and a stop must not interrupt its last words."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if handler is not None:  # None: it was not set by Python, and cannot be set again
            signal.signal(signal.SIGTERM, handler)


def describe(error: BaseException) -> str:
    """Return the exception as torch's error files have it: type and text."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except BaseException:  # the user's __str__ may raise anything
        return f"{name}: <exception str() failed>"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it; if that fails too, the frames alone."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # Python 3.13 imports for it, which fails where the script has cleared sys.modules
        return "".join(_describe_frames(error.__traceback__))


def _describe_frames(frames: TracebackType | None) -> Iterator[str]:
    while frames is not None:
        code = frames.tb_frame.f_code
        yield f'  File "{code.co_filename}", line {frames.tb_lineno}, in {code.co_name}\n'
        frames = frames.tb_next
