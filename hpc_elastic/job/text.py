"""Writes the job file of a job that a program describes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import yaml

from hpc_elastic.errors import JobError
from hpc_elastic.job.problems import KeyPath, format_path
from hpc_elastic.units import format_duration


def job_text(keys: Mapping[str, Any]) -> str:
    """Return the keys of a job as the text of a job file.

    Args:
        keys: as in job.yaml; a `timedelta` may stand for a duration, a `Path` for a path.

    Raises:
        JobError: a value is none that a job file can hold; all of them at once.
    """
    check_values(keys)
    return yaml.dump(plain(keys), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def check_values(keys: Mapping[str, Any]) -> None:
    """Refuse values of a program that no job file can hold, all of them at once.

    Raises:
        JobError: there are some.
    """
    problems = [f"{format_path(path)}: {message}" for path, message in _find_problems(keys, ())]
    if problems:
        raise JobError(problems)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, as people do."""


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def plain(value: Any) -> Any:
    """Return the value as YAML and JSON know it."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, timedelta):
        return format_duration(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _find_problems(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _find_problems(inner, (*path, key))
            else:
                yield path, f"expected text as keys, found {key!r}"
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _find_problems(inner, (*path, index))
    elif isinstance(value, timedelta) and value < timedelta(0):
        yield path, f"expected a duration of at least 0s, found {value}"
    elif not (value is None or isinstance(value, (str, bool, int, float, timedelta, os.PathLike))):
        found = type(value).__name__
        yield path, f"expected text, a number, True, False, None, a list or a mapping, found a {found}"
