"""The argument parser of all verbs, and the options that several of them have."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from hpc_elastic.cli.verbs import MODULES, PROGRAM
from hpc_elastic.errors import UsageError

_WIDEST = 80
_SIMILAR = 0.75  # of difflib: `folow` is near to `follow`, and not to `role`


class VerbParser(argparse.ArgumentParser):
    """argparse with our errors, whole option names only, and help of at most 80 columns."""

    def __init__(self, verb: str, *, usage: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog=f"{PROGRAM} {verb}",
            usage=f"{PROGRAM} {verb} {usage}",
            description=description,
            epilog=f"Examples:\n{examples}" if examples else None,
            allow_abbrev=False,
            formatter_class=_formatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError, which `main` prints; argparse would print the message and exit by itself."""
        close = self._closest(message)
        guess = f"did you mean {close}? " if close else ""
        raise UsageError(message, tip=f"{guess}`{self.prog} --help` lists what it takes")

    def _closest(self, message: str) -> str | None:
        """Return the known option that the first unknown one begins, or is most similar to; or the verb of its name."""
        _, _, words = message.partition("unrecognized arguments: ")
        unknown = next((word.partition("=")[0] for word in words.split() if word.startswith("--")), "--")
        if unknown == "--":
            return None
        from difflib import get_close_matches

        if unknown[2:] in MODULES:
            return f"{PROGRAM} {unknown[2:]}"
        known = {option[2:]: option for option in self._option_string_actions if option.startswith("--")}
        begun = sorted((name for name in known if name.startswith(unknown[2:])), key=len)
        close = begun or get_close_matches(unknown[2:], known, n=1, cutoff=_SIMILAR)
        return known[close[0]] if close else None


def add_run(parser: VerbParser) -> None:
    """Add the argument RUN."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="a run directory, a name or a job id; default: the latest of this folder"
    )


def add_job_file(parser: VerbParser) -> None:
    """Add the argument for the job file."""
    parser.add_argument("job_file", metavar="job.yaml", help="the job file")


def add_planning(parser: VerbParser) -> None:
    """Add the options that change the plan of a job file."""
    parser.add_argument("--site", metavar="NAME", help="the site; default: the job file's, else what is found")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a key of the job file: --set restart.max_restarts=5",
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run directory; it must be empty or not exist yet")


def add_json(parser: VerbParser, help_line: str) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=help_line)


def terminal_width() -> int:
    """Return the width of the terminal in columns, or COLUMNS; 80 if neither is known."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    for descriptor in (1, 2):
        try:
            return os.get_terminal_size(descriptor).columns or _WIDEST
        except OSError:
            continue
    return _WIDEST


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter with a width: without one argparse imports shutil and three compression libraries."""
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=min(terminal_width(), _WIDEST))
