"""Checks a template's source: its blocks, and that no substitution is inside shell quotes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from jinja2 import Environment, nodes

BLOCKS = ("header", "environment", "setup", "before", "launch", "after")

_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)")


class ShellQuotes:
    """Tracks the position in a shell text: between words, inside quotes, in a comment or a here-document.

    Fed with the text of a template piece by piece. It knows enough of the shell to say whether a
    quoted word may stand at this place, and errs on the side of no: a command substitution inside
    double quotes counts as quoted.
    """

    def __init__(self) -> None:
        self._state = ""  # the quote character, "#" in a comment, "<" in a here-document, "(" in arithmetic
        self._delimiter = ""
        self._previous = "\n"

    def feed(self, text: str) -> None:
        """Walk over a piece of shell."""
        position = 0
        while position < len(text):
            if self._state == "<":
                position = self._skip_here_document(text, position)
            else:
                position += self._step(text, position)
                self._previous = text[position - 1]

    def feed_word(self) -> None:
        """Walk over a substitution."""
        self._previous = "w"

    @property
    def place(self) -> str | None:
        """The quoting that one is in, for a message; None where a word can stand."""
        return {"'": "single quotes", '"': "double quotes", "`": "backticks", "<": "a here-document"}.get(self._state)

    def _step(self, text: str, position: int) -> int:
        """Take in what is at `position`; return its length."""
        if text[position] == "\\" and self._state in ("", '"', "`"):
            return min(2, len(text) - position)
        if self._state:
            end = {"#": "\n", "(": "))"}.get(self._state, self._state)
            if text.startswith(end, position):
                self._state = ""
            return 1
        return self._step_between_words(text, position)

    def _step_between_words(self, text: str, position: int) -> int:
        character = text[position]
        if character in "'\"`":
            self._state = character
        elif character == "#" and self._previous in " \t\n;(":
            self._state = "#"
        elif text.startswith("((", position):
            self._state = "("
        elif found := _HERE_DOCUMENT.match(text, position):
            if self._previous != "<":  # `<<<word` is none
                self._delimiter, self._state = found.group(2), "<"
            return found.end() - position
        return 1

    def _skip_here_document(self, text: str, position: int) -> int:
        end = re.compile(rf"^\t*{self._delimiter}$", re.MULTILINE).search(text, position)
        if not end:
            return len(text)
        self._state = ""
        self._previous = "\n"
        return end.end()


def find_quoted_substitutions(environment: Environment, source: str) -> Iterator[tuple[int, str]]:
    """Return the line of each `{{ }}` that stands inside quotes, and which."""
    quotes = ShellQuotes()
    for line, kind, text in environment.lex(source):
        if kind == "data":
            quotes.feed(text)
        elif kind == "variable_begin":
            if quotes.place:
                yield line, quotes.place
            quotes.feed_word()


def find_blocks(tree: nodes.Template) -> dict[str, int]:
    """Return the blocks that a template defines, also inside other blocks, and their lines."""
    return {block.name: block.lineno for block in tree.find_all(nodes.Block)}


def find_unknown_block(tree: nodes.Template, known: Collection[str]) -> tuple[int, str] | None:
    """Return the line and name of a block that no parent has: in a template that extends another it would be lost."""
    for node in tree.body:
        if isinstance(node, nodes.Block) and node.name not in known:
            return node.lineno, node.name
    return None


def find_parent(tree: nodes.Template) -> tuple[int, str | None] | None:
    """Return the line of `{% extends %}` and the name in it, None for a computed one; None without it."""
    for extends in tree.find_all(nodes.Extends):
        name = extends.template
        return extends.lineno, name.value if isinstance(name, nodes.Const) else None
    return None


def find_stray_text(tree: nodes.Template) -> int | None:
    """Return the line of text outside of blocks: in a template that extends another it would be lost."""
    for node in tree.body:
        for data in node.find_all(nodes.TemplateData) if isinstance(node, nodes.Output) else ():
            if data.data.strip():
                skipped = len(data.data) - len(data.data.lstrip())
                return data.lineno + data.data[:skipped].count("\n")
    return None
