"""`hpc-elastic list`: the latest runs with their states, at the price of one question to each scheduler."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hpc_elastic.api.look_at_array import scheduler_in
from hpc_elastic.cli.arguments import VerbParser, add_json, terminal_width
from hpc_elastic.cli.look import warn
from hpc_elastic.errors import HpcElasticError, UsageError
from hpc_elastic.observe.array import ArrayFacts, ArraySnapshot, array_to_json, make_array_snapshot, read_array
from hpc_elastic.observe.many import ManyWatch
from hpc_elastic.observe.snapshot import Snapshot, snapshot_to_json
from hpc_elastic.rundir.index import IndexEntry, index_path, read_entries
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout

_LATEST = 20


def make_parser() -> VerbParser:
    """The verb's options."""
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
    """Runs the verb and returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.number < 1:
        raise UsageError(f"--number is {arguments.number}, expected 1 or more")
    listed = look_at_all(arguments.number)
    if arguments.tasks:
        listed = [one for item in listed for one in (item.tasks if isinstance(item, ArraySnapshot) else (item,))]
    if arguments.json:
        print(json.dumps([_to_json(item) for item in listed], indent=2, ensure_ascii=False))
    elif not listed:
        print("no runs yet; `hpc-elastic submit job.yaml` starts one", file=sys.stderr)
    elif sys.stdout.isatty():
        _draw(listed)
    else:
        from hpc_elastic.observe.present import plain_list

        print(plain_list(listed))
    return 0


def look_at_all(number: int) -> list[Snapshot | ArraySnapshot]:
    """The latest runs and arrays; a directory that cannot be read is left out with a line that says so."""
    entries = [_Listed.of(entry) for entry in islice(read_entries(index_path(os.environ)), number)]
    watch = ManyWatch([run for entry in entries for run in entry.runs], scheduler_in, warn=warn)
    seen = iter(watch.look())
    listed: list[Snapshot | ArraySnapshot | None] = []
    for entry in entries:
        runs = list(islice(seen, len(entry.runs)))
        listed += runs if entry.array is None else [make_array_snapshot(entry.array, runs)]
    if watch.trouble:
        warn(f"states are from the run directories alone: {watch.trouble}")
    return [item for item in listed if item is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An entry of the index with the runs that it is of; none if they cannot be read."""

    runs: list[tuple[RunLayout, str]]
    array: ArrayFacts | None = None

    @classmethod
    def of(cls, entry: IndexEntry) -> _Listed:
        if not entry.tasks:
            return cls(runs=[(RunLayout(entry.run_dir), entry.scheduler)])
        try:
            array = read_array(ArrayLayout(entry.run_dir))
        except HpcElasticError as error:
            warn(error.message)
            return cls(runs=[])
        return cls(runs=array.runs, array=array)


def _to_json(item: Snapshot | ArraySnapshot) -> dict[str, Any]:
    return array_to_json(item) if isinstance(item, ArraySnapshot) else snapshot_to_json(item)


def _draw(listed: Sequence[Snapshot | ArraySnapshot]) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_list

    width = terminal_width()
    Console(width=width).print(rich_list(listed, width))
