"""The next start of the job: whether it comes, what it avoids, why this one ends, how earlier ones ended; blocks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence

from hpc_elastic.agent.records.chain import ClaimChain
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership import requeue
from hpc_elastic.membership.aside import blamed_nodes
from hpc_elastic.membership.decisions import SilentEnds
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.allocation_ends import describe_end, describe_reason
from hpc_elastic.rundir.complaint import last_script_lines
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Charged, Request, utc_text
from hpc_elastic.rundir.shared_lines import append_shared_line
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook, NodeQuestions
from hpc_elastic.scheduler.slurm.srun_errors import tells_of_scancel
from hpc_elastic.useful_time.reading import furthest_step

ENDS_WITHIN_S = 20.0  # the next pause between two tries, and the result


class NextStart:
    """What is asked of the scheduler, and recorded for the next start, as one agent's allocation ends.

    Args:
        layout: the file names.
        plan: the launch plan.
        place: this node's place.
        questions: asks the scheduler about jobs of the run.
        chain: the claims.
        requests: reads the run's requests.
        progress: returns a digest of the files that show progress; None if the plan names none.
        allocation: returns the number of this agent's allocation.
    """

    def __init__(
        self,
        layout: RunLayout,
        plan: LaunchPlan,
        place: Allocation,
        *,
        questions: NodeQuestions,
        chain: ClaimChain,
        requests: Callable[[], Iterable[Request]],
        progress: Callable[[], str | None],
        allocation: Callable[[], int],
    ) -> None:
        self._layout = layout
        self._plan = plan
        self._place = place
        self._questions = questions
        self._chain = chain
        self._requests = requests
        self._progress = progress
        self._allocation = allocation
        self._is_followed = False

    def is_requeued(self) -> bool | None:
        """Return whether the job will be started again, so that a stop of this start does not end the run.

        None means unknown. Asks only the scheduler and does not read the disk.
        """
        return self._questions.is_requeued(self._place.job_id, self._place.restart_count)

    def outlook(self) -> JobOutlook | None:
        """Return what the scheduler says about the end of this job, None if that is unknown; does not read the disk."""
        return self._questions.outlook(self._place.job_id)

    def start_again(self, avoid: Sequence[str] | None = None, *, is_by_another_job: bool = False) -> str:
        """Have this job started again, or another one in its place; return the refusal, empty if there was none.

        Another job waits for the end of this one; it is recorded, so that observers follow it. It is also submitted
        where Slurm never requeues this one: a site's `job_submit` plugin, or an administrator, has seen to that.

        Args:
            avoid: the nodes that the next start is to avoid; None: those that the records name.
            is_by_another_job: do not ask for a requeue of this job.

        Raises:
            RunDirectoryError: the run directory cannot be read or written.
        """
        job_id, without = self._place.job_id, self._find_exclusion(avoid)
        if self._plan.requeue.by == "requeue" and not is_by_another_job:
            refusal = self._questions.start_again(job_id, without)
            if not (refusal and self._questions.forbids_requeue()):
                return refusal
        if self.has_follower():
            self._is_followed = True
            return ""
        chained, refusal = self._questions.submit_after(job_id, without)
        if chained:
            node, moment = self._place.node, utc_text(time.time())
            request = Request(kind="chain", by=node, time=moment, allocation=self._latest_here(), id=chained)
            append_shared_line(self._layout.requests, to_json(request))
            self._is_followed = True
        return refusal

    def has_follower(self) -> bool:
        """Return whether another job is recorded as waiting for the end of this one.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        latest = self._latest_here()
        told = [each for each in self._requests() if each.kind == "chain" and each.allocation == latest]
        return any(each.id != self._place.job_id for each in told)  # this one may have waited for that allocation

    def _latest_here(self) -> int:
        """Return the number of the latest allocation that was claimed in this start of the job.

        The nodes of one start may have claimed several, and its head and the script know it by different ones. A job
        that follows it is recorded for the latest one, for which observers look.
        """
        later = self._chain.later_here(above=self._allocation())
        return self._allocation() if later is None else later.allocation

    def is_cancelled(self) -> bool:
        """Return whether this start was cancelled by `scancel`, as the batch script's output tells; False if unknown.

        Of a job that is cancelled within the grace of a preemption Slurm still tells the time of that (22.05, 24.11).
        """
        return tells_of_scancel(last_script_lines(self._layout.script_output(self._place.job_id)))

    @property
    def is_followed(self) -> bool:
        """Whether another job was found, or submitted, that waits for the end of this one."""
        return self._is_followed

    def has_chained(self) -> bool:
        """Return whether jobs of this run have followed others, whose starts Slurm does not count.

        Raises:
            RunDirectoryError: the requests cannot be read.
        """
        return any(each.kind == "chain" for each in self._requests())

    def may_answer_later(self) -> bool:
        """Return whether the scheduler may answer later what it has not answered; does not read the disk."""
        return self._questions.may_answer_later()

    def may_be_accepted_later(self) -> bool:
        """Return whether the next job was refused only for now, and this one has the time to ask again.

        Asks the scheduler, and does not read the disk.
        """
        if not self._questions.may_be_accepted_later():
            return False
        outlook = self.outlook()
        return outlook is not None and outlook.seconds_left is not None and outlook.seconds_left > ENDS_WITHIN_S

    def _find_exclusion(self, avoid: Sequence[str] | None) -> Exclusion:
        """Return what the next start is to avoid: these, or what a head has said, or what the latest claim blames."""
        told = [each for each in self._requests() if each.kind == "requeue"]
        here = [each.nodes for each in told if each.allocation == self._allocation()]
        if avoid is not None:
            nodes = tuple(avoid)
        elif here:
            nodes = here[-1]
        else:
            claim = self._chain.latest_attempt()
            nodes = blamed_nodes(claim.set_aside, self._allocation()) if claim is not None else ()
        earlier = (node for each in told if each.allocation != self._allocation() for node in each.nodes)
        return Exclusion(script=self._layout.script, nodes=nodes, earlier=tuple(dict.fromkeys(earlier)))

    @property
    def restart_count(self) -> int:
        """How often the scheduler has started this job again before this start."""
        return self._place.restart_count

    def find_refusal(self, reason: str) -> str:
        """Return why the job is not to be started again after an end for this reason; empty if it is to be.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        if self._place.is_local:
            return "nothing starts a job of this machine again"
        unclaimed = sum(each.kind == "requeue" and each.allocation is None for each in self._requests())
        return requeue.find_refusal(self._plan.requeue, reason, used=self._chain.starts() - 1 + unclaimed)

    def note(
        self,
        reason: str,
        nodes: Sequence[str] = (),
        *,
        charged: Charged | None = None,
        reservation: str = "",
        is_claimed: bool = True,
    ) -> None:
        """Record durably why this allocation ends, before its agents leave and the job is started again.

        Args:
            reason: a word of `RESULT_REASONS`.
            nodes: those that the next start is to avoid, the ones that matter most last.
            charged: what the head has charged, which no claim may have yet; None if it is not known.
            reservation: the one whose end is the job's time limit; empty if that is its own.
            is_claimed: whether this start of the job has claimed an allocation.

        Raises:
            RunDirectoryError: the run directory cannot be written.
        """
        request = Request(
            kind="requeue",
            by=self._place.node,
            time=utc_text(time.time()),
            allocation=self._allocation() if is_claimed else None,
            reason=reason,
            nodes=tuple(nodes),
            charged=charged,
            reservation=reservation or None,
        )
        append_shared_line(self._layout.requests, to_json(request))

    def reason_of(self, allocation: int | None = None) -> str | None:
        """Return why an allocation, this one if none is named, ended with the run to go on; None if no head has said.

        Raises:
            RunDirectoryError: the requests cannot be read.
        """
        told = self._told_of(allocation)
        return told[-1].reason if told else None

    def nodes_of(self) -> tuple[str, ...]:
        """Return the nodes that the next start is to avoid, as a head has noted; empty if none has.

        Raises:
            RunDirectoryError: the requests cannot be read.
        """
        told = self._told_of(None)
        return told[-1].nodes if told else ()

    def _told_of(self, allocation: int | None) -> list[Request]:
        number = self._allocation() if allocation is None else allocation
        return [each for each in self._requests() if each.kind == "requeue" and each.allocation == number]

    def describe(self, reason: str) -> str:
        """Return for people why this allocation ends; a reservation whose end is its time limit is named if noted.

        Raises:
            RunDirectoryError: the requests cannot be read.
        """
        told = self._told_of(None)
        return describe_reason(reason, told[-1].reservation if told else None)

    def silent_ends(self) -> SilentEnds:
        """Return which starts of this job since the latest attempt was opened ended without a word.

        Slurm alone has started the job again after them, as it does when the node of the batch script is lost. A job
        that a person submits again is another one.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        latest = self._chain.latest_attempt()
        worked = 0 if latest is None else latest.allocation
        told = {each.allocation for each in self._requests() if each.kind == "requeue"}
        starts = self._chain.earlier_starts(above=max(0, worked - 1))
        silent = [start for start in starts if not told.intersection(start)]
        idle = [start for start in silent if worked not in start]
        nodes = () if latest is None else (latest.head, *latest.members)
        step = None if latest is None else furthest_step(self._layout, latest.attempt, nodes)
        return SilentEnds(has_worked=len(idle) < len(silent), idle=len(idle), step=step, progress=self._progress())

    def why_before(self) -> str:
        """Return for people why the start before this one ended; empty if there was none."""
        numbers = self._chain.start_before()
        if not numbers:
            return ""
        with contextlib.suppress(RunDirectoryError):
            if told := next(filter(None, map(self._told_of, numbers)), None):
                return describe_end(numbers[0], told[-1].reason, told[-1].reservation)
        return describe_end(numbers[0], None)
