"""`${NAME}` in args, env and workdir: its grammar, and its expansion on the node.

`${NAME}` is the value of an environment variable, `$$` is a dollar sign, and any other `$` is an error:
whoever means the shell's `$NAME` or `$(...)` is told so at submission, not by a strange argument on the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DOLLAR = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?")


class BadReferenceError(ValueError):
    """A `$` that is neither `${NAME}` nor `$$`, or a variable that is not set."""


def check_references(text: str) -> None:
    """Checks the grammar.

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
    text: str, environ: Mapping[str, str], *, advice: str = "is not set on this node; set it in setup or env"
) -> str:
    """The text with each `${NAME}` replaced by the variable, each `$$` by a dollar sign; values are not expanded again.

    Args:
        text: the text.
        environ: the variables.
        advice: what to say of one that is not set.

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
    """Whether the text names a variable."""
    return bool(referenced_names(text))


def referenced_names(text: str) -> list[str]:
    """The variables that the text names, in their order."""
    return [match["name"] for match in _DOLLAR.finditer(text) if match["name"]]


def bind_references(text: str, values: Mapping[str, str]) -> str:
    """The text with the names that have a value here replaced by it, so that the expansion is the value itself."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return quote_dollars(values[name]) if name in values else match.group()

    return _DOLLAR.sub(replace, text)


def quote_dollars(text: str) -> str:
    """The text so that its expansion is the text itself."""
    return text.replace("$", "$$")
