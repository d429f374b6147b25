"""Prepares a run from a job: site, plan and script, without making any file."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

import hpc_elastic
from hpc_elastic.api.identity import as_text
from hpc_elastic.errors import JobError, UnknownSiteError, UnknownTemplateError, UsageError
from hpc_elastic.job.document import find_place
from hpc_elastic.job.names import needs_utf8
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.job.yaml_core import MOST_CHARACTERS
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.script import render_script
from hpc_elastic.render.template import Templates
from hpc_elastic.resolve.launch_plan import SubmissionContext, resolve_plan
from hpc_elastic.resolve.unapplied import find_unapplied
from hpc_elastic.rundir.create import run_identity
from hpc_elastic.rundir.layout import DEFAULT_ROOT
from hpc_elastic.rundir.records import utc_text
from hpc_elastic.scheduler.environment import options_of_shell
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.search import find_machine, find_site, is_site_path

SITE_VARIABLE = "HPC_ELASTIC_SITE"  # names the site where neither the command line nor the job file does
_MOST_BYTES = 4 * MOST_CHARACTERS  # in UTF-8
_ENCODINGS = (  # by their byte order marks; that of UTF-32 begins as that of UTF-16
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """The text of a job file, and where the file is, for messages and for relative paths.

    `file` is empty where a program wrote the text. `function` is the content of `function.pkl`, if the workers
    are to call one.
    """

    text: str
    file: str
    directory: str
    function: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run whose every value is decided, without any file yet; `unapplied` are keys that have no effect here."""

    source: JobSource
    job: JobSpec
    site: SiteConfig
    plan: LaunchPlan
    script: str
    unapplied: tuple[str, ...] = ()


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def read_job_file(path: str) -> JobSource:
    """Read a job file.

    Raises:
        UsageError: there is no such file, or it is a script.
        JobError: it cannot be read as text, or is too long for a job file.
    """
    if path.endswith(".py"):
        raise UsageError(
            f"{path} is a Python script, expected a job file",
            tip=f"`hpc-elastic run {shlex.quote(path)}` runs it here, or in the allocation that you are in; "
            "a job file has `entrypoint: {script: " + os.path.basename(path) + "}`",
        )
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a checkpoint that is given by mistake may have 100 GB
    except FileNotFoundError as error:
        raise UsageError(f"there is no job file {path}", tip="give the path of a job.yaml") from error
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"cannot read the job file {path}: {reason}", tip="expected a text file, such as job.yaml"
        ) from error
    if len(content) > _MOST_BYTES:
        raise JobError([f"{path}:1: expected at most {MOST_CHARACTERS} characters, found more"])
    text = _decode(content, path).replace("\r\n", "\n").replace("\r", "\n")
    return JobSource(text=text, file=path, directory=os.path.dirname(os.path.abspath(path)))


def _decode(content: bytes, path: str) -> str:
    """Return the text of a job file.

    Raises:
        JobError: it is in another encoding than UTF-8.
    """
    if encoding := next((name for mark, name in _ENCODINGS if content.startswith(mark)), None):
        tip = f"`iconv -f {encoding} -t UTF-8` converts it; editors call it the encoding"
        raise JobError([f"{path}:1: found {encoding} text, expected UTF-8"], tip=tip)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"found the byte 0x{content[error.start]:02x}, expected UTF-8 text"
        tip = "`file` guesses its encoding, and `iconv -f ISO-8859-1 -t UTF-8` converts it"
        raise JobError([f"{path}:{line}: {found}"], tip=tip) from None


def _check_locale(*paths: str) -> None:
    """Refuse paths that this locale cannot name, although they are UTF-8, or names by other bytes than the script does.

    Raises:
        JobError: there is such a path.
    """
    for path in paths:
        is_unnamed = any("\udc80" <= letter <= "\udcff" for letter in path) and "\ufffd" not in as_text(path)
        if is_unnamed or needs_utf8(path):
            names = ("LC_ALL", "LC_CTYPE", "LANG")  # the first one that is set decides
            decides = next((name for name in names if os.environ.get(name)), None)
            given = ", ".join(
                f"{name}={os.environ[name]}" for name in (decides, "PYTHONUTF8") if name and name in os.environ
            )
            shown = path
            with suppress(UnicodeEncodeError):
                shown = as_text(path)
            raise JobError(
                [f"the locale ({given or 'none is set'}) has no letters for the path {shown}"],
                tip="use one of UTF-8: `export LC_ALL=C.UTF-8`, and `unset PYTHONUTF8`",
            )


def prepare_run(
    source: JobSource,
    *,
    overrides: Sequence[str] = (),
    site_name: str | None = None,
    run_dir: str | None = None,
    run_root: str | None = None,
    is_allocated: bool = False,
    say: Callable[[str], None] = _say,
) -> PreparedRun:
    """Parse the job, find the site, resolve the plan and render the script.

    Args:
        source: the job file.
        overrides: `key.path=value` of `--set`.
        site_name: of `--site`, a path relative to the working directory; None takes the job file's, or what is found.
        run_dir: of `--run-dir`; None takes the default place.
        run_root: where the run directory is made, by the run's id; None takes the site's folder, or the default one.
        is_allocated: whether the job runs on nodes that are there already, so that no partition's limits are checked.
        say: is called with each line about what was chosen.

    Raises:
        JobError, SiteError, TemplateError: something of the user's or the admin's is wrong.
    """
    job = read_job(source, overrides=overrides)
    site = find_site_of(source, job, site_name, say)
    now = time.time()
    run = new_identity(job, now)
    root = os.path.expanduser(run_dir or os.path.join(run_root or site.run_root or DEFAULT_ROOT, run))
    return plan_run(source, job, site, run=run, run_dir=os.path.abspath(root), now=now, is_allocated=is_allocated)


def read_job(
    source: JobSource, *, overrides: Sequence[str] = (), parameters: Mapping[str, str] | None = None
) -> JobSpec:
    """Parse a job; `parameters` are the values of `${NAME}` in it.

    Raises:
        JobError: something is wrong with the job.
    """
    has_function = source.function is not None
    return parse_job(
        source.text, file=source.file, overrides=overrides, has_function=has_function, parameters=parameters
    )


def find_site_of(
    source: JobSource, job: JobSpec, site_name: str | None, say: Callable[[str], None] = _say
) -> SiteConfig:
    """Return the site that is named, else the job's, else the one that is found here.

    Raises:
        SiteError: there is none of this name, or it is wrong.
    """
    if site_name and is_site_path(site_name):
        site_name = os.path.abspath(site_name)  # on the command line relative to here, in a job file to the file
    name = site_name or job.site or choose_site_name(say, job_dir=source.directory)
    try:
        return find_site(name, job_dir=source.directory, environ=os.environ)
    except UnknownSiteError as error:
        named = "--site" if site_name else SITE_VARIABLE if not job.site else ""
        place = named or find_place(source.text, source.file, ("site",))
        raise UnknownSiteError(
            [f"{place}{problem.removeprefix('site')}" for problem in error.problems], tip=error.tip
        ) from error


def new_identity(job: JobSpec, now: float) -> str:
    """Return a new id for a run or an array."""
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
    is_allocated: bool = False,
    snapshot_dir: str | None = None,
) -> PreparedRun:
    """Resolve the plan of one run and render its script; several runs of a job can share their `templates`.

    Raises:
        JobError, TemplateError: job and site do not go together, or the template is wrong.
    """
    _check_locale(run_dir, source.directory, sys.executable)
    context = SubmissionContext(
        run=run,
        run_dir=run_dir,
        job_dir=source.directory,
        created=utc_text(now),
        interpreter=sys.executable,
        package_dir=os.path.dirname(os.path.abspath(hpc_elastic.__file__)),
        package_version=hpc_elastic.__version__,
        shell_options=options_of_shell(os.environ),
        is_allocated=is_allocated,
        snapshot_dir=snapshot_dir,
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
    unapplied = find_unapplied(job, site)
    return PreparedRun(source=source, job=job, site=site, plan=plan, script=script, unapplied=unapplied)


def _place_of_template(source: JobSource, job: JobSpec, site: SiteConfig) -> str:
    """Return the file and the line that name the template."""
    if job.template:
        return find_place(source.text, source.file, ("template",))
    with open(site.path, encoding="utf-8") as file:
        text = file.read()
    return find_place(text, site.path, ("defaults", "template") if site.defaults.template else ("template",))


def choose_site_name(say: Callable[[str], None] = _say, *, job_dir: str = "") -> str:
    """Return the site if none is named, a name or the path of a site file; one line says which, and why.

    $HPC_ELASTIC_SITE; else the first site file that has this machine's name, or the name of its Slurm cluster; else
    generic-slurm where Slurm answers, and local on a machine without Slurm.

    Args:
        say: is called with the line.
        job_dir: the folder of the job file.

    Raises:
        SchedulerError: there is a Slurm, and it does not answer: a login node is no place for a run.
    """
    from hpc_elastic.scheduler.slurm.scheduler import cluster_name, slurm_answers

    if named := os.environ.get(SITE_VARIABLE):
        return os.path.abspath(named) if is_site_path(named) else named
    find = partial(find_machine, job_dir=os.path.abspath(job_dir), environ=os.environ)
    host = socket.gethostname()
    if path := find(host=host, warn=say):
        say(f"no site named: this machine is called {host}, so the site is {path}")
        return path
    if not slurm_answers():
        say("no site named and no Slurm answers, so the run stays on this machine (site local)")
        return "local"
    cluster = cluster_name()
    if cluster and (path := find(cluster=cluster, warn=_nothing)):
        say(f"no site named: Slurm calls its cluster {cluster}, so the site is {path}")
        return path
    say("no site named: Slurm answers, so the site is generic-slurm")
    return "generic-slurm"


def _nothing(_: str) -> None:
    """Say nothing a second time."""
