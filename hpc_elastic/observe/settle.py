"""Writes the result of a run whose job ended and whose agents wrote none; the login side writes nothing else."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from functools import partial

from hpc_elastic.codec import Json, from_json, to_json
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.observe.diagnosis import MissingResult
from hpc_elastic.observe.facts import Facts, latest_change
from hpc_elastic.plan.launch_plan import parse_plan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir import store
from hpc_elastic.rundir.complaint import last_script_lines
from hpc_elastic.rundir.finished import find_finished_world
from hpc_elastic.rundir.full_disk import describe_cure, is_for_want_of_space
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import RunResultRecord, RunState, TimeSpent, utc_text
from hpc_elastic.rundir.return_values import with_runs_values
from hpc_elastic.scheduler.slurm.srun_errors import (
    SCRIPT_BEGINS,
    describe_unstarted,
    find_failed_nodes,
    find_launch_error,
    find_unstarted,
    tells_of_scancel,
)
from hpc_elastic.useful_time.reading import read_useful_time

_MOST_CHARACTERS = 1 << 20  # of a script, or of its output


def settle(layout: RunLayout, facts: Facts, missing: MissingResult) -> bool:
    """Create `result.json`, unless another process has; it is created exclusively, so there is never a second one.

    Returns:
        Whether the result is the one written here.

    Raises:
        FileSystemError: the directory cannot be written; `unwritten_result` has what would be in it.
    """
    if not store.claim(layout.result, _make(layout, facts, missing, time.time())):
        return False
    with contextlib.suppress(RunDirectoryError):  # only for a script that is run by hand later
        store.write_bytes(layout.exit_code, f"{int(missing.exit_code)}\n".encode())
    return True


def unwritten_result(layout: RunLayout, facts: Facts, missing: MissingResult) -> Json:
    """Return the result of a run whose directory cannot be written; it ended when it wrote for the last time."""
    return _make(layout, facts, missing, latest_change(layout))


def unwritten_note(error: FileSystemError) -> str:
    """Return the note for people about a result that could not be written."""
    what = f"the result could not be written: {error.message}; what is shown is from the scheduler and the outputs"
    if not is_for_want_of_space(error):
        return what
    return f"{what}; {describe_cure(error.message)}, then `hpc-elastic status` writes it"


def read_failed_nodes(script_output: str) -> tuple[str, ...]:
    """Return the nodes that Slurm has taken from the job because they are DOWN, by the script's output."""
    return find_failed_nodes(last_script_lines(script_output))


def read_launch_error(script_output: str) -> str:
    """Return why srun could not start the agents, by the batch script's output; empty if it tells of no such error."""
    lines = last_script_lines(script_output)
    error = find_launch_error(lines)
    return describe_unstarted(find_unstarted(lines)) or (error and f"srun gave up: {printable_line(error)}")


def has_begun(script: str, script_output: str) -> bool:
    """Return whether a batch script has written the line with which those of ours begin, or is none of them."""
    return not (_has(script, SCRIPT_BEGINS) and os.path.exists(script_output)) or _has(script_output, SCRIPT_BEGINS)


def _has(path: str, text: str) -> bool:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return text in file.read(_MOST_CHARACTERS)
    return False


def count_starts(script_output: str) -> int:
    """Return how often the batch script of the job has begun, by its first lines in its output."""
    with contextlib.suppress(OSError), open(script_output, encoding="utf-8", errors="replace") as file:
        lines = iter(partial(file.readline, _MOST_CHARACTERS), "")
        return sum(line.startswith(SCRIPT_BEGINS) for line in lines)
    return 0


def has_finished(layout: RunLayout, attempt: int) -> bool:
    """Return whether every rank of the run's latest attempt has exited 0, by the records of its nodes."""
    with contextlib.suppress(RunDirectoryError):
        return find_finished_world(layout, attempt) is not None
    return False


def is_scancelled(script_output: str) -> bool:
    """Return whether the batch script's output tells that the job was signalled with `scancel`."""
    return tells_of_scancel(last_script_lines(script_output))


def file_system_now(layout: RunLayout) -> float:
    """Return the time by the file system's clock, and refresh the view of the run directory.

    Creating and removing a file also makes an NFS client forget which names were absent. If nothing can be written,
    the time is that of this machine's clock.
    """
    path = os.path.join(layout.root, f".look.{os.urandom(6).hex()}.tmp")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, store.FILE_MODE))
        try:
            return os.stat(path).st_mtime
        finally:
            os.unlink(path)
    except OSError:
        return time.time()


def _make(layout: RunLayout, facts: Facts, missing: MissingResult, ended: float) -> Json:
    result = _result(facts, missing, ended)
    if missing.state is RunState.SUCCEEDED:
        with contextlib.suppress(RunDirectoryError, OSError), open(layout.plan, encoding="utf-8") as file:
            plan, attempt = parse_plan(file.read()), result.attempts  # which says whose ranks return something
            result = with_runs_values(plan, layout, result, lambda: find_finished_world(layout, attempt))
    spent = read_useful_time(layout, result=to_json(result)).to_json()
    return to_json(replace(result, useful_time=from_json(TimeSpent, spent)))


def _result(facts: Facts, missing: MissingResult, ended: float) -> RunResultRecord:
    latest = facts.attempts[-1] if facts.attempts else None
    return RunResultRecord(
        run=str(facts.plan.get("run") or facts.submission.get("run") or os.path.basename(facts.run_dir)),
        state=missing.state,
        exit_code=int(missing.exit_code),
        reason=missing.reason,
        cause=missing.cause,
        attempts=latest.number if latest else 0,
        restarts=latest.restarts if latest else 0,
        failures={},
        return_values={},
        nodes=latest.nodes if latest else (),
        started=facts.allocation.get("time"),
        ended=utc_text(ended),
        written_by="login",
    )
