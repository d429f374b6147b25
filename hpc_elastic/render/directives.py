"""Turns the plan into the options of the `#SBATCH` lines and of the one srun."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from datetime import timedelta

from hpc_elastic.errors import TemplateError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.quoting import ShellText, literal_path_pattern, sbatch_value
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.units import format_slurm_time

_OPTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)


def sbatch_directives(plan: LaunchPlan) -> tuple[ShellText, ...]:
    """Return the options of the `#SBATCH` lines, one a line, as sbatch reads them.

    The open `sbatch` map comes last and verbatim: sbatch takes the last of two equal options.

    Raises:
        TemplateError: a value cannot be written, or an option's name is none.
    """
    return _directives(plan, [("output", RunLayout(literal_path_pattern(plan.run_dir)).script_output("%j"))])


def array_directives(plan: LaunchPlan, root: str, *, tasks: int, limit: int | None) -> tuple[ShellText, ...]:
    """Return the same for an array of runs: each task has its run directory below `root`.

    Args:
        plan: of any of the runs; what it asks for is asked for each of them.
        root: the array's folder.
        tasks: how many; they are numbered from 0.
        limit: how many run at the same time; None: as many as there is room for.

    Raises:
        TemplateError: as `sbatch_directives`.
    """
    indices = f"0-{tasks - 1}" + (f"%{limit}" if limit else "")
    task = RunLayout(os.path.join(literal_path_pattern(root), "%a"))
    return _directives(plan, [("array", indices), ("output", task.script_output("%A_%a"))])


def _directives(plan: LaunchPlan, place: Sequence[tuple[str, str]]) -> tuple[ShellText, ...]:
    options: list[tuple[str, str | None]] = [
        ("job-name", plan.name),
        ("nodes", node_range(plan)),
        *_tasks(plan),
        *_resource_options(plan),
        *place,
        ("open-mode", "append"),
        ("no-kill", None),
        # In a chain Slurm must not requeue by itself: since 24.11 it does so with a preempted job that has ended.
        ("requeue" if plan.requeue.max and plan.requeue.by == "requeue" else "no-requeue", None),
        *_signal(plan),
    ]
    for name, value in plan.sbatch.items():
        options += _open_option(name, value)
    return tuple(_directive(name, value) for name, value in options)


def _signal(plan: LaunchPlan) -> list[tuple[str, str]]:
    """Return the option for Slurm's word to the batch shell, `lead` before the time limit.

    Only ever with `B:`: else the signal goes to every process of the steps, whose default is to die of it. Slurm counts
    in whole seconds up to 65535, and may send it up to a minute too early.
    """
    lead = min(math.ceil(plan.signals.lead_s), 65535)
    return [("signal", f"B:USR2@{lead}")] if lead else []


def node_range(plan: LaunchPlan) -> str:
    """Return the number of nodes to ask for: one number, or `least-most`."""
    least, most = plan.nodes.min + plan.nodes.spares, most_nodes(plan)
    return str(most) if least == most else f"{least}-{most}"


def most_nodes(plan: LaunchPlan) -> int:
    """Return the most nodes that the run uses, the spares among them."""
    return plan.nodes.max + plan.nodes.spares


def step_options(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the options of srun that depend on the plan; the site's own come last, so that they win."""
    cpus, gpus = plan.resources.cpus_per_task, _gpu_options(plan)
    # srun of Slurm 22.05 and 23.02 does not read sbatch's --cpus-per-task: the step would get one CPU.
    options = [f"--cpus-per-task={cpus}"] if cpus else []
    # No --gpu-bind: what is not asked for is not bound, so that each worker sees all GPUs of its node, LOCAL_RANK
    # chooses, and peers can reach each other. To say so (--gpu-bind=none) is refused before 21.08.1.
    options += [f"--{name}={value}" for name, value in gpus]
    return (*options, *plan.srun)


def _tasks(plan: LaunchPlan) -> list[tuple[str, str]]:
    """Return the option for one task a node, but none for a range of nodes: Slurm (22.05) would allocate the least."""
    is_range = "-" in node_range(plan)
    return [] if is_range else [("ntasks-per-node", "1")]


def _resource_options(plan: LaunchPlan) -> list[tuple[str, str | None]]:
    resources = plan.resources
    asked = {
        "time": plan.time_s and format_slurm_time(timedelta(seconds=plan.time_s)),
        "cpus-per-task": resources.cpus_per_task and str(resources.cpus_per_task),
        "mem": resources.memory_per_node,
        "mem-per-cpu": resources.memory_per_cpu,
        "mem-per-gpu": resources.memory_per_gpu,
        **dict(_gpu_options(plan)),
    }
    options: list[tuple[str, str | None]] = [(name, str(value)) for name, value in asked.items() if value]
    return [*options, ("exclusive", None)] if resources.exclusive else options


def _gpu_options(plan: LaunchPlan) -> list[tuple[str, str]]:
    """Return the options for GPUs and other resources of a node, as the site spells them."""
    asked = {"gpus-per-node": plan.resources.gpus_per_node_option, "gres": plan.resources.gres}
    return [(name, value) for name, value in asked.items() if value]


def _open_option(name: str, value: str | None) -> list[tuple[str, str | None]]:
    """Return an entry of the open map. `true` is an option without a value, `false` and null are none."""
    if not _OPTION_NAME.fullmatch(name):
        raise TemplateError(
            f"sbatch: {name!r} is not the name of an sbatch option", tip="write it without dashes: `account: abc`"
        )
    if value is None or value == "false":
        return []
    return [(name, None if value == "true" else value)]


def _directive(name: str, value: str | None) -> ShellText:
    short = len(name) == 1
    option = f"-{name}" if short else f"--{name}"
    if value is None:
        return ShellText(option)
    return ShellText(f"{option}{' ' if short else '='}{sbatch_value(value)}")
