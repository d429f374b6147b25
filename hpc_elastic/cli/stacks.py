"""`hpc-elastic stacks`: where the ranks of a run are, equal stacks together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run
from hpc_elastic.cli.look import look, note, warn
from hpc_elastic.errors import ExitCode, RunDirectoryError, UsageError
from hpc_elastic.failures.stacks import RankStack, StackGroup, group_stacks
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.stacks import find_last_stacks, read_stacks
from hpc_elastic.printable import printable
from hpc_elastic.rank_set import RankSetError, abbreviate_ranks, format_ranks, name_ranks, parse_ranks
from hpc_elastic.rundir.layout import RunLayout

_WITHIN_S = 15.0
_MOST_NAMED = 8  # nodes that a warning names


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "stacks",
        usage="[options] [RUN]",
        description="Show where the ranks of a run are right now, equal stacks together. Nothing is\n"
        "stopped. Of a run that is over: the stacks that were taken last, at a stall or\n"
        "by this command.",
        examples="  hpc-elastic stacks\n  hpc-elastic stacks digits --rank 3,7-9\n",
    )
    add_run(parser)
    parser.add_argument("--rank", metavar="R", help="print the whole stacks of these ranks: 3, or 3,7-9")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=_WITHIN_S,
        help=f"how long to wait for the nodes' answers; default {_WITHIN_S:g} s",
    )
    add_json(parser, "print one JSON object")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    ranks = _chosen(arguments)
    layout = find_run(arguments.run, say=note)
    snapshot = look(layout)
    if snapshot.is_over:
        attempt, stacks = find_last_stacks(layout)
        if not stacks:
            raise RunDirectoryError(
                f"{snapshot.name} is over, and no stacks were taken of it",
                tip="set stall_timeout, and call heartbeat in the script, to have them taken when a rank hangs",
            )
        note(f"{snapshot.name} is over; these stacks of attempt {attempt} were taken last")
        return _print(arguments, snapshot, stacks, ranks, attempt=attempt)
    return _ask(arguments, layout, snapshot, ranks)


def _ask(arguments: Namespace, layout: RunLayout, snapshot: Snapshot, ranks: tuple[int, ...] | None) -> int:
    from hpc_elastic.api.stack_request import ask_for_stacks

    is_requeued = snapshot.state.value == "REQUEUED"
    if is_requeued or not snapshot.nodes:
        raise RunDirectoryError(
            f"{snapshot.name} is {snapshot.state.value}, and none of its ranks runs{'' if is_requeued else ' yet'}",
            tip="`hpc-elastic explain` says what it waits for",
        )
    request, answers = ask_for_stacks(layout, snapshot.nodes, within_s=arguments.timeout)
    missing = answers.missing
    if len(missing) == len(snapshot.nodes):
        raise RunDirectoryError(
            f"no node answered within {arguments.timeout:g} s",
            tip="the head's agent may just be replaced, or the file system be slow: ask again, with a longer --timeout",
        )
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        warn(f"no answer within {arguments.timeout:g} s from {', '.join(missing[:_MOST_NAMED])}{more}")
    stacks = read_stacks(layout, answers.found.values())
    code = _print(arguments, snapshot, stacks, ranks, attempt=snapshot.attempts, request=request, missing=missing)
    return int(ExitCode.NODE_LOST) if missing else code


def _print(
    arguments: Namespace,
    snapshot: Snapshot,
    stacks: Sequence[RankStack],
    ranks: tuple[int, ...] | None,
    *,
    attempt: int,
    request: str | None = None,
    missing: Sequence[str] = (),
) -> int:
    groups, of_nodes = group_stacks(stacks), len({stack.node for stack in stacks} | {*missing})
    chosen = {stack.rank: stack for stack in stacks if ranks is not None and stack.rank in ranks}
    absent = [rank for rank in ranks or () if rank not in chosen]
    if absent:
        warn(f"there is no stack of {name_ranks(absent)}; there is one of {abbreviate_ranks([s.rank for s in stacks])}")
    if arguments.json:
        _print_json(snapshot, groups, chosen, of_nodes, attempt=attempt, request=request, missing=missing)
    elif ranks is not None:
        for rank in sorted(chosen):
            print(printable(f"rank {rank} on {chosen[rank].node}:\n{chosen[rank].text.rstrip()}\n"))
    else:
        for group in groups:
            which = f": {abbreviate_ranks(group.ranks)}" if len(group.ranks) > 1 else ""
            print(printable(group.sentence(of_nodes=of_nodes) + which))
        if not groups:
            print("no rank runs right now")
    return 1 if absent else 0


def _print_json(
    snapshot: Snapshot,
    groups: Sequence[StackGroup],
    chosen: Mapping[int, RankStack],
    of_nodes: int,
    *,
    attempt: int,
    request: str | None,
    missing: Sequence[str],
) -> None:
    import json

    listed = [
        {
            "ranks": format_ranks(group.ranks),
            "nodes": group.nodes,
            "function": group.where.function,
            "place": group.where.place,
            "is_waiting": group.where.is_waiting,
            "trouble": group.where.trouble,
            "sentence": group.sentence(of_nodes=of_nodes),
        }
        for group in groups
    ]
    texts = {str(rank): {"node": stack.node, "stack": stack.text} for rank, stack in sorted(chosen.items())}
    whole = {"run": snapshot.run, "attempt": attempt, "request": request, "groups": listed, "stacks": texts}
    print(json.dumps({"format_version": 1, **whole, "missing": list(missing)}, indent=2))


def _chosen(arguments: Namespace) -> tuple[int, ...] | None:
    if not 0 < arguments.timeout < 86400:
        raise UsageError(f"--timeout is {arguments.timeout:g}, expected seconds, more than 0 and less than a day")
    if arguments.rank is None:
        return None
    try:
        ranks = parse_ranks(arguments.rank)
    except RankSetError as error:
        raise UsageError(f"--rank: {error}", tip="name ranks as in --rank 3,7-9") from error
    if not ranks:
        raise UsageError("--rank names no rank", tip="name ranks as in --rank 3,7-9")
    return ranks
