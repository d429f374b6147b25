"""`hpc-elastic status`: one run, from its directory first and the scheduler second."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpc_elastic.api.find import find_run_or_array, name_for_commands
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run, terminal_width
from hpc_elastic.cli.look import look, note
from hpc_elastic.cli.output import print_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.observe.facts import claim_of
from hpc_elastic.observe.snapshot import Snapshot, snapshot_to_json
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.rundir.store import read_json

if TYPE_CHECKING:  # what only some answers need is imported for them: it is a sixth of the command's time
    from hpc_elastic.failures.pace import Pace
    from hpc_elastic.useful_time.reading import UsefulTime

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
    if arguments.json:
        print_json(
            {**snapshot_to_json(snapshot), **_steps(found, snapshot), "useful_time": _time_spent(found, snapshot)}
        )
        return 0
    from hpc_elastic.failures.pace import NO_PACE

    pace = NO_PACE if snapshot.is_over else _read_pace(found, snapshot)
    useful_time = _read_useful_time(found, snapshot)
    run = name_for_commands(found, snapshot.job_id)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":  # which rich takes for 80 columns wide
        _draw(snapshot, pace, useful_time, run)
    else:
        from hpc_elastic.observe.present import plain_status

        print(plain_status(snapshot, terminal_width(), pace, useful_time, run=run))
    return 0


def _steps(layout: RunLayout, snapshot: Snapshot) -> dict[str, Any]:
    if snapshot.is_over:
        return {"step": None, "step_rate": None, "slow_ranks": []}
    pace = _read_pace(layout, snapshot)
    return {"step": pace.step, "step_rate": pace.rate, "slow_ranks": [asdict(rank) for rank in pace.slow]}


def _time_spent(layout: RunLayout, snapshot: Snapshot) -> Any:
    """Return what the result says of it, if the run is over; a run of an older version is measured now."""
    if snapshot.is_over:
        with contextlib.suppress(RunDirectoryError):
            result = read_json(layout.result)
            spent = result.get("useful_time") if isinstance(result, dict) else None
            if isinstance(spent, dict):
                return spent
    return _read_useful_time(layout, snapshot).to_json()


def _read_pace(layout: RunLayout, snapshot: Snapshot) -> Pace:
    from hpc_elastic.observe.samples import read_pace

    return read_pace(layout, snapshot.nodes, snapshot.attempts, most=MOST_NODES)


def _read_useful_time(layout: RunLayout, snapshot: Snapshot) -> UsefulTime:
    from hpc_elastic.useful_time.reading import read_useful_time

    now = time.time() if snapshot.state is RunState.RUNNING else None
    return read_useful_time(layout, now=now, claims=[claim_of(attempt) for attempt in snapshot.attempt_history])


def _draw(snapshot: Snapshot, pace: Pace, useful_time: UsefulTime, run: str) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_status

    Console(width=terminal_width()).print(rich_status(snapshot, pace, useful_time, run=run))
