"""Converts frozen dataclasses to and from JSON objects, by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Json = Any  # a value that `json.dumps` takes
_PLAIN = frozenset({str, int, float, bool, type(None)})  # types of most values; JSON has the same ones


class DecodeError(ValueError):
    """A JSON value does not have the shape of the dataclass; the message names the field."""


def to_json(value: Any) -> Json:
    """Turn dataclasses, enums, tuples and mappings into what `json.dumps` takes.

    A field with `metadata={"json": name}` is written under that name.
    """
    cls: Any = type(value)  # mypy takes a class for unhashable
    if cls in _PLAIN:
        return value
    if (parts := _parts(cls)) is not None:
        return {key: part if type(part := getattr(value, name)) in _PLAIN else to_json(part) for name, key in parts}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Json, *, where: str = "") -> T:
    """Build a `cls` from a JSON object.

    Unknown fields are ignored, so that a newer writer can add some.

    Raises:
        DecodeError: a field is missing or has another type.
    """
    if not isinstance(data, Mapping):
        raise DecodeError(f"{where or cls.__name__}: expected an object, found {type(data).__name__}")
    described: Any = cls  # mypy takes a type variable for unhashable
    arguments = {}
    for name, key, hint, has_default in _fields(described):
        if key in data:
            value = data[key]
            arguments[name] = value if type(value) is hint else _decode(hint, value, f"{where}.{key}" if where else key)
        elif not has_default:
            raise DecodeError(f"{where}.{key}: missing" if where else f"{key}: missing")
    return cls(**arguments)


def objects_in(data: object, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of the list that stands under a name; none of them where anything else stands.

    For readers who show what is left of a damaged record; where a whole one is needed, `from_json` says what is wrong.
    """
    items = data.get(name) if isinstance(data, Mapping) else None
    yield from (item for item in (items if isinstance(items, (list, tuple)) else ()) if isinstance(item, Mapping))


@cache
def _parts(cls: Any) -> tuple[tuple[str, str], ...] | None:
    """Return the name and the JSON key of each field; None if `cls` is no dataclass."""
    has_fields = dataclasses.is_dataclass(cls)
    return tuple((name, key) for name, key, _, _ in _fields(cls)) if has_fields else None


@cache
def _fields(cls: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return for each field its name, its JSON key, its type hint and whether it has a default."""
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return tuple(
        (
            field.name,
            field.metadata.get("json", field.name),
            hints[field.name],
            field.default is not missing or field.default_factory is not missing,
        )
        for field in dataclasses.fields(cls)
    )


@cache
def _take_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type hint's origin and arguments, cached: `typing` takes longer than the rest of a short message."""
    return typing.get_origin(hint), typing.get_args(hint)


def _decode(hint: Any, value: Json, path: str) -> Any:
    origin, arguments = _take_apart(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, path)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise DecodeError(f"{path}: expected one of {', '.join(map(str, arguments))}, found {value!r}")
    if origin is tuple:
        if not isinstance(value, list):
            raise DecodeError(f"{path}: expected a list, found {type(value).__name__}")
        return tuple(_decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is not None:  # Mapping[K, V]
        if not isinstance(value, dict):
            raise DecodeError(f"{path}: expected an object, found {type(value).__name__}")
        key_type = arguments[0]
        return {key_type(key): _decode(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    return _decode_plain(hint, value, path)


def _decode_union(choices: tuple[Any, ...], value: Json, path: str) -> Any:
    if value is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _decode(choice, value, path)
        except DecodeError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else DecodeError(f"{path}: {value!r} has none of the allowed types")


def _decode_plain(hint: Any, value: Json, path: str) -> Any:
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value, where=path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            expected = ", ".join(str(member.value) for member in hint)
            raise DecodeError(f"{path}: expected one of {expected}, found {value!r}") from None
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise DecodeError(f"{path}: expected {hint.__name__}, found {type(value).__name__}")
    return value
