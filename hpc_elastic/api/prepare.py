"""From a job to all that a run is made of, without making anything."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import hpc_elastic
from hpc_elastic.api.known_runs import DEFAULT_ROOT
from hpc_elastic.errors import UnknownSiteError, UnknownTemplateError, UsageError
from hpc_elastic.job.document import find_place
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.resolve import SubmissionContext, resolve_plan
from hpc_elastic.plan.unapplied import find_unapplied
from hpc_elastic.render.script import render_script
from hpc_elastic.render.template import Templates
from hpc_elastic.rundir.create import run_identity
from hpc_elastic.rundir.records import utc_text
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.search import find_site, is_site_path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A job file's text, with where it stands for messages and for relative paths.

    `file` is empty where a program wrote the text. `function` is the content of `function.pkl`, if the workers
    are to call one.
    """

    text: str
    file: str
    directory: str
    function: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run with nothing left to decide, and nothing made yet; `unapplied` are keys on which nothing acts here."""

    source: JobSource
    plan: LaunchPlan
    script: str
    unapplied: tuple[str, ...] = ()


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def read_job_file(path: str) -> JobSource:
    """Reads a job file.

    Raises:
        UsageError: there is none, or it is a script.
        JobError: it cannot be read as text.
    """
    if path.endswith(".py"):
        raise UsageError(
            f"{path} is a Python script, expected a job file",
            tip=f"`hpc-elastic run {shlex.quote(path)}` runs it here, or in the allocation that you are in; "
            "a job file has `entrypoint: {script: " + os.path.basename(path) + "}`",
        )
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError as error:
        raise UsageError(f"there is no job file {path}", tip="give the path of a job.yaml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the job file {path}: {error}", tip="it must be a UTF-8 text file") from error
    return JobSource(text=text, file=path, directory=os.path.dirname(os.path.abspath(path)))


def prepare_run(
    source: JobSource,
    *,
    overrides: Sequence[str] = (),
    site_name: str | None = None,
    run_dir: str | None = None,
    say: Callable[[str], None] = _say,
) -> PreparedRun:
    """Parses, finds the site, resolves and renders.

    Args:
        source: the job file.
        overrides: `key.path=value` of `--set`.
        site_name: of `--site`, a path relative to the working directory; None takes the job file's, or what is found.
        run_dir: of `--run-dir`; None takes the default place.
        say: takes a line about what was chosen.

    Raises:
        JobError, SiteError, TemplateError: something of the user's or the admin's is wrong.
    """
    job = read_job(source, overrides=overrides)
    site = find_site_of(source, job, site_name, say)
    now = time.time()
    run = new_identity(job, now)
    root = os.path.expanduser(run_dir or os.path.join(site.run_root or DEFAULT_ROOT, run))
    return plan_run(source, job, site, run=run, run_dir=os.path.abspath(root), now=now)


def read_job(
    source: JobSource, *, overrides: Sequence[str] = (), parameters: Mapping[str, str] | None = None
) -> JobSpec:
    """Parses a job; `parameters` are the values of `${NAME}` in it.

    Raises:
        JobError: something is wrong with it.
    """
    has_function = source.function is not None
    return parse_job(
        source.text, file=source.file, overrides=overrides, has_function=has_function, parameters=parameters
    )


def find_site_of(
    source: JobSource, job: JobSpec, site_name: str | None, say: Callable[[str], None] = _say
) -> SiteConfig:
    """The site that is named, else the job's, else the one that is found here.

    Raises:
        SiteError: there is none of this name, or it is wrong.
    """
    if site_name and is_site_path(site_name):
        site_name = os.path.abspath(site_name)  # on the command line relative to here, in a job file to the file
    name = site_name or job.site or choose_site_name(say)
    try:
        return find_site(name, job_dir=source.directory, environ=os.environ)
    except UnknownSiteError as error:
        place = "--site" if site_name else find_place(source.text, source.file, ("site",))
        raise UnknownSiteError(
            [f"{place}{problem.removeprefix('site')}" for problem in error.problems], tip=error.tip
        ) from error


def new_identity(job: JobSpec, now: float) -> str:
    """An id for a run, or an array, that is made now."""
    return run_identity(job.name or "run", datetime.fromtimestamp(now, timezone.utc), os.urandom(2).hex())


def plan_run(
    source: JobSource,
    job: JobSpec,
    site: SiteConfig,
    *,
    run: str,
    run_dir: str,
    now: float,
    templates: Templates | None = None,
) -> PreparedRun:
    """Resolves and renders; several runs of a job can share their `templates`.

    Raises:
        JobError, TemplateError: job and site do not go together, or the template is wrong.
    """
    context = SubmissionContext(
        run=run,
        run_dir=run_dir,
        job_dir=source.directory,
        created=utc_text(now),
        interpreter=sys.executable,
        package_dir=os.path.dirname(os.path.abspath(hpc_elastic.__file__)),
        package_version=hpc_elastic.__version__,
    )
    plan = resolve_plan(job, site, context)
    templates = templates or Templates(source.directory)
    try:
        template = templates.load(plan.template)
    except UnknownTemplateError as error:
        raise UnknownTemplateError(
            f"{_place_of_template(source, job, site)}: {error.message}", tip=error.tip
        ) from error
    script = render_script(plan, *template)
    return PreparedRun(source=source, plan=plan, script=script, unapplied=find_unapplied(job, site))


def _place_of_template(source: JobSource, job: JobSpec, site: SiteConfig) -> str:
    """The file and the line that name the template."""
    if job.template:
        return find_place(source.text, source.file, ("template",))
    with open(site.path, encoding="utf-8") as file:
        text = file.read()
    return find_place(text, site.path, ("defaults", "template") if site.defaults.template else ("template",))


def choose_site_name(say: Callable[[str], None] = _say) -> str:
    """The site where nobody named one: Slurm if it answers, else this machine; one line says so."""
    from hpc_elastic.scheduler.slurm import slurm_answers

    if slurm_answers():
        say("no site named: Slurm answers, so the site is generic-slurm")
        return "generic-slurm"
    say("no site named and no Slurm answers, so the run stays on this machine (site local)")
    return "local"
