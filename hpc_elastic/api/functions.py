"""Makes the file from which a run's workers take the function that they call."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import pickletools
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpc_elastic.errors import UsageError
from hpc_elastic.rundir.function_file import FunctionHeader, dump_function, has_bytecode

_SPAWNED_MAIN = "__mp_main__"  # the script, in a process that multiprocessing starts with spawn or forkserver


def function_name(function: Callable[..., Any]) -> str:
    """Return the function's name as `module:name`, for people."""
    inner = getattr(function, "func", function)  # of a functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', None) or '__main__'}:{name}"


def pickle_function(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """Return the content of `function.pkl`: a function, its positional arguments, and what it needs on a node.

    Pickled by cloudpickle, as submitit does: what is defined in `__main__`, in a function or in a notebook
    goes by value, everything else by the name of its module.

    Raises:
        UsageError: the function or an argument cannot be pickled, or a call of the function runs nothing.
    """
    _refuse_what_a_call_does_not_run(function)
    import cloudpickle

    try:
        _take_spawned_main_by_value()
        pickled: bytes = cloudpickle.dumps((function, tuple(arguments), {}))
    except Exception as error:
        raise UsageError(
            f"{function_name(function)} and its arguments cannot be pickled: {type(error).__name__}: {error}",
            tip="open files, locks and CUDA tensors cannot go to another process: make them in the function",
        ) from error
    header = FunctionHeader(
        function=function_name(function),
        python=platform.python_version(),
        is_by_value=has_bytecode(pickled),
        packages=_packages(pickled),
        path=tuple(sys.path),
    )
    return dump_function(header, pickled)


def _refuse_what_a_call_does_not_run(function: Callable[..., Any]) -> None:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    body = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__
    if inspect.iscoroutinefunction(body):
        raise UsageError(
            f"{function_name(function)} is an async function, whose call runs nothing",
            tip="submit a function that calls asyncio.run(...) with it",
        )
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise UsageError(
            f"{function_name(function)} is a generator function, whose call runs nothing",
            tip="submit a function that goes through it, and returns a list, say",
        )


def _take_spawned_main_by_value() -> None:
    """Have cloudpickle take the script's own definitions by value in a process that multiprocessing has spawned, too.

    There the script is the module `__mp_main__`, which no other process can import. It stays so: threads may submit
    at the same time.
    """
    import cloudpickle

    module = sys.modules.get(_SPAWNED_MAIN)
    if module is not None and module.__name__ == _SPAWNED_MAIN:  # elsewhere it is another name of `__main__`
        cloudpickle.register_pickle_by_value(module)


def _packages(pickled: bytes) -> dict[str, str]:
    """Return the versions of the distributions whose modules a pickle names, and of cloudpickle, which made it."""
    by_module = importlib.metadata.packages_distributions()
    modules = {"cloudpickle", *(text.partition(".")[0] for text in _texts(pickled))}
    # Python 3.10 knows the modules of distributions with a top_level.txt alone; most others are named as their module.
    names = {name for module in modules & sys.modules.keys() for name in by_module.get(module, [module])}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _texts(pickled: bytes) -> Iterator[str]:
    for _, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            yield argument
