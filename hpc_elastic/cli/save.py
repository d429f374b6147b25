"""`hpc-elastic save`: has the newest training state in memory written, while the training goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run
from hpc_elastic.cli.look import look, note
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable
from hpc_elastic.rundir.layout import RunLayout

_WITHIN_S = 600.0


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "save",
        usage="[options] [RUN]",
        description="Have the newest training state that all ranks of a run hold in memory written to\n"
        "its run directory, while the training goes on. Another run begins with it by\n"
        "`state: {load_from: RUN}`. Returns when it is complete. Once it is, an earlier\n"
        "state that was written this way is removed.",
        examples="  hpc-elastic save digits\n  hpc-elastic save digits --timeout 60\n",
    )
    add_run(parser)
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=_WITHIN_S,
        help=f"how long it may take, the wait for a step included; default {_WITHIN_S:g} s",
    )
    add_json(parser, "print one JSON object")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    from hpc_elastic.api.save_request import ask_for_save

    arguments = make_parser().parse_args(argv)
    if not 0 < arguments.timeout < 86400:
        raise UsageError(f"--timeout is {arguments.timeout:g}, expected seconds, more than 0 and less than a day")
    layout = find_run(arguments.run, say=note)
    snapshot = look(layout)
    if snapshot.is_over:
        raise _over(layout, snapshot)
    if not snapshot.nodes or snapshot.state.value != "RUNNING":
        raise RunDirectoryError(
            f"{snapshot.name} is {snapshot.state.value}, and none of its ranks runs",
            tip="`hpc-elastic explain` says what it waits for",
        )
    answer = ask_for_save(layout, snapshot, within_s=arguments.timeout, look=lambda: look(layout))
    if answer is None:
        raise _unanswered(layout, snapshot, arguments.timeout)
    if answer.problem is not None or answer.folder is None:
        raise RunDirectoryError(f"no state of {snapshot.name} is written: {answer.problem}")
    folder = layout.saved_states(answer.folder)
    if arguments.json:
        whole = {"run": snapshot.run, "steps": list(answer.steps), "folder": folder}
        print(json.dumps({"format_version": 1, **whole}, indent=2))
    else:
        print(printable(f"{snapshot.name}: step {', '.join(map(str, answer.steps))} is in {folder}"))
    return 0


def _unanswered(layout: RunLayout, asked: Snapshot, within_s: float) -> RunDirectoryError:
    """Return an error about a request that no head has answered."""
    snapshot = look(layout)
    if snapshot.is_over:
        return _over(layout, snapshot)
    if (snapshot.allocations, snapshot.attempts) != (asked.allocations, asked.attempts):
        return RunDirectoryError(
            f"no state of {snapshot.name} is written: attempt {asked.attempts} has ended, and the head that was asked "
            "does not answer",
            tip="another agent may be head now: ask again",
        )
    return RunDirectoryError(
        f"no agent of {snapshot.name} has answered within {within_s:g} s",
        tip="the head's agent may just be replaced, or the file system be slow: ask again",
    )


def _over(layout: RunLayout, snapshot: Snapshot) -> RunDirectoryError:
    """Return an error about a run that has ended, with what it has left."""
    from hpc_elastic.rundir.kept_records import find_latest_attempt, read_kept_records
    from hpc_elastic.rundir.saved_states import find_saved

    found = [
        (record.step, layout.kept_states(latest))
        for latest in [find_latest_attempt(layout)]
        for record in read_kept_records(layout, latest).values()
    ]
    if (saved := find_saved(layout)) is not None:
        found.append((saved.newest.step, layout.saved_states(saved.name)))
    left = "no training state is left of it"
    if found:
        step, folder = max(found)
        left = f"step {step} is in {folder}"
    ended = f"{snapshot.name} is over ({snapshot.state.value})"
    tip = f"another run begins with it by `state: {{load_from: {os.path.abspath(layout.root)}}}`" if found else None
    return RunDirectoryError(f"{ended}, and has no rank that holds a state: {left}", tip=tip)
