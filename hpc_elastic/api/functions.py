"""Makes the file from which a run's workers take the function that they call."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pickletools
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpc_elastic.errors import UsageError
from hpc_elastic.rundir.function_file import FunctionHeader, dump_function

_BY_VALUE = b"_make_function"  # what cloudpickle calls to make a function of bytecode


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
        UsageError: the function or an argument cannot be pickled.
    """
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps((function, tuple(arguments), {}))
    except Exception as error:
        raise UsageError(
            f"{function_name(function)} and its arguments cannot be pickled: {type(error).__name__}: {error}",
            tip="open files, locks and CUDA tensors cannot go to another process: make them in the function",
        ) from error
    header = FunctionHeader(
        function=function_name(function),
        python=platform.python_version(),
        is_by_value=_BY_VALUE in pickled,
        packages=_packages(pickled),
        path=tuple(sys.path),
    )
    return dump_function(header, pickled)


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
