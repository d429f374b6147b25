"""`hpc-elastic status`: one run, from its directory first and the scheduler second."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run, terminal_width
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.observe.snapshot import Snapshot, snapshot_to_json, take_snapshot
from hpc_elastic.rundir.layout import RunLayout


def make_parser() -> VerbParser:
    """The verb's options."""
    parser = VerbParser(
        "status",
        usage="[--json] [RUN]",
        description="Show where a run stands, and why.",
        examples="  hpc-elastic status\n  hpc-elastic status digits --json | jq -r .state\n",
    )
    add_run(parser)
    add_json(parser, "print one object; its keys are in docs/reference/command-line.md")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns the exit code."""
    arguments = make_parser().parse_args(argv)
    snapshot = look_once(find_run(arguments.run))
    if arguments.json:
        print(json.dumps(snapshot_to_json(snapshot), indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _draw(snapshot)
    else:
        from hpc_elastic.observe.present import plain_status

        print(plain_status(snapshot, terminal_width()))
    return 0


def look_once(layout: RunLayout) -> Snapshot:
    """The run now. Asks the scheduler only if there is no result, and writes the one that nobody will write."""
    snapshot = take_snapshot(layout, None)
    if snapshot.is_over or not snapshot.scheduler:
        return snapshot
    from hpc_elastic.api.schedulers import make_scheduler
    from hpc_elastic.observe.watch import RunWatch

    scheduler = make_scheduler(snapshot.scheduler, run_dir=layout.root)
    try:
        return RunWatch(layout, scheduler).look()
    except RunDirectoryError as error:  # somebody else's run, or a full disk: it can be looked at all the same
        print(f"hpc-elastic: warning: {error.message}", file=sys.stderr)
        return take_snapshot(layout, scheduler)


def _draw(snapshot: Snapshot) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_status

    Console(width=terminal_width()).print(rich_status(snapshot))
