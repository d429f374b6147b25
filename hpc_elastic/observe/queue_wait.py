"""Says when a job that waits in the queue is expected to start, as far as the scheduler estimates that."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.job_ids import is_local
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.waiting import WAITING
from hpc_elastic.scheduler.registry import make_scheduler

_ANSWERS_S = 4.0
ASKS_EVERY_S = 30.0  # Slurm's backfill scheduler makes its estimates that often by default (bf_interval)


class QueueWait:
    """The wait of a run's job in the queue.

    Args:
        ask: returns when a job of a run, which its directory names, is expected to start, by the scheduler's clock;
            None if there is no estimate.
        clock: monotonic seconds.
    """

    def __init__(
        self, ask: Callable[[str, str], datetime | None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask or ask_scheduler
        self._clock = clock
        self._asked_at = -ASKS_EVERY_S
        self._said = ""

    def advance(self, snapshot: Snapshot) -> str:
        """Return a line about the start of the waiting job, if there is something new to say; else ""."""
        if snapshot.state.value not in WAITING or snapshot.job_id is None:
            self._said = ""
            return ""
        if self._clock() - self._asked_at < ASKS_EVERY_S:
            return ""
        self._asked_at = self._clock()
        starts = self._ask(snapshot.job_id, snapshot.run_dir)
        line = f"job {snapshot.job_id} is expected to start at {starts:%Y-%m-%d %H:%M}" if starts is not None else ""
        if line == self._said:
            return ""
        self._said = line
        return line


def ask_scheduler(job_id: str, run_dir: str) -> datetime | None:
    """Return when a run's job is expected to start; None if nobody says, or does not answer within 4 s."""
    if is_local(job_id):
        return None
    scheduler = make_scheduler("slurm", run_dir=run_dir, timeout_s=_ANSWERS_S)
    ask: Callable[[str], datetime | None] | None = getattr(scheduler, "expected_start", None)
    try:
        return ask(job_id) if ask is not None else None
    except HpcElasticError:
        return None
