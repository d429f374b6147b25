"""Asks the scheduler, from a node, about jobs of its run: is one over, is one requeued, which nodes has it lost.

Theory of operation. An answer of the scheduler can speed up a decision or inform people, but no result depends on it:
a refusal, a time-out, a missing program and an answer that cannot be read are all "unknown", which decides nothing. The
reason for an unknown answer is reported once, and again only if there was a good answer to that question in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TypeVar

from hpc_elastic.errors import HpcElasticError, SchedulerError
from hpc_elastic.job_ids import RESERVATION_VARIABLE
from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook
from hpc_elastic.scheduler.registry import from_node

_T = TypeVar("_T")
NEXT_START_S = 180.0  # a requeued job waits for two minutes by default (cred_expire in AuthInfo of slurm.conf)
SUBMIT_TRIES = 3  # of a job that is to follow another one, if no answer comes


class JobQuestions:
    """Asks any scheduler about its jobs; no question raises.

    The allocations of a run may be of different schedulers: somebody may run the job.sh of a Slurm run by hand.

    Args:
        complain: takes a line about an answer that is unknown, and about nodes that are left out of the next start.
        submits_within_s: how long a submission may take, in seconds.
    """

    def __init__(self, complain: Callable[[str], None] = lambda _: None, *, submits_within_s: float = 30.0) -> None:
        self._complain = complain
        self._submits_within_s = submits_within_s
        self._unknown: set[str] = set()
        self._is_lasting = False
        self._is_passing = False
        self._is_disabled = False

    def is_over(self, job_id: str) -> bool | None:
        """Return whether nothing of this job can be running any more; None if that is unknown."""
        return self._ask(f"whether job {job_id} is over", lambda: from_node(job_id).is_over(job_id))

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler stops this start of a job in order to requeue it; None if that is unknown."""
        question = f"whether job {job_id} starts again"
        return self._ask(question, lambda: from_node(job_id).is_requeued(job_id, restart_count))

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        """Return whether the scheduler means this start of a job to go on; None if that is unknown.

        The answer is False if the scheduler ends the job (cancelled, out of time, preempted) or requeues it.
        """
        question = f"whether job {job_id} is at work"
        return self._ask(question, lambda: from_node(job_id).is_at_work(job_id, restart_count))

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """Return those of the job's nodes that the scheduler has given up for this job, for good.

        Takes 5 s at most. A node that is not in the answer may be alive or dead: nothing may depend on this
        answer, which can only save the wait for a lease.
        """
        if not nodes:
            return frozenset()
        question = f"which nodes job {job_id} has lost"
        return self._ask(question, lambda: from_node(job_id).dead_nodes(job_id, nodes)) or frozenset()

    def outlook(self, job_id: str) -> JobOutlook | None:
        """Return what the scheduler says about the end of a job, within 5 s; None if that is unknown."""
        return self._ask(f"when job {job_id} ends", lambda: from_node(job_id).outlook(job_id))

    def start_again(self, job_id: str, without: Exclusion) -> str:
        """Have a job stopped and started again; return the scheduler's refusal, empty if there was none.

        That nodes cannot be avoided is reported, and is no refusal.
        """
        ending = self._find_ending_reservation(job_id)
        try:
            requeue_job(job_id)
        except HpcElasticError as error:
            self._look_at(error)
            if self._is_disabled:
                self._complain(f"{error.message}; another job is to take its place")
            return error.message
        self._is_disabled = False
        self._leave_reservation(job_id, ending)
        self._keep_from(job_id, without)
        return ""

    def forbids_requeue(self) -> bool:
        """Return whether the last job was refused another start because Slurm never requeues it."""
        return self._is_disabled

    def submit_after(self, job_id: str, without: Exclusion) -> tuple[str, str]:
        """Submit a script that starts when a job is over; return the new job's id, or empty and the refusal.

        That nodes cannot be avoided is reported, and is no refusal. Silence is none either: the job may have been
        accepted, and a second one that waits for the same job does no harm, since the first refuses it. Nor is it one
        that the reservation of the script is over: the job is submitted without it.
        """
        ending, is_reserved, silences = self._find_ending_reservation(job_id), True, 0
        while True:
            try:
                scheduler = from_node(job_id)
                chained = scheduler.submit_after(
                    job_id, without.script, timeout_s=self._submits_within_s, is_reserved=is_reserved
                )
            except HpcElasticError as error:
                self._look_at(error)
                is_silence = isinstance(error, SchedulerError) and error.is_silence
                is_over = is_reserved and isinstance(error, SchedulerError) and error.is_reservation_over
                silences += is_silence
                if silences == SUBMIT_TRIES or not (is_silence or is_over):
                    return "", error.message
                is_reserved = is_reserved and not is_over
                if is_silence:
                    self._complain(f"{error.message}; it is asked once more for a job after {job_id}")
                continue
            if is_reserved:
                self._leave_reservation(chained, ending)
            else:
                over = "without the reservation that the job asks for, which is over"
                self._complain(f"the next start, job {chained}, is {over}")
            self._keep_from(chained, without)
            return chained, ""

    def _find_ending_reservation(self, job_id: str) -> str:
        """Return the reservation of a running job, if it ends before the job could start again; else empty.

        Only a job that was started in one is asked about.
        """
        if not os.environ.get(RESERVATION_VARIABLE) or (outlook := self.outlook(job_id)) is None:
            return ""
        left = outlook.seconds_left
        is_ending = outlook.ends_with_reservation and left is not None and left < NEXT_START_S
        return outlook.reservation if is_ending else ""

    def _leave_reservation(self, job_id: str, reservation: str) -> None:
        """Let a waiting job start without a reservation that ends before; Slurm would hold it for ever then.

        A job that Slurm itself ends with its reservation has none any more when it is requeued (22.05 to 26.05).
        """
        if not reservation:
            return
        try:
            from_node(job_id).leave_reservation(job_id)
        except HpcElasticError as error:
            self._complain(error.message)
        else:
            self._complain(f"the next start, job {job_id}, is without the reservation {reservation}, which ends before")

    def _keep_from(self, job_id: str, without: Exclusion) -> None:
        """Keep a waiting job from nodes, as far as the scheduler can spare them.

        This comes after the job was asked for, which may be the last that this process has the time for; and a job that
        runs keeps its nodes. A job that excludes more nodes than its partition can spare would wait for ever. So the
        scheduler is asked first; if it cannot spare all of the nodes, the last one is tried alone.
        """
        if not (without.nodes or without.earlier):
            return
        scheduler = from_node(job_id)
        try:
            before = scheduler.excluded(job_id)
            own = tuple(node for node in before if node not in without.earlier)
            wanted = (*own, *self._choose_spared(job_id, own, without))
            if wanted != before:
                scheduler.exclude(job_id, wanted)
        except HpcElasticError as error:
            self._complain(f"job {job_id} may get any nodes when it starts: {error.message}")

    def _choose_spared(self, job_id: str, own: tuple[str, ...], without: Exclusion) -> tuple[str, ...]:
        """Return the nodes to leave out beside those that the user excludes, all or the last one, or none of them."""
        refusal = ""
        for nodes in dict.fromkeys((without.nodes, without.nodes[-1:])):
            tried = tuple(node for node in nodes if node not in own)
            try:
                if tried:
                    from_node(job_id).check_exclusion(without.script, (*own, *tried))
                    self._complain(f"the next start, job {job_id}, is kept from {', '.join(tried)}")
                return tried
            except HpcElasticError as error:
                refusal = refusal or error.message
        self._complain(f"the next start, job {job_id}, may get {', '.join(without.nodes)} again: {refusal}")
        return ()

    def may_answer_later(self) -> bool:
        """Return whether what was not answered may be answered later; not if the scheduler's programs are not here."""
        return not self._is_lasting

    def may_be_accepted_later(self) -> bool:
        """Return whether a job was refused only for now, as where its partition is drained or the queue is full."""
        return self._is_passing

    def _look_at(self, error: HpcElasticError) -> None:
        self._is_lasting = isinstance(error, SchedulerError) and error.is_lasting
        self._is_passing = isinstance(error, SchedulerError) and error.is_passing
        self._is_disabled = isinstance(error, SchedulerError) and error.is_disabled

    def can_end_job(self, job_id: str) -> bool:
        """Return whether this node could end the job if its batch script had ended; takes 5 s at most."""
        return self._ask("whether it is there", lambda: from_node(job_id).can_end_job(job_id)) is True

    def _ask(self, question: str, ask: Callable[[], _T]) -> _T | None:
        try:
            answer = ask()
        except HpcElasticError as error:
            self._look_at(error)
            if question not in self._unknown:
                self._unknown.add(question)
                self._complain(f"Slurm does not say {question}: {error.message}")
            return None
        self._unknown.discard(question)
        return answer


def end_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """End a job; do nothing if it has ended.

    Raises:
        SchedulerError: the scheduler refused, or does not answer.
    """
    from_node(job_id).end_job(job_id, timeout_s=timeout_s)


def requeue_job(job_id: str, *, timeout_s: float = 30.0) -> None:
    """Requeue a job; Slurm's TERM that follows reaches every process of its steps.

    Raises:
        SchedulerError: the scheduler refused, or does not answer.
    """
    from_node(job_id).requeue_job(job_id, timeout_s=timeout_s)
