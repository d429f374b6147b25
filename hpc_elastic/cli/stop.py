"""`hpc-elastic stop`: tells the workers of a run of its end, lets them save, and ends it or has it started again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc_elastic.api.stop import stop_run
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.next_attempt import choose_at_work
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable, printable_line


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "stop",
        usage="[--requeue] [--lead TIME] [RUN]",
        description="Stop a run with notice: its workers hear of the end first and have the time to\n"
        "save, signals.lead of its job file. Who still runs then gets TERM, then the\n"
        "grace, then KILL; if all have exited before, the run ends at once. Only the run\n"
        "directory is written, so it goes where you may not scancel the job.\n"
        "`cancel` does the same without the notice.",
        examples="  hpc-elastic stop digits\n"
        "  hpc-elastic stop --requeue digits\n"
        "  hpc-elastic stop --lead 10m 1234_5\n",
    )
    add_run(parser)
    parser.add_argument("--requeue", action="store_true", help="end this allocation only; the job is started again")
    parser.add_argument("--lead", metavar="TIME", help="the time from the notice to TERM: 90s, 10m; default: the job's")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    lead_s = None if arguments.lead is None else _seconds(arguments.lead)
    layout, snapshot = choose_at_work(arguments.run, "stop")
    ended = stop_run(layout, snapshot, is_requeue=arguments.requeue, lead_s=lead_s, by="hpc-elastic stop", say=_say)
    return _report(ended, is_requeue=arguments.requeue)


def _report(snapshot: Snapshot, *, is_requeue: bool) -> int:
    name, state = snapshot.name, snapshot.state.value
    if not snapshot.is_over:
        print(f"{name}: this allocation has ended, and the run is {state}, job {snapshot.job_id}")
        return 0
    line = f"{name} ended: {state}, {printable_line(str(snapshot.cause))}"
    if state == "SUCCEEDED" or (state == "CANCELLED" and not is_requeue):
        print(line)
        return 0
    raise RunDirectoryError(line, tip=f"`hpc-elastic explain {snapshot.job_id or snapshot.run_dir}` says more")


def _seconds(text: str) -> float:
    from hpc_elastic.units import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--lead: {error}") from error


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
