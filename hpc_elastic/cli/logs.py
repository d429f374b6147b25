"""`hpc-elastic logs`: what a rank, an agent or the batch script wrote."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.log_files import choose_filtered, choose_tails, copy_file, copy_tail
from hpc_elastic.cli.logs_merge import Choice, parse_choice, print_merged
from hpc_elastic.cli.look import note
from hpc_elastic.errors import UsageError
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.full_disk import describe_lack, describe_refusal


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "logs",
        usage="[options] [RUN]",
        description="Print what rank 0 wrote in the latest attempt, or other ranks, or an agent.\n"
        "One rank's standard error goes to standard error. Lines of several ranks are\n"
        "merged by time on standard output, each with [node:rank]. --failed, --grep,\n"
        "--since and --dedupe look at all ranks unless --rank chooses.",
        examples="  hpc-elastic logs\n  hpc-elastic logs digits --rank 5 --attempt 1 2>&1 | less\n"
        "  hpc-elastic logs 1234 --follow\n  hpc-elastic logs --node node3\n"
        "  hpc-elastic logs --rank all --dedupe --follow\n  hpc-elastic logs --failed --tail 50\n"
        "  hpc-elastic logs --grep 'loss.*nan' --since 10m\n",
    )
    add_run(parser)
    parser.add_argument("--rank", metavar="RANKS", help="global ranks: 3, or 3,7-9, or all; default 0")
    parser.add_argument("--attempt", metavar="N", type=int, help="the attempt; default: the latest")
    parser.add_argument(
        "--node", metavar="NODE", help="this node's agent, or with an option about ranks or lines the ranks on it"
    )
    parser.add_argument(
        "--failed", action="store_true", help="the ranks that failed, in the latest attempt that has some"
    )
    parser.add_argument("--grep", metavar="REGEX", help="only lines in which this regular expression is found")
    parser.add_argument("--since", metavar="TIME", help="only lines since then: 10m (ago), 14:30, 2026-01-31T14:30")
    parser.add_argument("--tail", metavar="N", type=int, help="only the last N lines; with --follow, of what there is")
    parser.add_argument("--dedupe", action="store_true", help="a line that several ranks print once: [ranks 0-6,8] ...")
    parser.add_argument("--stdout", action="store_true", help="standard output only")
    parser.add_argument("--stderr", action="store_true", help="standard error only")
    parser.add_argument(
        "--filtered",
        action="store_true",
        help="the lines that logs.duplicate_..._filters chose in an attempt, of all nodes or of --node",
    )
    parser.add_argument("--script", action="store_true", help="the batch script's output, instead of a rank")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run is over, across attempts")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    choice = _choose(arguments)
    layout = find_run(arguments.run, say=note)
    if arguments.run is None:
        note(f"logs of {layout.root}")
    if arguments.filtered:
        for source, target in choose_filtered(layout, arguments):
            copy_file(source, target)
        return 0
    may_lack = not (arguments.follow or os.path.exists(layout.result))
    if may_lack and (lack := describe_lack(layout.root) or describe_refusal(layout.root)):
        note(f"{lack}; what was written since is not in the logs")
    if choice is not None and not arguments.follow:
        return print_merged(layout, choice)
    if arguments.follow:
        from hpc_elastic.cli.logs_follow import follow_logs

        return follow_logs(layout, arguments, choice)
    for tail, descriptor in zip(choose_tails(layout, arguments), (1, 2), strict=False):
        copy_tail(tail, descriptor)
    return 0


def _choose(arguments: Namespace) -> Choice | None:
    """Return what is asked for line by line; None for whole files, with the rank as a number."""
    if arguments.attempt is not None and arguments.attempt < 0:
        raise UsageError(f"--attempt is {arguments.attempt}, expected a number that is not negative")
    choice = parse_choice(arguments, now=time.time())
    if arguments.filtered:
        if choice is not None or arguments.rank is not None or arguments.script or arguments.follow:
            raise UsageError("--filtered goes with --node and --attempt only", tip="leave the other options out")
    elif choice is None:
        arguments.rank = None if arguments.rank is None else parse_ranks(arguments.rank)[0]
        _check(arguments)
    return choice


def _check(arguments: Namespace) -> None:
    chosen = [arguments.node is not None, arguments.script, arguments.rank is not None or arguments.attempt is not None]
    if sum(chosen) > 1:
        tip = "ask for one of them; `--node NODE --rank all` is what the ranks of a node wrote"
        raise UsageError("--node, --script and --rank with --attempt exclude each other", tip=tip)
