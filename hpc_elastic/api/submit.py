"""Submits a job from a program: a job file, a mapping, a `Job` or a function."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpc_elastic.api.functions import function_name, pickle_function
from hpc_elastic.api.job import Job
from hpc_elastic.api.preflight import check_submission
from hpc_elastic.api.prepare import JobSource, PreparedRun, prepare_run, read_job_file
from hpc_elastic.api.run import Run
from hpc_elastic.api.stop_limits import check_submitted_limits
from hpc_elastic.api.submission import submit_run
from hpc_elastic.errors import UsageError
from hpc_elastic.job.names import fit_name
from hpc_elastic.job.text import check_values, job_text, plain
from hpc_elastic.scheduler.registry import make_scheduler

_LOG = logging.getLogger("hpc_elastic")

_WHOLE = ("nodes", "logs.tee", "logs.redirects")  # a number or a word there may be replaced by a map

JobLike = str | os.PathLike[str] | Mapping[str, Any] | Job | Callable[..., Any]


def submit(
    job: JobLike,
    *arguments: Any,
    site: str | os.PathLike[str] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    **keys: Any,
) -> Run:
    """Submit a job to the scheduler of its site, and return at once.

        hpc_elastic.submit("job.yaml", nodes=8, time="12h")
        hpc_elastic.submit({"entrypoint": {"script": "train.py"}, "nodes": 4})
        hpc_elastic.submit(train, "cifar", 0.1, nodes=4, workers_per_node=8).results()

    Args:
        job: the path of a job file; a mapping with its keys, or a `Job`, whose paths are relative to the working
            directory; or a function, which every worker calls, and whose module is looked for in the working
            directory and where this process found it. What it returns on each rank is kept.
        arguments: the function's. (Its keyword arguments: `functools.partial`.)
        site: the name of a site, or the path of a site file; by default the job's, or what is found.
        run_dir: the run directory; by default a new one, in the usual place.
        keys: keys of job.yaml, over what the job says: a mapping goes into the job's own, key by key.

    Raises:
        JobError, SiteError, TemplateError: something in the job or the site is wrong; the error holds all problems.
        UsageError: there is no such file, or the function cannot be pickled.
        SchedulerError, RunDirectoryError: the scheduler refused the job, or no directory can be made; nothing remains.
    """
    return submit_prepared(prepare(job, *arguments, site=site, run_dir=run_dir, **keys))


def submit_prepared(prepared: PreparedRun) -> Run:
    """Submit a run that `prepare` has prepared."""
    check_submitted_limits(prepared, warn=_LOG.warning)
    submit_run(prepared, make_scheduler(prepared.plan.scheduler))
    return Run(prepared.plan.run_dir)


def prepare(
    job: JobLike,
    *arguments: Any,
    site: str | os.PathLike[str] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    **keys: Any,
) -> PreparedRun:
    """Prepare the run that `submit` submits, without making a file; with its arguments and its errors."""
    if arguments and not callable(job):
        raise UsageError(
            f"found {len(arguments)} arguments after a job that is no function, expected none",
            tip="arguments of a script go to entrypoint={'args': [...]}",
        )
    source, overrides = _source(job, arguments, keys)
    prepared = prepare_run(
        source,
        overrides=overrides,
        site_name=None if site is None else os.fspath(site),
        run_dir=None if run_dir is None else os.fspath(run_dir),
        say=_LOG.info,
    )
    check_submission(prepared, overrides=overrides, warn=_LOG.warning)
    return prepared


def _source(job: JobLike, arguments: tuple[Any, ...], keys: Mapping[str, Any]) -> tuple[JobSource, list[str]]:
    if isinstance(job, (str, os.PathLike)):
        check_values(keys)
        return read_job_file(os.fspath(job)), [f"{key}={value}" for key, value in _flatten(keys)]
    function = None
    if isinstance(job, Mapping):
        base: Mapping[str, Any] = job
    elif isinstance(job, Job):
        base = job.keys()
    elif callable(job):
        name = function_name(job)
        base = {"name": _fit_name(name), "entrypoint": {"function": name}}
        function = pickle_function(job, arguments)
    else:
        raise UsageError(
            f"found a {type(job).__name__} as the job", tip="expected a path, a mapping, a Job or a function"
        )
    text = job_text(_merge(base, keys))
    return JobSource(text=text, file="", directory=os.getcwd(), function=function), []


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over` put into it, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        inner: Any = merged.get(key)
        is_section = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(inner, value) if is_section else value
    return merged


def _flatten(keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the keys as `--set` takes them: dotted, each with its value as YAML."""
    for key, value in keys.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and path not in _WHOLE:
            yield from _flatten(value, f"{path}.")
        else:
            yield path, json.dumps(plain(value))


def _fit_name(function: str) -> str:
    """Return a run's name made of a function's: `train`, and `step` for `tools:Trainer.train.<locals>.step`."""
    return fit_name(function.rpartition(":")[2].rpartition(".")[2], otherwise="function")
