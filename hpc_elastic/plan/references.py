"""Checks and expands `${NAME}` references in args, env and workdir.

`${NAME}` is the value of an environment variable, `$$` is a dollar sign, and any other `$` is an error:
a user who means the shell's `$NAME` or `$(...)` gets the error at submission, not a wrong argument on the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DOLLAR = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?")


class BadReferenceError(ValueError):
    """A `$` that is neither `${NAME}` nor `$$`, or a variable that is not set."""


def check_references(text: str) -> None:
    """Check the grammar of the references in a text.

    Raises:
        BadReferenceError: there is a `$` that is neither `${NAME}` nor `$$`.
    """
    for match in _DOLLAR.finditer(text):
        if match.group() == "$":
            excerpt = text[match.start() : match.start() + 12]
            raise BadReferenceError(
                f"expected ${{NAME}} or $$ at {excerpt!r}; write $$ for a dollar sign, ${{NAME}} for a variable"
            )


def expand_references(
    text: str,
    environ: Mapping[str, str],
    *,
    advice: str = "is not set on this node; export it in setup, or set it in env",
) -> str:
    """Replace each `${NAME}` by the variable's value and each `$$` by a dollar sign; values are not expanded again.

    Args:
        text: the text.
        environ: the variables.
        advice: the message about a variable that is not set.

    Raises:
        BadReferenceError: the grammar is violated, or a variable is not set.
    """
    check_references(text)

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        if name not in environ:
            raise BadReferenceError(f"${{{name}}} {advice}, or write $$ for a $")
        return environ[name]

    return _DOLLAR.sub(replace, text)


def has_reference(text: str) -> bool:
    """Return whether the text references a variable."""
    return bool(referenced_names(text))


def referenced_names(text: str) -> list[str]:
    """Return the names of the variables that the text references, in their order."""
    return [match["name"] for match in _DOLLAR.finditer(text) if match["name"]]


def bind_references(text: str, values: Mapping[str, str]) -> str:
    """Replace the references to names in `values` by the values, quoted so that they expand to themselves."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return quote_dollars(values[name]) if name in values else match.group()

    return _DOLLAR.sub(replace, text)


def quote_dollars(text: str) -> str:
    """Double each dollar sign, so that the result expands to the text itself."""
    return text.replace("$", "$$")
