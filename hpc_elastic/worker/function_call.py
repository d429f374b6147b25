"""Calls the function of a run in a worker, and keeps what it returns.

The function comes from another process: its modules are looked for where that one found them, after what
this Python has itself, and it has no `__main__` but an empty one, as in `python -c`.

The function's local variables would be dropped when it returns. In torch 2.13 that hangs now and
then if a DistributedDataParallel is among them: it holds the process group beyond `destroy_process_group`, and
the process group's destructor waits for a thread that may wait for the GIL. So the variables are kept while such
threads run, as a script's names are at the end of its process (`worker.ending`).
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from hpc_elastic.rundir import store
from hpc_elastic.rundir.function_file import FunctionHeader, package_mismatches, python_mismatch, read_function
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.worker.ending import has_process_group

T = TypeVar("T")
_kept: list[FrameType | None] = []


class FunctionError(RuntimeError):
    """The function of this run cannot be loaded here, or its return value cannot be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """The function of this rank and the file of its value, read before the user's code can change the environment."""

    function_file: str
    value_file: str | None
    pid: int

    @classmethod
    def from_environment(cls, function_file: str, environ: Mapping[str, str]) -> FunctionCall:
        """Read the variables that the agent sets; without HPC_ELASTIC_RUN_DIR the value is dropped."""
        run_dir = environ.get("HPC_ELASTIC_RUN_DIR")
        attempt, rank = int(environ.get("HPC_ELASTIC_ATTEMPT", "1")), int(environ.get("RANK", "0"))
        value_file = RunLayout(run_dir).return_value(attempt, rank) if run_dir else None
        return cls(function_file=function_file, value_file=value_file, pid=os.getpid())

    def call(self) -> None:
        """Call the function and write its return value; it is None if the function leaves by `sys.exit` with success.

        Raises:
            FunctionError: the function cannot be unpickled here, or its value cannot be pickled.
            BaseException: whatever the function raises.
        """
        header, pickled = read_function(self.function_file)
        extend_path(header.path)
        function, arguments, keywords = _unpickle(header, pickled)
        try:
            value, frame = call_keeping_frame(function, arguments, keywords)
        except SystemExit as leaving:
            if leaving.code is None or (isinstance(leaving.code, int) and leaving.code == 0):
                self._keep(header, None)
            raise
        if has_process_group():
            _kept.append(frame)
        del frame
        self._keep(header, value)

    def _keep(self, header: FunctionHeader, value: Any) -> None:
        if self.value_file is not None and os.getpid() == self.pid:  # not a child that the function has forked
            store.write_bytes(self.value_file, _pickle(header, value))


def call_keeping_frame(
    function: Callable[..., T], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[T, FrameType | None]:
    """Call a function; return its value and its frame, which is None for a function that is not written in Python.

    A frame that is referenced keeps its variables. A profile function gets it: it is called once, before the function's
    first line.
    """
    frames: list[FrameType] = []
    before = sys.getprofile()

    def hold(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            sys.setprofile(before)
            frames.append(frame)

    sys.setprofile(hold)
    try:
        value = function(*arguments, **keywords)
    finally:
        if sys.getprofile() is hold:  # the function is not written in Python
            sys.setprofile(before)
    return value, frames.pop() if frames else None  # popped: it would hold itself through `frames`


def extend_path(path: Sequence[str]) -> None:
    """Add the folders of `path` that `sys.path` lacks: at its front those that precede all folders that both have."""
    known = set(sys.path)
    new = [(folder, any(before in known for before in path[:index])) for index, folder in enumerate(path)]
    sys.path[:0] = [folder for folder, is_behind in new if folder not in known and not is_behind]
    sys.path += [folder for folder, is_behind in new if folder not in known and is_behind]


def _unpickle(header: FunctionHeader, pickled: bytes) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    mismatch = python_mismatch(header, platform.python_version())
    if mismatch is not None:
        raise FunctionError(mismatch)
    others = package_mismatches(header, _version_of)
    try:
        function, arguments, keywords = pickle.loads(pickled)
    except Exception as error:
        why = "; ".join([f"{type(error).__name__}: {error}", *others])
        raise FunctionError(f"{header.function} and its arguments cannot be unpickled: {why}") from error
    for other in others:
        print(f"hpc-elastic: {other}; {header.function} was pickled there", file=sys.stderr, flush=True)
    return function, arguments, keywords


def _pickle(header: FunctionHeader, value: Any) -> bytes:
    """Pickle a value with cloudpickle, which takes local definitions, and is installed if the function needed it."""
    try:
        import cloudpickle
    except ImportError:
        dumps = pickle.dumps
    else:
        dumps = cloudpickle.dumps
    try:
        return bytes(dumps(value))
    except Exception as error:
        kind = type(value).__name__
        raise FunctionError(f"{header.function} returned a {kind} that cannot be pickled: {error}") from error


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
