"""From a job to all that a run is made of, without making anything."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import hpc_elastic
from hpc_elastic.api.find import DEFAULT_ROOT
from hpc_elastic.errors import UsageError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.resolve import SubmissionContext, resolve_plan
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.rundir.create import run_identity
from hpc_elastic.rundir.records import utc_text
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
    """A run with nothing left to decide, and nothing made yet."""

    source: JobSource
    plan: LaunchPlan
    script: str


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def read_job_file(path: str) -> JobSource:
    """Reads a job file.

    Raises:
        UsageError: there is none, or it cannot be read as text.
    """
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
    has_function = source.function is not None
    job = parse_job(source.text, file=source.file, overrides=overrides, has_function=has_function)
    if site_name and is_site_path(site_name):
        site_name = os.path.abspath(site_name)  # on the command line relative to here, in a job file to the file
    name = site_name or job.site or choose_site_name(say)
    site = find_site(name, job_dir=source.directory, environ=os.environ)
    now = time.time()
    run = run_identity(job.name or "run", datetime.fromtimestamp(now, timezone.utc), os.urandom(2).hex())
    root = os.path.expanduser(run_dir or os.path.join(site.run_root or DEFAULT_ROOT, run))
    context = SubmissionContext(
        run=run,
        run_dir=os.path.abspath(root),
        job_dir=source.directory,
        created=utc_text(now),
        interpreter=sys.executable,
        package_dir=os.path.dirname(os.path.abspath(hpc_elastic.__file__)),
        package_version=hpc_elastic.__version__,
    )
    plan = resolve_plan(job, site, context)
    script = render_script(plan, load_template(plan.template, job_dir=source.directory))
    return PreparedRun(source=source, plan=plan, script=script)


def choose_site_name(say: Callable[[str], None] = _say) -> str:
    """The site where nobody named one: Slurm if it answers, else this machine; one line says so."""
    from hpc_elastic.scheduler.slurm import slurm_answers

    if slurm_answers():
        say("no site named: Slurm answers, so the site is generic-slurm")
        return "generic-slurm"
    say("no site named and no Slurm answers, so the run stays on this machine (site local)")
    return "local"
