"""Writes and reads the file with the function that a run's workers call: a header line of JSON, then the pickle.

Any Python can read the header. Not every Python can read the pickle, because it may hold bytecode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from hpc_elastic.codec import DecodeError, from_json, to_json
from hpc_elastic.errors import RunDirectoryError

FORMAT_VERSION = 1
_MAKES_BYTECODE = b"_make_function"  # what cloudpickle calls to make a function of bytecode


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionHeader:
    """The header: where a function comes from, and what it needs on a node.

    `function` is `module:name`. `is_by_value`: bytecode is in the pickle, which only the same minor version of
    Python runs. `packages` are the versions of the distributions that the pickle names. `path` is the
    `sys.path` of the process that submitted the function.
    """

    format_version: int = FORMAT_VERSION
    function: str
    python: str
    is_by_value: bool
    packages: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()


def has_bytecode(pickled: bytes) -> bool:
    """Return whether a pickle by cloudpickle holds a function by value, and not only by the name of its module."""
    return _MAKES_BYTECODE in pickled


def dump_function(header: FunctionHeader, pickled: bytes) -> bytes:
    """Build the file's content.

    Args:
        header: the function's header.
        pickled: function, positional and keyword arguments, as one tuple.
    """
    return json.dumps(to_json(header)).encode() + b"\n" + pickled


def import_from_copy(content: bytes, *, source: str, copy: str) -> bytes:
    """Return the file's content for workers that import from the copy of a folder, where it has the module.

    Args:
        content: the file's content.
        source: the folder.
        copy: where its copy will be.

    Raises:
        RunDirectoryError: it does not begin with a header.
    """
    line, _, pickled = content.partition(b"\n")
    header = _parse_header(line)
    path = tuple(each for folder in header.path for each in (*_counterpart(folder, source, copy), folder))
    return dump_function(replace(header, path=path), pickled)


def _counterpart(folder: str, source: str, copy: str) -> Iterator[str]:
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(source))
    if folder and inside.split(os.sep, 1)[0] != os.pardir:  # an empty one is where the workers start
        yield os.path.normpath(os.path.join(copy, inside))


def read_function(path: str) -> tuple[FunctionHeader, bytes]:
    """Read the header and the pickle.

    Raises:
        RunDirectoryError: there is no such file, or it has another format version.
    """
    try:
        with open(path, "rb") as file:
            return _parse_header(file.readline()), file.read()
    except OSError as error:
        raise RunDirectoryError(f"cannot read the function of this run: {error}") from error


def read_header(path: str) -> FunctionHeader:
    """Read the header alone.

    Raises:
        RunDirectoryError: as `read_function`.
    """
    try:
        with open(path, "rb") as file:
            return _parse_header(file.readline())
    except OSError as error:
        raise RunDirectoryError(f"cannot read the function of this run: {error}") from error


def python_mismatch(header: FunctionHeader, python: str) -> str | None:
    """Return why a Python of this version cannot call the function; None if it can."""
    if not header.is_by_value or _minor(header.python) == _minor(python):
        return None
    return (
        f"{header.function} was pickled by Python {header.python}, and the workers' Python is {python}; expected the "
        f"same {_minor(header.python)} (the job's `python`), or a function of a module that can be imported there"
    )


def package_mismatches(header: FunctionHeader, version_of: Callable[[str], str | None]) -> list[str]:
    """Describe each package whose version here differs from that where the function was pickled.

    Args:
        header: about the function.
        version_of: returns a distribution's version here, None if it is not installed.
    """
    found = ((name, version, version_of(name)) for name, version in sorted(header.packages.items()))
    return [
        f"{name} is {here or 'not installed'} here and {there} where it was submitted"
        for name, there, here in found
        if here != there
    ]


def _parse_header(line: bytes) -> FunctionHeader:
    try:
        data = json.loads(line)
        if data["format_version"] != FORMAT_VERSION:
            raise RunDirectoryError(
                f"function.pkl has format_version {data['format_version']}, this hpc_elastic reads {FORMAT_VERSION}",
                tip="use the version of hpc_elastic that submitted the run",
            )
        return from_json(FunctionHeader, data)
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"function.pkl does not begin with a line about its function: {error}") from error


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
