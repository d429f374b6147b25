"""Writes the manual page `hpc-elastic(1)`, in the macros of man(7)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from hpc_elastic.cli.shells.grammar import Option, Verb
from hpc_elastic.cli.verbs import EXIT_CODES

_DESCRIPTION = """\
hpc_elastic runs a PyTorch training job on a Slurm cluster and starts it again when a worker fails or a node is lost.
One small agent runs on every node. When a worker fails, the agents stop all workers, start all of them again inside the
same allocation, and write down which rank failed and why. The script goes on from its last checkpoint.
"""
_RUN = """\
RUN is a run directory, a name, a job id, or nothing for the latest run that was submitted in this folder; of an array
of runs 1234 is all, and 1234_5 one of them.
"""
_ENVIRONMENT = (
    ("HPC_ELASTIC_SITE", "the site that is used if neither the command line nor the job file names one"),
    ("HPC_ELASTIC_SITE_PATH", "more folders of site files, separated by colons"),
    ("HPC_ELASTIC_DEBUG", "if set, a defect of the program itself shows its traceback"),
    ("XDG_STATE_HOME", "the folder above the index of runs; default: ~/.local/state"),
    ("XDG_CONFIG_HOME", "the folder above the user's site files; default: ~/.config"),
    ("NO_COLOR", "if set, nothing is coloured"),
)
# What roff would print as another character, or take for an escape.
_ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "~": "\\(ti", "^": "\\(ha"}
_FILES = (
    ("./hpc-elastic-runs/", "run directories, if neither job file nor site says another place"),
    ("~/.local/state/hpc_elastic/runs.jsonl", "the index of the user's runs"),
    ("/etc/hpc-elastic/sites/", "the admins' site files"),
    ("~/.config/hpc-elastic/sites/", "the user's site files"),
)


def manual_page(groups: Sequence[tuple[str, Sequence[Verb]]], *, version: str, date: str) -> str:
    """Return the page.

    Args:
        groups: the verbs, by the titles of their groups.
        version: of the package.
        date: of the version, such as `2026-01-31`.
    """
    lines = [f'.TH HPC-ELASTIC 1 "{date}" "hpc_elastic {version}" "User Commands"']
    lines += [".SH NAME", "hpc-elastic \\- run PyTorch on Slurm so that it survives what clusters do"]
    lines += [".SH SYNOPSIS", ".B hpc-elastic", "\\fIVERB\\fR ..."]
    lines += [".SH DESCRIPTION", *_prose(_DESCRIPTION), ".PP", *_prose(_RUN)]
    for title, verbs in groups:
        lines += [f".SH {_escaped(title.upper())}"]
        for verb in verbs:
            lines += _verb(verb)
    lines += [".SH EXIT STATUS", *_code(EXIT_CODES)]
    lines += [".SH ENVIRONMENT", *_terms(_ENVIRONMENT), ".SH FILES", *_terms(_FILES)]
    lines += [".SH SEE ALSO", ".BR sbatch (1),", ".BR srun (1),", ".BR torchrun (1)"]
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> list[str]:
    lines = [f".SS {_escaped(verb.usage)}", *_prose(verb.description)]
    for title, options in verb.groups:
        if title not in ("options", "positional arguments"):
            lines += [".PP", _escaped(f"{title[:1].upper()}{title[1:]}:")]
        for option in options:
            lines += [".TP", _heading(option), *(_prose(option.help) or ["\\&"])]
    examples = verb.epilog.partition("\n\nExit codes of")[0].removeprefix("Examples:\n")
    return [*lines, *([".PP", "Examples:", ".PP", *_code(examples)] if examples else [])]


def _heading(option: Option) -> str:
    value = f" \\fI{_escaped(option.metavar)}\\fR" if option.metavar else ""
    return ", ".join(f"\\fB{_escaped(name)}\\fR" for name in option.names if "_" not in name) + value


def _terms(terms: Sequence[tuple[str, str]]) -> list[str]:
    return [line for name, text in terms for line in (".TP", f".B {_escaped(name)}", *_prose(text))]


def _prose(text: str) -> list[str]:
    """Return sentences, each of which begins a line as the formatter wants it."""
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`])", " ".join(text.split()))
    wrapped = [textwrap.wrap(text, 60, break_long_words=False, break_on_hyphens=False) for text in sentences]
    return [_escaped(line) for lines in wrapped for line in lines]


def _code(text: str) -> list[str]:
    """Return lines that are shown as they are."""
    return [".nf", *(_escaped(line) if line else ".sp" for line in text.rstrip().splitlines()), ".fi"]


def _escaped(text: str) -> str:
    """Return text in which nothing is an escape or a request of roff, and a dash can be copied as one."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
