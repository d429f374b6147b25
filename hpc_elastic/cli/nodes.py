"""`hpc-elastic nodes`: which nodes failed, or were left out, when and why, over all runs of this user."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from hpc_elastic.api.known_runs import known_runs
from hpc_elastic.cli.arguments import VerbParser, add_json, terminal_width
from hpc_elastic.cli.output import print_json
from hpc_elastic.errors import UsageError
from hpc_elastic.failures.blame import BlamedNode, Incident, blame_nodes
from hpc_elastic.observe.incidents import blamed_to_json, read_incidents
from hpc_elastic.observe.narrate import unix_time
from hpc_elastic.observe.text import wrap
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.index import IndexEntry
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout
from hpc_elastic.units import parse_duration

_SINCE = "30d"
_SHOWN_OF_A_RUN = 3  # one that restarts a thousand times would fill the terminal; --json has all
_LONGEST_RUN_S = 30 * 86400.0  # a run that was submitted so long before may have failed since


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "nodes",
        usage="[--since TIME] [--problem WHOSE] [--json] [NODE ...]",
        description="Show on which nodes failures had their cause, in all of your runs, and which\n"
        "nodes runs had to leave out: how often, when and why. [node_problem] is what a\n"
        "healthy node does not do, or what came again on the same node in another run.",
        examples="  hpc-elastic nodes --problem node\n  hpc-elastic nodes --problem node --json | jq -r '.[].node'\n",
    )
    parser.add_argument("node", metavar="NODE", nargs="*", help="only these nodes")
    parser.add_argument(
        "--since",
        metavar="TIME",
        default=_SINCE,
        help=f"failures of the last 12h or 7d, say; default {_SINCE}",
    )
    parser.add_argument(
        "--problem", metavar="WHOSE", choices=("node", "user"), help="node or user: only nodes with this mark"
    )
    add_json(parser, "print a list of objects: node, problem, incidents")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        since = time.time() - parse_duration(arguments.since).total_seconds()
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
    blamed = blame_nodes(_find_incidents(since))
    if arguments.problem:
        blamed = [each for each in blamed if each.problem.value == f"{arguments.problem}_problem"]
    if arguments.node:
        blamed = [each for each in blamed if each.node in arguments.node]
    if arguments.json:
        print_json(blamed_to_json(blamed))
    elif not blamed:
        which = f"none of {', '.join(arguments.node)}" if arguments.node else "no node"
        what = f", with the mark {arguments.problem}_problem," if arguments.problem else ""
        print(
            printable_line(f"{which} was named{what} as the place of a failure, or left out, within {arguments.since}"),
            file=sys.stderr,
        )
    else:
        print("\n".join(line for each in blamed for line in _describe(each, terminal_width())))
    return 0


def _find_incidents(since: float) -> Iterator[Incident]:
    for entry in known_runs():
        if (unix_time(entry.submitted) or 0.0) < since - _LONGEST_RUN_S:
            continue
        for run, layout in _runs_of(entry):
            for incident in read_incidents(layout, run):
                if incident.time >= since:
                    yield incident


def _runs_of(entry: IndexEntry) -> Iterator[tuple[str, RunLayout]]:
    """Yield the id and the layout of a run, or of each task of an array."""
    if not entry.tasks:
        yield entry.run, RunLayout(entry.run_dir)
    for task in range(entry.tasks):
        yield f"{entry.run}_{task}", ArrayLayout(entry.run_dir).task(task)


def _describe(blamed: BlamedNode, width: int) -> Iterator[str]:
    times = len(blamed.incidents)
    yield f"{printable_line(blamed.node)} [{blamed.problem.value}] {times} {'time' if times == 1 else 'times'}"
    by_run: dict[str, list[Incident]] = {}
    for incident in blamed.incidents:
        by_run.setdefault(incident.run, []).append(incident)
    for run, incidents in by_run.items():
        for incident in incidents[:_SHOWN_OF_A_RUN]:
            attempt = f"attempt {incident.attempt}" if incident.attempt else "before its first attempt"
            yield from wrap(printable_line(f"{_when(incident)} {run} {attempt}: {incident.line}"), width, "  ")
        if left_out := incidents[_SHOWN_OF_A_RUN:]:
            what = f"{_when(left_out[-1])} {run}: since then {len(left_out)} more"
            yield from wrap(printable_line(what), width, "  ")


def _when(incident: Incident) -> str:
    return datetime.fromtimestamp(incident.time).strftime("%Y-%m-%d %H:%M") if incident.time else "?"
