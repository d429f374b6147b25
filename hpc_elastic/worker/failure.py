"""Writes a worker's `error.json` when its Python code ends with an exception, and tells the agent of it.

The agent is told of what may end the worker as soon as that is known, with all that `error.json` would hold: closed
connections, threads that are joined and atexit functions come before the end, and a stop may come before it, too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpc_elastic.cpu_binding import REAL_LOCAL_RANK
from hpc_elastic.last_word import (
    LONGEST_RECORD,
    NAME_VARIABLE,
    WordKind,
    send_failing,
    send_last_word,
    send_word,
)
from hpc_elastic.rundir import store
from hpc_elastic.rundir.error_file import (
    MESSAGE_LIMIT,
    FailedWorker,
    FailureClass,
    build_error,
    clip,
    merge_error,
    message_of,
    read_error,
    read_log_tail,
)
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.worker.uncaught import without_own_frames

if TYPE_CHECKING:
    from hpc_elastic.codec import Json

_CALLSTACKS = (32 * 1024, 4 * 1024, 512)  # characters; the first that fits into a datagram
_OUTER_FRAMES, _INNER_FRAMES = 100, 2000  # of a deeper traceback, of which formatting all takes a minute a million


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

    def tell_failing(self, error: BaseException, *, is_closing: bool = False) -> bool:
        """Tell the agent of an exception that ends this rank unless something catches it. Never raises.

        Args:
            error: the exception.
            is_closing: whether this rank is about to close its connections.

        Returns:
            Whether it can end the rank: `sys.exit(0)` cannot, nor does what a handler of TERM raises count.
        """
        if self.agent is None or os.getpid() != self.worker.pid:
            return False
        kind = WordKind.CLOSING if is_closing else WordKind.FAILING
        try:
            code = exit_code_of(error)
            if code == 0 or is_raised_by_term(error):
                return False
            is_exit = isinstance(error, SystemExit)
            message = _exit_message(error) if is_exit else describe(error)
            return self._tell_failing(kind, "exit_code" if is_exit else "exception", code, error, message)
        except BaseException:  # a handler of a signal, no memory
            return False

    def _tell_failing(
        self, kind: WordKind, failure_class: FailureClass, exit_code: int, error: BaseException, message: str
    ) -> bool:
        """Tell the agent, with as much of the traceback as fits; return whether there is an agent."""
        if self.agent is None:
            return False
        stack = format_traceback(error, without_own_frames(error.__traceback__))
        for limit in _CALLSTACKS:
            record = build_error(
                self.worker,
                failure_class=failure_class,
                message=message,
                callstack=clip(stack, limit),
                exit_code=exit_code,
                time_ns=time.time_ns(),
            )
            content = b"" if exit_code < 0 else json.dumps(record).encode()
            is_short = len(content) <= LONGEST_RECORD
            if is_short and send_failing(self.agent, kind, self.worker.attempt, exit_code=exit_code, record=content):
                return True
        return send_failing(self.agent, kind, self.worker.attempt, exit_code=exit_code, record=b"")

    def tell_closed(self) -> None:
        """Tell the agent that the connections are closed, of which `tell_failing` told it. Never raises."""
        self._tell(WordKind.CLOSED)

    def tell_handled(self) -> None:
        """Tell the agent that this rank goes on after the exception of which `tell_failing` told it. Never raises."""
        self._tell(WordKind.HANDLED)

    def _tell(self, kind: WordKind) -> None:
        if self.agent is not None and os.getpid() == self.worker.pid:
            send_word(self.agent, kind, self.worker.attempt)

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
            is_stop = is_raised_by_term(error)
            with _deaf_to_term(), _descriptor_left():
                if not is_stop:
                    with contextlib.suppress(Exception):
                        told = describe(error) if message is None else message
                        self._tell_failing(WordKind.FAILING, failure_class, exit_code, error, told)
                self._write(self.path, failure_class, exit_code, error, message, is_stop=is_stop)
        except BaseException:
            # A full disk, no memory, a signal handler that raises: the traceback on stderr and the
            # exit code matter more, and the agent writes the file of a rank that left none.
            return

    def _write(
        self,
        path: str,
        failure_class: FailureClass,
        exit_code: int,
        error: BaseException,
        message: str | None,
        *,
        is_stop: bool,
    ) -> None:
        record = build_error(
            self.worker,
            failure_class=failure_class,
            message=describe(error) if message is None else message,
            callstack=format_traceback(error, error.__traceback__),
            exit_code=exit_code,
            time_ns=time.time_ns(),
            stderr_tail=read_log_tail(self.stderr) if self.stderr else "",
        )
        if is_stop and isinstance(record, dict):
            record["raised_by"] = "SIGTERM"
        existing = read_error(path).data
        is_same = existing is not None and self._is_same_failure(existing, record)
        store.write_json(path, merge_error(existing, record) if is_same else record)

    def _is_same_failure(self, existing: dict[str, Any], record: Json) -> bool:
        """Return whether torch's `@record` wrote the file of the same exception, and not a child of this rank.

        Of a ChildFailedError `@record` writes the child's failure.
        """
        if "pid" in existing:
            return bool(existing["pid"] == self.worker.pid)
        told, kept = message_of(record), clip(message_of(existing), MESSAGE_LIMIT)
        return told.startswith("ChildFailedError:") or told == kept


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


@contextlib.contextmanager
def _descriptor_left() -> Iterator[None]:
    """Lend the descriptor of standard input, which is empty, while the block runs, if the process has no other left."""
    is_short = False
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        is_short = error.errno == errno.EMFILE
    if is_short:
        os.close(0)
    try:
        yield
    finally:
        if is_short:
            os.open(os.devnull, os.O_RDONLY)


def describe(error: BaseException) -> str:
    """Return the exception as torch's error files have it: type and text."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except BaseException:  # the user's __str__ may raise anything
        return f"{name}: <exception str() failed>"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that an exception gives a process which it ends; negative for a signal."""
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    if not isinstance(error.code, int):
        return 1
    return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF


def _exit_message(error: BaseException) -> str:
    """Return what `sys.exit` was given to print; "" for a number, of which standard error may say more."""
    code = getattr(error, "code", None)
    try:
        return "" if isinstance(code, int) else str(code)
    except BaseException:  # the user's __str__ may raise anything
        return ""


def is_raised_by_term(error: BaseException) -> bool:
    """Return whether a handler of TERM raised the exception: then a stop ends the process, not a failure."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(getattr(handler, "__call__", None), "__code__", None)  # noqa: B004
    frames = error.__traceback__
    while code is not None and frames is not None:
        if frames.tb_frame.f_code is code:
            return True
        frames = frames.tb_next
    return False


def format_traceback(error: BaseException, frames: TracebackType | None) -> str:
    """Return the traceback as Python prints it; if that fails too, the frames alone."""
    frames = _without_middle(frames)
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # Python 3.13 imports for it, which fails where the script has cleared sys.modules
        return "".join(_describe_frames(frames))


def _without_middle(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames between its first and its last ones, if there are very many."""
    listed = []
    each = frames
    while each is not None:
        listed.append(each)
        each = each.tb_next
    if len(listed) <= _OUTER_FRAMES + _INNER_FRAMES:
        return frames
    short = listed[-_INNER_FRAMES]
    for outer in reversed(listed[:_OUTER_FRAMES]):
        short = TracebackType(short, outer.tb_frame, outer.tb_lasti, outer.tb_lineno)
    return short


def _describe_frames(frames: TracebackType | None) -> Iterator[str]:
    while frames is not None:
        code = frames.tb_frame.f_code
        yield f'  File "{code.co_filename}", line {frames.tb_lineno}, in {code.co_name}\n'
        frames = frames.tb_next
