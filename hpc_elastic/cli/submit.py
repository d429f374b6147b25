"""`hpc-elastic submit`: a job file becomes a job."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.api.schedulers import make_scheduler
from hpc_elastic.cli import INTERRUPTED
from hpc_elastic.cli.arguments import VerbParser, add_job_file, add_json, add_planning
from hpc_elastic.cli.verbs import EXIT_CODES
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import PreparedRun
    from hpc_elastic.rundir.records import Submission
    from hpc_elastic.scheduler.protocol import Scheduler

_EXAMPLES = """\
  hpc-elastic submit job.yaml
  hpc-elastic submit job.yaml --follow --set nodes=8 --set time=12h
  hpc-elastic submit job.yaml --wait && ./evaluate.sh
  hpc-elastic submit job.yaml --json | jq -r .run_dir

Ctrl-C under --wait or --follow leaves the run going.

"""


def make_parser() -> VerbParser:
    """The verb's options."""
    parser = VerbParser(
        "submit",
        usage="[options] job.yaml",
        description="Submit a job file to the scheduler of its site.",
        examples=_EXAMPLES + EXIT_CODES,
    )
    add_job_file(parser)
    add_planning(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--wait", action="store_true", help="return when the run is over, with its exit code")
    how.add_argument("--follow", action="store_true", help="--wait, and show progress and rank 0's output")
    how.add_argument("--dry-run", action="store_true", help="print the script that would be submitted; make nothing")
    add_json(parser, "print one object: job_id, run_dir, name, site")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from hpc_elastic.api.prepare import prepare_run, read_job_file

    prepared = prepare_run(
        read_job_file(arguments.job_file),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
    )
    if arguments.dry_run:
        return _show_what_would_be(prepared)
    from hpc_elastic.api.submission import submit_run

    scheduler = make_scheduler(prepared.plan.scheduler)
    submission = submit_run(prepared, scheduler)
    layout = RunLayout(prepared.plan.run_dir)
    _announce(submission, layout, arguments)
    if arguments.wait or arguments.follow:
        return _attend(submission, layout, scheduler, arguments)
    return 0


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
        print(f"next: hpc-elastic status {submission.job_id}, or logs, cancel")


def _attend(submission: Submission, layout: RunLayout, scheduler: Scheduler, arguments: Namespace) -> int:
    from hpc_elastic.cli.attend import attend
    from hpc_elastic.observe.watch import RunWatch, watch

    output = sys.stderr if arguments.json else sys.stdout  # `--json` prints one object and nothing else
    try:
        return attend(layout, watch(RunWatch(layout, scheduler)), is_followed=arguments.follow, output=output)
    except KeyboardInterrupt:
        job = submission.job_id
        print(f"\ndetached; the run goes on. `hpc-elastic cancel {job}` stops it", file=sys.stderr)
        return INTERRUPTED
