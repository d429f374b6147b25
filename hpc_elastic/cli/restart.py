"""`hpc-elastic restart`: starts the workers of a run again, in its next attempt."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.api.requests import make_request
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.next_attempt import ask_and_wait, choose_at_work
from hpc_elastic.errors import RunDirectoryError


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "restart",
        usage="[RUN]",
        description="Stop the workers of a run with the grace of its job file and start them again,\n"
        "in its next attempt, from their own checkpoint: after a change of a file that\n"
        "they read at their start, say. It costs no restart of the budget. Returns when\n"
        "the next attempt is opened.",
        examples="  hpc-elastic restart digits\n",
    )
    add_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    layout, snapshot = choose_at_work(arguments.run, "restart")
    if snapshot.state.value == "REQUEUED":
        raise RunDirectoryError(
            f"{snapshot.name} is REQUEUED, and none of its workers runs: they start again with its job",
            tip=f"`hpc-elastic logs --follow {snapshot.job_id}` says when Slurm expects that",
        )
    attempt = ask_and_wait(layout, snapshot, make_request("restart", reason="hpc-elastic restart"), "restart")
    print(f"{snapshot.name}: attempt {attempt} is opened")
    return 0
