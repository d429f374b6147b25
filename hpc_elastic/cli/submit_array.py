"""`hpc-elastic submit --array`: a job file and what varies become an array of runs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from hpc_elastic.api.array import array_script, submit_array
from hpc_elastic.api.look_at_array import ArrayWatch
from hpc_elastic.api.preflight import check_files
from hpc_elastic.api.prepare import read_job_file
from hpc_elastic.api.prepare_array import PreparedArray, prepare_array
from hpc_elastic.api.stop_limits import check_submitted_limits
from hpc_elastic.api.submission import submitted_line
from hpc_elastic.cli import INTERRUPTED
from hpc_elastic.cli.look import warn
from hpc_elastic.cli.output import said_at_least
from hpc_elastic.job.parameters import parse_parameters
from hpc_elastic.job_ids import array_task_id
from hpc_elastic.observe.narrate import count, describe_counts, describe_parameters
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.rundir.records import Submission
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.registry import make_scheduler


def submit_array_of(arguments: Namespace) -> int:
    """Submit what the options of `submit` ask for, and return the exit code."""
    prepared = prepare_array(
        read_job_file(arguments.job_file),
        parse_parameters(arguments.array),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
        say=_say,
    )
    check_files(prepared.runs, overrides=arguments.overrides, warn=warn)
    plan = prepared.runs[0].plan
    if arguments.dry_run:
        return _show_what_would_be(prepared, arguments.array_limit)
    longest = max(prepared.runs, key=lambda run: run.plan.signals.grace_s)  # an array may vary it
    check_submitted_limits(longest, warn=warn)
    submissions = submit_array(
        prepared.runs,
        make_scheduler(plan.scheduler),
        limit=arguments.array_limit,
        array=prepared.array,
        parameters=prepared.parameters,
    )
    job_id = submissions[0].job_id.rpartition("_")[0]
    line = submitted_line(submissions[0].name, job_id, prepared.layout.root)
    with said_at_least(line, is_waited_for=arguments.wait):
        _announce(submissions, prepared.layout, arguments, job_id)
    return _wait(prepared.layout, job_id) if arguments.wait else 0


def _show_what_would_be(prepared: PreparedArray, limit: int | None) -> int:
    script = array_script(prepared.runs, limit=limit)
    plan, number = prepared.runs[0].plan, len(prepared.runs)
    _say(f"dry run: {plan.name} would be submitted to {plan.site} as an array of {count(number, 'run')}")
    _say(f"the folder: {prepared.layout.root}")
    for task, parameters in enumerate(prepared.parameters):
        _say(f"  {task}  {describe_parameters(parameters)}")
    print(script, end="")
    return 0


def _announce(submissions: Sequence[Submission], layout: ArrayLayout, arguments: Namespace, job_id: str) -> None:
    first = submissions[0]
    if arguments.json:
        tasks = [
            {
                "job_id": submission.job_id,
                "run_dir": layout.task(number).root,
                "parameters": dict(submission.parameters),
            }
            for number, submission in enumerate(submissions)
        ]
        said = {"job_id": job_id, "run_dir": layout.root, "name": first.name, "site": first.site, "tasks": tasks}
        print(json.dumps(said), flush=True)
        return
    number = count(len(submissions), "run")
    print(f"submitted {first.name} as job {job_id} on {first.site}, an array of {number}")
    print(f"run directories: {layout.root}/0 to {len(submissions) - 1}", flush=True)
    if not arguments.wait:
        print(f"next: hpc-elastic status {job_id}, logs {array_task_id(job_id, 0)}, or cancel {job_id}", flush=True)


def _wait(layout: ArrayLayout, job_id: str) -> int:
    """Wait for all runs; print a line about each one that did not succeed when it ends."""
    told: set[str] = set()
    try:
        for snapshot in ArrayWatch(layout, warn=warn).until_over():
            for task in snapshot.tasks:
                if task.is_over and task.state is not RunState.SUCCEEDED and task.run not in told:
                    told.add(task.run)
                    _say(_describe_end(task))
    except KeyboardInterrupt:
        _say(f"\ndetached; the array goes on. `hpc-elastic cancel {job_id}` stops it")
        return INTERRUPTED
    _say(f"{snapshot.name}: {describe_counts(snapshot.counts)}")
    return 1 if snapshot.exit_code is None else snapshot.exit_code


def _describe_end(task: Snapshot) -> str:
    varied = f" ({describe_parameters(task.parameters)})" if task.parameters else ""
    code = f" (exit code {task.exit_code})" if task.exit_code else ""
    return f"{task.job_id}{varied}: {task.state.value}{code}: {task.cause or 'no cause was recorded'}"


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
