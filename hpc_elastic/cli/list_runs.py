"""`hpc-elastic list`: the latest runs with their states, at the price of one question to each scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hpc_elastic.api.known_runs import known_runs
from hpc_elastic.api.look_at_many import look_at_many
from hpc_elastic.cli.arguments import VerbParser, add_json, terminal_width
from hpc_elastic.cli.look import warn
from hpc_elastic.cli.output import print_json
from hpc_elastic.errors import UsageError
from hpc_elastic.observe.array import ArraySnapshot, array_to_json
from hpc_elastic.observe.snapshot import Snapshot, snapshot_to_json

_LATEST = 20


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "list",
        usage="[-n COUNT] [--tasks] [--json]",
        description="Show the latest runs, newest first. Runs whose directory is gone are left out.",
        examples="  hpc-elastic list -n 100\n",
    )
    parser.add_argument(
        "-n", "--number", metavar="COUNT", type=int, default=_LATEST, help=f"how many; default {_LATEST}"
    )
    parser.add_argument("--tasks", action="store_true", help="a line for each task of an array, not one for all")
    add_json(parser, "print a list of the objects of `status --json`")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.number < 1:
        raise UsageError(f"--number is {arguments.number}, expected 1 or more")
    entries = list(islice(known_runs(), arguments.number))
    listed = [item for item in look_at_many(entries, warn=warn) if item is not None]
    if arguments.tasks:
        listed = [one for item in listed for one in (item.tasks if isinstance(item, ArraySnapshot) else (item,))]
    if arguments.json:
        print_json([_to_json(item) for item in listed])
    elif not entries:
        print("no runs yet; `hpc-elastic submit job.yaml` starts one", file=sys.stderr)
    elif listed and sys.stdout.isatty():
        _draw(listed)
    elif listed:
        from hpc_elastic.observe.present import plain_list

        print(plain_list(listed))
    return 0


def _to_json(item: Snapshot | ArraySnapshot) -> dict[str, Any]:
    return array_to_json(item) if isinstance(item, ArraySnapshot) else snapshot_to_json(item)


def _draw(listed: Sequence[Snapshot | ArraySnapshot]) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_list

    width = terminal_width()
    Console(width=width).print(rich_list(listed, width))
