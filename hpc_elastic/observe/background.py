"""Asks a scheduler in the background, so that a watch goes on with the run directory until there is an answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import SchedulerError

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobQuery, JobStatus

PATIENCE_S = 1.2


class BackgroundQuery:
    """A scheduler whose answer is waited for only briefly; a later answer is kept for the next query.

    A hung controller delays an answer for tens of seconds. Meanwhile the run may end, which its directory shows.

    Args:
        scheduler: the scheduler, which gets one question at a time.
        patience_s: how long the first query waits for the answer.
    """

    def __init__(self, scheduler: JobQuery, *, patience_s: float = PATIENCE_S) -> None:
        self._scheduler = scheduler
        self._patience_s = patience_s
        self._question: _Question | None = None

    @property
    def cluster(self) -> str:
        """The name of the cluster that the scheduler asks; empty for this machine's own."""
        return str(getattr(self._scheduler, "cluster", ""))

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of these jobs.

        Raises:
            SchedulerError: the scheduler does not answer, or has not answered yet.
        """
        question = self._question
        if question is not None and question.is_answered.is_set() and not question.covers(job_ids):
            question = None
        if question is None:
            question = self._question = _Question(self._scheduler, job_ids)
            question.is_answered.wait(self._patience_s)
        if not question.is_answered.is_set():
            raise SchedulerError("Slurm does not answer")
        self._question = None
        return question.answer()


class _Question:
    """One question, asked in a daemon thread, which does not keep the process alive."""

    def __init__(self, scheduler: JobQuery, job_ids: Sequence[str]) -> None:
        self.is_answered = threading.Event()
        self._scheduler = scheduler
        self._job_ids = list(job_ids)
        self._found: Mapping[str, JobStatus] = {}
        self._error: Exception | None = None
        threading.Thread(target=self._ask, name="hpc_elastic question", daemon=True).start()

    def covers(self, job_ids: Sequence[str]) -> bool:
        """Return whether the answer is about all of these jobs."""
        return set(job_ids) <= set(self._job_ids)

    def answer(self) -> Mapping[str, JobStatus]:
        """Return the scheduler's answer, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._found

    def _ask(self) -> None:
        try:
            self._found = self._scheduler.query(self._job_ids)
        except Exception as error:  # raised again in the thread that asks
            self._error = error
        self.is_answered.set()
