"""The problems with a file, a line each: file, line, key, what was found, what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.printable import printable_line

KeyPath = tuple[str | int, ...]

_EXPECTED = {  # pydantic's error types; the value that was found completes the message
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": "expected text",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "mapping_type": "expected a map",
    "dict_type": "expected a map",
    "model_type": "expected a map",
    "model_attributes_type": "expected a map",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. Without a line the value came from `--set`, without a file from a program."""

    file: str
    line: int | None
    path: KeyPath
    message: str

    def __str__(self) -> str:
        key = format_path(self.path)
        if not self.file:
            return printable_line(f"{key}: {self.message}".removeprefix(": "))
        place = f"{self.file}:{self.line}: {key}" if self.line is not None else f"--set {key}"
        return printable_line(f"{place.removesuffix(': ')}: {self.message}")


def format_path(path: Sequence[str | int]) -> str:
    """Return a path as people write it: `logs.tee[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def format_problems(problems: Iterable[Problem]) -> list[str]:
    """Return the lines of the problems, each once: those of the file by line, then those of `--set`."""
    ordered = sorted(problems, key=lambda problem: (problem.line is None, problem.line or 0))
    return list(dict.fromkeys(map(str, ordered)))


def describe(value: Any) -> str:
    """Describe a value that was found, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return "a map" if isinstance(value, Mapping) else "a list"


def explain_error(error: Mapping[str, Any], known_paths: Sequence[str]) -> tuple[KeyPath, str]:
    """Return the path and the message of one error of pydantic's `ValidationError.errors()`."""
    path: KeyPath = tuple(part for part in error["loc"] if part != "[key]")
    return path, _explain(error, path, known_paths)


def _explain(error: Mapping[str, Any], path: KeyPath, known_paths: Sequence[str]) -> str:
    kind, found, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{suggest_key(path, known_paths)}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        expected = context["expected"].replace("'", "")
        return f"expected {expected}, found {describe(found)}{_suggest_word(found, expected)}"
    if kind == "greater_than_equal":
        return f"expected at least {context['ge']}, found {found}"
    if kind == "too_short":
        return f"expected at least {context['min_length']} item, found none"
    return f"{_EXPECTED.get(kind, error['msg'])}, found {describe(found)}"


def _suggest_word(found: object, expected: str) -> str:
    return _did_you_mean(difflib.get_close_matches(str(found), expected.replace(" or ", ", ").split(", ")))


# What people write at the top of a job file or in `resources`: names of sbatch, of other launchers, and habits.
_NAMED_OTHERWISE = {
    **{name: f"sbatch.{name}" for name in ("partition", "account", "qos", "constraint", "reservation", "nodelist")},
    **dict.fromkeys(("queue",), "sbatch.partition"),
    **dict.fromkeys(("gres",), "sbatch.gres, or resources.gpus_per_node for GPUs"),
    **dict.fromkeys(("mem", "memory"), "resources.memory_per_node"),
    **dict.fromkeys(("cpus", "cores", "cpus_per_task"), "resources.cpus_per_worker"),
    **dict.fromkeys(("gpus", "num_gpus"), "resources.gpus_per_node"),
    **dict.fromkeys(("walltime", "time_limit", "timelimit"), "time"),
    **dict.fromkeys(("tasks_per_node", "ntasks_per_node", "nproc_per_node", "workers"), "workers_per_node"),
    **dict.fromkeys(("module", "modules"), "setup: [module load ...]"),
}


def suggest_key(path: KeyPath, known_paths: Sequence[str]) -> str:
    """Return `; did you mean ...?` for an unknown key: the same name elsewhere, else a similar one in the same map."""
    parent, name = re.sub(r"\[[0-9]+\]", "[]", format_path(path[:-1])), str(path[-1]).replace("-", "_")
    prefix = f"{parent}." if parent else ""
    if parent in ("", "resources", "defaults", "defaults.resources") and name in _NAMED_OTHERWISE:
        return _did_you_mean([parent.partition("resources")[0] + _NAMED_OTHERWISE[name]])
    beside = [known.removeprefix(prefix) for known in known_paths if known.startswith(prefix)]
    elsewhere = [known for known in known_paths if known.split(".")[-1] == name]
    close = difflib.get_close_matches(name, [known for known in beside if "." not in known])
    return _did_you_mean(close if name in close else elsewhere or close)


def _did_you_mean(close: Sequence[str]) -> str:
    return f"; did you mean {close[0]}?" if close else ""
