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
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
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
from hpc_elastic.worker.exception_texts import ExceptionTexts, bare_texts, has_plain_text, texts_of
from hpc_elastic.worker.uncaught import without_own_frames

if TYPE_CHECKING:
    from hpc_elastic.codec import Json

_CALLSTACKS = (32 * 1024, 4 * 1024, 512)  # characters; the first that fits into a datagram


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
        layout = RunLayout(environ["HPC_ELASTIC_RUN_DIR"]) if environ.get("HPC_ELASTIC_RUN_DIR") else None
        if layout is not None:
            store.never_make(layout.root)
        return cls(
            path=environ.get("TORCHELASTIC_ERROR_FILE") or None,
            worker=worker,
            stderr=layout.stderr(worker.attempt, worker.rank) if layout else None,
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
            failure_class: FailureClass = "exit_code" if is_exit else "exception"
            texts = self._texts_after_telling(kind, failure_class, code, error)
            return self._tell_failing(
                kind, failure_class, code, replace(texts, message=_exit_message(error)) if is_exit else texts
            )
        except BaseException:  # a handler of a signal, no memory
            return False

    def _texts_after_telling(
        self, kind: WordKind, failure_class: FailureClass, exit_code: int, error: BaseException
    ) -> ExceptionTexts:
        """Return what an exception says; if that is the user's code, tell the agent first what is known without it."""
        frames = without_own_frames(error.__traceback__)
        if not has_plain_text(error):
            self._tell_failing(kind, failure_class, exit_code, bare_texts(error, frames))
        return texts_of(error, frames)

    def _tell_failing(self, kind: WordKind, failure_class: FailureClass, exit_code: int, texts: ExceptionTexts) -> bool:
        """Tell the agent, with as much of the traceback as fits; return whether there is an agent."""
        if self.agent is None:
            return False
        for limit in _CALLSTACKS:
            record = build_error(
                self.worker,
                failure_class=failure_class,
                message=texts.message,
                callstack=clip(texts.callstack, limit),
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
                texts = self._tell_first(failure_class, exit_code, error, message, is_stop=is_stop)
                self._write(self.path, failure_class, exit_code, texts, is_stop=is_stop)
                if not (texts.is_complete or is_stop):
                    self.tell_agent()  # Python asks for the text as well, and may never end
        except BaseException:
            # A full disk, no memory, a signal handler that raises: the traceback on stderr and the
            # exit code matter more, and the agent writes the file of a rank that left none.
            return

    def _tell_first(
        self, failure_class: FailureClass, exit_code: int, error: BaseException, message: str | None, *, is_stop: bool
    ) -> ExceptionTexts:
        """Tell the agent of a failure, and return what the error file is to say of it."""
        texts, frames = None, error.__traceback__
        if not is_stop:
            with contextlib.suppress(Exception):
                texts = self._texts_after_telling(WordKind.FAILING, failure_class, exit_code, error)
                told = texts if message is None else replace(texts, message=message)
                self._tell_failing(WordKind.FAILING, failure_class, exit_code, told)
        if texts is None or (texts.is_complete and without_own_frames(frames) is not frames):
            texts = texts_of(error, frames)
        return texts if message is None else replace(texts, message=message)

    def _write(
        self, path: str, failure_class: FailureClass, exit_code: int, texts: ExceptionTexts, *, is_stop: bool
    ) -> None:
        record = build_error(
            self.worker,
            failure_class=failure_class,
            message=texts.message,
            callstack=texts.callstack,
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
        return f"<str() of what sys.exit was given failed: {type(code).__name__}>"


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
