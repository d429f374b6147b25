"""A YAML file as plain values, with the place of every key for messages.

At and below a text path (`args`, `env`, `sbatch` ...) a scalar is what its author typed: `1.10` stays `1.10`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from hpc_elastic.job.problems import KeyPath, Problem, format_path
from hpc_elastic.job.yaml_core import SCALAR_KINDS, YamlSyntaxError, compose_yaml, kind_of, scalar_value

ITEM = "[]"  # in a text path, any item of a list
MOST_VALUES = 10_000  # with every alias counted as often as it is used


@dataclass(slots=True, kw_only=True)
class Document:
    """The values of a file, the place of each, and the problems found so far.

    `lines` has the line of every key and list item by its path. `overrides` has the paths that `--set`
    gave. `text_paths` are the paths at and below which scalars keep their source text; ITEM in them is
    any item of a list.
    """

    file: str
    text_paths: Sequence[KeyPath] = ()
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: set[KeyPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, path: KeyPath, message: str) -> None:
        """Note what is wrong with the value at `path`, placed by the nearest key above that has a place."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.overrides:
                return self._note(None, path, message)
            if path[:length] in self.lines:
                return self._note(self.lines[path[:length]], path, message)
        return self._note(1, path, message)

    def override(self, path: KeyPath, text: str) -> None:
        """Set the value at `path` to `text`, read as YAML, in place of the file's value."""
        self.overrides.add(path)
        self.lines = {known: line for known, line in self.lines.items() if known[: len(path)] != path}
        holder: Any = self.data
        for length, key in enumerate(path[:-1], start=1):
            if isinstance(holder, dict) and holder.get(key) is None and isinstance(path[length], str):
                holder[key] = {}
                self.overrides.add(path[:length])
            holder = holder.get(key) if isinstance(holder, dict) else holder[key]
            if lack := _why_not(holder, path[length]):
                return self._note(None, path, f"{format_path(path[:length])} {lack}")
        holder[path[-1]] = self._read(text, path, line=None)
        return None

    def read(self, text: str) -> None:
        """Read the file's text, whose top level must be a map."""
        value = self._read(text, (), line=1)
        if isinstance(value, dict):
            self.data = value
        elif not self.problems:
            found = "an empty file" if value is None else "a list" if isinstance(value, list) else "a single value"
            self._note(1, (), f"expected keys and values, such as `name: digits`, found {found}")

    def _read(self, text: str, path: KeyPath, *, line: int | None) -> Any:
        try:
            node = compose_yaml(text)
        except YamlSyntaxError as error:
            self._note(line and error.line, path, str(error))
            return None
        return None if node is None else _Conversion(document=self, has_lines=line is not None).convert(node, path)

    def _note(self, line: int | None, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(file=self.file, line=line, path=path, message=message))


def _why_not(holder: Any, key: str | int) -> str | None:
    """Return why a value cannot have this key or item, None if it can."""
    if isinstance(key, str):
        return None if isinstance(holder, dict) else f"is not a map here, so that it has no {key}"
    if not isinstance(holder, list):
        return f"is not a list here, so that it has no [{key}]"
    return None if key < len(holder) else f"has {len(holder)} items here, so that it has no [{key}]"


@dataclass(slots=True, kw_only=True)
class _Conversion:
    """Converts YAML nodes to values; a node that an alias repeats is converted, and counted, every time."""

    document: Document
    has_lines: bool
    count: int = 0
    ancestors: list[Any] = field(default_factory=list)

    def convert(self, node: Any, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:
            if self.count == MOST_VALUES + 1:
                self._add(node, (), f"expected at most {MOST_VALUES} values, found more, every alias counted")
            return None
        if any(node is ancestor for ancestor in self.ancestors):
            self._add(node, path, "an alias stands inside of what it repeats")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.ancestors.append(node)
        value = self._map(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self.ancestors.pop()
        return value

    def _map(self, node: Any, path: KeyPath) -> dict[str, Any]:
        self._check_tag(node, path, ("map",))
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str) or not key:
                self._add(key_node, path, "expected a word as the key")
            elif key in values:
                first = self.document.lines.get((*path, key))
                self._add(key_node, (*path, key), f"given twice; first in line {first}" if first else "given twice")
            else:
                self._place(key_node, (*path, key))
                values[key] = self.convert(value_node, (*path, key))
        return values

    def _list(self, node: Any, path: KeyPath) -> list[Any]:
        self._check_tag(node, path, ("seq",))
        for index, item in enumerate(node.value):
            self._place(item, (*path, index))
        return [self.convert(item, (*path, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: Any, path: KeyPath) -> Any:
        kind = kind_of(node)
        if not self._check_tag(node, path, SCALAR_KINDS):
            return None
        # A null takes a default away, but in a list of texts the word null can only be meant as text.
        is_word = kind != "null" or (node.value and path and isinstance(path[-1], int))
        plain = tuple(ITEM if isinstance(part, int) else part for part in path)
        if is_word and any(plain[: len(prefix)] == prefix for prefix in self.document.text_paths):
            return node.value
        try:
            return scalar_value(kind, node.value)
        except ValueError as error:
            self._add(node, path, str(error))
            return None

    def _check_tag(self, node: Any, path: KeyPath, allowed: Sequence[str]) -> bool:
        kind = kind_of(node)
        if kind not in allowed:
            tag = kind if kind.startswith("!") else f"!!{kind}"
            self._add(node, path, f"expected plain YAML, found the tag {tag}")
        return kind in allowed

    def _place(self, node: Any, path: KeyPath) -> None:
        if self.has_lines:
            self.document.lines.setdefault(path, node.start_mark.line + 1)

    def _add(self, node: Any, path: KeyPath, message: str) -> None:
        line = node.start_mark.line + 1 if self.has_lines else None
        self.document.problems.append(Problem(file=self.document.file, line=line, path=path, message=message))


def find_place(text: str, file: str, path: KeyPath) -> str:
    """Return the place of a key in a file, as `job.yaml:3: site`; the key's name alone if the file lacks it."""
    document = Document(file=file)
    document.read(text)
    key = format_path(path)
    return f"{file}:{document.lines[path]}: {key}" if file and path in document.lines else key
