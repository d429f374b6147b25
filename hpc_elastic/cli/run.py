"""`hpc-elastic run`: a job file or a script, in the foreground: inside an allocation, or on this machine."""

from __future__ import annotations

import os
import shlex
from argparse import REMAINDER, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import VerbParser, add_planning
from hpc_elastic.cli.job_text import write_job
from hpc_elastic.cli.log_options import add_log_options, read_log_options
from hpc_elastic.cli.nproc import count_workers
from hpc_elastic.cli.torchrun_options import (
    add_torchrun_options,
    choose_kind,
    choose_site,
    ignored_variables,
    read_torchrun_options,
)
from hpc_elastic.errors import AllocationError, UsageError
from hpc_elastic.scheduler.slurm.allocated import count_nodes, count_parts
from hpc_elastic.scheduler.slurm.identity import mark_array_task
from hpc_elastic.scheduler.slurm.step import count_tasks, find_job_id
from hpc_elastic.shipped import PACKAGE_DIRECTORY

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import JobSource, PreparedRun
    from hpc_elastic.plan.launch_plan import LaunchPlan

_EXAMPLES = """\
  hpc-elastic run job.yaml
  hpc-elastic run --nodes 2 --workers-per-node 4 train.py --epochs 20
  hpc-elastic run -m my_package.train --epochs 20
  hpc-elastic run --no-python ./train.sh

Inside salloc or an sbatch script it runs on the nodes of that job, with one
srun of its own; call it once, without srun. Elsewhere it runs here, with
processes as nodes. Everything after the script belongs to the script.
Ctrl-C stops the run with grace; a second one at once; a third kills it.
Ctrl-\\ does the same.
"""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "run",
        usage="[options] (job.yaml | train.py | -m module) [arguments]",
        description="Run a job file or a script in the foreground, and exit as it does.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--nodes", "--nnodes", metavar="N|MIN:MAX", help="default: all of the allocation, else 1")
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--workers-per-node", metavar="N", help="a number, or auto: gpus_per_node, else 1")
    workers.add_argument(
        "--nproc-per-node", "--nproc_per_node", metavar="N", help="a number, gpu, cpu, or auto: GPUs, else CPUs"
    )
    parser.add_argument("--max-restarts", "--max_restarts", metavar="N", help="worker failures to survive")
    parser.add_argument("--name", metavar="NAME", help="the run's name; default: the script's")
    add_log_options(parser)
    add_planning(parser)
    add_torchrun_options(parser)
    parser.add_argument("-m", "--module", action="store_true", help="the target is a module, as in python -m")
    parser.add_argument("target", metavar="TARGET", help="a job file (.yaml, .yml), a script, a module or a program")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=REMAINDER, help="the script's own")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    prepared, allocation = prepare(argv)
    from hpc_elastic.cli.run_foreground import run_in_foreground

    return run_in_foreground(prepared, allocation)


def prepare(argv: Sequence[str]) -> tuple[PreparedRun, str | None]:
    """Return the run that a command line asks for, checked and not started, and the Slurm job that this process is in.

    Raises:
        UsageError: the command line asks for something that does not exist or does not fit.
        JobError, SiteError, TemplateError, AllocationError: something of the user's or the admin's is wrong.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    kind, named_site = choose_kind(arguments), choose_site(arguments)
    from hpc_elastic.api.preflight import check_submission
    from hpc_elastic.api.prepare import prepare_run, read_job_file
    from hpc_elastic.cli.look import warn
    from hpc_elastic.plan.launch_plan import RequeuePlan

    if ignored := ignored_variables(os.environ, parser):
        warn(f"torchrun's variables are not read, give the options instead: {', '.join(ignored)}")
    mark_array_task(os.environ)
    allocation = find_allocation(os.environ)
    is_job_file = kind == "script" and not arguments.run_path and arguments.target.endswith((".yaml", ".yml"))
    if is_job_file and arguments.arguments:
        raise UsageError(
            f"{arguments.arguments[0]!r} stands after the job file, whose own arguments are in it",
            tip="put options before the job file, or change the arguments with --set entrypoint.args=[...]",
        )
    is_whole_job = allocation is not None and not is_job_file and not arguments.standalone
    options = _options(arguments, os.environ if is_whole_job else {})
    options |= read_torchrun_options(arguments)
    options |= read_log_options(arguments, {} if is_job_file else os.environ)
    if is_job_file:
        source = read_job_file(arguments.target)
        overrides = [f"{key}={value}" for key, value in options.items()] + arguments.overrides
    else:
        source = _source_of_script(arguments, kind, options, argv)
        overrides = arguments.overrides
    site = named_site or ("local" if allocation is None else None if is_job_file else "generic-slurm")
    prepared = prepare_run(
        source,
        overrides=overrides,
        site_name=site,
        run_dir=arguments.run_dir,
        run_root=arguments.log_dir,
        is_allocated=allocation is not None,
    )
    check_allocation(prepared.plan, allocation, os.environ)
    if allocation is not None:  # a job that is not ours to start again
        prepared = replace(prepared, plan=replace(prepared.plan, requeue=RequeuePlan(max=0, on=())))
    check_submission(prepared, overrides=overrides, warn=warn)
    return prepared, allocation


def find_allocation(environ: Mapping[str, str]) -> str | None:
    """Return the id of the Slurm job in which this process runs; None outside of a job.

    Raises:
        UsageError: srun has started this program more than once.
    """
    tasks = count_tasks(environ)
    if tasks not in (None, "1"):
        raise UsageError(
            f"srun started hpc-elastic run as {tasks} tasks, expected one call",
            tip="call it without srun: it starts its own, with one agent a node",
        )
    return find_job_id(environ)


def check_allocation(plan: LaunchPlan, allocation: str | None, environ: Mapping[str, str]) -> None:
    """Refuse a plan that cannot run here.

    Raises:
        UsageError: it needs an allocation, and there is none.
        AllocationError: the allocation is too small, or heterogeneous.
    """
    if plan.scheduler != "slurm":
        return
    if allocation is None:
        raise UsageError(
            f"the site {plan.site} needs an allocation, and this is not inside one",
            tip="use salloc first, or `hpc-elastic submit`, or --site local",
        )
    if parts := count_parts(environ):  # of such a job srun starts nothing as we call it
        raise AllocationError(
            f"job {allocation} is a heterogeneous job of {parts} parts, expected a job of one",
            tip="allocate without `:` and `hetjob`; `roles` in a job file runs several programs in one ordinary job",
        )
    nodes = count_nodes(environ)
    if nodes is not None and nodes.isdigit() and int(nodes) < plan.nodes.min:
        raise AllocationError(
            f"job {allocation} has {nodes} nodes, the run needs at least {plan.nodes.min}",
            tip="allocate more, or lower --nodes",
        )


def _options(arguments: Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of a job file that the options stand for, with values in YAML."""
    nodes = arguments.nodes or count_nodes(environ)
    nproc = arguments.nproc_per_node and count_workers(arguments.nproc_per_node, os.environ)
    given = {
        "name": arguments.name,
        "nodes": _nodes(nodes) if nodes else None,
        "workers_per_node": arguments.workers_per_node or nproc,
        "restart.max_restarts": arguments.max_restarts,
    }
    return {key: value for key, value in given.items() if value is not None}


def _nodes(text: str) -> str:
    """Return the value of `nodes`: `4` as it is; `2:4`, torchrun's spelling, as minimum and maximum."""
    minimum, colon, maximum = text.partition(":")
    if not minimum.isdigit() or (colon and not maximum.isdigit()):
        raise UsageError(f"--nodes is {text!r}, expected a number or MIN:MAX", tip="for example --nodes 2:4")
    return f"{{min: {minimum}, max: {maximum}}}" if colon else minimum


def _source_of_script(arguments: Namespace, kind: str, options: Mapping[str, str], argv: Sequence[str]) -> JobSource:
    if kind == "script" and not os.path.isfile(arguments.target):
        raise UsageError(f"there is no script {arguments.target}", tip="-m runs a module; a job file ends in .yaml")
    text = write_job(
        command=shlex.join(("hpc-elastic", "run", *argv)),
        kind=kind,
        target=arguments.target,
        arguments=arguments.arguments,
        workdir=os.getcwd(),
        options=options,
        schema=os.path.join(PACKAGE_DIRECTORY, "job", "job.schema.json"),
    )
    from hpc_elastic.api.prepare import JobSource

    return JobSource(text=text, file="the job.yaml of this run", directory=os.getcwd())
