"""Finds out that an allocation has ended in which srun waits for a step that it will never get.

Theory of operation: srun asks for a step and, where other steps hold the nodes, asks again a minute later and later
still (22.05): for as long it does not notice that its job is over. So Slurm is asked, and only where srun has started
no agent for some seconds, at most every few seconds, and once more when srun has given up. What Slurm does not answer
decides nothing. That it does not know the job means that the job is over only where it has known it before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.complaint import last_lines
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import JobQuery, JobState, JobStatus
from hpc_elastic.scheduler.slurm.srun_errors import is_without_step

_SILENT_S = 4.0  # srun starts agents sooner where nothing keeps it from that
_PAUSE_S = 8.0
_TIMEOUT_S = 10.0
_TOLD_APART = (JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL, JobState.PREEMPTED)


class StepWait:
    """The wait of a foreground run for its step, in an allocation that is not its own.

    Args:
        layout: the run's.
        job_id: the allocation's.
        scheduler: answers what became of the allocation; by default the Slurm that this environment names.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        layout: RunLayout,
        job_id: str,
        scheduler: JobQuery | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._job_id = job_id
        self._scheduler = scheduler
        self._clock = clock
        self._asks_at: float | None = None
        self._was_known = False
        self._is_settled = False  # nothing is to be asked any more

    def find_end(self, *, has_srun_ended: bool) -> JobStatus | None:
        """Return how the allocation has ended before an agent was started in it; None where it is not known to have.

        Args:
            has_srun_ended: the script, and srun with it, has failed.
        """
        if self._is_settled or not self._is_waiting():
            self._asks_at = None
            return None
        now = self._clock()
        if has_srun_ended:
            self._is_settled = True
        elif self._asks_at is None:
            self._asks_at = now + _SILENT_S
            return None
        elif now < self._asks_at:
            return None
        self._asks_at = now + _PAUSE_S
        with contextlib.suppress(HpcElasticError):
            return self._read(self._ask()[self._job_id])
        return None

    def _is_waiting(self) -> bool:
        layout = self._layout
        if store.list_numbers(layout.allocations):  # an agent has claimed it, and there is nothing to ask any more
            self._is_settled = True
            return False
        return is_without_step(last_lines(layout.script_output(self._job_id)))

    def _ask(self) -> Mapping[str, JobStatus]:
        if self._scheduler is None:
            from hpc_elastic.scheduler.slurm.scheduler import SlurmScheduler

            self._scheduler = SlurmScheduler(timeout_s=_TIMEOUT_S)
        return self._scheduler.query([self._job_id])

    def _read(self, told: JobStatus) -> JobStatus | None:
        if told.state is JobState.GONE:
            is_over = self._was_known
        else:
            self._was_known = True
            is_over = told.state.is_terminal or told.state is JobState.COMPLETING  # no step begins there any more
        if not is_over:
            return None
        if told.state is JobState.COMPLETING and told.reason == "TimeLimit":
            return replace(told, state=JobState.TIMEOUT, native_state="TIMEOUT")
        if told.state in _TOLD_APART:
            return told
        return replace(told, state=JobState.CANCELLED)  # salloc has ended, or nobody says how it came
