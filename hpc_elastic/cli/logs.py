"""`hpc-elastic logs`: what a rank, an agent or the batch script wrote."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.log_files import choose_files, choose_filtered, copy_file
from hpc_elastic.cli.look import note
from hpc_elastic.errors import UsageError


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "logs",
        usage="[options] [RUN]",
        description="Print what rank 0 wrote in the latest attempt, or another rank, or an agent.\n"
        "A rank's standard error goes to standard error.",
        examples="  hpc-elastic logs\n  hpc-elastic logs digits --rank 5 --attempt 1 2>&1 | less\n"
        "  hpc-elastic logs 1234 --follow\n  hpc-elastic logs --node node3\n",
    )
    add_run(parser)
    parser.add_argument("--rank", metavar="R", type=int, help="the global rank; default 0")
    parser.add_argument("--attempt", metavar="N", type=int, help="the attempt; default: the latest")
    parser.add_argument("--node", metavar="NODE", help="this node's agent, instead of a rank")
    parser.add_argument(
        "--filtered",
        action="store_true",
        help="the lines that logs.duplicate_..._filters chose in an attempt, of all nodes or of --node",
    )
    parser.add_argument("--script", action="store_true", help="the batch script's output, instead of a rank")
    parser.add_argument("--follow", action="store_true", help="go on until the run is over, across attempts")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    _check(arguments)
    layout = find_run(arguments.run, say=note)
    if arguments.run is None:
        note(f"logs of {layout.root}")
    if arguments.filtered:
        for source, target in choose_filtered(layout, arguments):
            copy_file(source, target)
        return 0
    if arguments.follow:
        from hpc_elastic.cli.logs_follow import follow_logs

        return follow_logs(layout, arguments)
    for source, target in zip(choose_files(layout, arguments), (1, 2), strict=False):
        copy_file(layout.earlier(source), target)
        copy_file(source, target)
    return 0


def _check(arguments: Namespace) -> None:
    if arguments.filtered:
        if arguments.rank is not None or arguments.script or arguments.follow:
            raise UsageError("--filtered goes with --node and --attempt only", tip="leave the other options out")
        return _check_numbers(arguments)
    chosen = [arguments.node is not None, arguments.script, arguments.rank is not None or arguments.attempt is not None]
    if sum(chosen) > 1:
        raise UsageError("--node, --script and --rank with --attempt exclude each other", tip="ask for one of them")
    return _check_numbers(arguments)


def _check_numbers(arguments: Namespace) -> None:
    for option in ("rank", "attempt"):
        value = getattr(arguments, option)
        if value is not None and value < 0:
            raise UsageError(f"--{option} is {value}, expected a number that is not negative")
