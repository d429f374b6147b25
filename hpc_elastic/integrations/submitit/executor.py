"""Implements submitit's executor: each submission becomes an ordinary run whose workers call the function.

Theory of operation: the function is pickled beside the run directory before the run is made, under a name that
needs no job id: it is not moved when the id is known, and no worker waits for that. Every worker runs submitit's own
program, by way of `worker.py`: it asks our job environment for that pickle, calls the function and pickles what it
returns into the folder of its rank and attempt. So a restart reads what a checkpoint has left, and attempts do not
share files. Several submissions at once are an array.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core import core, utils

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.integrations.submitit.environment import (
    MERGE_VARIABLE,
    PICKLE_VARIABLE,
    PYTHON_VARIABLE,
    HpcElasticJobEnvironment,
)
from hpc_elastic.integrations.submitit.job import HpcElasticJob
from hpc_elastic.integrations.submitit.parameters import ParameterNames, check_names, job_of
from hpc_elastic.integrations.submitit.paths import link_run
from hpc_elastic.integrations.submitit.preemption import SIGNAL_AFTER_VARIABLE
from hpc_elastic.rundir import store
from hpc_elastic.rundir.create import run_identity
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import PreparedRun
    from hpc_elastic.render.template import Templates
    from hpc_elastic.rundir.submissions import Submission

DEFAULT_SIGNAL_DELAY_S = 90  # of submitit's Slurm executor
SIGNALS_OF_THEIR_OWN_S = 80.0  # with the defaults of `signals` the workers are stopped 70 s before the time limit
DEFAULT_PARALLELISM = 256  # likewise; on the local backend, as many as the machine has CPUs
RUNS = "hpc-elastic-runs"
WORKER = "hpc_elastic.integrations.submitit.worker"
_GIB = 1024**3


class HpcElasticExecutor(core.Executor):
    """Submits functions as runs that recover from failures, to Slurm or to the local backend.

    Args:
        folder: for the functions, their results and the run directories; on Slurm, every node must have access to it.
        max_num_timeout: how often a function with a `checkpoint` may be started again after its time limit.
        max_pickle_size_gb: the most that the pickles of one submission may take, by estimate.
        python: the Python of the workers, with submitit and hpc_elastic in it; the one that submits by default.
    """

    job_class = HpcElasticJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = python
        self._found_site: str | None = None

    @classmethod
    def affinity(cls) -> int:
        """Return 0, so that AutoExecutor takes this executor only if it is asked for by name."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return ParameterNames()

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Add parameters to the present ones.

        Raises:
            ValueError: a name has no meaning here.
            JobError: the resulting job is invalid; the error holds all problems.
        """
        from hpc_elastic.job.parse import parse_job

        parameters = {**self.parameters, **check_names(kwargs)}
        parse_job(self._job_text(parameters, pickle=""), file="")
        self.parameters.update(parameters)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit one run, or several as one array; if that fails, no pickle remains.

        Raises:
            HpcElasticError: the submission cannot be made.
        """
        from hpc_elastic.render.template import Templates

        _check_folder(utils.JobPaths.get_first_id_independent_folder(self.folder))
        templates = Templates(os.getcwd())  # to check them takes ten times as long as all else of a run
        runs = [self._plan(run_dir, templates) for run_dir in self._run_directories(len(delayed_submissions))]
        with contextlib.ExitStack() as unless_submitted:
            for run, delayed in zip(runs, delayed_submissions, strict=True):
                unless_submitted.callback(_remove, _pickle_of(run.plan.run_dir))
                self._dump(delayed, run, len(runs))
            submissions = self._submit(runs)
            unless_submitted.pop_all()
        return [self._job(run, submission.job_id) for run, submission in zip(runs, submissions, strict=True)]

    def _run_directories(self, count: int) -> list[str]:
        """Return one new directory, or for an array its subdirectories 0, 1, 2 ...; none of them is created yet."""
        name = str(job_of(self.parameters)["name"])
        identity = run_identity(name, datetime.fromtimestamp(time.time(), timezone.utc), os.urandom(4).hex())
        root = runs_folder(utils.JobPaths.get_first_id_independent_folder(self.folder)) / identity
        return [str(root)] if count == 1 else [str(root / str(task)) for task in range(count)]

    def _plan(self, run_dir: str, templates: Templates) -> PreparedRun:
        from hpc_elastic.api.prepare import JobSource, find_site_of, new_identity, plan_run, read_job

        text = self._job_text(self.parameters, pickle=_pickle_of(run_dir))
        source = JobSource(text=text, file="", directory=os.getcwd())
        job, now = read_job(source), time.time()
        site, run = find_site_of(source, job, self._site()), new_identity(job, now)
        planned = plan_run(source, job, site, run=run, run_dir=run_dir, now=now, templates=templates)
        return _without_limit(planned, templates)

    def _submit(self, runs: Sequence[PreparedRun]) -> Sequence[Submission]:
        from hpc_elastic.api.array import submit_array
        from hpc_elastic.api.submission import submit_run
        from hpc_elastic.scheduler.registry import make_scheduler

        first = runs[0]
        scheduler = make_scheduler(first.plan.scheduler, run_dir=first.plan.run_dir)
        if len(runs) == 1:
            submission = submit_run(first, scheduler)
            self.job_class.watcher.register_run(submission.job_id, RunLayout(first.plan.run_dir), scheduler)
            return [submission]
        most = (os.cpu_count() or 1) if scheduler.name == "local" else DEFAULT_PARALLELISM
        return submit_array(runs, scheduler, limit=min(len(runs), self.parameters.get("array_parallelism", most)))

    def _dump(self, delayed: utils.DelayedSubmission, run: PreparedRun, count: int) -> None:
        pickle = _pickle_of(run.plan.run_dir)
        delayed.set_timeout(math.ceil((run.plan.time_s or 0) / 60), self.max_num_timeout)
        store.make_directory(os.path.dirname(pickle))  # for its owner alone, as its content is executed
        delayed.dump(pickle)
        size_gb = os.path.getsize(pickle) / _GIB
        if count * size_gb > self.max_pickle_size_gb:
            raise RuntimeError(
                f"the pickled function and its arguments would take about {count} x {size_gb:.2f} GB, more than "
                f"max_pickle_size_gb, which is {self.max_pickle_size_gb:g}: pass large data by file, or raise the limit"
            )

    def _job(self, run: PreparedRun, job_id: str) -> core.Job[Any]:
        plan = run.plan
        paths = utils.JobPaths(self.folder, job_id=job_id)
        link_run(paths, RunLayout(plan.run_dir), _pickle_of(plan.run_dir))
        most = plan.nodes.max
        tasks = sum(plan.workers_on(node_id, most) for node_id in range(most))
        return self.job_class(self.folder, job_id, tasks=range(tasks))

    def _site(self) -> str:
        """Return the site that was asked for, else the detected one, which is determined once for all submissions."""
        from hpc_elastic.api.prepare import choose_site_name

        asked = self.parameters.get("site")
        if asked is None:
            asked = self._found_site = self._found_site or choose_site_name()
        return str(asked)

    def _job_text(self, parameters: Mapping[str, Any], *, pickle: str) -> str:
        """Return the text of the job file that runs the function."""
        from hpc_elastic.job.text import job_text

        job = job_of(parameters)
        if self.python is not None:
            job.setdefault("python", self.python)
        ours = {"SUBMITIT_EXECUTOR": HpcElasticJobEnvironment.name(), PICKLE_VARIABLE: _plain(pickle)}
        ours[PYTHON_VARIABLE] = platform.python_version()
        if parameters.get("stderr_to_stdout"):
            ours[MERGE_VARIABLE] = "1"
        if (limits := _signal_times(job, parameters)) is not None:
            time_s, delay_s = limits
            ours[SIGNAL_AFTER_VARIABLE] = f"{time_s - delay_s:g}"
            if delay_s < SIGNALS_OF_THEIR_OWN_S:  # the run is stopped after submitit's signal, and not before it
                job.setdefault("signals", {"lead": f"{delay_s / 2:g}s", "grace": f"{delay_s / 4:g}s"})
        env = job.get("env")
        if env is None or isinstance(env, Mapping):  # a value that is no map is refused by the parser
            job["env"] = {"PYTHONUNBUFFERED": "1", **(env or {}), **ours}
        job["entrypoint"] = {"module": WORKER, "args": [_plain(str(self.folder))]}
        return job_text(job)


def runs_folder(folder: Path) -> Path:
    """Return the folder for the runs of a log folder: beside it, as users list the log folder and delete its files.

    Beside a link it would be on the file system that the link leads away from. It is inside the log folder if nothing
    can be created beside it, or if that folder belongs to another user: files in it are executed.
    """
    place = folder.resolve() if folder.is_symlink() else folder.absolute()
    beside = place.parent / f"{place.name}.{RUNS}"
    is_ours = beside.stat().st_uid == os.geteuid() if beside.exists() else os.access(place.parent, os.W_OK)
    return beside if is_ours else folder / RUNS


def _check_folder(folder: Path) -> None:
    """Refuse a log folder in which no link can be made, before a job runs of which nobody would know.

    Raises:
        RunDirectoryError: it is no folder, or belongs to somebody else.
    """
    first = next(str(place) for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not os.path.isdir(first):
        raise RunDirectoryError(f"cannot use the folder {folder}: {first} is no directory", tip="choose another one")
    if not os.access(first, os.W_OK | os.X_OK, effective_ids=True):
        raise RunDirectoryError(f"cannot use the folder {folder}: cannot write to {first}", tip="choose another one")


def _without_limit(run: PreparedRun, templates: Templates) -> PreparedRun:
    """Return a local run with a script that has no time limit: there, the limit is for each start of the function.

    Slurm would requeue the job, and the limit would begin again; here the workers start again in the same job.
    """
    if run.plan.scheduler != "local" or run.plan.time_s is None:
        return run
    from hpc_elastic.render.script import render_script

    script = render_script(replace(run.plan, time_s=None), *templates.load(run.plan.template))
    return replace(run, script=script)


def _pickle_of(run_dir: str) -> str:
    """Return the path of a run's pickle: beside the run directory or the array's folder, which have to be new."""
    above, name = os.path.split(run_dir)
    return f"{above}-{name}.pkl" if name.isdecimal() else f"{run_dir}.pkl"


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _plain(text: str) -> str:
    """Escape a text so that no variable in it is expanded on the node."""
    return text.replace("$", "$$")


def _signal_times(job: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return a job's time and how long before its end it gets submitit's signal, in seconds; None without a limit.

    The lead is at most half of the limit, so that a short job does not spend its life in checkpoints.
    """
    from hpc_elastic.units import parse_duration

    try:
        time_s = parse_duration(str(job["time"])).total_seconds()
    except (KeyError, ValueError):  # an invalid time is refused by the parser
        return None
    return time_s, min(float(parameters.get("signal_delay_s", DEFAULT_SIGNAL_DELAY_S)), time_s / 2)
