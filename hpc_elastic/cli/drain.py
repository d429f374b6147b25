"""`hpc-elastic drain`: lets a run go on without a node."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.api.requests import make_request, send
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.next_attempt import ask_and_wait, ask_to_set_aside, choose_at_work
from hpc_elastic.errors import UsageError
from hpc_elastic.hostlist import name_some
from hpc_elastic.rundir import store


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "drain",
        usage="--node NODE [RUN]",
        description="Let a run go on without one of its nodes: the workers stop with the grace of the\n"
        "job file, and the next attempt starts on the others, a spare in its place if\n"
        "there is one. It costs nothing of the budget. The node stays in the allocation.\n"
        "Refused where fewer than nodes.min would be left.",
        examples="  hpc-elastic drain --node node017 digits\n",
    )
    add_run(parser)
    parser.add_argument("--node", metavar="NODE", required=True, help="the name of the node, as `status` shows it")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    layout, snapshot = choose_at_work(arguments.run, "drain")
    if arguments.node in snapshot.set_aside:
        print(f"{snapshot.name}: {arguments.node} is set aside already: {snapshot.set_aside[arguments.node]}")
        return 0
    known = (*snapshot.nodes, *snapshot.spares, *snapshot.lost_nodes)
    if arguments.node not in known:
        raise UsageError(f"--node is {arguments.node}, which is none of the run's nodes: {name_some(known)}")
    least = _least_nodes(layout.plan)
    if arguments.node in snapshot.nodes and len(snapshot.nodes) + len(snapshot.spares) - 1 < least:
        raise UsageError(
            f"without {arguments.node} fewer than nodes.min, which is {least}, would be left",
            tip="`hpc-elastic restart` starts the workers again on the same nodes",
        )
    request = make_request("drain", node=arguments.node, reason="hpc-elastic drain")
    if snapshot.state.value == "REQUEUED":  # no head is there, and the next one reads all requests
        send(layout, request)
        print(f"{snapshot.name}: {arguments.node} will get no workers when the job has started again")
        return 0
    if arguments.node not in snapshot.nodes:  # nothing has to stop
        why = ask_to_set_aside(layout, request, arguments.node)
        is_lost = arguments.node in snapshot.lost_nodes
        what = "lost now, will not be used when it is back" if is_lost else "a spare, will not be used"
        print(f"{snapshot.name}: {arguments.node}, {what}: {why}")
        return 0
    attempt = ask_and_wait(layout, snapshot, request, f"go on without {arguments.node}", without=arguments.node)
    print(f"{snapshot.name}: attempt {attempt} is opened, without {arguments.node}")
    return 0


def _least_nodes(path: str) -> int:
    plan = store.read_json(path)
    try:
        return int(plan["nodes"]["min"])
    except (KeyError, TypeError, ValueError):
        return 0
