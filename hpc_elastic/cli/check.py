"""`hpc-elastic check`: reads a job file as `submit` would, and says what it would do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import VerbParser, add_job_file, add_planning
from hpc_elastic.observe.narrate import count

if TYPE_CHECKING:
    from hpc_elastic.plan.launch_plan import LaunchPlan


def make_parser() -> VerbParser:
    """The verb's options."""
    parser = VerbParser(
        "check",
        usage="[options] job.yaml",
        description="Read a job file with its site and template, and say what submitting it would do.",
        examples="  hpc-elastic check job.yaml --set nodes=8\n",
    )
    add_job_file(parser)
    add_planning(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from hpc_elastic.cli.prepare import prepare_run, read_job_file

    prepared = prepare_run(
        read_job_file(arguments.job_file),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
    )
    print(f"{arguments.job_file} is fine")
    for label, text in describe_plan(prepared.plan):
        print(f"  {label:<14} {text}")
    return 0


def describe_plan(plan: LaunchPlan) -> list[tuple[str, str]]:
    """What a person wants to know of a plan before it costs node hours."""
    nodes = plan.nodes
    asked = f"{nodes.min}" if nodes.min == nodes.max else f"{nodes.min} to {nodes.max}"
    role = plan.roles[0]
    workers = role.workers_per_node
    each = f"{workers}" if isinstance(workers, int) else ", ".join(map(str, workers))
    entrypoint = role.entrypoint
    prefix = "-m " if entrypoint.kind == "module" else ""
    interpreter = "" if entrypoint.kind == "command" else f"{plan.python} "
    backoff = plan.restart.backoff
    return [
        ("name", plan.name),
        ("site", f"{plan.site} ({plan.scheduler}), template {plan.template}"),
        ("nodes", asked + (f", and {nodes.spares} spare" if nodes.spares else "")),
        ("workers a node", each),
        ("time limit", str(timedelta(seconds=plan.time_s)) if plan.time_s else "the partition's"),
        ("runs", f"{interpreter}{prefix}{shlex.join((entrypoint.target, *entrypoint.args))}"),
        ("in", plan.workdir),
        ("setup", count(len(plan.setup), "line") if plan.setup else "none"),
        ("restarts", f"at most {plan.restart.max_restarts}, each after {backoff.first_s:g} to {backoff.max_s:g} s"),
        ("stop", f"TERM, then KILL after {plan.signals.grace_s:g} s"),
        ("run directory", plan.run_dir),
    ]
