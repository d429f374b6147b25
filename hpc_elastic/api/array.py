"""Submits prepared runs as one array: all of them, or nothing remains.

Theory of operation: the array has a folder, and run i is in the folder `i` of it, a complete run directory like any
other. The scheduler gets one script beside them, starts it for each task, and it goes on with that run's own script.
So a task differs from a run of its own in nothing but its job id, `<array>_<i>`, and who started it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

from hpc_elastic.api.code_snapshot import make_snapshot
from hpc_elastic.api.identity import host_name, user_name
from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.api.submission import (
    add_to_index,
    deferred_interrupt,
    make_run_directory,
    make_submission,
    record,
    removed_if_it_fails,
    submitted_line,
)
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.job_ids import array_task_id
from hpc_elastic.render.array import render_array_script
from hpc_elastic.render.template import load_array_template, load_template
from hpc_elastic.rundir.create_array import create_array
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.rundir.records import ArraySubmission, ArrayTask, Submission, utc_text
from hpc_elastic.rundir.reservation import Reservation
from hpc_elastic.scheduler.protocol import Scheduler


def submit_array(
    prepared: Sequence[PreparedRun],
    scheduler: Scheduler,
    *,
    limit: int | None = None,
    array: str | None = None,
    parameters: Sequence[Mapping[str, str]] = (),
) -> list[Submission]:
    """Make the runs and submit them as one array.

    Args:
        prepared: the runs. Run i has the run directory `i` of a folder that is empty or does not exist yet,
            and all ask the scheduler for the same.
        scheduler: theirs.
        limit: how many run at the same time; None: as many as there is room for, and on this machine one.
        array: the array's id; None takes the folder's name.
        parameters: what the array varies, for each run, for people to read.

    Returns:
        The record of each run; its job id is `<array's>_<i>`.

    Raises:
        UsageError: the runs are not in such a folder, or the limit is not a number of runs.
        JobError: they ask for different things.
        RunDirectoryError: a directory cannot be made, or as `start_run` says.
        SchedulerError: the scheduler refused the array. Nothing remains then.
    """
    layout = _find_folder(prepared, limit)
    script = array_script(prepared, limit=limit)
    runs = [partial(make_run_directory, run) for run in prepared]
    created = create_array(layout, job_yaml=prepared[0].source.text, script=script, runs=runs)
    snapshot = prepared[0].plan.snapshot
    if snapshot is not None and snapshot.directory == layout.snapshot:
        with removed_if_it_fails(created):
            make_snapshot(snapshot)
    given = list(parameters) or [{} for _ in prepared]
    with deferred_interrupt() as interruption:  # a job without a record would be runs that nobody finds
        rooms: list[Reservation] = []
        try:
            for path in (layout.record, *(run.layout.submission for run in created.runs)):
                rooms.append(Reservation(path))
            job_id = scheduler.submit(prepared[0].plan, layout.script)
        except BaseException:
            for room in rooms:
                room.give_up()
            created.remove()
            raise
        interruption.outcome = submitted_line(prepared[0].plan.name, job_id, layout.root)
        submissions = _submissions(layout, prepared, given, job_id)
        array_submission = _array_record(array or os.path.basename(layout.root), submissions, job_id, limit)
        errors = []
        for room, said in zip(rooms, (array_submission, *submissions), strict=True):
            try:
                record(room, to_json(said), job_id)
            except RunDirectoryError as error:  # the other runs' records are written all the same
                errors.append(error)
        add_to_index(array_submission, layout.root)
        if errors:
            raise errors[0]
    return submissions


def array_script(prepared: Sequence[PreparedRun], *, limit: int | None = None) -> str:
    """Return the script that the scheduler gets for these runs.

    Raises:
        JobError: they ask the scheduler for different things.
        TemplateError: a template does not render.
    """
    plan, source = prepared[0].plan, prepared[0].source
    runs_template = load_template(plan.template, job_dir=source.directory)
    array_template = load_array_template(plan.scheduler)
    return render_array_script([run.plan for run in prepared], array_template, runs_template, limit=limit)


def _find_folder(prepared: Sequence[PreparedRun], limit: int | None) -> ArrayLayout:
    if not prepared:
        raise UsageError("an array of no runs", tip="submit one run at least")
    if limit is not None and limit < 1:
        raise UsageError(f"the limit of an array is {limit}, expected 1 or more", tip="leave it out for no limit")
    layout = ArrayLayout(os.path.dirname(prepared[0].plan.run_dir))
    for number, run in enumerate(prepared):
        expected = layout.task(number).root
        if run.plan.run_dir != expected:
            raise UsageError(f"the run directory of task {number} is {run.plan.run_dir}, expected {expected}")
    return layout


def _submissions(
    layout: ArrayLayout, prepared: Sequence[PreparedRun], parameters: Sequence[Mapping[str, str]], job_id: str
) -> list[Submission]:
    """Return the submission record of each run."""
    return [
        make_submission(run.plan, array_task_id(job_id, number), array=layout.root, task=number, parameters=varied)
        for number, (run, varied) in enumerate(zip(prepared, parameters, strict=True))
    ]


def _array_record(array: str, submissions: Sequence[Submission], job_id: str, limit: int | None) -> ArraySubmission:
    first = submissions[0]
    return ArraySubmission(
        array=array,
        name=first.name,
        site=first.site,
        scheduler=first.scheduler,
        job_id=job_id,
        submitted=utc_text(time.time()),
        host=host_name(),
        user=user_name(),
        limit=limit,
        tasks=tuple(
            ArrayTask(task=number, run=submission.run, parameters=submission.parameters)
            for number, submission in enumerate(submissions)
        ),
    )
