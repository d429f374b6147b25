"""Plain values as a checked model, with all problems found at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hpc_elastic.job.conflicts import Conflict
from hpc_elastic.job.document import Document
from hpc_elastic.job.problems import KeyPath, explain_error
from hpc_elastic.job.sbatch_options import find_doubles

Model = TypeVar("Model", bound=BaseModel)


def check_document(
    document: Document, model: type[Model], find_conflicts: Callable[[Model], Iterable[Conflict]]
) -> Model | None:
    """Checks a document's data against a model, and the combinations of what is right by itself.

    What is wrong by itself is noted and taken out, so that what is left can be looked at as a whole.

    Returns:
        The model, of the data that are right; None if not even they make one. Problems are in the document.
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
            _note_conflicts(document, find_conflicts(checked), {str(path[0]) for path in noted if path})
            return checked
    return None


def note_double_options(document: Document, path: KeyPath) -> None:
    """Notes the options of the `sbatch:` map at `path` that are given in two spellings."""
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
    for key in path[:-1]:
        if isinstance(data, dict) and key in data:
            data = data[key]
        else:
            return  # inside of a list, or gone already
        if isinstance(data, list):
            data.clear()
            return
    if isinstance(data, dict) and path:
        data.pop(str(path[-1]), None)


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key that a model knows, as `restart.backoff.max`, in the order of its fields."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = _section(field.annotation)
        if section is not None:
            yield from key_paths(section, f"{prefix}{name}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model | None` or in `Annotated[Model, ...] | None`."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return next(filter(None, map(_section, typing.get_args(annotation))), None)
    # Python 3.10 takes tuple[int, ...] for a class; it has an origin.
    if origin is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None
