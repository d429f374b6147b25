"""Prepares the runs of an array from a job and parameters, without making any file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpc_elastic.api.prepare import JobSource, PreparedRun, find_site_of, new_identity, plan_run, read_job
from hpc_elastic.errors import JobError, UsageError
from hpc_elastic.job.parameters import Parameter, combine
from hpc_elastic.job.parse import names_in_job
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.job_ids import array_task_id
from hpc_elastic.render.template import Templates
from hpc_elastic.rundir.layout import DEFAULT_ROOT, ArrayLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedArray:
    """The runs of one job, each with its own values in `parameters`; `array` is the array's id."""

    array: str
    layout: ArrayLayout
    runs: tuple[PreparedRun, ...]
    parameters: tuple[Mapping[str, str], ...]


def prepare_array(
    source: JobSource,
    parameters: Sequence[Parameter],
    *,
    overrides: Sequence[str] = (),
    site_name: str | None = None,
    run_dir: str | None = None,
    say: Callable[[str], None],
) -> PreparedArray:
    """Return a prepared run for each combination of the parameters' values.

    A parameter is put where the job file says `${NAME}`; if it says so nowhere, the parameter is a key of the job
    file, as with `--set`.

    Args:
        source: the job file.
        parameters: the names that vary, with their values.
        overrides: `key.path=value` of `--set`.
        site_name: of `--site`.
        run_dir: the array's folder; None takes the default place.
        say: is called with each line about what was chosen.

    Raises:
        UsageError: a parameter is used nowhere, or is the site.
        JobError, SiteError, TemplateError: something of the user's or the admin's is wrong.
    """
    combinations = combine(parameters)
    keys = _find_keys(source, parameters, overrides)
    jobs = [_read(source, combination, keys, overrides) for combination in combinations]
    site = find_site_of(source, jobs[0], site_name, say)
    now = time.time()
    array = new_identity(jobs[0], now)
    layout = ArrayLayout(os.path.expanduser(run_dir or os.path.join(site.run_root or DEFAULT_ROOT, array)))
    plan = partial(plan_run, source, site=site, now=now, templates=Templates(source.directory))
    runs = [
        plan(job=job, run=array_task_id(array, number), run_dir=layout.task(number).root, snapshot_dir=layout.snapshot)
        for number, job in enumerate(jobs)
    ]
    sources = {run.plan.snapshot and run.plan.snapshot.source for run in runs}
    if len(sources) > 1:
        problem = "snapshot: the runs of an array share one, and have different values of snapshot or workdir"
        raise JobError([problem], tip="leave snapshot out, or submit arrays of their own")
    return PreparedArray(array=array, layout=layout, runs=tuple(runs), parameters=tuple(combinations))


def _find_keys(source: JobSource, parameters: Sequence[Parameter], overrides: Sequence[str]) -> frozenset[str]:
    """Return the parameters that are keys of the job file.

    Raises:
        UsageError: a parameter is neither a key nor named in the job file.
    """
    may_be_keys = {each.name for each in parameters if re.split(r"[.\[]", each.name)[0] in JobSpec.model_fields}
    ours = [f"{each.name}={each.values[0]}" for each in parameters if each.name in may_be_keys]
    # A key's value may name another parameter; what is named as `${time}` is no key.
    named = names_in_job(source.text, file=source.file, overrides=[*overrides, *ours])
    for parameter in parameters:
        if parameter.name not in named | may_be_keys:
            others = ", ".join(f"${{{name}}}" for name in sorted(named))
            raise UsageError(
                f"the parameter {parameter.name} is used nowhere: {source.file or 'the job'} "
                + (f"names {others}" if named else "names no variable"),
                tip=f"write ${{{parameter.name}}} in entrypoint.args, env or workdir; "
                "or name a key of the job file, as in env.SEED=0..3",
            )
    keys = frozenset(may_be_keys - named)
    if "site" in keys:
        raise UsageError("an array is submitted to one site", tip="submit the job file once for each, with --site")
    return keys


def _read(source: JobSource, combination: Mapping[str, str], keys: frozenset[str], overrides: Sequence[str]) -> JobSpec:
    ours = [f"{name}={value}" for name, value in combination.items() if name in keys]
    values = {name: value for name, value in combination.items() if name not in keys}
    try:
        return read_job(source, overrides=[*overrides, *ours], parameters=values)
    except JobError as error:
        raise JobError([_blame(problem, keys) for problem in error.problems], tip=error.tip) from error


def _blame(problem: str, keys: frozenset[str]) -> str:
    """Return the problem, worded for a key that was given as a parameter and not by `--set`."""
    key = problem.removeprefix("--set ").partition(":")[0]
    is_ours = problem.startswith("--set ") and key in keys
    return problem.replace("--set", "--array", 1) if is_ours else problem
