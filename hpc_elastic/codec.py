"""Converts frozen dataclasses to and from JSON objects, by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Json = Any  # a value that `json.dumps` takes
Decoder = Callable[[Json, str], Any]  # from a JSON value and its place in the whole, for errors
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
            arguments[name] = (
                value if type(value) is hint else _decoder(hint)(value, f"{where}.{key}" if where else key)
            )
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
def _decoder(hint: Any) -> Decoder:
    """Return what decodes a value of a type hint, cached: to take a hint apart takes longer than most values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is typing.Literal:
        return _literal_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(_decoder(arguments[0]))
    if origin is not None:  # Mapping[K, V]
        return _mapping_decoder(arguments[0], _decoder(arguments[1]))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value, path: from_json(hint, value, where=path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    return _plain_decoder(hint)


def _union_decoder(choices: tuple[Any, ...]) -> Decoder:
    may_be_none = type(None) in choices
    decoders = [_decoder(choice) for choice in choices if choice is not type(None)]

    def decode(value: Json, path: str) -> Any:
        if value is None and may_be_none:
            return None
        errors = []
        for decoder in decoders:
            try:
                return decoder(value, path)
            except DecodeError as error:
                errors.append(error)
        raise errors[0] if len(errors) == 1 else DecodeError(f"{path}: {value!r} has none of the allowed types")

    return decode


def _literal_decoder(words: tuple[Any, ...]) -> Decoder:
    def decode(value: Json, path: str) -> Any:
        if value in words:
            return value
        raise DecodeError(f"{path}: expected one of {', '.join(map(str, words))}, found {value!r}")

    return decode


def _tuple_decoder(item_decoder: Decoder) -> Decoder:
    def decode(value: Json, path: str) -> Any:
        if not isinstance(value, list):
            raise DecodeError(f"{path}: expected a list, found {type(value).__name__}")
        return tuple([item_decoder(item, f"{path}[{index}]") for index, item in enumerate(value)])

    return decode


def _mapping_decoder(key_type: Any, value_decoder: Decoder) -> Decoder:
    def decode(value: Json, path: str) -> Any:
        if not isinstance(value, dict):
            raise DecodeError(f"{path}: expected an object, found {type(value).__name__}")
        return {key_type(key): value_decoder(item, f"{path}.{key}") for key, item in value.items()}

    return decode


def _enum_decoder(hint: type[Enum]) -> Decoder:
    def decode(value: Json, path: str) -> Any:
        try:
            return hint(value)
        except ValueError:
            expected = ", ".join(str(member.value) for member in hint)
            raise DecodeError(f"{path}: expected one of {expected}, found {value!r}") from None

    return decode


def _plain_decoder(hint: Any) -> Decoder:
    def decode(value: Json, path: str) -> Any:
        if type(value) is hint or hint is Any:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise DecodeError(f"{path}: expected {hint.__name__}, found {type(value).__name__}")

    return decode
