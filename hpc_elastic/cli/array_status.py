"""`hpc-elastic status` and `explain` of an array of runs."""

from __future__ import annotations

import sys

from hpc_elastic.api.find import name_for_commands
from hpc_elastic.api.look_at_array import ArrayWatch
from hpc_elastic.api.schedulers import query_once
from hpc_elastic.cli.arguments import terminal_width
from hpc_elastic.cli.look import warn
from hpc_elastic.cli.output import print_json
from hpc_elastic.observe.array import ArraySnapshot, array_to_json, explained_array_to_json
from hpc_elastic.rundir.layout import ArrayLayout


def show_array(layout: ArrayLayout, *, is_json: bool) -> int:
    """Print where the array and its tasks stand."""
    snapshot = _look(layout)
    if is_json:
        print_json(array_to_json(snapshot))
    elif sys.stdout.isatty():
        from rich.console import Console

        from hpc_elastic.observe.present_array import rich_array

        Console(width=terminal_width()).print(rich_array(snapshot, name_for_commands(layout, snapshot.job_id)))
    else:
        from hpc_elastic.observe.present_array import plain_array

        print(plain_array(snapshot, name_for_commands(layout, snapshot.job_id)))
    return 0


def explain_array(layout: ArrayLayout, *, is_json: bool) -> int:
    """Print for each task of the array why it ended, in one line."""
    snapshot = _look(layout)
    if is_json:
        print_json(explained_array_to_json(snapshot))
    else:
        from hpc_elastic.observe.present_array import plain_array_explanation

        run = name_for_commands(layout, snapshot.job_id)
        print(plain_array_explanation(snapshot, terminal_width(), run))
    return 0


def _look(layout: ArrayLayout) -> ArraySnapshot:
    watch = ArrayWatch(layout, warn=warn, make_query=query_once)
    snapshot = watch.look()
    if watch.trouble:
        warn(f"states are from the run directories alone: {watch.trouble}")
    return snapshot
