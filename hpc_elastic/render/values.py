"""The variables of a template: pure, from the plan alone; `templates/README.md` is their contract."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.container import HOST_PYTHON, Mount, container_values
from hpc_elastic.render.directives import most_nodes, sbatch_directives, step_options
from hpc_elastic.render.quoting import ShellText, checked
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.stage_variables import IN_STAGE

LAUNCHER = "launch.py"  # below the package's folder; runs a module of it under any Python
AGENT_MODULE = "hpc_elastic.agent.main"
STAGE_MODULE = "hpc_elastic.agent.stage"
CONCLUSION_MODULE = "hpc_elastic.agent.conclude"
SURVIVORS_MODULE = "hpc_elastic.agent.survivors"
KILL_WAIT_S = 30  # Slurm's default of KillWait; here it begins when the workers have had their grace


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupLine:
    """An entry of `setup:`. `shell` is the user's own shell text, `text` its first line for messages."""

    number: int
    text: str
    shell: ShellText


# What a template may hold: ShellText as it is, text and numbers as a word, lists as several words.
Value: TypeAlias = str | int | Sequence[str] | Sequence[SetupLine] | Sequence[Mount] | None


def template_values(plan: LaunchPlan) -> Mapping[str, Value]:
    """Everything that a template can refer to.

    Raises:
        TemplateError: a value of the plan cannot stand in a script; it names the key.
    """
    _check(plan)
    layout, launcher = RunLayout(plan.run_dir), os.path.join(plan.package_dir, LAUNCHER)
    values: dict[str, Value] = {
        "run": plan.run,
        "name": plan.name,
        "site": plan.site,
        "created": plan.created,
        "version": plan.package_version,
        "run_dir": layout.root,
        "result": layout.result,
        "exit_code": layout.exit_code,
        "requests": layout.requests,
        "agents": layout.agents,
        "allocations": layout.allocations,
        "attempts": layout.attempts,
        "launch_agent": layout.launch_agent,
        "setup_dir": plan.snapshot.source if plan.snapshot else None if "$" in plan.workdir else plan.workdir,
        "setup": [_setup_line(number, entry) for number, entry in enumerate(plan.setup, 1)],
        "python": plan.python,
        "stage": None if plan.stage is None else (launcher, STAGE_MODULE, layout.root),
        "is_python_staged": int(plan.stage is not None and plan.python.startswith(IN_STAGE)),
        "host_pythons": () if plan.host_python is None else (plan.host_python, HOST_PYTHON),
        "agent": (launcher, AGENT_MODULE, layout.root),
        "conclude": (launcher, CONCLUSION_MODULE, layout.root),
        "min_nodes": plan.nodes.min,
        "max_nodes": most_nodes(plan),
        "max_workers_per_node": plan.most_workers_on_a_node,
        "cpus_per_worker": plan.resources.cpus_per_worker,
        "gpus_per_node": plan.resources.gpus_per_node,
        "time_limit": None if plan.time_s is None else math.ceil(plan.time_s),
        "kill_wait": math.ceil(plan.signals.grace_s + KILL_WAIT_S),
    }
    values |= container_values(plan)
    if plan.scheduler == "slurm":
        values |= {
            "directives": sbatch_directives(plan),
            "step_options": step_options(plan),
            "survivors": (launcher, SURVIVORS_MODULE, layout.root),
            "agent_output": os.path.relpath(layout.agent_output("%N"), layout.root),
        }
    return values


def _setup_line(number: int, entry: str) -> SetupLine:
    first, *more = entry.strip().replace("\t", " ").split("\n")
    return SetupLine(number=number, text=f"{first} ..." if more else first, shell=ShellText(entry.rstrip("\n")))


def _check(plan: LaunchPlan) -> None:
    """Name the key of a value that no script can hold."""
    fields = ("run", "name", "site", "created", "package_version", "run_dir", "workdir", "python", "package_dir")
    for field in fields:
        checked(getattr(plan, field), field=field)
    for line in plan.setup:
        checked(line, field="setup", allowed="\n\t")
    for option in plan.srun:
        checked(option, field="srun")
    for name, value in plan.sbatch.items():
        checked(value or "", field=f"sbatch.{name}")
    for field in ("gpus_per_node_option", "gres", "memory_per_node", "memory_per_cpu", "memory_per_gpu"):
        checked(getattr(plan.resources, field) or "", field=f"resources.{field}")
