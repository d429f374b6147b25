"""Checks that the files which a submission needs are on this machine, before anything is made.

On the local backend a node sees what this process sees, so what is missing is an error. Compute nodes may see more than
the login node, and setup lines may make what is missing: on a cluster it is a warning. A script that bash cannot read,
and a run directory that is not empty, are errors everywhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpc_elastic.api.code_snapshot import describe_left_out, find_problem
from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import locate_problems
from hpc_elastic.job.problems import KeyPath
from hpc_elastic.plan.container import ContainerPlan
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import expand_references, has_reference, quote_dollars
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.create import check_vacant
from hpc_elastic.rundir.kept_records import why_nothing_kept
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.stage_variables import IN_STAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightProblem:
    """A problem with the value of a key; `is_certain`: it is a problem on the nodes as well."""

    path: KeyPath
    message: str
    is_certain: bool


def check_submission(prepared: PreparedRun, *, overrides: Sequence[str] = (), warn: Callable[[str], None]) -> None:
    """Check everything that one run needs.

    Args:
        prepared: the run.
        overrides: `key.path=value` of `--set`, to say where a value came from.
        warn: is called with a line about each possible problem.

    Raises:
        JobError: something is missing, or bash cannot read it; the error holds all problems.
        RunDirectoryError: the run directory is not empty.
    """
    check_files([prepared], overrides=overrides, warn=warn)
    check_vacant(prepared.plan.run_dir)


def check_files(runs: Sequence[PreparedRun], *, overrides: Sequence[str] = (), warn: Callable[[str], None]) -> None:
    """Check what all runs of an array need, except for their folder; report what they have in common once."""
    source, is_local = runs[0].source, runs[0].plan.scheduler == "local"
    if unapplied := dict.fromkeys(key for run in runs for key in run.unapplied):
        warn(f"nothing on this machine acts on {', '.join(unapplied)}")
    findings = list(dict.fromkeys(finding for run in runs for finding in _missing(run.plan)))
    findings += (problems_of_snapshot := dict.fromkeys(_missing_of_snapshots(runs)))
    if not problems_of_snapshot:
        for directory in dict.fromkeys(run.plan.snapshot.source for run in runs if run.plan.snapshot is not None):
            for line in describe_left_out(directory):
                warn(line)
    scripts = {run.plan.setup: run for run in runs}
    findings += dict.fromkeys(finding for run in scripts.values() for finding in _unreadable_by_bash(run))

    def lines(wanted: bool) -> list[str]:
        found = [(finding.path, finding.message) for finding in findings if finding.is_certain is wanted]
        return locate_problems(source.text, file=source.file, overrides=overrides, problems=found)

    for line in lines(False):
        warn(f"{line}{'' if is_local else '; the compute nodes may see what this machine does not'}")
    if problems := lines(True):
        raise JobError(problems)


def _missing(plan: LaunchPlan) -> Iterator[PreflightProblem]:
    """Yield the files and programs that are missing here; a path with `${NAME}` is known on the node only."""
    is_local, has_setup = plan.scheduler == "local", bool(plan.setup)
    workdir = quote_dollars(plan.snapshot.source) if plan.snapshot is not None else plan.workdir
    directory = None if has_reference(workdir) else expand_references(workdir, {})
    if directory is not None and not os.path.isdir(directory):
        yield PreflightProblem(path=("workdir",), message=f"there is no directory {directory}", is_certain=is_local)
        directory = None
    if plan.container is not None:
        yield from _missing_of_container(plan, plan.container, is_path_known=not has_setup)
    elif (
        not plan.python.startswith(IN_STAGE)
        and (message := _why_no_program(plan.python, "/", is_path_known=not has_setup)) is not None
    ):
        yield PreflightProblem(path=("python",), message=message, is_certain=is_local and not has_setup)
    if plan.stage is not None and not has_reference(plan.stage.source):
        source = expand_references(plan.stage.source, {})
        if not os.path.exists(source):
            message = f"there is no {source} to be copied"
            yield PreflightProblem(path=("stage", "source"), message=message, is_certain=is_local and not has_setup)
    other = plan.state.load_from
    if other is not None and (message := why_nothing_kept(RunLayout(other))) is not None:
        yield PreflightProblem(path=("state", "load_from"), message=message, is_certain=is_local)
    for index, role in enumerate(plan.roles):
        above: KeyPath = ("entrypoint",) if len(plan.roles) == 1 else ("roles", index, "entrypoint")
        is_path_known = not has_setup and plan.container is None and "PATH" not in plan.env and "PATH" not in role.env
        message = _why_not_run(role.entrypoint, directory, is_path_known=is_path_known)
        if message is not None:
            path = (*above, role.entrypoint.kind)
            yield PreflightProblem(path=path, message=message, is_certain=is_local and not has_setup)


def _missing_of_snapshots(runs: Sequence[PreparedRun]) -> Iterator[PreflightProblem]:
    """Yield what the snapshots would lack; the runs of an array share one, and may have scripts of their own."""
    plans = {(run.plan.snapshot, tuple(role.entrypoint.target for role in run.plan.roles)): run.plan for run in runs}
    for (snapshot, _), plan in plans.items():
        if snapshot is not None and (message := find_problem(plan, snapshot)) is not None:
            yield PreflightProblem(path=("snapshot",), message=message, is_certain=True)


def _missing_of_container(
    plan: LaunchPlan, container: ContainerPlan, *, is_path_known: bool
) -> Iterator[PreflightProblem]:
    """Yield what is missing here of what starts agents in an image; Python and programs are in the image."""
    image = container.image
    if image is not None and image.startswith("/") and not has_reference(image):
        path = expand_references(image, {})
        if not os.path.exists(path):
            yield PreflightProblem(path=("container", "image"), message=f"there is no image {path}", is_certain=False)
    made = (plan.run_dir, *([plan.snapshot.directory] if plan.snapshot is not None else []))  # by the submission
    for mount in container.mounts:
        if not (mount.source in map(quote_dollars, made) or mount.is_optional or has_reference(mount.source)):
            source = expand_references(mount.source, {})
            if os.path.dirname(source) != source and not os.path.exists(os.path.dirname(source)):
                message = f"there is no {source} to be mounted"
                yield PreflightProblem(path=("container", "mounts"), message=message, is_certain=False)
    if container.command is not None:
        message = _why_no_program(container.command, "/", is_path_known=is_path_known) or ""
        if message:
            yield PreflightProblem(path=("container", "command"), message=message, is_certain=False)


def _why_not_run(entrypoint: EntrypointPlan, directory: str | None, *, is_path_known: bool) -> str | None:
    if entrypoint.kind == "command":
        return _why_no_program(entrypoint.target, directory, is_path_known=is_path_known)
    if entrypoint.kind != "script" or (directory is None and not os.path.isabs(entrypoint.target)):
        return None
    return _why_unreadable(os.path.join(directory or "/", entrypoint.target))


def _why_unreadable(path: str) -> str | None:
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):  # a pipe, and opening it would wait for a writer
            os.close(os.open(path, os.O_RDONLY))
            if os.path.isdir(path):
                return f"cannot read {path}: Is a directory"
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return None


def _why_no_program(name: str, directory: str | None, *, is_path_known: bool) -> str | None:
    """Return why a program cannot be run, None if it can; a name without a slash is looked for in PATH."""
    if os.sep not in name:
        is_there = not is_path_known or shutil.which(name) is not None
        return None if is_there else f"no program {name} is in PATH"
    if directory is None and not os.path.isabs(name):
        return None
    path = os.path.normpath(os.path.join(directory or "/", name))
    if not os.path.exists(path):
        return f"cannot run {path}: No such file or directory"
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        return f"cannot run {path}: it may not be executed"
    return None


def _unreadable_by_bash(run: PreparedRun) -> Iterator[PreflightProblem]:
    """Yield the parts of the script that bash cannot read: the setup lines to blame, else the template."""
    complaint = bash_complaint(run.script)
    if complaint is None:
        return
    to_blame = [(number, why) for number, line in enumerate(run.plan.setup) if (why := bash_complaint(line))]
    for number, why in to_blame:
        yield PreflightProblem(path=("setup", number), message=f"bash cannot read it: {why}", is_certain=True)
    if not to_blame:
        message = f"bash cannot read the script that {run.plan.template} makes: {complaint}"
        yield PreflightProblem(path=("template",), message=message, is_certain=True)


def bash_complaint(script: str) -> str | None:
    """Return why bash cannot parse a script, which is not run; None if it can, or if there is no bash here."""
    try:
        done = subprocess.run(
            ["bash", "-O", "extglob", "-n"],  # a line may switch extglob on, and only running it would tell
            input=script.encode(),  # as it is written, whatever the locale is
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError:
        return None
    if done.returncode == 0:
        return None
    first = next(iter(done.stderr.decode(errors="replace").splitlines()), "a syntax error")
    return first.removeprefix("bash: ").removeprefix("line 1: ")
