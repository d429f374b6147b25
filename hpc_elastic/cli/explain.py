"""`hpc-elastic explain`: why a run ended as it did, or restarted: cause, place, time, others, evidence, what to do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from hpc_elastic.api.find import find_run_or_array, name_for_commands
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run, terminal_width
from hpc_elastic.cli.look import look, note
from hpc_elastic.cli.output import print_json
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.observe.explain import Explanation, explain, explanation_to_json
from hpc_elastic.observe.explain_reader import read_explain_facts
from hpc_elastic.observe.snapshot import Snapshot, take_tolerant_snapshot
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "explain",
        usage="[--attempt N] [--json] [RUN]",
        description="Say why a run failed or restarted: the cause, where and when, what the others\n"
        "did, what was tried, the evidence, and what to do next. Of an array, a line for\neach of its tasks.",
        examples="  hpc-elastic explain\n  hpc-elastic explain digits --attempt 2\n"
        "  hpc-elastic explain 1234 --json | jq -r .cause\n",
    )
    add_run(parser)
    parser.add_argument(
        "--attempt",
        metavar="N",
        type=int,
        help="this attempt; default: the last one, or while the run goes on the last one that ended",
    )
    add_json(parser, "print one object; its keys are in docs/reference/command-line.md")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.attempt is not None and arguments.attempt < 1:
        raise UsageError(f"--attempt is {arguments.attempt}, expected 1 or more")
    found = find_run_or_array(arguments.run, say=note)
    if isinstance(found, ArrayLayout):
        if arguments.attempt is not None:
            raise UsageError(
                "--attempt goes with one run, and this is an array of runs", tip="name a task of it, such as 1234_5"
            )
        from hpc_elastic.cli.array_status import explain_array

        return explain_array(found, is_json=arguments.json)
    snapshot = _look(found)
    facts = read_explain_facts(found, snapshot, arguments.attempt)
    explanation = explain(facts, time.time(), run=name_for_commands(found, snapshot.job_id))
    if arguments.json:
        print_json(explanation_to_json(explanation))
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _draw(explanation)
    else:
        from hpc_elastic.observe.present_explanation import plain_explanation

        print(plain_explanation(explanation, terminal_width()))
    return 0


def _look(layout: RunLayout) -> Snapshot:
    """Return a snapshot of the run; where a record cannot be read, one of the others: that is when people ask."""
    try:
        return look(layout)
    except RunDirectoryError:
        return take_tolerant_snapshot(layout)


def _draw(explanation: Explanation) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present_explanation import rich_explanation

    Console(width=terminal_width()).print(rich_explanation(explanation))
