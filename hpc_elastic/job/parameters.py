"""Parses the parameters of an array of runs, such as `lr=1e-3,3e-4 seed=0..3`, and puts values into a job file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hpc_elastic.errors import UsageError
from hpc_elastic.job.document import ITEM
from hpc_elastic.job.problems import KeyPath
from hpc_elastic.plan.references import bind_references, referenced_names

MOST_TASKS = 10_000  # Slurm's MaxArraySize allows 1,001 unless a site raises it
# Where `${NAME}` may stand; "*" is any key of a map.
_REFERENCES: Sequence[KeyPath] = (
    ("entrypoint", "args", ITEM),
    ("entrypoint", "restart_args", ITEM),
    ("env", "*"),
    ("workdir",),
    ("metrics", "textfile"),
    ("roles", ITEM, "entrypoint", "args", ITEM),
    ("roles", ITEM, "entrypoint", "restart_args", ITEM),
    ("roles", ITEM, "env", "*"),
)
_RANGE = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})(?:\.\.([0-9]{1,15}))?", re.ASCII)
_TIP = "for example --array lr=1e-3,3e-4 seed=0..3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A name and the values that it takes, in their order."""

    name: str
    values: tuple[str, ...]


def parse_parameters(words: Sequence[str]) -> tuple[Parameter, ...]:
    """Read `NAME=VALUES` words; VALUES are words with commas between them, or whole numbers `a..b`, `a..b..step`.

    Raises:
        UsageError: a word is not of this form, a name or a value is given twice, or they make too many runs.
    """
    parameters = tuple(_parse(word) for word in words)
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--array names {name} twice", tip=f"give all values at once: {name}=1,2,3")
    count = math.prod(len(parameter.values) for parameter in parameters)
    if count > MOST_TASKS:
        raise _too_many(count)
    return parameters


def combine(parameters: Sequence[Parameter]) -> list[dict[str, str]]:
    """Return the value of each parameter for each run: all combinations, the last parameter changes fastest."""
    names = [parameter.name for parameter in parameters]
    combinations = product(*(parameter.values for parameter in parameters))
    return [dict(zip(names, combination, strict=True)) for combination in combinations]


def find_references(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that stand as `${NAME}` in a job file's values."""
    return frozenset(name for holder, key in _places(data) for name in referenced_names(holder[key]))


def put_in(data: Mapping[str, Any], values: Mapping[str, str]) -> None:
    """Replace `${NAME}` in the job file's values by the value of the parameter NAME."""
    for holder, key in _places(data):
        holder[key] = bind_references(holder[key], values)


def _parse(word: str) -> Parameter:
    name, equals, text = word.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--array takes NAME=VALUES, found {word!r}", tip=_TIP)
    values = tuple(value for part in text.split(",") for value in _expand(name, part.strip()))
    doubles = [value for value, count in Counter(values).items() if count > 1]
    if doubles:
        raise UsageError(f"--array gives {name} the value {doubles[0]} twice", tip="every run of an array differs")
    return Parameter(name=name.strip(), values=values)


def _expand(name: str, part: str) -> Sequence[str]:
    """Return the values of one item between commas: itself, or the numbers of a range."""
    if not part:
        raise UsageError(f"--array gives {name} an empty value", tip=_TIP)
    match = _RANGE.fullmatch(part)
    if match is None:
        return (part,)
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if step == 0:
        raise UsageError(f"--array gives {name} a range with step 0: {part}", tip="0..10..5 is 0, 5, 10")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > MOST_TASKS:
        raise _too_many(len(numbers))
    return tuple(map(str, numbers))


def _too_many(count: int) -> UsageError:
    return UsageError(f"--array makes {count} runs, expected at most {MOST_TASKS}", tip="submit several arrays")


def _places(data: Mapping[str, Any]) -> Iterator[tuple[Any, str | int]]:
    """Yield each map or list, and the key in it, of the texts that may name variables."""
    for path in _REFERENCES:
        for holder, key in _find(data, path):
            if isinstance(holder[key], str):
                yield holder, key


def _find(holder: Any, path: KeyPath) -> Iterator[tuple[Any, str | int]]:
    step, *rest = path
    keys: list[str | int] = []
    if step == ITEM:
        keys = list(range(len(holder))) if isinstance(holder, list) else []
    elif isinstance(holder, dict):
        keys = list(holder) if step == "*" else [step] * (step in holder)
    for key in keys:
        if rest:
            yield from _find(holder[key], tuple(rest))
        else:
            yield holder, key
