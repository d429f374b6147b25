"""Reads the parsers of all verbs into values: verbs, their options and arguments, and what each of them takes."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.cli.verbs import GROUPS


class Takes(Enum):
    """What the value of an option or argument is, as far as a shell can help with it."""

    RUN = "run"
    SITE = "site"
    JOB = "job"  # a YAML file
    FILE = "file"
    FOLDER = "folder"
    TEXT = "text"  # nothing that could be listed


# By verb and name first, then by name alone. Everything that is not here is text.
_OF_VERB = {("sites", "NAME"): Takes.SITE, ("templates", "NAME"): Takes.FILE}
_OF_OPTION = {"--site": Takes.SITE}
_OF_METAVAR = {
    "RUN": Takes.RUN,
    "job.yaml": Takes.JOB,
    "DIR": Takes.FOLDER,
    "FILE": Takes.FILE,
    "OLD": Takes.FILE,
    "PROGRAM": Takes.FILE,
    "SCRIPT": Takes.FILE,
    "TARGET": Takes.FILE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb. `metavar` is empty if it takes no value; `choices` are all values that there are."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    takes: Takes = Takes.TEXT
    choices: tuple[str, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a verb. `is_rest` means that it and all words behind it belong to a script."""

    metavar: str
    help: str
    takes: Takes
    choices: tuple[str, ...] = ()
    is_repeated: bool = False
    is_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: the line of the overview, what its help says, and what it takes, in the order of the help."""

    name: str
    line: str
    usage: str
    description: str
    epilog: str
    groups: tuple[tuple[str, tuple[Option, ...]], ...]
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> tuple[Option, ...]:
        """All options, of whatever group."""
        return tuple(option for _, options in self.groups for option in options)


def read_verbs() -> tuple[tuple[str, tuple[Verb, ...]], ...]:
    """Return the groups of verbs, in the order of the help; imports the parser of each verb."""
    return tuple(
        (title, tuple(_verb(verb, module, line) for verb, (module, line) in verbs.items()))
        for title, verbs in GROUPS.items()
    )


def all_verbs() -> list[Verb]:
    """Return the verbs without their groups."""
    return [verb for _, verbs in read_verbs() for verb in verbs]


def _verb(name: str, module: str, line: str) -> Verb:
    parser: argparse.ArgumentParser = importlib.import_module(f"hpc_elastic.cli.{module}").make_parser()
    groups = [(group.title or "", tuple(options_of(parser, group._group_actions))) for group in parser._action_groups]
    return Verb(
        name=name,
        line=line,
        usage=parser.usage or f"{parser.prog} [options]",
        description=parser.description or "",
        epilog=parser.epilog or "",
        groups=tuple((title, options) for title, options in groups if options),
        arguments=tuple(_argument(name, action) for action in parser._get_positional_actions()),
    )


def options_of(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> Iterator[Option]:
    """Yield the options among a parser's actions that its help shows."""
    for action in actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        yield Option(
            names=tuple(action.option_strings),
            help=parser._get_formatter()._expand_help(action) if action.help else "",  # `%%` and `%(default)s`
            metavar=metavar,
            takes=_OF_OPTION.get(action.option_strings[-1]) or _OF_METAVAR.get(metavar, Takes.TEXT),
            choices=tuple(map(str, action.choices or ())),
            is_repeated=type(action).__name__ in ("_AppendAction", "_ExtendAction"),
        )


def _argument(verb: str, action: argparse.Action) -> Argument:
    metavar = str(action.metavar or action.dest.upper())
    return Argument(
        metavar=metavar,
        help=action.help or "",
        takes=_OF_VERB.get((verb, metavar)) or _OF_METAVAR.get(metavar, Takes.TEXT),
        choices=tuple(map(str, action.choices or ())),
        is_repeated=action.nargs in ("*", "+", argparse.REMAINDER),
        is_rest=action.nargs == argparse.REMAINDER,
    )


def spelled(option: Option) -> tuple[str, ...]:
    """Return the names of an option that are offered: torchrun's second spelling with underscores is not."""
    return tuple(name for name in option.names if "_" not in name)
