"""Watches a run until it is over: reads the run directory often, and asks the scheduler seldom.

Theory of operation: each look reads the run directory. The scheduler is asked when the pause since the last
question is over, and when the job was started since; the pause grows from 1 s to 10 s while its answer stays the
same. When it calls the job terminal and there is still no result, the result is made here: at once where no agent
can be about to write one, else when that has been so for `SETTLE_S`, or nothing was written for as long. A result that
cannot be written, to a full disk say, is this process's own word: the run is over for it all the same. A file server
that fails (`soft` mounts of NFS) or has forgotten a directory for a moment ends no watch: the run goes on without it.
So it does without a run directory that was moved or removed, which a watch waits for as long.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import FileSystemError
from hpc_elastic.observe import diagnosis
from hpc_elastic.observe.facts import FactReader, Facts, agent_complaint, last_line, latest_change
from hpc_elastic.observe.snapshot import (
    Snapshot,
    ask_scheduler,
    hidden_here,
    is_anothers_job,
    is_same_scheduler,
    make_snapshot,
    may_be_hidden,
    unknown_here,
)
from hpc_elastic.rundir.full_disk import tells_of_no_space, why_refused
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobQuery, JobStatus

LOOK_S = 0.5  # `submit --wait` shall return within 2 s of the end
REFRESH_S = 10.0
PATIENCE_S = 150.0  # an NFS server that starts again has a grace period of 90 s
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOENT})  # ENOENT: it may be moved back
_FIRST_PAUSE_S, _PAUSE_FACTOR, _LONGEST_PAUSE_S = 1.0, 1.5, 10.0


class QuestionPace:
    """The pacing of questions to the scheduler."""

    def __init__(self) -> None:
        self._due = float("-inf")
        self._pause = _FIRST_PAUSE_S
        self._answer: object = None

    def is_due(self, now: float) -> bool:
        """Return whether the next question is due."""
        return now >= self._due

    def note(self, now: float, answer: object) -> None:
        """Set the next pause: short after a new answer, longer and longer after the same one."""
        self._pause = _FIRST_PAUSE_S if answer != self._answer else min(self._pause * _PAUSE_FACTOR, _LONGEST_PAUSE_S)
        self._answer = answer
        self._due = now + self._pause


class RunWatch:
    """One run under observation.

    Args:
        layout: the run's.
        scheduler: the scheduler to ask; None to read the run directory alone.
        settle_s: how long a job must be over before its missing result is made.
        clock: monotonic seconds.
        reader: has read the run directory before, of which it does not read again what cannot change.
    """

    def __init__(
        self,
        layout: RunLayout,
        scheduler: JobQuery | None,
        *,
        settle_s: float = diagnosis.SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        reader: FactReader | None = None,
    ) -> None:
        self.layout = layout
        self._scheduler = scheduler
        self._settle_s = settle_s
        self._clock = clock
        self._reader = reader or FactReader(layout)
        self._pace = QuestionPace()
        self.job: JobStatus | None = None
        self._allocations = 0  # how many there were when the scheduler was last asked
        self.is_cancelled = False  # the scheduler has accepted a cancel by this process
        self._note: str | None = None
        self._was_known = False  # the scheduler knew the job before
        self._over_since: float | None = None
        self.is_stop_requested = False  # by this process; a full disk may have kept the request from the directory
        self.unwritten: Mapping[str, Any] | None = None  # the result, if it could not be written
        self._why_unwritten = ""
        self._refreshed = self._read_at = clock()

    def look(self) -> Snapshot:
        """Return a snapshot of the run; write its result if no agent will.

        Raises:
            RunDirectoryError: the run directory cannot be read.
        """
        return self.conclude(self.read())

    def read(self) -> Facts:
        """Read the facts of the run directory: the first half of `look`.

        Raises:
            RunDirectoryError: the run directory cannot be read.
        """
        self._refresh()
        facts = self._read()
        self._read_at = self._clock()
        return facts

    def may_pass(self, error: FileSystemError) -> bool:
        """Return whether an error of a look may end by itself, as a file server's, and has not lasted for long."""
        cause = error.__cause__
        return isinstance(cause, OSError) and cause.errno in _PASSING and self._clock() - self._read_at < PATIENCE_S

    def conclude(self, facts: Facts) -> Snapshot:
        """Ask the scheduler if that is due and return the snapshot: the second half of `look`.

        Raises:
            RunDirectoryError: the run directory cannot be read.
        """
        if facts.result is None:
            self._ask(facts)
            if self._settle(facts):
                facts = self._read()
        if facts.result is None and self.unwritten is not None:
            return make_snapshot(replace(facts, result=self.unwritten), self.job, self._why_unwritten)
        return make_snapshot(facts, self.job, self._note if facts.result is None else None)

    def _read(self) -> Facts:
        facts = self._reader.read()
        return replace(facts, is_stop_requested=True) if self.is_stop_requested else facts

    def _refresh(self) -> None:
        """Make an NFS client drop its cached absence of `result.json` now and then, unless the job is pending."""
        is_pending = self.job is not None and self.job.state.value == "PENDING"  # most tasks of a large array are
        if not is_pending and self._clock() - self._refreshed >= REFRESH_S:
            from hpc_elastic.observe.settle import file_system_now

            self._refreshed = self._clock()
            file_system_now(self.layout)

    def _ask(self, facts: Facts) -> None:
        now = self._clock()
        # PENDING from before a start, put beside the start's claim, would look like a requeue.
        is_outdated = facts.allocations != self._allocations
        if self._scheduler is None or not (self._pace.is_due(now) or is_outdated):
            return
        self._allocations = facts.allocations
        self.job, self._note = ask_scheduler(facts, self._scheduler)
        self._doubt(facts)
        self._believe_cancel(facts)
        self._pace.note(self._clock(), (self.job, self._note))
        if self.job is None or not self.job.state.is_terminal:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now

    def _believe_cancel(self, facts: Facts) -> None:
        """Take the job for cancelled that would start again once it is completed, and has been cancelled since.

        Slurm calls it COMPLETING, as before, until the last of its nodes has answered or was given up.
        """
        is_ending = self.job is not None and self.job.state.value == "COMPLETING"
        if self.job is not None and self.is_cancelled and is_ending:
            from hpc_elastic.scheduler.protocol import JobState

            if facts.has_ended or diagnosis.starts_again(facts, self.job):
                self.job = replace(self.job, state=JobState.CANCELLED)

    def _doubt(self, facts: Facts) -> None:
        """Drop the word that the job is over if it may run, or wait.

        So it may if it is another cluster's Slurm that says so, or if Slurm does not show it to this user.
        """
        if self.job is None:
            return
        if self.job.state.value == "GONE" and not self._was_known and may_be_hidden(facts):
            self.job, self._note = None, hidden_here(facts)
            return
        if self.job.state.value == "GONE":
            is_doubted = not (self._was_known or facts.is_stop_requested or is_same_scheduler(facts))
        else:
            is_doubted = self.job.state.is_terminal and is_anothers_job(facts)
            self._was_known |= not is_doubted
        if is_doubted:
            self.job, self._note = None, unknown_here(facts)

    def _settle(self, facts: Facts) -> bool:
        """Write the missing result if it is time; return whether there is a result now, if only in this process."""
        self.unwritten = None
        if self._over_since is None:
            return False
        from hpc_elastic.observe import settle

        now = settle.file_system_now(self.layout)
        fresh = self._read()  # what the job wrote last may have come between `facts` and the scheduler's word
        if fresh.result is not None or fresh.allocations != facts.allocations:
            return True
        script_word = last_line(fresh.script_output) if fresh.script_output else ""
        words = why_refused(self.layout.root)
        refusal = words and f"cannot write {self.layout.root}: {words}"
        missing = diagnosis.missing_result(
            fresh,
            self.job,
            script_word,
            complaint=agent_complaint(fresh),
            launch_error=settle.read_launch_error(fresh.script_output) if fresh.script_output else "",
            is_scancelled=settle.is_scancelled(fresh.script_output) if fresh.script_output else False,
            failed_nodes=settle.read_failed_nodes(fresh.script_output) if fresh.script_output else (),
            has_begun=not fresh.script_output or settle.has_begun(self.layout.script, fresh.script_output),
            refusal=refusal,
            starts=settle.count_starts(fresh.script_output) if fresh.script_output else 0,
        )
        if missing is None:
            return False
        waited = max(self._clock() - self._over_since, now - latest_change(self.layout))
        # No agent could have written the result, for which there is nothing to wait then.
        is_without_space = bool(refusal or fresh.disk_lack) or tells_of_no_space(missing.cause)
        if not (missing.is_certain or waited >= self._settle_s or is_without_space):
            return False
        if fresh.attempts and settle.has_finished(self.layout, fresh.attempts[-1].number):
            missing = diagnosis.FINISHED
        try:
            settle.settle(self.layout, fresh, missing)
        except FileSystemError as error:  # a full disk, or somebody else's run
            self.unwritten = settle.unwritten_result(self.layout, fresh, missing)
            self._why_unwritten = settle.unwritten_note(error)
        return True


def watch(
    run_watch: RunWatch, *, pause_s: float = LOOK_S, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Snapshot]:
    """Yield snapshots of a run; the last one is taken when the run is over.

    Raises:
        RunDirectoryError: the run directory cannot be read, and that does not pass.
    """
    while True:
        try:
            snapshot = run_watch.look()
        except FileSystemError as error:
            if not run_watch.may_pass(error):
                raise
            sleep(pause_s)
            continue
        yield snapshot
        if snapshot.is_over:
            return
        sleep(pause_s)
