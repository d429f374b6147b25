"""`hpc-elastic check`: reads a job file as `submit` would, and says what it would do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import VerbParser, add_job_file, add_planning
from hpc_elastic.observe.narrate import count
from hpc_elastic.printable import printable_line

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import PreparedRun
    from hpc_elastic.plan.launch_plan import LaunchPlan
    from hpc_elastic.plan.roles import NodesPlan, RolePlan

_OF_EVERY_JOB = frozenset(
    ["--job-name", "--ntasks-per-node", "--output", "--open-mode", "--no-kill", "--requeue", "--no-requeue", "--signal"]
)
_RESTARTS = {
    "restart_all": "restarts every worker",
    "restart_role": "restarts this role's workers",
    "ignore": "is ignored",
}


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "check",
        usage="[options] job.yaml",
        description="Read a job file with its site and template, and say what submitting it would do.",
        examples="  hpc-elastic check job.yaml --set nodes=8\n  hpc-elastic check job.yaml --explain\n",
    )
    add_job_file(parser)
    add_planning(parser)
    parser.add_argument(
        "--explain", action="store_true", help="print every value with where it came from, and what Slurm is asked"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    from hpc_elastic.api.preflight import check_submission
    from hpc_elastic.api.prepare import prepare_run, read_job_file
    from hpc_elastic.api.stop_limits import check_stop_limits, describe_over_time
    from hpc_elastic.cli.look import warn

    prepared = prepare_run(
        read_job_file(arguments.job_file),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
    )
    check_submission(prepared, overrides=arguments.overrides, warn=warn)
    over_time = describe_over_time(check_stop_limits(prepared.plan, warn=warn))
    print(f"{arguments.job_file} is fine")
    for label, text in [
        *describe_plan(prepared.plan, default_time=_default_time(prepared)),
        *([("over time", over_time)] if over_time else []),
    ]:
        print(f"  {label:<14} {text}")
    if arguments.explain:
        from hpc_elastic.cli.value_origins import value_lines

        print("\n".join(["", *value_lines(prepared, overrides=arguments.overrides)]))
    return 0


def _default_time(prepared: PreparedRun) -> str:
    """Return what a job without a time limit gets, as far as its site file says."""
    from hpc_elastic.resolve.limits import limits_of
    from hpc_elastic.scheduler.environment import options_of_shell
    from hpc_elastic.units import format_duration

    options = {**options_of_shell(os.environ), **prepared.plan.sbatch}
    for name, limits in limits_of(options, prepared.site):
        if limits.default_time is not None:
            page = limits.page or prepared.site.url
            return f"{format_duration(limits.default_time)}, the default of {name}" + (f" ({page})" if page else "")
    return "the partition's"


def describe_plan(plan: LaunchPlan, *, default_time: str = "the partition's") -> list[tuple[str, str]]:
    """Return the lines that describe a plan to a person, before it costs node hours.

    `default_time` is what is said of the time limit of a job that asks for none.
    """
    spares, backoff = plan.nodes.spares, plan.restart.backoff
    return [
        ("name", plan.name),
        ("site", f"{plan.site} ({plan.scheduler}), template {plan.template}"),
        ("nodes", _range(plan.nodes) + (f", and {spares} spare" if spares else "")),
        *_describe_roles(plan),
        ("time limit", str(timedelta(seconds=plan.time_s)) if plan.time_s else default_time),
        ("in", plan.workdir.replace("$$", "$")),
        ("setup", count(len(plan.setup), "line") if plan.setup else "none"),
        *_describe_surroundings(plan),
        ("restarts", f"at most {plan.restart.max_restarts}, each after {backoff.first_s:g} to {backoff.max_s:g} s"),
        ("node losses", _losses(plan)),
        ("health checks", _health(plan)),
        ("stop", _stop(plan)),
        *([("requeues", _requeues(plan)), ("sbatch", _request(plan))] if plan.scheduler == "slurm" else []),
        *([("environment", ", ".join(plan.env))] if plan.env else []),
        *([("interface", plan.network.interface)] if plan.network.interface else []),
        ("run directory", plan.run_dir),
    ]


def _describe_surroundings(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    """Yield what is not the node's own: the code, the environment and the image; nothing where all of it is."""
    if plan.snapshot is not None:
        yield "code", f"a copy of what git tracks in {plan.snapshot.source}"
    if plan.stage is not None:
        yield "copied first", f"{plan.stage.source} to {plan.stage.target}"
    if plan.container is not None:
        what = " ".join(filter(None, (plan.container.command, plan.container.image)))
        yield "container", f"{plan.container.runtime}: {what}"


def _describe_roles(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    if len(plan.roles) == 1:
        role = plan.roles[0]
        yield "workers a node", _workers(role)
        yield "runs", _command(plan, role)
        yield from _restarted(role)
        return
    for role in plan.roles:
        nodes = "1 node" if role.nodes.max == 1 else f"{_range(role.nodes)} nodes"
        yield "role", f"{role.name}: {nodes}, workers a node {_workers(role)}"
        yield "  runs", _command(plan, role)
        yield from _restarted(role, indent="  ")
        yield "  a failure", _RESTARTS[role.restart]


def _restarted(role: RolePlan, indent: str = "") -> Iterator[tuple[str, str]]:
    if role.entrypoint.restart_args:
        yield f"{indent}if restarted", f"with {_joined(role.entrypoint.restart_args)} behind that"


def _health(plan: LaunchPlan) -> str:
    checks = ", ".join(f"{name} {limit_s:g} s" for name, limit_s in plan.health.items())
    return f"{checks} at most" if checks else "none"


def _stop(plan: LaunchPlan) -> str:
    notice = f"notice {plan.signals.lead_s:g} s before the end, then TERM, and " if plan.time_s else "TERM, then "
    return f"{notice}KILL after {plan.signals.grace_s:g} s"


def _losses(plan: LaunchPlan) -> str:
    least, most = plan.nodes.min, plan.nodes.max + plan.nodes.spares
    if plan.restart.max_node_losses == 0:
        return "the first one ends the run"
    if least == most:
        starts_again = plan.scheduler == "slurm" and plan.requeue.max and "node_loss" in plan.requeue.on
        return f"the first one ends the {'allocation, and the job is started again' if starts_again else 'run'}"
    return f"at most {plan.restart.max_node_losses}, while {count(least, 'node')} or more are left"


def _requeues(plan: LaunchPlan) -> str:
    if not plan.requeue.max:
        return "none"
    words = ", ".join(cause.replace("_", " ") for cause in plan.requeue.on)
    return f"at most {plan.requeue.max}, after {words}" + (" (as another job)" if plan.requeue.by == "chain" else "")


def _request(plan: LaunchPlan) -> str:
    """Return the options of sbatch that say what the job gets; the others are the same for every job."""
    from hpc_elastic.render.directives import sbatch_directives

    options = [str(directive) for directive in sbatch_directives(plan)]
    return " ".join(option for option in options if option.partition("=")[0] not in _OF_EVERY_JOB)


def _range(nodes: NodesPlan) -> str:
    return f"{nodes.min}" if nodes.min == nodes.max else f"{nodes.min} to {nodes.max}"


def _workers(role: RolePlan) -> str:
    workers = role.workers_per_node
    return f"{workers}" if isinstance(workers, int) else ", ".join(map(str, workers))


def _command(plan: LaunchPlan, role: RolePlan) -> str:
    entrypoint = role.entrypoint
    prefix = "-m " if entrypoint.kind == "module" else ""
    interpreter = "" if entrypoint.kind == "command" else f"{plan.python} "
    return f"{interpreter}{prefix}{_joined((entrypoint.target, *entrypoint.args))}"


def _joined(words: Sequence[str]) -> str:
    """Return words as a shell takes them, in one line: a line break in an argument is an escape."""
    return printable_line(shlex.join(words))
