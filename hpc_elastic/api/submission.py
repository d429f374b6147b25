"""Makes a run directory, submits its script and records the submission: all of it, or nothing remains."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hpc_elastic.api.code_snapshot import make_snapshot
from hpc_elastic.api.identity import as_text, folder_number, host_name, user_name, working_directory
from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.codec import Json, to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.create import CreatedRunDirectory, create_run_directory
from hpc_elastic.rundir.create_array import CreatedArray
from hpc_elastic.rundir.function_file import import_from_copy
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import ArraySubmission, Submission, utc_text
from hpc_elastic.rundir.reservation import Reservation
from hpc_elastic.scheduler.protocol import Scheduler
from hpc_elastic.scheduler.slurm.commands import selection

INDEX_WITHIN_S = 5.0


def submit_run(prepared: PreparedRun, scheduler: Scheduler) -> Submission:
    """Make the run directory and submit the run.

    Raises:
        RunDirectoryError: the directory cannot be made, or as `start_run` says.
        SchedulerError: the scheduler refused the job. Nothing remains then.
    """
    return start_run(prepared, lambda layout: scheduler.submit(prepared.plan, layout.script))


def start_run(
    prepared: PreparedRun,
    start: Callable[[RunLayout], str],
    *,
    is_foreground: bool = False,
) -> Submission:
    """Make the run directory, start the run and record it.

    Args:
        prepared: the run.
        start: starts the script and returns the job id.
        is_foreground: the job is the user's own allocation.

    Raises:
        RunDirectoryError: the directory cannot be made, and nothing remains; or the record cannot be written although
            there was room for it, and then the job and all its files are kept.
    """
    plan = prepared.plan
    created = make_run_directory(prepared)
    with deferred_interrupt() as interruption:  # a job without a record would be a run that nobody finds
        room: Reservation | None = None
        try:
            room = Reservation(created.layout.submission)
            job_id = start(created.layout)
        except BaseException:
            if room is not None:
                room.give_up()
            created.remove()
            raise
        interruption.outcome = submitted_line(plan.name, job_id, plan.run_dir)
        submission = make_submission(plan, job_id, is_foreground=is_foreground)
        try:
            record(room, to_json(submission), job_id)
        finally:
            add_to_index(submission, plan.run_dir)
    return submission


def record(room: Reservation, data: Json, job_id: str) -> None:
    """Write the submission's record, for which room was kept in the file system.

    Raises:
        RunDirectoryError: the record cannot be written; the job and all its files are kept.
    """
    try:
        room.fill(store.dump_json(data))
    except RunDirectoryError as error:
        room.give_up()
        raise RunDirectoryError(
            f"job {job_id} was submitted and goes on, but its record is missing: {error.message}",
            tip=f"its files are kept; once it has started, `hpc-elastic cancel {os.path.dirname(room.path)}` stops it",
        ) from error


def make_run_directory(prepared: PreparedRun) -> CreatedRunDirectory:
    """Make the run directory, with every file that the run needs before it is submitted.

    Raises:
        RunDirectoryError: the directory cannot be made; what was made of it is removed.
    """
    plan, source, function = prepared.plan, prepared.source, prepared.source.function
    if function is not None and plan.snapshot is not None:
        function = import_from_copy(function, source=plan.snapshot.source, copy=plan.snapshot.directory)
    created = create_run_directory(
        plan.run_dir, job_yaml=source.text, plan=plan, script=prepared.script, function=function
    )
    if plan.snapshot is not None and plan.snapshot.directory == created.layout.snapshot:
        with removed_if_it_fails(created):
            make_snapshot(plan.snapshot)
    return created


@contextmanager
def removed_if_it_fails(created: CreatedRunDirectory | CreatedArray) -> Iterator[None]:
    """Remove what was created if the block raises."""
    try:
        yield
    except BaseException:
        created.remove()
        raise


class Interruption:
    """The state at an interruption by Ctrl-C: `outcome` names the job that goes on, or says that none does."""

    outcome = ""


@contextmanager
def deferred_interrupt() -> Iterator[Interruption]:
    """Hold Ctrl-C back until the block is done; only the main thread gets it at all.

    Raises:
        KeyboardInterrupt: Ctrl-C came meanwhile; its text is the outcome.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    interrupted: list[object] = []

    def note(*arguments: object) -> None:
        if not interrupted:
            with contextlib.suppress(OSError):
                os.write(2, b"\nhpc-elastic: the submission is under way; this ends once it is answered\n")
        interrupted.append(arguments)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted:
        raise KeyboardInterrupt(interruption.outcome)


def submitted_line(name: str, job_id: str, directory: str) -> str:
    """Return the line with the job id and the run directory, which the user needs whatever else fails."""
    return f"submitted {name} as job {job_id}; run directory: {directory}"


def make_submission(
    plan: LaunchPlan,
    job_id: str,
    *,
    is_foreground: bool = False,
    array: str | None = None,
    task: int | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Submission:
    """Return the record of a run that was submitted just now; the last three arguments are for a task of an array."""
    return Submission(
        run=plan.run,
        name=plan.name,
        site=plan.site,
        scheduler=plan.scheduler,
        job_id=job_id,
        submitted=utc_text(time.time()),
        host=host_name(),
        user=user_name(),
        foreground=is_foreground,
        array=array,
        array_task=task,
        parameters=parameters or {},
        selected_by=selection(os.environ) if plan.scheduler == "slurm" else {},
        bash_env=os.environ.get("BASH_ENV") or None,
    )


def add_to_index(submitted: Submission | ArraySubmission, directory: str) -> None:
    """Add what was submitted to the user's index; if that is not possible, print a warning and go on.

    The index is in the home, whose file server may hang while that of the runs works: it is not waited for.
    """
    run, tasks = (
        (submitted.array, len(submitted.tasks)) if isinstance(submitted, ArraySubmission) else (submitted.run, 0)
    )
    entry = IndexEntry(
        run=run,
        name=submitted.name,
        job_id=submitted.job_id,
        site=submitted.site,
        scheduler=submitted.scheduler,
        run_dir=directory,
        submitted=submitted.submitted,
        tasks=tasks,
        folder=as_text(working_directory() or ""),
        host=submitted.host,
        folder_number=folder_number(),
    )
    place = "the home"
    problems: queue.SimpleQueue[str] = queue.SimpleQueue()

    def append() -> None:
        nonlocal place
        try:
            place = index_path(os.environ)
            append_entry(place, entry)
        except RunDirectoryError as error:
            problems.put(error.message)
        else:
            problems.put("")

    try:
        threading.Thread(target=append, name="index", daemon=True).start()
    except RuntimeError:  # this user may have no more threads
        append()
    try:
        problem = problems.get(timeout=INDEX_WITHIN_S)
    except queue.Empty:
        problem = f"{place} has not been written within {INDEX_WITHIN_S:g} s"
    if problem:
        print(f"hpc-elastic: warning: the run is not in the index: {problem}", file=sys.stderr)
