"""Turns plain values into a checked model, and finds all problems at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hpc_elastic.job.conflicts import Conflict
from hpc_elastic.job.document import Document
from hpc_elastic.job.problems import KeyPath, explain_error, format_path
from hpc_elastic.job.sbatch_options import find_doubles

Model = TypeVar("Model", bound=BaseModel)


def check_document(
    document: Document, model: type[Model], find_conflicts: Callable[[Model], Iterable[Conflict]]
) -> Model | None:
    """Check a document's data against a model, and then the combinations of those values that are right by themselves.

    A value that is wrong by itself is noted and removed, so that the others can be checked as a whole.

    Returns:
        The model of the data that are right; None if those do not make one. The problems are in the document.
    """
    known_paths = list(key_paths(model))
    data = deepcopy(document.data)
    noted: set[KeyPath] = set()
    for _ in range(3):  # taking a key out may leave its map without a key that it must have
        try:
            checked = model.model_validate(data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path, message = explain_error(details, known_paths)
                is_missing = details["type"] == "missing"
                if not (is_missing and path in noted):
                    document.add_problem(path, message)
                if details["type"] != "extra_forbidden":
                    noted.add(path)
                _take_out(data, path[:-1] if is_missing else path)
        else:
            wrong = {format_path(path[:length]) for path in noted for length in range(1, len(path) + 1)}
            _note_conflicts(document, find_conflicts(checked), wrong)
            return checked
    return None


def note_double_options(document: Document, path: KeyPath) -> None:
    """Note the options of the `sbatch:` map at `path` that are given in two spellings."""
    options: Any = document.data
    for key in path:
        options = options.get(key) if isinstance(options, dict) else None
    for name, first in find_doubles(options if isinstance(options, dict) else ()):
        document.add_problem((*path, name), f"the same option as {first}; give one of them")


def _note_conflicts(document: Document, conflicts: Iterable[Conflict], wrong_keys: set[str]) -> None:
    for conflict in conflicts:
        if not wrong_keys.intersection(conflict.about):
            document.add_problem(conflict.path, conflict.message)


def _take_out(data: Any, path: KeyPath) -> None:
    """Remove the key at a path; for an item of a list that is no list of maps, remove the whole list."""
    holder, last = data, path[-1:]
    for length, key in enumerate(path[:-1], start=1):
        if isinstance(data, dict) and key in data:
            holder, last = data, (key,)
        elif not (isinstance(data, list) and isinstance(key, int) and key < len(data)):
            return  # gone already
        data = data[key]
        if isinstance(data, dict):
            holder, last = data, path[length : length + 1]
    if isinstance(holder, dict) and last:
        holder.pop(str(last[0]), None)


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key that a model knows, as `restart.backoff.max` or `roles[].name`, in the order of its fields."""
    for name, field in model.model_fields.items():
        yield prefix + name
        inner = _section(field.annotation)
        if inner is not None:
            section, dots = inner
            yield from key_paths(section, f"{prefix}{name}{dots}")


def _section(annotation: Any) -> tuple[type[BaseModel], str] | None:
    """Return the model in `Model | None`, `Annotated[Model, ...]` or `tuple[Model, ...]`, and the path to its keys."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated, tuple):
        found = next(filter(None, map(_section, typing.get_args(annotation))), None)
        return (found[0], "[].") if found and origin is tuple else found
    # Python 3.10 takes tuple[int, ...] for a class; it has an origin.
    if origin is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, "."
    return None
