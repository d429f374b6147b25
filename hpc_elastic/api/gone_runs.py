"""Finds runs that are meant before all others although their directory was moved or removed: their jobs may run.

Theory of operation. Of such a run there is its line in the index alone. It does not say whether the run is over, so the
scheduler is asked for its first job, within the time of a look; only where there is such a line newer than the run
that was found. Who deletes the directory of a run that is over hears nothing of it: the scheduler says that the job has
ended, or does not know it any more. A later job of the run (a chain) is not known without its directory.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice

from hpc_elastic.api.identity import host_name
from hpc_elastic.api.known_runs import find_removed, removed_before
from hpc_elastic.errors import RunDirectoryError, SchedulerError, UsageError
from hpc_elastic.rundir.index import IndexEntry

_MOST_ASKED = 20  # all in one question, the newest: an older one has hardly a job any more


def check_none_is_meant(wanted: str | None, found: IndexEntry | None) -> None:
    """Check that no run whose directory is gone, and whose job may run, is meant before the one that was found.

    Raises:
        RunDirectoryError: there is one.
    """
    for entry in _that_may_run(list(islice(removed_before(wanted, found), _MOST_ASKED))):
        run = f"run {wanted!r}" if wanted is not None else "the latest run of this folder"
        raise _gone(run, entry, found)


def not_found(wanted: str) -> UsageError | RunDirectoryError:
    """Return the error about a name that no run has, or none whose directory is there."""
    gone = find_removed(wanted)
    if gone is None:
        return UsageError(
            f"no run {wanted!r}: it is no run directory, and no run has that name or job id",
            tip="`hpc-elastic list` shows the runs",
        )
    return _gone(f"run {wanted!r}", gone)


def _gone(run: str, gone: IndexEntry, found: IndexEntry | None = None) -> RunDirectoryError:
    job = shlex.quote(gone.job_id)
    left = f"; `squeue --job {job}` says whether its job is still there, and `scancel {job}` ends it"
    before = f"; an older one is in {found.run_dir}" if found is not None else ""
    return RunDirectoryError(
        f"the directory of {run}, {gone.run_dir}, was moved or removed",
        tip=f"name it by its new path if it was moved{left if gone.scheduler == 'slurm' else ''}{before}",
    )


def _that_may_run(gone: Sequence[IndexEntry]) -> Iterator[IndexEntry]:
    """Yield the runs whose job is there by their scheduler's word, or whose scheduler is silent, which may pass.

    On a machine that has no Slurm at all nobody could ever know, so there none is yielded.
    """
    from hpc_elastic.api.schedulers import query_once  # imported late, as `status` hardly ever needs it
    from hpc_elastic.scheduler.registry import SCHEDULERS

    for name in dict.fromkeys(entry.scheduler for entry in gone if entry.scheduler in SCHEDULERS):
        own = [entry for entry in gone if entry.scheduler == name]
        try:
            jobs = query_once(name, own[0].run_dir).query([job for entry in own for job in _jobs(entry)])
        except SchedulerError as error:
            yield from () if error.is_lasting else own
            continue
        for entry in own:
            if any(not jobs[job].state.is_terminal for job in _jobs(entry)) and not _is_anothers(entry):
                yield entry


def _jobs(entry: IndexEntry) -> list[str]:
    return [f"{entry.job_id}_{task}" for task in range(entry.tasks)] or [entry.job_id]


def _is_anothers(entry: IndexEntry) -> bool:
    """Return whether the job with this id is another cluster's, as far as the line of the index tells."""
    if entry.scheduler != "slurm" or entry.host in ("", host_name()):
        return False
    from hpc_elastic.scheduler.slurm.identity import is_anothers_job

    return is_anothers_job(entry.job_id, {"host": entry.host, "name": entry.name}, os.path.realpath(entry.run_dir))
