"""Writes `docs/reference/options.md`: every option of every verb, as the parsers have them.

    python -m publish.options_page

The page is kept in the repository, where people read it; a test holds it against the parsers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hpc_elastic.cli.shells.grammar import Argument, Option, Verb, read_verbs, spelled

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "options.md"
_HEAD = """\
# Options of each verb

Written by `make reference` from what `hpc-elastic VERB --help` prints. What programs build on (JSON, exit codes, which
run is meant) is in [The command line](command-line.md). `hpc-elastic completion` has all of it for your shell, and so
has `man hpc-elastic`.
"""


def options_page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *(line for _, verbs in read_verbs() for verb in verbs for line in _verb(verb))])


def _verb(verb: Verb) -> Iterator[str]:
    yield from (f"## {verb.name}", "", "```text", verb.usage, "```", "", " ".join(verb.description.split()), "")
    yield from ("| argument, option | |", "|---|---|")
    for argument in verb.arguments:
        yield _row(f"`{argument.metavar}`", _help(argument))
    for option in verb.options:
        if option.names != ("-h", "--help"):
            value = f" {option.metavar}" if option.metavar else ""
            yield _row(", ".join(f"`{name}{value}`" for name in spelled(option)), _help(option))
    yield ""


def _help(what: Option | Argument) -> str:
    return what.help or f"one of {', '.join(what.choices)}"


def _row(name: str, text: str) -> str:
    cells = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in (name, _code_spans(text)))
    return f"| {' | '.join(cells)} |"


def _code_spans(text: str) -> str:
    """Return help in which options are shown as code: a dash at the start of a word would be lost in print."""
    return re.sub(r"(?<!\S)--[\w-]*\w", r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
