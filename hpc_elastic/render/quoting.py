r"""The two ways a value is written into a script: a shell word, and the value of an `#SBATCH` option.

What sbatch does with a line, tried with Slurm 22.05.8 (`sbatch -vvv` prints what it found): words
split at white space; single and double quotes group, also inside a word; a backslash makes the next
character literal everywhere, within single quotes too, where a shell would keep it; `#` outside
quotes starts a comment, also inside a word; nothing expands. So the double-quoted form with two
escapes says every value; the shell's quoting does not (`'a\b'` arrives as `ab`).
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable

from hpc_elastic.errors import TemplateError

_PLAIN_SBATCH_VALUE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)


class ShellText(str):
    """Text that is shell already, and is written into a script as it is."""

    __slots__ = ()


def shell_word(value: str) -> ShellText:
    """Return `value` as one word of a shell command; nothing in it expands.

    Raises:
        TemplateError: it holds a control character.
    """
    return ShellText(shlex.quote(checked(value)))


def shell_words(values: Iterable[str]) -> ShellText:
    """Return several values as words, with spaces between them."""
    return ShellText(" ".join(shell_word(value) for value in values))


def sbatch_value(value: str) -> ShellText:
    """Return `value` as sbatch reads it back from an `#SBATCH` line.

    Raises:
        TemplateError: it holds a control character.
    """
    if _PLAIN_SBATCH_VALUE.fullmatch(checked(value)):
        return ShellText(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return ShellText(f'"{escaped}"')


def literal_path_pattern(path: str) -> str:
    """Return a path as it must be spelled in `--output`, where Slurm replaces `%j`, `%N` and the like.

    `%%` stands for a percent sign. A backslash has no spelling: one anywhere in the value turns
    every replacement off and is itself dropped (Slurm's documentation, "filename pattern"). This
    holds for sbatch; srun 22.05 expands `%%j` and `%%N` on the node, so give it a path without any.

    Raises:
        TemplateError: the path holds a backslash or a control character.
    """
    if "\\" in checked(path):
        raise TemplateError(
            f"the path {path!r} holds a backslash, which Slurm's --output cannot express",
            tip="choose another directory with --run-dir",
        )
    return path.replace("%", "%%")


def checked(value: str, *, field: str | None = None, allowed: str = "") -> str:
    """Return `value` itself, if it can stand in a script.

    Args:
        value: the text.
        field: what it is, for the message.
        allowed: the control characters that may be in it.

    Raises:
        TemplateError: it holds a control character or is not Unicode.
    """
    for character in value:
        if character not in allowed and unicodedata.category(character) in ("Cc", "Cs"):
            found = f"the control character U+{ord(character):04X}"
            if unicodedata.category(character) == "Cs":
                found = "a byte that is not UTF-8"
            raise TemplateError(
                f"{field or 'a value'} {value!r} holds {found}, which cannot stand in a script",
                tip="take it out",
            )
    return value
