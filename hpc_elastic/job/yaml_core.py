"""YAML text as a graph of nodes whose scalars have the types of the YAML 1.2 core schema.

PyYAML reads YAML 1.1, where `on` is true, `12:00:00` is 43200 and `012` is 10. Its scanner, parser and
composer are kept, and what gives a scalar its type is replaced: only true and false are booleans,
numbers are decimal, everything else is text. See https://yaml.org/spec/1.2.2/#103-core-schema.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_CHARACTERS = 256 * 1024
DEEPEST_NESTING = 20

_PREFIX = "tag:yaml.org,2002:"
_PATTERNS = {  # in the order of the core schema; octals and hexadecimals are left out
    "null": re.compile(r"null|Null|NULL|~|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]{1,300}"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
SCALAR_KINDS = ("str", *_PATTERNS)


class YamlSyntaxError(ValueError):
    """The text is no YAML document, or too large a one; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with the core schema's resolvers and a bound on the nesting."""

    # None is PyYAML's key for resolvers that are tried whatever the first character is.
    yaml_implicit_resolvers = {  # noqa: RUF012  (the name and the type are PyYAML's)
        None: [(_PREFIX + kind, re.compile(rf"(?:{pattern.pattern})\Z")) for kind, pattern in _PATTERNS.items()]
    }
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="lists and maps are nested too deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            # JSON, which YAML includes, writes a character beyond U+FFFF as two escapes.
            node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return node


def compose_yaml(text: str) -> Any:
    """Return the root node of the one document in `text`; None if there is nothing in it.

    Raises:
        YamlSyntaxError: it is not YAML, holds more than one document, is too long or nested too deep.
    """
    if len(text) > MOST_CHARACTERS:
        raise YamlSyntaxError(1, f"expected at most {MOST_CHARACTERS} characters, found {len(text)}")
    try:
        return _Loader(text).get_single_node()
    except yaml.reader.ReaderError as error:
        position = int(error.position)
        character = f"U+{ord(text[position]):04X}"
        line = text.count("\n", 0, position) + 1
        raise YamlSyntaxError(line, f"not valid YAML: the character {character} is not allowed") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlSyntaxError(mark.line + 1 if mark else 1, f"not valid YAML: {_explain(error)}") from error


def _explain(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or error.context)
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"
    if "'\\t'" in problem:
        return f"{problem}; indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return f"{problem}; is the indentation right, or does a value with a colon need quotes?"
    return problem


def kind_of(node: Any) -> str:
    """Return the kind that a node's tag names: `map`, `seq` or one of SCALAR_KINDS; any other tag as it is written."""
    tag = str(node.tag)
    return tag.removeprefix(_PREFIX) if tag.startswith(_PREFIX) else tag


def scalar_value(kind: str, text: str) -> str | bool | int | float | None:
    """Return the value of a scalar of this kind.

    Raises:
        ValueError: the text does not fit the kind, which only an explicit tag can ask for.
    """
    if kind == "str":
        return text
    if not _PATTERNS[kind].fullmatch(text):
        raise ValueError(f"{text!r} does not fit its tag !!{kind}")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return int(text) if kind == "int" else float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
