"""Handles the signals that tell a worker to checkpoint its function as submitit does, and to have the job restarted.

Theory of operation: submitit's signal (USR2) asks rank 0 to call the function's `checkpoint`, to write what
it returns over the pickle that the workers load, and to have the job started again. It comes from `scancel
--signal=USR2`, or from an alarm in rank 0 itself, `signal_delay_s` before the time limit.

Slurm answers a requeue with a TERM for every process of the step. The worker must not exit before
that: a rank that exits by itself is a failure, and the last allowed failure would end the run for good. A TERM
without a requeue by the worker is a preemption if Slurm will start the job again, and then there is time for a
checkpoint. Otherwise the run stops, or a failure elsewhere restarts all workers within seconds, and a longer
checkpoint would be cut off in the middle. All other workers keep the default: they die of a TERM at once.

A function that cannot go on ends the run by a stop request: if it raised an error, our agents would restart it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import types
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NoReturn

from submitit.core import job_environment, utils

from hpc_elastic.api.requests import ask_to_stop
from hpc_elastic.integrations.submitit import postponed
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.questions import JobQuestions

SIGNAL_AFTER_VARIABLE = "SUBMITIT_HPCELASTIC_SIGNAL_AFTER_S"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """One start of the job by the scheduler. `time`: as text in records. `is_local`: no scheduler can requeue it."""

    layout: RunLayout
    job_id: str
    restart_count: int
    time: str | None
    is_local: bool


def listen(
    env: job_environment.JobEnvironment, start: JobStart, paths: utils.JobPaths, submission: utils.DelayedSubmission
) -> None:
    """Install the signal handlers of this process, and on rank 0 the alarm before the time limit."""
    handler = PreemptionHandler(env, start, paths, submission)
    postponed.install(env._usr_sig(), handler.checkpoint_and_try_requeue)
    if env.global_rank != 0:
        return
    with contextlib.suppress(FileNotFoundError):  # left by a rank 0 killed in mid-write; submitit would refuse
        os.unlink(f"{paths.submitted_pickle}.save_tmp")
    if hasattr(submission.function, "checkpoint") and not start.is_local:
        postponed.install(signal.SIGTERM, handler.stop)
    if SIGNAL_AFTER_VARIABLE in os.environ:
        due = handler.started + float(os.environ[SIGNAL_AFTER_VARIABLE])
        threading.Thread(target=_raise_at, args=(due, env._usr_sig()), name="submitit's signal", daemon=True).start()


class PreemptionHandler(job_environment.SignalHandler):
    """submitit's signal handler with this package's way to requeue.

    `started` is when the time limit began to count, in Unix seconds: on the local backend, where nothing enforces
    it, at the start of this worker.
    """

    def __init__(
        self,
        env: job_environment.JobEnvironment,
        start: JobStart,
        paths: utils.JobPaths,
        submission: utils.DelayedSubmission,
    ) -> None:
        super().__init__(env, paths, submission)
        self._start = start
        self._pid = os.getpid()
        self._is_saved = self._is_saving = self._is_stopped = False
        self.started = self._start_time if start.is_local else _unix_seconds(start.time)
        self._start_time = self.started

    def has_timed_out(self) -> bool:
        """Return whether the time limit ends the job; without a limit it is False."""
        return bool(self._delayed._timeout_min) and super().has_timed_out()

    def checkpoint_and_try_requeue(self, signum: int, frame: types.FrameType | None = None) -> None:
        """Handle submitit's signal: save the function and have the job started again."""
        if os.getpid() != self._pid or self._is_saving or self._is_saved:
            return  # this is a forked data loader, which is no rank, or a second signal
        self._is_saving = True
        try:
            super().checkpoint_and_try_requeue(signum, frame)
        except utils.UncompletedJobError as error:
            ask_to_stop(self._start.layout, str(error))
        finally:
            self._is_saving = False
        if self._is_stopped:
            _die_of(signal.SIGTERM)

    def stop(self, signum: int, frame: types.FrameType | None = None) -> None:
        """Handle a TERM: save the function if Slurm is about to start the job again, then die of the signal."""
        del frame
        if os.getpid() == self._pid:
            if self._is_saving:
                self._is_stopped = True
                return
            self._is_saving = True  # Slurm sends a TERM to each process and one to each step: one of them is answered
            try:
                if not self._is_saved and self._will_start_again():
                    self._logger.warning("Preempted: this job will be started again.")
                    path, countdown = self._job_paths.submitted_pickle, self._delayed._timeout_countdown
                    job_environment._checkpoint(self._delayed, path, countdown)
            except BaseException:
                self._is_saving = False  # the function may catch the error of its `checkpoint`, and go on
                raise
        _die_of(signal.Signals(signum))

    def _will_start_again(self) -> bool:
        """Return whether the job may start again; True if Slurm does not answer: better a needless checkpoint."""
        return JobQuestions().is_requeued(self._start.job_id, self._start.restart_count) is not False

    def _exit(self) -> NoReturn:
        """Wait for Slurm's TERM, after a requeue."""
        self._is_saved = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # this runs the handler first if a TERM is already pending
        if self._is_stopped:
            _die_of(signal.SIGTERM)
        self._logger.info("Waiting for Slurm to stop this job.")
        while True:
            signal.pause()


def _die_of(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _raise_at(due: float, number: signal.Signals) -> None:
    """Send this process the signal at a time in Unix seconds; on a thread of its own."""
    time.sleep(max(0.0, due - time.time()))
    os.kill(os.getpid(), number)


def _unix_seconds(text: str | None) -> float:
    """Convert the time in a record to Unix seconds; without one it is the current time."""
    if not text:
        return time.time()
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
