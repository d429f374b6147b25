"""A run as an object, which a program can wait for, query, read and cancel."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Generator, Iterator
from typing import Any, Literal

from hpc_elastic.api.cancel import cancel_run
from hpc_elastic.api.events import follow_events
from hpc_elastic.api.find import find_run, require_run_directory
from hpc_elastic.api.look import look_once
from hpc_elastic.api.result import RunResult, raise_unless_succeeded, read_result
from hpc_elastic.api.schedulers import query_again
from hpc_elastic.api.seconds import check_lead, check_timeout
from hpc_elastic.api.stop import stop_run
from hpc_elastic.errors import FileSystemError, UsageError
from hpc_elastic.observe.facts import attempt_of_rank, list_attempts
from hpc_elastic.observe.rank_output import read_output
from hpc_elastic.observe.snapshot import Snapshot, take_snapshot
from hpc_elastic.observe.watch import LOOK_S, RunWatch
from hpc_elastic.rundir.record_file import SUBMISSION, read_record
from hpc_elastic.rundir.records import Event

_LOG = logging.getLogger("hpc_elastic")


class Run:
    """One run, pending, running or over, of this process or of another.

    Everything is read from the run directory; the scheduler is asked for what is not there.

    Args:
        run_dir: the run's directory.

    Raises:
        RunDirectoryError: the directory is not a run directory.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self._layout = require_run_directory(os.fspath(run_dir))
        submission = read_record(self._layout.submission, SUBMISSION) or {}
        self._name, self._job_id = str(submission.get("name", "")), str(submission.get("job_id", ""))

    @classmethod
    def find(cls, wanted: str | int | os.PathLike[str] | None = None) -> Run:
        """Return the run with this job id, name, run id or directory; for None the latest of the working directory.

        A `Path` is a directory, a number a job id. Of several runs with a name, those submitted in the working
        directory are preferred; of these it is the latest.

        Raises:
            UsageError: there is no such run.
        """
        if isinstance(wanted, os.PathLike):
            return cls(wanted)
        return cls(find_run(None if wanted is None else str(wanted)).root)

    def __repr__(self) -> str:
        return f"Run({self.run_dir!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.run_dir == self.run_dir

    def __hash__(self) -> int:
        return hash(self.run_dir)

    def __await__(self) -> Generator[Any, None, RunResult]:
        """Await `result()`; other tasks of the event loop go on."""
        return self._await_result().__await__()

    @property
    def run_dir(self) -> str:
        """The run directory, absolute."""
        return self._layout.root

    @property
    def name(self) -> str:
        """The run's name, as its job says it."""
        return self._name

    @property
    def job_id(self) -> str:
        """The scheduler's id: Slurm's, or `local-...`."""
        return self._job_id

    def status(self) -> Snapshot:
        """Return the state of the run, as `hpc-elastic status --json` prints it.

        Raises:
            RunDirectoryError: the run directory has been removed.
        """
        return look_once(require_run_directory(self.run_dir), _LOG.warning)

    def wait(self, timeout_s: float | None = None) -> Snapshot:
        """Wait until the run is over, however it ends.

        Args:
            timeout_s: how long at most; 0 for one look, None for no limit.

        Raises:
            UsageError: `timeout_s` is NaN or negative.
            TimeoutError: the run is not over by then; it goes on.
            RunDirectoryError: the run directory cannot be read, or was removed, and that does not pass.
        """
        return self._wait(self._watch(), timeout_s)

    def _wait(self, run_watch: RunWatch, timeout_s: float | None) -> Snapshot:
        check_timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        state = "UNKNOWN"
        while True:
            try:
                snapshot = run_watch.look()
            except FileSystemError as error:
                if not run_watch.may_pass(error):
                    raise
            else:
                state = snapshot.state.value
                if snapshot.is_over:
                    return snapshot
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{self.name} is {state} after {timeout_s:g} s")
            time.sleep(left)

    def result(self, timeout_s: float | None = None) -> RunResult:
        """Wait until the run is over and return its result, with what a function returned on every rank.

        Raises:
            RunFailed: the run did not succeed; with the cause, and the traceback of the rank that failed first.
            RendezvousTimeoutError: too few nodes joined, `missing` says which and why; a RunFailed as well.
            TimeoutError: the run is not over by then; it goes on.
            UsageError: `timeout_s` is NaN or negative.
            ReturnValuesError: a value is missing, or cannot be unpickled here; its `result` has all others.
        """
        run_watch = self._watch()
        self._wait(run_watch, timeout_s)
        return raise_unless_succeeded(self.name, read_result(self._layout, run_watch.unwritten))

    def results(self, timeout_s: float | None = None) -> list[Any]:
        """Return the function's values by global rank; empty for a script. Wait and raise as `result` does."""
        values = self.result(timeout_s).return_values
        return [values[rank] for rank in sorted(values)]

    def logs(self, rank: int = 0, attempt: int | None = None, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        """Return the output of a rank so far; empty if it has written nothing yet.

        Args:
            rank: the global rank.
            attempt: 1, 2, 3 ...; None is the latest in which the rank was started.
            stream: standard output or standard error.
        """
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"stream is {stream!r}, expected stdout or stderr")
        layout = require_run_directory(self.run_dir)
        attempts = list_attempts(layout)
        if attempt is None:
            attempt = attempt_of_rank(layout, attempts[-1], rank) if attempts else 1
        return read_output(layout, attempt, rank, is_stderr=stream == "stderr").decode("utf-8", "replace")

    def events(self) -> Iterator[Event]:
        """Yield the run's events as they are written, from the first one on and until the run is over."""
        run_watch = self._watch()
        return follow_events(self._layout, lambda: run_watch.look().is_over, pause_s=LOOK_S)

    def cancel(self) -> Snapshot:
        """Stop the run, with the grace of its job, and wait until it is over; do nothing if it is over already.

        It is not over in what this returns if Slurm has accepted the cancel and still ends the job.

        Raises:
            HpcElasticError: the run cannot be stopped from here.
        """
        snapshot = self.status()
        if snapshot.is_over:
            return snapshot
        return cancel_run(self._layout, snapshot, by="Run.cancel", say=_LOG.info)

    def stop(self, *, requeue: bool = False, lead_s: float | None = None) -> Snapshot:
        """Tell the workers of the end, stop them when they have saved or their time is over, and wait for that.

        Do nothing if the run is over already.

        Args:
            requeue: end this allocation only, and have the job started again; return when it waits for that.
            lead_s: how long the workers have from the notice to TERM; None for `signals.lead` of the job.

        Raises:
            UsageError: `lead_s` is NaN, infinite or negative.
            HpcElasticError: the run cannot be stopped from here, none of its workers runs, or it goes on.
        """
        check_lead(lead_s)
        snapshot = self.status()
        if snapshot.is_over:
            return snapshot
        return stop_run(self._layout, snapshot, is_requeue=requeue, lead_s=lead_s, by="Run.stop", say=_LOG.info)

    async def _await_result(self) -> RunResult:
        run_watch = self._watch()
        while not (await asyncio.to_thread(run_watch.look)).is_over:
            await asyncio.sleep(LOOK_S)
        return await asyncio.to_thread(self.result)

    def _watch(self) -> RunWatch:
        scheduler = take_snapshot(require_run_directory(self.run_dir), None).scheduler
        return RunWatch(self._layout, query_again(scheduler, self.run_dir))
