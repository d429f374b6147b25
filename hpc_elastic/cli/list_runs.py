"""`hpc-elastic list`: the latest runs with their states, at the price of one question to each scheduler."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import VerbParser, add_json, terminal_width
from hpc_elastic.cli.look import look
from hpc_elastic.errors import HpcElasticError, SchedulerError, UsageError
from hpc_elastic.observe.facts import FactReader, Facts
from hpc_elastic.observe.snapshot import Snapshot, elsewhere, make_snapshot, snapshot_to_json
from hpc_elastic.rundir.index import index_path, read_entries
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobStatus

_LATEST = 20


def make_parser() -> VerbParser:
    """The verb's options."""
    parser = VerbParser(
        "list",
        usage="[-n COUNT] [--json]",
        description="Show the latest runs, newest first. Runs whose directory is gone are left out.",
        examples="  hpc-elastic list -n 100\n",
    )
    parser.add_argument(
        "-n", "--number", metavar="COUNT", type=int, default=_LATEST, help=f"how many; default {_LATEST}"
    )
    add_json(parser, "print a list of the objects of `status --json`")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.number < 1:
        raise UsageError(f"--number is {arguments.number}, expected 1 or more")
    snapshots = look_at_all(arguments.number)
    if arguments.json:
        print(json.dumps([snapshot_to_json(snapshot) for snapshot in snapshots], indent=2, ensure_ascii=False))
    elif not snapshots:
        print("no runs yet; `hpc-elastic submit job.yaml` starts one", file=sys.stderr)
    elif sys.stdout.isatty():
        _draw(snapshots)
    else:
        from hpc_elastic.observe.present import plain_list

        print(plain_list(snapshots))
    return 0


def look_at_all(number: int) -> list[Snapshot]:
    """Snapshots of the latest runs; a directory that cannot be read is left out with a line that says so."""
    all_facts = []
    for entry in islice(read_entries(index_path(os.environ)), number):
        try:
            all_facts.append(FactReader(RunLayout(entry.run_dir)).read())
        except HpcElasticError as error:
            print(f"hpc-elastic: warning: {error.message}", file=sys.stderr)
    jobs, note = _ask(all_facts)
    return [_snapshot(facts, jobs.get(facts.job_id or ""), note) for facts in all_facts]


def _snapshot(facts: Facts, job: JobStatus | None, note: str | None) -> Snapshot:
    if facts.result is None and job is not None and job.state.is_terminal:
        return look(RunLayout(facts.run_dir))  # seldom: nobody has written this run's result yet
    return make_snapshot(facts, job, note if facts.result is None else None)


def _ask(all_facts: Sequence[Facts]) -> tuple[dict[str, JobStatus], str | None]:
    """The schedulers' words on the unfinished runs, by job id."""
    wanted: dict[str, list[str]] = {}
    for facts in all_facts:
        if facts.result is None and facts.job_id is not None and "scheduler" in facts.plan and not elsewhere(facts):
            wanted.setdefault(facts.plan["scheduler"], []).append(facts.job_id)
    jobs: dict[str, JobStatus] = {}
    note = None
    for name, job_ids in wanted.items():
        from hpc_elastic.api.schedulers import make_scheduler

        try:
            jobs.update(make_scheduler(name).query(job_ids))
        except SchedulerError as error:
            note = f"states are from the run directories alone: {error.message}"
            print(f"hpc-elastic: warning: {note}", file=sys.stderr)
    return jobs, note


def _draw(snapshots: Sequence[Snapshot]) -> None:
    from rich.console import Console

    from hpc_elastic.observe.present import rich_list

    width = terminal_width()
    Console(width=width).print(rich_list(snapshots, width))
