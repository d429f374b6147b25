"""Takes snapshots of many runs together, with one question to each cluster for all of its jobs.

Theory of operation: a round reads every run directory first and asks afterwards, as a look at one run does: an answer
from before a start, beside the start's claim, would look like a requeue. The first run that is due asks for all
that are not over; the others of the round get its answer. A run that is over is not looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import HpcElasticError, RunDirectoryError, SchedulerError
from hpc_elastic.observe.diagnosis import SETTLE_S
from hpc_elastic.observe.facts import Facts, find_gone
from hpc_elastic.observe.snapshot import Snapshot, elsewhere, make_snapshot
from hpc_elastic.observe.watch import RunWatch
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobQuery, JobStatus


class SharedQuestion:
    """A scheduler that is asked once each round, about all announced jobs."""

    def __init__(self, scheduler: JobQuery) -> None:
        self._scheduler = scheduler
        self._announced: dict[str, None] = {}
        self._answers: Mapping[str, JobStatus] | None = None
        self.error: SchedulerError | None = None

    def begin(self) -> None:
        """Begin a new round: forget the answer of the last one."""
        self._announced, self._answers, self.error = {}, None, None

    def announce(self, job_id: str) -> None:
        """Announce that this job will be asked for in this round."""
        self._announced[job_id] = None

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of these jobs.

        Raises:
            SchedulerError: the scheduler does not answer; it is not asked again in this round.
        """
        if self.error is not None:
            raise self.error
        if self._answers is None or not self._answers.keys() >= set(job_ids):
            try:
                self._answers = self._scheduler.query([*dict.fromkeys([*self._announced, *job_ids])])
            except SchedulerError as error:
                self.error = error
                raise
        return {job_id: self._answers[job_id] for job_id in job_ids}


class ManyWatch:
    """Several runs under observation.

    Args:
        runs: the layout and the scheduler's name of each.
        make_scheduler: makes the scheduler with this name, for the run in a directory.
        warn: is called with a line about each thing that could not be done.
        settle_s: how long a job must be over before its missing result is made.
    """

    def __init__(
        self,
        runs: Sequence[tuple[RunLayout, str]],
        make_scheduler: Callable[[str, str], JobQuery],
        *,
        warn: Callable[[str], None],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._make_scheduler = make_scheduler
        self._warn = warn
        self._questions: dict[str, SharedQuestion] = {}  # by cluster
        self._shared: dict[str, SharedQuestion] = {}  # by run directory
        self._watches = [self._watch(layout, name, settle_s) for layout, name in runs]
        self._over: dict[int, Snapshot] = {}
        self._unread: dict[int, str] = {}  # why a run could not be read when it was last looked at

    @property
    def trouble(self) -> str | None:
        """The error of a scheduler that did not answer in the last round; None if all answered."""
        return next((each.error.message for each in self._questions.values() if each.error), None)

    def note_stop(self) -> None:
        """Take each run that is gone from now on for one that a person has stopped."""
        for watch in self._watches:
            if watch is not None:
                watch.is_stop_requested = True

    def look(self) -> list[Snapshot | None]:
        """Return a snapshot of each run, None for one that cannot be read; write results that no agent will write."""
        for question in self._questions.values():
            question.begin()
        facts = {number: self._read(number) for number in range(len(self._watches)) if number not in self._over}
        seen: list[Snapshot | None] = []
        for number in range(len(self._watches)):
            found = facts.get(number)
            snapshot = self._over.get(number) if found is None else self._conclude(number, found)
            if snapshot is not None and snapshot.is_over:
                self._over[number] = snapshot
            seen.append(snapshot)
        return seen

    def _watch(self, layout: RunLayout, name: str, settle_s: float) -> RunWatch | None:
        try:
            scheduler = self._make_scheduler(name, layout.root)
        except HpcElasticError as error:
            self._warn(f"{layout.root}: {error.message}")
            return None
        if name == "slurm":
            question = self._questions.setdefault(getattr(scheduler, "cluster", ""), SharedQuestion(scheduler))
            self._shared[layout.root] = scheduler = question
        return RunWatch(layout, scheduler, settle_s=settle_s)

    def _read(self, number: int) -> Facts | None:
        watch = self._watches[number]
        if watch is None:
            return None
        try:
            facts = watch.read()
            if not facts.plan and (gone := find_gone(watch.layout.root)) is not None:
                raise gone
        except HpcElasticError as error:
            if error.message != self._unread.get(number):
                self._warn(error.message)
            self._unread[number] = error.message
            return None
        self._unread.pop(number, None)
        question = self._shared.get(watch.layout.root)
        if question and facts.result is None and facts.job_id is not None and not elsewhere(facts):
            question.announce(facts.job_id)
        return facts

    def _conclude(self, number: int, facts: Facts) -> Snapshot | None:
        watch = self._watches[number]
        if watch is None:
            return None
        try:
            return watch.conclude(facts)
        except RunDirectoryError as error:  # somebody else's run, or a full disk: it can be looked at all the same
            self._warn(error.message)
            return make_snapshot(facts, watch.job)
