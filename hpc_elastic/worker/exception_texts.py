"""Returns what an exception says in bounded time: its `__str__` is the user's code, and may never return.

Theory of operation. The text of nearly all exceptions is computed by the interpreter alone, from texts and numbers, and
is asked for at once. Any other is asked for in a thread, which this process waits for some seconds and then leaves
alone: a thread bounds code that waits and code that runs on, and not what keeps the interpreter's lock. A traceback has
the texts of the exceptions before this one in it, too.
"""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType, WrapperDescriptorType
from typing import TypeVar

_T = TypeVar("_T")
TEXT_WITHIN_S = 5.0
_OUTER_FRAMES, _INNER_FRAMES = 100, 2000  # of a deeper traceback, of which formatting all takes a minute a million
_PLAIN = (str, bytes, int, float, bool, type(None))
_HEAD = "Traceback (most recent call last):\n"
_MOST_LINKS = 100  # of a chain of exceptions that is looked through


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionTexts:
    """An exception's type and text in a line, and its traceback; incomplete without what its `__str__` says."""

    message: str
    callstack: str
    is_complete: bool = True


def texts_of(error: BaseException, frames: TracebackType | None, *, within_s: float = TEXT_WITHIN_S) -> ExceptionTexts:
    """Return the texts of an exception; after `within_s` those without its `__str__`. Never raises an Exception."""
    if has_plain_text(error):
        return _complete(error, frames)
    found = _within(within_s, lambda: _complete(error, frames))
    said = f"<exception str() did not return within {within_s:g} s>"
    return found or bare_texts(error, frames, said=said)


def settle_exit(error: SystemExit, *, within_s: float = TEXT_WITHIN_S) -> None:
    """Put the text in the place of an object that `sys.exit` was given, for Python asks for it as it ends the process.

    Its `__str__` may never return, and what follows needs no more of it. One that raises stays: Python says nothing of
    it. Never raises an Exception.
    """
    code: object = error.code
    if isinstance(code, int) or type(code) in _PLAIN:
        return
    said = f"<str() of what sys.exit was given did not return within {within_s:g} s>"
    found = _within(within_s, lambda: _said_by(code))
    for text in (said,) if found is None else found:
        error.code, error.args = text, (text,)


def _said_by(code: object) -> tuple[str, ...]:
    """Return the text of an object, alone; nothing if its own `__str__` fails."""
    try:
        return (str(code),)
    except BaseException:  # the user's __str__ may raise anything
        return ()


def _within(within_s: float, ask: Callable[[], _T]) -> _T | None:
    """Return the answer of a function that runs the user's code, None if it gives none in time."""
    found: list[_T] = []

    def note() -> None:
        try:
            found.append(ask())
        except BaseException:  # too deep, no memory: nothing more may be printed here
            return

    try:
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(note,), name="text of an exception", daemon=True
        )
        thread.start()
    except Exception:  # no thread can be had, or the script has taken the interpreter apart
        return ask()
    thread.join(within_s)
    return found[0] if found else None


def bare_texts(error: BaseException, frames: TracebackType | None, *, said: str = "") -> ExceptionTexts:
    """Return an exception's type and frames, without asking it for its text."""
    message = f"{type(error).__name__}: {said}" if said else type(error).__name__
    lines = [_HEAD, *_describe_frames(_without_middle(frames)), f"{message}\n"]
    return ExceptionTexts(message=message, callstack="".join(lines), is_complete=False)


def has_plain_text(error: BaseException) -> bool:
    """Return whether the interpreter alone computes what an exception, and those before it, say."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if len(seen) > _MOST_LINKS or not _is_plain(each):
            return False
        waiting += [each.__cause__, each.__context__]
    return True


def _is_plain(error: BaseException) -> bool:
    try:
        parts = [*error.args, *getattr(error, "__notes__", ())]
        if isinstance(error, OSError):
            parts += [error.strerror, *(each for each in (error.filename, error.filename2) if not _is_path(each))]
        return isinstance(type(error).__str__, WrapperDescriptorType) and all(map(_is_plain_part, parts))
    except Exception:  # the user's class may have anything of these names
        return False


def _is_plain_part(part: object) -> bool:
    """Return whether a part is a text or a number, or a tuple of these, as a SyntaxError has its place in."""
    return all(type(each) in _PLAIN for each in part) if type(part) is tuple else type(part) in _PLAIN


def _is_path(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "pathlib"


def _complete(error: BaseException, frames: TracebackType | None) -> ExceptionTexts:
    return ExceptionTexts(message=describe(error), callstack=format_traceback(error, frames))


def describe(error: BaseException) -> str:
    """Return the exception as torch's error files have it: type and text."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except BaseException:  # the user's __str__ may raise anything
        return f"{name}: <exception str() failed>"


def format_traceback(error: BaseException, frames: TracebackType | None) -> str:
    """Return the traceback as Python prints it; if that fails too, the frames and the exception alone.

    It is tried twice: a signal handler may raise in between, as torch's does when a data loader's process ends, just
    while the loss of its socket is told.
    """
    frames = _without_middle(frames)
    for _ in range(2):
        try:
            return "".join(traceback.format_exception(type(error), error, frames))
        except Exception:  # Python 3.13 imports for it, which fails where the script has cleared sys.modules
            continue
    return "".join([_HEAD, *_describe_frames(frames), f"{describe(error)}\n"])


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
