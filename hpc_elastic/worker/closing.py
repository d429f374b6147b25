"""Tells the agent of an exception in flight before `destroy_process_group` closes this rank's connections.

The usual shape of a script is `try: train() finally: torch.distributed.destroy_process_group()`. The rank that raises
closes its connections while its exception is still on the way up; its peers fail of the closed connections, and the
stop that answers their failure ends this rank before its own is complete. So it is told first.

Theory of operation. `torch.distributed.distributed_c10d` is wrapped when it is imported, by a finder that is the first
of `sys.meta_path` until then, so that whoever takes the function from there gets the wrapped one. The wrapper asks for
the exception that is being handled where it is called; one that was handled elsewhere is not. If a process group is
made afterwards, the exception did not end the rank, and the agent is told so.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hpc_elastic.worker.failure import ErrorReporter

MODULE = "torch.distributed.distributed_c10d"


class _Watch:
    """The reporter of this rank, and whether the agent has been told of an exception in flight."""

    reporter: ErrorReporter | None = None
    is_told = False


def tell_before_closing(reporter: ErrorReporter) -> None:
    """Begin to tell the agent of exceptions in flight; call it in the rank, before the user's code runs."""
    _Watch.reporter = reporter
    install()


def install() -> None:
    """Wrap torch's functions, now or when they are imported; does nothing if that has been done."""
    if (module := sys.modules.get(MODULE)) is not None:
        _wrap(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module as the other finders do, and is gone then."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads the module by its own loader, and wraps its functions before anybody can take them."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        _wrap(module)


def _wrap(module: ModuleType) -> None:
    holders = [module, sys.modules.get("torch.distributed")]
    for name, wrap in (("destroy_process_group", _telling), ("init_process_group", _withdrawing)):
        original = getattr(module, name, None)
        if original is None or hasattr(original, "__hpc_elastic__"):
            continue
        wrapped = wrap(original)
        wrapped.__hpc_elastic__ = True  # type: ignore[attr-defined]
        for holder in holders:
            if holder is not None and getattr(holder, name, None) is original:
                setattr(holder, name, wrapped)


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy_process_group(*arguments: Any, **options: Any) -> Any:
        error = sys.exc_info()[1]
        reporter = _Watch.reporter
        is_rank = threading.current_thread() is threading.main_thread()
        if error is None or reporter is None or not is_rank or not reporter.tell_failing(error, is_closing=True):
            return original(*arguments, **options)
        _Watch.is_told = True
        try:
            return original(*arguments, **options)
        finally:
            reporter.tell_closed()

    return destroy_process_group


def _withdrawing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        if _Watch.is_told and _Watch.reporter is not None:
            _Watch.is_told = False
            _Watch.reporter.tell_handled()
        return original(*arguments, **options)

    return init_process_group
