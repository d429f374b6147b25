"""Claims allocations of the run for this start of the job, unless an earlier one of it may still be at work."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace

from hpc_elastic.agent.records.chain import ClaimChain
from hpc_elastic.agent.records.event_log import EventLog
from hpc_elastic.agent.records.scripts import changed_scripts, describe_changed, script_digests
from hpc_elastic.codec import to_json
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.job_ids import is_local
from hpc_elastic.membership.actions import Note
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AllocationClaim, Endpoint, Request, utc_text
from hpc_elastic.rundir.shared_lines import append_shared_line
from hpc_elastic.rundir.store import claim, read_json_anew
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import NodeQuestions


class PredecessorUnknownError(RunDirectoryError):
    """Raised if the scheduler cannot say now whether the run's earlier allocation is over. Exit code 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAllocation:
    """An allocation's claim, and whether this agent made it."""

    claim: AllocationClaim
    is_ours: bool


class AllocationClaims(EventLog):
    """The run's allocations as one agent finds and claims them; people are told where its scripts have changed.

    Args:
        layout: the file names.
        plan: the launch plan.
        place: this node's place.
        questions: asks the scheduler about jobs of the run.
    """

    def __init__(self, layout: RunLayout, plan: LaunchPlan, place: Allocation, *, questions: NodeQuestions) -> None:
        super().__init__(layout, plan, place)
        self._questions = questions
        self._chain = ClaimChain(layout, place)
        self._tried: AllocationClaim | None = None
        self.heads_before: tuple[str, ...] = ()  # other nodes with claims of this start before this one's latest claim

    def find_allocation(self) -> AllocationClaim | None:
        """Return the allocation claim of this start of the job with its current head, None if there is none yet.

        Raises:
            RunDirectoryError: the run is over, so that no agent will make the claim.
        """
        self._refuse_if_over()
        latest = self._chain.latest_allocation()
        if latest is None or not self._chain.is_this_start(latest):
            return None
        return self._chain.with_latest_head(latest)

    def claim_allocation(self, head: Endpoint) -> ClaimedAllocation:
        """Claim the next allocation for this start of the job.

        Raises:
            PredecessorUnknownError: the scheduler cannot say now whether the earlier allocation is over.
            RunDirectoryError: an earlier allocation of the run is still alive, or the run is over.
            FileSystemError: there is a claim that cannot be read: it is not complete yet, or is damaged.
        """
        taken = 0  # the allocation that another one has claimed, it seems
        while True:
            latest = self._chain.latest_allocation()
            if taken and (latest is None or latest.allocation < taken):
                latest = self._chain.find_allocation(taken)  # by its name, for a listing can be old
                if latest is None:
                    raise FileSystemError(f"{self._layout.allocation(taken)} is there and cannot be read: it is torn")
            if latest is not None and self._chain.is_this_start(latest):
                is_ours = latest == self._tried  # this agent's earlier try seemed to fail but made the claim
                if is_ours:
                    self._announce(latest)
                return self._took(ClaimedAllocation(claim=self._chain.with_latest_head(latest), is_ours=is_ours))
            if latest is not None:
                self._refuse_if_alive(latest)
            self._refuse_if_over()
            mine = self._try_claim(head, latest.allocation + 1 if latest else 1, before=latest)
            if claim(self._layout.allocation(mine.allocation), to_json(mine)):
                self._announce(mine)
                self._note_changed_scripts(mine)
                return self._took(ClaimedAllocation(claim=mine, is_ours=True))
            taken = mine.allocation

    def claim_next_allocation(self, head: Endpoint, after: int, *, relieves: str = "") -> bool:
        """Claim another allocation for this start of the job, because no attempt was opened in the one before it.

        Args:
            head: the endpoint on which this agent listens.
            after: the number of the allocation whose head is lost.
            relieves: that head's node, if most nodes cannot reach it; empty: the same as in that allocation.

        Returns:
            Whether this agent made the claim.

        Raises:
            RunDirectoryError: the run is over, or its directory cannot be written.
        """
        self._refuse_if_over()
        before = self._chain.find_allocation(after)
        if before is not None and not self._chain.is_this_start(before):
            before = None
        if not relieves and before is not None:
            relieves = before.relieves
        mine = self._try_claim(head, after + 1, relieves=relieves)
        if not claim(self._layout.allocation(mine.allocation), to_json(mine)):
            return False
        here = self._chain.of_this_start()
        if here:
            self._announce(here[-1])  # the head that made this claim may have died before it announced it
        nodes = {each.node for each in (before, *here) if each is not None}  # a listing can be old
        self.heads_before = tuple(sorted(nodes - {self._place.node}))
        self._took(ClaimedAllocation(claim=mine, is_ours=True))
        return True

    def find_heads(self) -> list[AllocationClaim]:
        """Return the latest claim of each node that has made one in this start of the job, the latest first.

        Raises:
            RunDirectoryError: the claims cannot be read.
        """
        claims: dict[str, AllocationClaim] = {}
        for each in self._chain.of_this_start():
            claims.setdefault(each.node, each)
        return list(claims.values())

    def find_rival(self) -> AllocationClaim | None:
        """Return another node's claim of a later allocation in this start of the job, None if there is none."""
        claim = self._chain.later_here(above=self.allocation)
        return claim if claim is not None and claim.node != self._place.node else None

    def _announce(self, mine: AllocationClaim) -> None:
        """Tell the agents of an earlier start of this claim; they may still run on nodes that Slurm has given up."""
        if mine.allocation > 1:
            request = Request(kind="start", by=mine.node, time=mine.time, allocation=mine.allocation)
            with contextlib.suppress(RunDirectoryError):  # they also find the claim itself
                append_shared_line(self._layout.requests, to_json(request))

    def _refuse_if_over(self) -> None:
        if read_json_anew(self._layout.result) is not None:
            raise RunDirectoryError(f"the run in {self._layout.root} is over: it has a result.json")

    def _refuse_if_alive(self, record: AllocationClaim) -> None:
        if record.job_id == self._place.job_id:  # Slurm has one start of a job at a time, and this is the later one
            if record.restart_count > self._place.restart_count:
                raise RunDirectoryError(
                    f"allocation {record.allocation} of this run is of a later start of job {record.job_id} than this "
                    "agent, which comes too late"
                )
            return
        # Processes of another machine cannot be looked up on this one.
        is_elsewhere = is_local(record.job_id) and record.host != os.uname().nodename
        is_over = None if is_elsewhere else self._questions.is_over(record.job_id)
        if is_over is not True:
            state = "is still alive" if is_over is False else f"cannot be asked about on {os.uname().nodename}"
            kind = PredecessorUnknownError if is_over is None and not is_elsewhere else RunDirectoryError
            raise kind(
                f"allocation {record.allocation} of this run, job {record.job_id}, {state}",
                tip=f"a run has one allocation at a time: wait for job {record.job_id}, or cancel it",
            )

    def _try_claim(
        self, head: Endpoint, number: int, *, before: AllocationClaim | None = None, relieves: str = ""
    ) -> AllocationClaim:
        """Return the claim to try; the same as last time if the file system failed then: it may have been made."""
        if self._tried is None or (self._tried.allocation, self._tried.head) != (number, head):
            self._tried = replace(self._allocation_claim(head, number, before), relieves=relieves)
        return self._tried

    def _allocation_claim(self, head: Endpoint, number: int, before: AllocationClaim | None) -> AllocationClaim:
        """Return a new claim; `before` is that of an earlier start, with whose scripts those of now are compared."""
        place, scripts = self._place, script_digests(self._plan)
        return AllocationClaim(
            run=self._plan.run,
            allocation=number,
            job_id=place.job_id,
            restart_count=place.restart_count,
            array_task=place.array_task,
            nodes=place.nodes,
            node=place.node,
            host=os.uname().nodename,
            head=head,
            time=utc_text(time.time()),
            scripts=scripts,
            changed_scripts=changed_scripts(before, scripts),
        )

    def _note_changed_scripts(self, mine: AllocationClaim) -> None:
        """Tell people that workers will run another script than before; a result of both has no one cause."""
        if mine.changed_scripts:
            line, names = describe_changed(mine.changed_scripts), list(mine.changed_scripts)
            self.allocation = mine.allocation
            self._print(line, "warning", to_output=True)  # the node is head, as soon as it knows of its claim
            note = Note(name="scripts.changed", message=line, attempt=0, metadata={"scripts": names})
            self.note(note, time.time_ns())

    def _took(self, claimed: ClaimedAllocation) -> ClaimedAllocation:
        self.allocation = claimed.claim.allocation
        return claimed
