"""`hpc-elastic cancel`: stops a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc_elastic.api.cancel import cancel_run
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.choose import choose_to_stop
from hpc_elastic.cli.look import look, note
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.observe.narrate import describe_counts
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable, printable_line
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.rundir.states import RunState


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "cancel",
        usage="[RUN]",
        description="Stop a run: its workers get TERM, then the grace of its job file, then KILL.\n"
        "A pending run leaves the queue at once. Returns when the run is over, or\n"
        "when only Slurm is left to end its job.\n"
        "Of an array, all tasks; one of them is 1234_5.\n"
        "Without RUN it stops the run that was submitted in this folder. If several of\n"
        "them are not over, or none is of this folder, it asks; without a terminal\n"
        "it stops nothing then.",
        examples="  hpc-elastic cancel\n  hpc-elastic cancel digits\n",
    )
    add_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    found = choose_to_stop(arguments.run)
    if isinstance(found, ArrayLayout):
        return _cancel_array(found)
    snapshot = look(found)
    if snapshot.is_over:
        return _report(snapshot, "is over already")
    snapshot = cancel_run(found, snapshot, by="hpc-elastic cancel", say=_say)
    if not snapshot.is_over:
        print(
            f"{snapshot.name} is cancelled; Slurm still ends job {snapshot.job_id} (COMPLETING): a prolog or epilog "
            "of the cluster runs, or a node does not answer; "
            f"`hpc-elastic status {snapshot.job_id}` says when it is over"
        )
        return 0
    return _report(snapshot, "ended")


def _cancel_array(layout: ArrayLayout) -> int:
    from hpc_elastic.api.cancel_array import cancel_array

    snapshot = cancel_array(layout, by="hpc-elastic cancel", say=_say)
    if notes := [task.note for task in snapshot.tasks if task.note]:
        note(notes[0])
    counts = describe_counts(snapshot.counts)
    if RunState.CANCELLED in snapshot.counts:
        print(f"{snapshot.name} ended: {counts}")
        return 0
    raise RunDirectoryError(f"{snapshot.name} is over already: {counts}", tip="there is nothing to cancel")


def _report(snapshot: Snapshot, verb: str) -> int:
    if snapshot.note:
        note(snapshot.note)
    if snapshot.state.value == "CANCELLED":
        print(f"{snapshot.name} {verb}: CANCELLED, {printable_line(str(snapshot.cause))}")
        return 0
    raise RunDirectoryError(
        f"{snapshot.name} {verb}: {snapshot.state.value}, {snapshot.cause}", tip="there is nothing to cancel"
    )


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
