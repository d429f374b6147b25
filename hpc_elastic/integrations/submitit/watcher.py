"""Watches all jobs of this process: reads their run directories first, and asks Slurm for all of them at once.

A job is over when its run is, and a run is over when there is a result; Slurm alone would tell less, and
later. A result never changes, so it is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from submitit.core import core

from hpc_elastic.observe.watch import RunWatch
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.observe.snapshot import Snapshot
    from hpc_elastic.scheduler.protocol import JobStatus, Scheduler

SAME_ANSWER_S = 2.0
# The states have the names that submitit's users know from its Slurm executor.
_STATES = {"SUCCEEDED": "COMPLETED"}


class RunWatcher(core.InfoWatcher):
    """The InfoWatcher that all jobs share."""

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[str, str] = {}
        self._watches: dict[str, RunWatch] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._slurm: SharedQuestions | None = None

    def register_run(self, job_id: str, layout: RunLayout, scheduler: Scheduler | None = None) -> None:
        """Watch a job from now on; do nothing if it is watched already.

        Another cluster's job may have the same id, and so may a later one of this cluster: the last one counts.

        Args:
            job_id: the job's id.
            layout: the layout of its run directory.
            scheduler: the one that submitted it; it reaps the job's process if that is a child of this process.
        """
        if self._roots.get(job_id) == layout.root:
            return
        self._roots[job_id] = layout.root
        self._snapshots.pop(job_id, None)
        self._finished.discard(job_id)
        self.register_job(job_id)
        self._watches[job_id] = RunWatch(layout, self._whom_to_ask(job_id, layout, scheduler))

    def _whom_to_ask(self, job_id: str, layout: RunLayout, scheduler: Scheduler | None) -> Scheduler:
        from hpc_elastic.scheduler.registry import make_scheduler

        if scheduler is None:
            submission = store.read_json(layout.submission) or {}
            scheduler = make_scheduler(str(submission.get("scheduler", "slurm")), run_dir=layout.root)
        if scheduler.answers_at_once:
            return scheduler
        self._slurm = self._slurm or SharedQuestions(scheduler)
        self._slurm.add(job_id)
        return self._slurm

    def look(self, job_id: str) -> Snapshot:
        """Return the present state of a job's run.

        Raises:
            KeyError: the job was not registered.
        """
        last = self._snapshots.get(job_id)
        if last is not None and last.is_over:
            return last
        self._num_calls += 1
        snapshot = self._snapshots[job_id] = self._watches[job_id].look()
        if snapshot.is_over:
            self._finished.add(job_id)
            if self._slurm is not None:
                self._slurm.drop(job_id)
        return snapshot

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return what is known of a job: `jobState`, `runDir`, and the result's cause once there is one."""
        snapshot = self._snapshots.get(job_id)
        if mode != "cache" and job_id in self._watches:
            snapshot = self.look(job_id)
        if snapshot is None:
            return {}
        info = {"jobState": _STATES.get(snapshot.state.value, snapshot.state.value), "runDir": snapshot.run_dir}
        return {**info, **({"cause": snapshot.cause} if snapshot.cause else {})}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the run's state, in Slurm's words."""
        return self.get_info(job_id, mode=mode).get("jobState", "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the run is over."""
        self.get_info(job_id, mode=mode)
        return job_id in self._finished

    def clear(self) -> None:
        """Forget all states that were read."""
        super().clear()
        self._snapshots.clear()


class SharedQuestions:
    """A scheduler that asks about all jobs at once whenever one of them is asked for.

    Args:
        scheduler: the scheduler that is asked.
        clock: returns monotonic seconds.
    """

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = scheduler.name
        self.answers_at_once = scheduler.answers_at_once
        self.submit = scheduler.submit
        self.cancel = scheduler.cancel
        self._scheduler = scheduler
        self._clock = clock
        self._jobs: dict[str, None] = {}
        self._answers: Mapping[str, JobStatus] = {}
        self._asked = float("-inf")

    def add(self, job_id: str) -> None:
        """Add a job to those that are asked about."""
        self._jobs[job_id] = None
        self._answers = {each: answer for each, answer in self._answers.items() if each != job_id}

    def drop(self, job_id: str) -> None:
        """Remove a job, which is over."""
        self._jobs.pop(job_id, None)

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of these jobs, at most `SAME_ANSWER_S` old.

        Raises:
            SchedulerError: the scheduler does not answer.
        """
        is_old = self._clock() - self._asked > SAME_ANSWER_S
        if is_old or any(job_id not in self._answers for job_id in job_ids):
            self._answers = self._scheduler.query([*dict.fromkeys([*self._jobs, *job_ids])])
            self._asked = self._clock()
        return {job_id: self._answers[job_id] for job_id in job_ids}
