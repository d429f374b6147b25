"""Implements submitit's job: its state, its results by rank, its output, and how to cancel it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core import core, logger, utils
from submitit.core.core import R

from hpc_elastic.errors import SchedulerError
from hpc_elastic.integrations.submitit.paths import RunPaths, run_link
from hpc_elastic.integrations.submitit.watcher import RunWatcher
from hpc_elastic.observe.facts import attempt_of_rank, list_attempts
from hpc_elastic.observe.rank_output import has_output, read_output
from hpc_elastic.observe.watch import LOOK_S
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.observe.snapshot import Snapshot

_LINE = "-" * 22
_BY = "job.cancel() of submitit"


class HpcElasticJob(core.Job[R]):
    """A run of this package as a submitit job.

    Its results are those of the last attempt, which is the one that succeeded: a rank that raised in an
    earlier one raises nothing here, and ranks that the world has lost have no result.

    Args:
        folder: the folder of the job, as the executor was given it.
        job_id: the job's id.
        tasks: the global ranks, as many as were asked for.
    """

    watcher = RunWatcher()

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        self._layout: RunLayout | None = None
        super().__init__(folder, job_id, tasks)

    @property
    def layout(self) -> RunLayout:
        """The layout of the run directory.

        Raises:
            UncompletedJobError: there is no such job in the folder.
        """
        if self._layout is None:
            link = run_link(self._paths)
            if not link.exists():
                raise utils.UncompletedJobError(
                    f"there is no job {self.job_id} in {self._paths.folder}: {link.name}, which leads to its run "
                    "directory, is not there; was the job submitted with another folder?"
                )
            self._layout = RunLayout(os.path.realpath(link))
        return self._layout

    @property
    def paths(self) -> utils.JobPaths:
        """The files of this task: its output and result are those of the latest attempt."""
        if not run_link(self._paths).exists():
            return self._paths
        layout, rank = self.layout, self.task_id or 0
        attempts = list_attempts(layout) or [1]
        attempt = attempt_of_rank(layout, attempts[-1], rank)
        return RunPaths(self._paths._folder, self.job_id, self.task_id, layout=layout, attempt=attempt)

    def _get_logs_string(self, name: str) -> str | None:
        """Return what this task wrote in all attempts, one after the other; None if it has written nothing yet.

        submitit calls it for `stdout` and `stderr`; under its own Slurm executor a requeued job appends to one file.

        Raises:
            ValueError: the name is another one.
        """
        if not run_link(self._paths).exists():
            return super()._get_logs_string(name)
        layout, rank = self.layout, self.task_id or 0
        if name not in ("stdout", "stderr"):
            raise ValueError(f"there is no output {name!r}, expected stdout or stderr")
        is_stderr = name == "stderr"
        attempts = [number for number in list_attempts(layout) if has_output(layout, number, rank)]
        if not attempts:
            return None
        texts = [read_output(layout, attempt, rank, is_stderr=is_stderr) for attempt in attempts]
        return b"".join(texts).decode("utf-8", "replace")

    def _register_in_watcher(self) -> None:
        if run_link(self._paths).exists():
            self.watcher.register_run(self.job_id, self.layout)

    @property
    def state(self) -> str:
        """Return the run's state in Slurm's words, UNKNOWN if there is no such job in the folder."""
        return self.get_info("standard").get("jobState", "UNKNOWN")

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return what is known of this job, nothing if it is not in the folder.

        A job of another folder may have the same id, on another cluster or of another time, and have been asked about.
        """
        self._register_in_watcher()
        return self.watcher.get_info(self.job_id, mode=mode) if run_link(self._paths).exists() else {}

    def _look(self) -> Snapshot:
        self.watcher.register_run(self.job_id, self.layout)
        return self.watcher.look(self.job_id)

    def done(self, force_check: bool = False) -> bool:
        """Return whether the whole run is over, and not only one of its workers."""
        del force_check
        return self._look().is_over

    def wait(self) -> None:
        """Wait for the end of the run."""
        while not self.done():
            time.sleep(LOOK_S)

    def results(self) -> list[R]:
        """Wait for the end of the run; return the function's values by global rank, or the value of this task alone.

        Raises:
            FailedJobError: the run failed; the message has the cause and the remote traceback.
            UncompletedJobError: the run was cancelled, or this task had no part in the last world.
        """
        self.wait()
        if (error := self._error()) is not None:
            raise error
        if self._sub_jobs:
            return [sub_job._result() for sub_job in self._in_last_world()]
        return [self._result()]

    def exception(self) -> utils.UncompletedJobError | None:
        """Wait for the end of the run; return the error that `results` would raise, None if none."""
        self.wait()
        error = self._error()
        if error is not None or self._sub_jobs:
            return error
        try:
            self._result()
        except utils.UncompletedJobError as missing:
            return missing
        return None

    def _in_last_world(self) -> list[HpcElasticJob[R]]:
        size = self._look().workers or 0
        return [
            sub_job for sub_job in self._sub_jobs if isinstance(sub_job, HpcElasticJob) and sub_job._tasks[0] < size
        ]

    def _result(self) -> Any:
        """Return this task's value from a run that succeeded."""
        snapshot, rank = self._look(), self._tasks[0]
        if snapshot.workers is not None and rank >= snapshot.workers:
            raise utils.UncompletedJobError(
                f"task {rank} of job {self.job_id} has no result: the run succeeded in attempt {snapshot.attempts} "
                f"with {snapshot.workers} ranks; results() of the job has theirs"
            )
        outcome, value = self._get_outcome_and_result()
        if outcome == "error":  # unreachable as long as a rank that raises does not exit 0
            raise utils.FailedJobError(f"task {rank} of job {self.job_id} raised and exited 0:\n{value}")
        return value

    def _error(self) -> utils.UncompletedJobError | None:
        """Return the error of a run that is over, None if it succeeded."""
        snapshot = self._look()
        if snapshot.state.value == "SUCCEEDED":
            return None
        if snapshot.state.value == "CANCELLED":
            lines = store.read_lines(self.layout.requests)
            asked = [str(line.get("reason") or "") for line in lines if line.get("kind") == "stop"][:1]
            why = f" ({asked[0]})" if asked and asked[0] else ""
            return utils.UncompletedJobError(f"Job {self.job_id} was cancelled: {snapshot.cause}{why}")
        failure = _first_failure(snapshot, None if self._sub_jobs else self._tasks[0])
        trace = _remote_traceback(failure)
        text = f"Job {self.job_id} failed: {snapshot.cause}"
        if trace:
            text += f"\n{_LINE}\n{trace.rstrip()}\n{_LINE}"
        text += f"\nIts run directory, with the output of every rank and attempt, is {self.layout.root}"
        return utils.FailedJobError(text)

    def cancel(self, check: bool = True) -> None:
        """Stop the job, pending or running; its workers get their time of grace.

        Args:
            check: whether to wait until the job is over, and to raise an error if that fails.
        """
        from hpc_elastic.api.cancel import cancel_run
        from hpc_elastic.api.requests import ask_to_stop
        from hpc_elastic.scheduler.registry import make_scheduler

        snapshot = self._look()
        if snapshot.is_over:
            return
        if check:
            cancel_run(self.layout, snapshot, by=_BY, say=logger.get_logger().info)
            return
        ask_to_stop(self.layout, _BY)
        if snapshot.allocations == 0 and snapshot.job_id:  # no agent runs that could see the request
            with contextlib.suppress(SchedulerError):
                make_scheduler(snapshot.scheduler, run_dir=self.layout.root).cancel(snapshot.job_id)

    def _interrupt(self, timeout: bool = False) -> None:
        """Send submitit's signal to the workers, for tests: a preemption or a time limit without Slurm's TERM."""
        del timeout
        from hpc_elastic.integrations.submitit.environment import HpcElasticJobEnvironment

        number = HpcElasticJobEnvironment._usr_sig()
        if self._look().scheduler == "slurm":
            subprocess.check_call(["scancel", f"--signal={signal.Signals(number).name}", self.job_id])
            return
        for pid in _worker_pids(self.layout):
            with contextlib.suppress(ProcessLookupError):  # stopped meanwhile, because another one acts on the signal
                os.kill(pid, number)


def _first_failure(snapshot: Snapshot, rank: int | None) -> Mapping[str, Any]:
    """Return the failure of this rank, of the rank in the root cause, or the earliest; empty if no worker failed."""
    failures = snapshot.failures
    for wanted in (rank, (snapshot.root_cause or {}).get("rank")):
        if str(wanted) in failures:
            return dict(failures[str(wanted)])
    return dict(min(failures.values(), key=lambda failure: failure.get("timestamp", 0.0), default={}))


def _remote_traceback(failure: Mapping[str, Any]) -> str:
    """Return the traceback of the rank, followed by its last lines on standard error if it is no Python traceback."""
    path = str(failure.get("error_file", ""))
    data: Any = (store.read_json(path) if os.path.isabs(path) else None) or {}
    try:
        callstack = str(data["message"]["extraInfo"]["py_callstack"])
    except (KeyError, TypeError):  # there is no such entry, or the file is damaged
        return str(failure.get("message", ""))
    tail = str(data.get("stderr_tail") or "")
    return callstack if "Traceback" in callstack or not tail else f"{callstack}\n{tail}"


def _worker_pids(layout: RunLayout) -> list[int]:
    """Return the process ids of the latest attempt's workers, which all run on this machine."""
    attempt = (list_attempts(layout) or [1])[-1]
    folder = os.path.dirname(layout.node_result(attempt, "node"))
    records = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return [int(pid) for record in records for pid in record["pids"].values()]
