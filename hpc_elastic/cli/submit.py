"""`hpc-elastic submit`: a job file becomes a job."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.api.schedulers import in_background
from hpc_elastic.cli import INTERRUPTED
from hpc_elastic.cli.arguments import VerbParser, add_json, add_planning
from hpc_elastic.cli.output import drop_output, said_at_least
from hpc_elastic.cli.verbs import EXIT_CODES
from hpc_elastic.errors import UsageError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.registry import make_scheduler

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import PreparedRun
    from hpc_elastic.rundir.records import Submission
    from hpc_elastic.scheduler.protocol import Scheduler

_EXAMPLES = """\
  hpc-elastic submit job.yaml
  hpc-elastic submit job.yaml --follow --set nodes=8 --set time=12h
  hpc-elastic submit job.yaml --wait && ./evaluate.sh
  hpc-elastic submit job.yaml --json | jq -r .run_dir
  hpc-elastic submit job.yaml --array lr=1e-3,3e-4 seed=0..3

Ctrl-C under --wait or --follow leaves the run going.

"""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "submit",
        usage="[options] job.yaml",
        description="Submit a job file to the scheduler of its site.",
        examples=_EXAMPLES + EXIT_CODES,
    )
    parser.add_argument("job_file", metavar="job.yaml", nargs="?", help="the job file")
    add_planning(parser)
    parser.add_argument(
        "--array",
        metavar="NAME=VALUES",
        nargs="+",
        action="extend",
        help="a run for each combination, in one array; ${NAME} in the job file, or a key of it",
    )
    parser.add_argument("--array-limit", metavar="N", type=int, help="so many runs of the array at a time")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--wait", action="store_true", help="return when the run is over, with its exit code")
    how.add_argument("--follow", action="store_true", help="--wait, and show progress and rank 0's output")
    how.add_argument("--dry-run", action="store_true", help="print the script that would be submitted; make nothing")
    add_json(parser, "print one object: job_id, run_dir, name, site; of an array also tasks")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    _check(parser, arguments)
    if arguments.array:
        from hpc_elastic.cli.submit_array import submit_array_of

        return submit_array_of(arguments)
    from hpc_elastic.api.preflight import check_submission
    from hpc_elastic.api.prepare import prepare_run, read_job_file
    from hpc_elastic.cli.look import warn

    prepared = prepare_run(
        read_job_file(arguments.job_file),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
    )
    check_submission(prepared, overrides=arguments.overrides, warn=warn)
    if arguments.dry_run:
        return _show_what_would_be(prepared)
    from hpc_elastic.api.stop_limits import check_submitted_limits
    from hpc_elastic.api.submission import submit_run, submitted_line

    check_submitted_limits(prepared, warn=warn)
    scheduler = make_scheduler(prepared.plan.scheduler)
    submission = submit_run(prepared, scheduler)
    layout = RunLayout(prepared.plan.run_dir)
    line = submitted_line(submission.name, submission.job_id, layout.root)
    with said_at_least(line, is_waited_for=arguments.wait):
        _announce(submission, layout, arguments)
    if arguments.wait or arguments.follow:
        return _attend(submission, layout, scheduler, arguments)
    return 0


def _check(parser: VerbParser, arguments: Namespace) -> None:
    """Refuse options that do not go together; find a job file that follows the words of `--array`."""
    if arguments.array and arguments.job_file is None and "=" not in arguments.array[-1]:
        arguments.job_file = arguments.array.pop()
    if arguments.job_file is None:
        parser.error("the following arguments are required: job.yaml")
    if arguments.array_limit is not None and not arguments.array:
        parser.error("--array-limit goes with --array")
    if arguments.follow and arguments.array:
        raise UsageError(
            "--follow shows the output of one run, and --array makes several",
            tip="use --wait; `hpc-elastic logs 1234_0 --follow` follows one of them",
        )


def _show_what_would_be(prepared: PreparedRun) -> int:
    plan = prepared.plan
    print(f"dry run: {plan.name} would be submitted to {plan.site}, run directory {plan.run_dir}", file=sys.stderr)
    print(prepared.script, end="")
    return 0


def _announce(submission: Submission, layout: RunLayout, arguments: Namespace) -> None:
    if arguments.json:
        said = {
            "job_id": submission.job_id,
            "run_dir": layout.root,
            "name": submission.name,
            "site": submission.site,
        }
        print(json.dumps(said), flush=True)
        return
    stream = sys.stderr if arguments.follow else sys.stdout  # rank 0's output has stdout for itself
    print(f"submitted {submission.name} as job {submission.job_id} on {submission.site}", file=stream)
    print(f"run directory: {layout.root}", file=stream, flush=True)
    if not (arguments.wait or arguments.follow):
        print(f"next: hpc-elastic status {submission.job_id}, or logs, cancel", flush=True)


def _attend(submission: Submission, layout: RunLayout, scheduler: Scheduler, arguments: Namespace) -> int:
    from hpc_elastic.cli.attend import attend
    from hpc_elastic.observe.watch import RunWatch, watch

    output = sys.stderr if arguments.json else sys.stdout  # `--json` prints one object and nothing else
    try:
        return attend(
            layout, watch(RunWatch(layout, in_background(scheduler))), is_followed=arguments.follow, output=output
        )
    except (KeyboardInterrupt, BrokenPipeError) as end:
        if isinstance(end, BrokenPipeError):
            drop_output()
        job = submission.job_id
        print(f"\ndetached; the run goes on. `hpc-elastic cancel {job}` stops it", file=sys.stderr)
        return INTERRUPTED
