"""`hpc-elastic status`: one run, from its directory first and the scheduler second."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from hpc_elastic.api.find import find_run_or_array
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run, terminal_width
from hpc_elastic.cli.look import look, note
from hpc_elastic.cli.output import print_json
from hpc_elastic.failures.pace import NO_PACE, Pace
from hpc_elastic.observe.samples import read_pace
from hpc_elastic.observe.snapshot import Snapshot, snapshot_to_json
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.useful_time.reading import UsefulTime, read_useful_time

MOST_NODES = 64  # whose samples are read: `status` answers at once, also about a run of thousands of nodes


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "status",
        usage="[--json] [RUN]",
        description="Show where a run stands, and why; of an array, where each of its tasks stands.",
        examples="  hpc-elastic status\n  hpc-elastic status digits --json | jq -r .state\n",
    )
    add_run(parser)
    add_json(parser, "print one object; its keys are in docs/reference/command-line.md")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    found = find_run_or_array(arguments.run, say=note)
    if isinstance(found, ArrayLayout):
        from hpc_elastic.cli.array_status import show_array

        return show_array(found, is_json=arguments.json)
    snapshot = look(found)
    pace = NO_PACE if snapshot.is_over else read_pace(found, snapshot.nodes, snapshot.attempts, most=MOST_NODES)
    useful_time = read_useful_time(found, now=time.time() if snapshot.state is RunState.RUNNING else None)
    if arguments.json:
        steps = {"step": pace.step, "step_rate": pace.rate, "slow_ranks": [asdict(rank) for rank in pace.slow]}
        print_json({**snapshot_to_json(snapshot), **steps, "useful_time": useful_time.to_json()})
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":  # which rich takes for 80 columns wide
        _draw(snapshot, pace, useful_time)
    else:
        from hpc_elastic.observe.present import plain_status

        print(plain_status(snapshot, terminal_width(), pace, useful_time))
    return 0


def _draw(snapshot: Snapshot, pace: Pace, useful_time: UsefulTime) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_status

    Console(width=terminal_width()).print(rich_status(snapshot, pace, useful_time))
