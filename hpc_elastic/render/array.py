"""The script of an array of runs: for each task the scheduler starts it, and it goes on with the task's own script."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hpc_elastic.errors import JobError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.directives import array_directives
from hpc_elastic.render.quoting import ShellText, checked
from hpc_elastic.render.script import render_template
from hpc_elastic.render.template import Template
from hpc_elastic.render.values import template_values


def render_array_script(
    plans: Sequence[LaunchPlan], template: Template, runs_template: Template, *, limit: int | None
) -> str:
    """Return the text of the array's `job.sh`.

    Its `#!` and `#SBATCH` lines are those that the runs' own template has at its head, so that a site's
    directives hold for arrays as well.

    Args:
        plans: the runs'; run i is in the folder `i` of the array's.
        template: the array's, such as `slurm/array.sh.j2`.
        runs_template: that of the runs' own scripts.
        limit: so many run at a time; None: as many as there is room for, and on this machine one.

    Raises:
        TemplateError: a template does not render, or a value cannot stand in a script.
        JobError: the scheduler would be asked for different things.
    """
    first = plans[0]
    root = os.path.dirname(first.run_dir)
    values = dict(template_values(first))
    if first.scheduler == "slurm":
        check_same_request(plans, limit=limit)
        values["directives"] = array_directives(first, root, tasks=len(plans), limit=limit)
    header = tuple(_header(render_template(runs_template, values)))
    own = {
        "header": header,
        "array_dir": checked(root, field="the array's folder"),
        "tasks": len(plans),
        "limit": limit or 1,
        "at_once": min(limit or 1, len(plans)),
        **{name: values[name] for name in ("name", "site", "created", "version")},
    }
    return render_template(template, own)


def check_same_request(plans: Sequence[LaunchPlan], *, limit: int | None = None) -> None:
    """Refuse runs that Slurm cannot start as one array, where every task is asked for alike.

    Raises:
        JobError: it says what differs, and between which two.
    """
    root = os.path.dirname(plans[0].run_dir)
    first, *others = [array_directives(plan, root, tasks=len(plans), limit=limit) for plan in plans]
    for number, other in enumerate(others, 1):
        if other != first or plans[number].template != plans[0].template:
            one = " ".join(option for option in first if option not in other) or "nothing"
            two = " ".join(option for option in other if option not in first) or "nothing"
            if one == two:
                one, two = plans[0].template, plans[number].template
            raise JobError(
                [f"Slurm starts the tasks of an array alike, but task 0 asks for {one}, task {number} for {two}"],
                tip="vary only what the workers see; submit the job file once for each of the others",
            )


def _header(script: str) -> Iterator[ShellText]:
    """Return the lines that the kernel and sbatch read: the first one, and `#SBATCH` lines before the first command."""
    for number, line in enumerate(script.splitlines()):
        if line.strip() and not line.startswith("#"):
            return
        if line.startswith("#SBATCH" if number else "#!"):
            yield ShellText(line)
