"""Reads and writes the agent's records in the run directory; every method blocks, so it runs in a thread."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from hpc_elastic.agent.records.allocation_claims import AllocationClaims
from hpc_elastic.agent.records.failure_messages import with_short_messages
from hpc_elastic.agent.records.kept_states import pin_elsewhere, read_kept, remove_kept, rename_kept
from hpc_elastic.agent.records.next_start import NextStart
from hpc_elastic.agent.records.progress import progress_digest
from hpc_elastic.agent.records.requests import (
    is_announced,
    is_end_wanted,
    read_requests,
    standing_notices,
    stop_at_once,
    with_id,
)
from hpc_elastic.codec import from_json, to_json
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.rounds import history_after
from hpc_elastic.membership.succession import Records
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.processes import find_process
from hpc_elastic.rundir.kept_records import why_nothing_kept
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AttemptClaim,
    Budget,
    HeadPresence,
    NodeResult,
    Request,
    RunResultRecord,
    RunState,
    TimeSpent,
    World,
    utc_text,
)
from hpc_elastic.rundir.return_values import with_nodes_values, with_runs_values
from hpc_elastic.rundir.saved_states import remove_incomplete_saves, remove_saves, why_incomplete
from hpc_elastic.rundir.shared_lines import append_shared_line
from hpc_elastic.rundir.state_records import KeptState, SaveManifest
from hpc_elastic.rundir.store import (
    claim,
    dump_json,
    read_json,
    read_json_anew,
    remove,
    rename,
    write_bytes,
    write_json,
)
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import NodeQuestions
from hpc_elastic.scheduler.slurm.host_side import HOST_PROCESS_VARIABLE
from hpc_elastic.useful_time.reading import UsefulTime, read_useful_time

# What people ask a head for while the run goes on; each request has an id, and is answered once. So is a stop that is
# announced.
ASKED = ("stacks", "save", "restart", "drain", "notice")


class Journal(AllocationClaims):
    """One agent's view of the run directory.

    Args:
        layout: the file names.
        plan: the launch plan.
        allocation: this node's place.
        questions: asks the scheduler about jobs of the run.
    """

    def __init__(
        self,
        layout: RunLayout,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        questions: NodeQuestions,
    ) -> None:
        super().__init__(layout, plan, allocation, questions=questions)
        self.next_start = NextStart(
            layout,
            plan,
            allocation,
            questions=questions,
            chain=self._chain,
            requests=lambda: self._requests(),
            progress=lambda: self.progress(),
            allocation=lambda: self.allocation,
        )
        self.asked: tuple[Request, ...] = ()  # those with an id that `requests` has found, of `ASKED`
        self.notices: tuple[Request, ...] = ()  # notices and announced stops of this allocation
        self._found: Sequence[Request] = ()  # all that `requests` has found
        self._first_start = ""  # as `first_start` has it, once that is known

    @property
    def is_end_wanted(self) -> bool:
        """Return whether a person has asked for the end of the run, at once or with notice."""
        return is_end_wanted(self._found)

    @property
    def is_requeue_wanted(self) -> bool:
        """Return whether a person has asked for another start of the job after this allocation."""
        return any(request.requeue for request in self.notices)

    # Attempts.

    def goes_on_elsewhere(self, attempts: int) -> AttemptClaim | int | None:
        """Return the claim of an attempt after so many, or the allocation, in which others go on; None if none do.

        Raises:
            RunDirectoryError: the claims cannot be read.
        """
        if (goes_on_in := self._goes_on_in()) is not None:
            return goes_on_in
        return self._chain.latest_attempt(above=attempts) or self._chain.next_attempt(attempts)

    def dead_nodes(self, nodes: Collection[str]) -> frozenset[str]:
        """Return those of the nodes that the scheduler has given up for this job; does not read the disk."""
        return self._questions.dead_nodes(self._place.job_id, nodes)

    def history(self) -> History:
        """Return the run's history, from its latest attempt claim and what a head has charged after it.

        Raises:
            RunDirectoryError: a claim, or the requests, cannot be read.
        """
        latest = self._chain.latest_attempt()
        if latest is None:
            return History(progress=self.progress())
        told = [each.charged for each in self._requests() if each.kind == "requeue" and each.charged is not None]
        return history_after(latest, told[-1] if told else None)

    def kept_states(self, ended: int, *, is_over: bool = True) -> tuple[KeptState, ...]:
        """Return the training states that were written after this attempt, and remove older ones, which do not count.

        Before the first attempt they are those of the run that the job names, if it names one.

        Args:
            ended: the attempt.
            is_over: its allocation is over. If it goes on under another head, they are those with which it has begun,
                as if the head were the same. What a person had written in it does not count: the script may have newer
                states on disk.
        """
        other, before = self._plan.state.load_from, self._kept_before(ended, is_over=is_over)
        try:
            if before or other is None or not is_over:  # the states of another run are what they were at the beginning
                found, why = read_kept(self._layout, before), self._why_incomplete(before) if is_over else None
            else:
                found, why = pin_elsewhere(self._layout, RunLayout(other)), why_nothing_kept(RunLayout(other))
        except RunDirectoryError as error:
            found, why = (), error.message
        if not found and why is not None:
            self.say(f"{why}; all ranks load from disk", "warning")
        # Also what was not complete when its writers were killed: else each allocation could leave a part of a state.
        remove_kept(self._layout, before=before)
        remove_incomplete_saves(self._layout)
        return found

    def _kept_before(self, ended: int, *, is_over: bool) -> int:
        """Return the latest attempt of earlier allocations; `ended` is the run's, of an allocation that may be over."""
        return ended if is_over else self._chain.last_before_this_start()

    def _why_incomplete(self, ended: int) -> str | None:
        folder = self._layout.kept_states(ended)
        return f"{folder} has no training state that is complete" if os.path.isdir(folder) else None

    def complete_save(self, folder: str, manifest: SaveManifest) -> str | None:
        """Write the manifest of a save, which makes it count, and remove older ones; return why it is not, if so.

        Raises:
            RunDirectoryError: the manifest cannot be written.
        """
        if (problem := why_incomplete(self._layout, folder, manifest)) is not None:
            return problem
        write_json(self._layout.save_manifest(folder), to_json(manifest))
        remove_saves(self._layout, but=folder)
        return None

    def remove_incomplete_saves(self, request: str | None = None) -> None:
        """Remove what is left of a request for a save that was given up; None: of all of them."""
        remove_incomplete_saves(self._layout, request=request)

    def keep_states(self, ended: int, latest: int) -> None:
        """Have the training states that were written after one attempt count as those after a later one."""
        rename_kept(self._layout, ended, latest)

    def latest_attempt(self, *, above: int = 0) -> AttemptClaim | None:
        """Return the claim of the run's latest attempt, None if its number is not above this one."""
        return self._chain.latest_attempt(above=above)

    def read_records(self, *, needs_world: bool) -> Records:
        """Return the records that an agent without a head needs; see `ClaimChain.read_records`.

        Raises:
            RunDirectoryError: a record exists and cannot be read.
        """
        records = self._chain.read_records(needs_world=needs_world)
        # NFS may show the folder as it was before this agent's own allocation was claimed.
        is_news = records.started_again is not None and records.started_again > self.allocation
        left_for, has_head_failed = self._find_end_of_head(records)
        records = replace(records, left_for=left_for, has_head_failed=has_head_failed)
        return records if is_news else replace(records, started_again=None)

    def _find_end_of_head(self, records: Records) -> tuple[str, bool]:
        """Return why a head has left this allocation before its first attempt, and whether its agent failed itself.

        The reason is empty if none has, or that is unknown. After an attempt others may go on without the head that has
        said so.
        """
        if records.first is None or records.claim is not None:
            return "", False
        with contextlib.suppress(RunDirectoryError):
            told = [each for each in self._requests() if each.allocation == records.first.allocation]
            left = [each.reason or "" for each in told if each.kind == "requeue"]
            return (left[-1] if left else ""), any(each.kind == "failed" for each in told)
        return "", False

    def what_another_head_left_for(self) -> str:
        """Return why another node's head of this start has left, for the run to go on in the next; empty if none has.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        told = self._what_others_left_with()
        return told[-1].reason or "" if told else ""

    def losses_another_head_left_with(self) -> int | None:
        """Return how many node losses another head of this start charged, as it left for the next; None if none did.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        charged = [each.charged for each in self._what_others_left_with() if each.charged is not None]
        return charged[-1].spend.node_losses if charged else None

    def _what_others_left_with(self) -> list[Request]:
        """Return what other heads of this start have said as they left for the next one, in their order."""
        first = self._chain.first_of_this_start()
        if first is None:
            return []
        told = [each for each in self._requests() if each.kind == "requeue" and each.by != self._place.node]
        return [each for each in told if (each.allocation or 0) >= first.allocation]

    def ended_here(self, records: Records) -> int | None:
        """Return which allocation of this start counts for how it ended, of several that its nodes may have claimed.

        It is that of the head which has opened an attempt; before the first, the latest that a head has left for the
        next start, if one has. None if this start has claimed none.

        Raises:
            RunDirectoryError: the claims or the requests cannot be read.
        """
        if records.claim is not None:
            return records.claim.allocation
        here = [claim.allocation for claim in self._chain.of_this_start()]
        ended = {each.allocation for each in self._requests() if each.kind == "requeue"}
        return next((number for number in here if number in ended), here[0] if here else None)

    def note_launch_agent(self) -> None:
        """Record that this process is the agent on srun's machine; the script stops srun (SIGSTOP) while it lives.

        Of an agent in an image, which may have process ids of its own, the shell that waits for its container is named.
        """
        me = find_process(os.getpid())
        named = os.environ.get(HOST_PROCESS_VARIABLE) or (me and f"{me.pid} {me.start}")
        with contextlib.suppress(RunDirectoryError):
            if named is not None:
                write_bytes(self._layout.launch_agent, f"{named}\n".encode())

    def node_result(self, attempt: int, node: str) -> NodeResult | None:
        """Return the record that a node has written of its part in an attempt, None if there is none.

        Raises:
            RunDirectoryError: the record cannot be read.
        """
        return self._chain.node_result(attempt, node)

    def first_start(self) -> str:
        """Return the time at which the run's first allocation was claimed; the current time if no record says it."""
        if not self._first_start:  # which each attempt asks for
            data = read_json(self._layout.allocation(1))
            self._first_start = str(data["time"]) if isinstance(data, dict) and "time" in data else ""
        return self._first_start or utc_text(time.time())

    def claim_attempt(self, stamped: AttemptClaim, world: World) -> tuple[bool, str]:
        """Claim an attempt and write its roster.

        The roster is written completely before the claim: if the head dies in between, its successor has a roster.

        Args:
            stamped: the claim; the same one, with the same time, if the file system failed before.
            world: the roster.

        Returns:
            Whether this agent made the claim and the run goes on, and the SHA-256 of `world.json`.

        Raises:
            FileSystemError: there is a claim that cannot be read: it is not complete yet, or is damaged.
        """
        content = dump_json(to_json(world))
        proposed = self._layout.proposed_world(stamped.attempt, stamped.head)
        write_bytes(proposed, content)
        if not claim(self._layout.claim(stamped.attempt), to_json(stamped)):
            remove(proposed)
            if self._chain.find_attempt(stamped.attempt) is None:
                raise FileSystemError(f"{self._layout.claim(stamped.attempt)} is there and cannot be read: it is torn")
            return False, ""
        rename(proposed, self._layout.world(stamped.attempt))
        # Another head may have ended the run just before this claim was made, or the job may have started again.
        is_ours = read_json_anew(self._layout.result) is None and self._later_start() is None
        return is_ours, hashlib.sha256(content).hexdigest()

    def write_budget(self, claim: AttemptClaim) -> None:
        """Write what has been spent, for people; ignore a run directory that cannot be written."""
        budget = Budget(
            attempt=claim.attempt,
            spend=claim.spend,
            max_restarts=self._plan.restart.max_restarts,
            max_node_losses=self._plan.restart.max_node_losses,
        )
        with contextlib.suppress(RunDirectoryError):
            write_json(self._layout.budget, to_json(budget))

    # Results.

    def find_result(self) -> RunResultRecord | None:
        """Return the run's result, None if the run is not over."""
        return self._chain.result()

    def write_result(self, result: RunResultRecord) -> tuple[int, str] | AttemptClaim | int:
        """Create the run's result, unless there is one.

        Returns:
            Exit code and cause of the result that the run has now. Or, if nothing is written: the claim of an attempt
            after the last one of the result; or, if the result is no success, the number of a later allocation in which
            the run may go on.
        """
        standing = self._chain.result()
        if standing is None:
            spent = self._time_spent(result)  # before the look at the claims, between which and the result nothing is
            if result.state is not RunState.SUCCEEDED:
                later = self.goes_on_elsewhere(result.attempts)
            else:
                later = self._chain.latest_attempt(above=result.attempts) or self._chain.next_attempt(result.attempts)
            if later is not None:
                return later
            complete = with_runs_values(self._plan, self._layout, result, self._chain.latest_world)
            stamped = replace(with_short_messages(complete), ended=utc_text(time.time()))
            claim(self._layout.result, to_json(replace(stamped, useful_time=spent)))
            standing = self._chain.result()
        if standing is None:
            raise RunDirectoryError(f"{self._layout.result} is there and cannot be read")
        if not os.path.exists(self._layout.exit_code):  # the result's writer may have died before this file
            write_bytes(self._layout.exit_code, f"{standing.exit_code}\n".encode())
        if standing.state is RunState.SUCCEEDED:  # the script waits for the file above, not for gigabytes to be freed
            remove_kept(self._layout)
        return standing.exit_code, standing.cause

    def _time_spent(self, result: RunResultRecord) -> TimeSpent:
        ending = replace(result, ended=utc_text(time.time()))
        return from_json(TimeSpent, read_useful_time(self._layout, result=to_json(ending)).to_json())

    def useful_time(self) -> UsefulTime:
        """Return what the run's time was spent on, until now or the run's end."""
        return read_useful_time(self._layout, now=time.time())

    def write_node_result(self, result: NodeResult, *, started: float) -> None:
        """Write this node's part in an attempt, with what its workers returned; `started` is in Unix seconds."""
        result = with_nodes_values(self._plan, self._layout, result)
        ended = None if result.ended is None else utc_text(time.time())
        stamped = replace(result, started=utc_text(started), ended=ended)
        write_json(self._layout.node_result(result.attempt, result.node), to_json(stamped))

    def tell_presence(self, attempt: int, number: int) -> None:
        """Record that this agent, which is the head that has opened the attempt, is there.

        Raises:
            RunDirectoryError: the record cannot be written.
        """
        present = HeadPresence(
            run=self._plan.run, attempt=attempt, allocation=self.allocation, head=self._place.node, number=number
        )
        write_json(self._layout.head_presence(attempt), to_json(present))

    def presence(self, attempt: int) -> HeadPresence | None:
        """Return the latest word that another node's head, which has opened the attempt in this allocation, is there.

        None if there was none.

        Raises:
            RunDirectoryError: the record cannot be read.
        """
        found = self._chain.presence(attempt)
        is_anothers = found is not None and found.head != self._place.node and found.allocation == self.allocation
        return found if is_anothers else None

    # From people.

    def requests(self) -> tuple[str | None, int | None]:
        """Return who asked to stop the run at once, and the allocation of a later start of the job than this agent's.

        Each is None if there is none. The requests are lines of one file because NFS may hide a new file name for 30 s
        and more, but shows a new line of a file when that is opened.
        """
        requests = [with_id(request) for request in self._requests()]
        has_any = any(request.kind in ("notice", "stop") for request in requests)  # else the claims need not be read
        here = [claim.allocation for claim in self._chain.of_this_start()] if has_any else []
        self.notices = standing_notices(requests, self.allocation, here)
        self._found = requests
        stops = tuple(request for request in self.notices if is_announced(request))
        self.asked = (*(request for request in requests if request.kind in ASKED and request.id), *stops)
        return stop_at_once(requests, self.allocation, here), self._latest_start(requests)

    def may_predecessor_live(self) -> bool:
        """Return whether agents of an earlier start may still run: no line says that all of that start have left.

        If the earlier start opened no attempt, the start of the latest attempt must have left, too: its agents may not
        have heard of the one that followed.
        """
        latest = self._chain.latest_attempt()
        started = {self._chain.predecessor(), None if latest is None else latest.allocation} - {None}
        left: set[int | None] = set()
        with contextlib.suppress(RunDirectoryError):  # then it is unknown who has left
            left.update(request.allocation for request in self._requests() if request.kind == "left")
        return not started <= left

    def note_all_left(self) -> None:
        """Record that no worker of this allocation is left, so that the next start of the job need not wait."""
        request = Request(kind="left", by=self._place.node, time=utc_text(time.time()), allocation=self.allocation)
        with contextlib.suppress(RunDirectoryError):
            append_shared_line(self._layout.requests, to_json(request))

    def note_failure(self) -> None:
        """Record that this agent, which is head, failed itself: who looks for it need not look for long."""
        request = Request(kind="failed", by=self._place.node, time=utc_text(time.time()), allocation=self.allocation)
        with contextlib.suppress(RunDirectoryError):
            append_shared_line(self._layout.requests, to_json(request))

    def _later_start(self) -> int | None:
        """Return the latest allocation of a later start of the job, by its `start` line or by its claim; else None."""
        requests: list[Request] = []
        with contextlib.suppress(RunDirectoryError):
            requests.extend(self._requests())
        return self._latest_start(requests)

    def _latest_start(self, requests: Sequence[Request]) -> int | None:
        told = [request.allocation or 0 for request in requests if request.kind == "start"]
        started = max([*told, self._chain.later_start(above=self.allocation) or 0])
        return started if started > self.allocation else None

    def _goes_on_in(self) -> int | None:
        """Return the number of a later allocation in which other agents go on with the run, None if there is none.

        If there is one, no failure of this agent may end the run. A later allocation of this same start does not count
        if an attempt of this start was opened: then its head joins the head of that attempt.
        """
        if (started := self._later_start()) is not None:
            return started
        later_ones = self._chain.allocations(above=self.allocation)
        return later_ones[-1] if later_ones and self._chain.latest_attempt_here() is None else None

    def _requests(self) -> Iterator[Request]:
        return read_requests(self._layout)

    @property
    def shows_progress(self) -> bool:
        """Whether the plan names files whose change counts as progress."""
        return self._plan.progress_file is not None

    def progress(self) -> str | None:
        """Return a digest of names, sizes and times of the files that show progress; None if the plan names none."""
        return progress_digest(self._plan)


def stamp(claim: AttemptClaim) -> AttemptClaim:
    """Return the claim with the current time."""
    return replace(claim, time=utc_text(time.time()))
