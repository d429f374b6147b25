"""Reads the chain of claims: the latest attempt, its head, its roster and whether its workers are done; blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.succession import Records
from hpc_elastic.rundir.finished import counting_parts
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Endpoint,
    HeadPresence,
    NodeResult,
    RunResultRecord,
    WorkerState,
    World,
)
from hpc_elastic.rundir.store import find_json, list_numbers, read_json, read_json_anew
from hpc_elastic.scheduler.allocation import Allocation

Record = TypeVar("Record")


class ClaimChain:
    """The claims of one run, as one agent reads them.

    A claim file without content is still being written; it is skipped until it is complete.

    Args:
        layout: the file names.
        place: this node's place.
    """

    def __init__(self, layout: RunLayout, place: Allocation) -> None:
        self._layout = layout
        self._place = place
        # A claim or a roster never changes. All agents without a head ask for them once a second, and they are large if
        # there are many nodes: each is read once.
        self._claim: AttemptClaim | None = None  # the latest one that was read
        self._world: World | None = None  # likewise
        self._allocations: dict[int, AllocationClaim] = {}  # by number: readers need those of several starts in turn
        self._attempts_here: set[int] = set()  # those that `last_before_this_start` has found to be of this start
        self._done: set[tuple[int, str]] = set()  # attempt and node of each node result that says SUCCEEDED

    def latest_allocation(self) -> AllocationClaim | None:
        """Return the claim of the run's latest allocation, None if there is none."""
        for number in reversed(list_numbers(self._layout.allocations)):
            if (claim := self._allocation_claim(number)) is not None:
                return claim
        return None

    def find_allocation(self, number: int) -> AllocationClaim | None:
        """Return the claim of an allocation that another machine may have made just now, None if there is none."""
        return self._allocation_claim(number, find_json)

    def first_of_this_start(self) -> AllocationClaim | None:
        """Return the earliest allocation claim of this start of the job; its nodes may have claimed further ones."""
        claims = self.of_this_start()
        return claims[-1] if claims else None

    def of_this_start(self) -> list[AllocationClaim]:
        """Return the allocation claims of this start of the job, the latest first; none where a later start has one."""
        claims: list[AllocationClaim] = []
        for number in reversed(list_numbers(self._layout.allocations)):
            claim = self._allocation_claim(number)
            if claim is not None and not self.is_this_start(claim):
                break
            claims += [] if claim is None else [claim]
        return claims

    def starts(self) -> int:
        """Return how often the run was started; the nodes of one start may claim several allocations."""
        claims = map(self._allocation_claim, list_numbers(self._layout.allocations))
        return len({(claim.job_id, claim.restart_count) for claim in claims if claim is not None})

    def earlier_starts(self, *, above: int) -> list[list[int]]:
        """Return the allocations above this number of each earlier start of this same job, in order.

        The nodes of one start may have claimed several.
        """
        starts: dict[int, list[int]] = {}
        for number in self.allocations(above=above):
            claim = self._allocation_claim(number)
            if claim is not None and claim.job_id == self._place.job_id and not self.is_this_start(claim):
                starts.setdefault(claim.restart_count, []).append(number)
        return list(starts.values())

    def allocations(self, *, above: int) -> list[int]:
        """Return the numbers of the allocations above this number, of every start of the job."""
        return list_numbers(self._layout.allocations, above=above)

    def predecessor(self) -> int | None:
        """Return the number of the latest allocation that belongs to another start than this one, None if none does."""
        return self.later_start(above=0)

    def start_before(self) -> list[int]:
        """Return the numbers of the allocations of the start before this one, the latest first; none if none was."""
        numbers: list[int] = []
        start: tuple[str, int] | None = None
        for number in reversed(list_numbers(self._layout.allocations)):
            claim = self._allocation_claim(number)
            if claim is None or self.is_this_start(claim):
                continue
            if start not in (None, (claim.job_id, claim.restart_count)):
                break
            start = (claim.job_id, claim.restart_count)
            numbers.append(number)
        return numbers

    def later_start(self, *, above: int) -> int | None:
        """Return the number of the latest allocation above this one that belongs to another start, None if none does.

        The nodes of one start may claim several allocations, so a higher number alone does not mean another start.
        """
        for number in reversed(list_numbers(self._layout.allocations, above=above)):
            claim = self._allocation_claim(number)
            if claim is not None and not self.is_this_start(claim):
                return number
        return None

    def later_here(self, *, above: int) -> AllocationClaim | None:
        """Return the claim of the latest allocation above this number, if it is of this start; else None."""
        for number in reversed(list_numbers(self._layout.allocations, above=above)):
            claim = self._allocation_claim(number)
            if claim is not None:
                return claim if self.is_this_start(claim) else None
        return None

    def is_this_start(self, claim: AllocationClaim) -> bool:
        """Return whether a claim is of the start of the job that this agent belongs to."""
        return (claim.job_id, claim.restart_count) == (self._place.job_id, self._place.restart_count)

    def latest_attempt(self, *, above: int = 0) -> AttemptClaim | None:
        """Return the claim of the run's latest attempt, None if its number is not above this one."""
        for number in reversed(list_numbers(self._layout.attempts, above=above)):
            latest = self._claim
            if latest is not None and latest.attempt == number:
                return latest
            if (claim := self._read(AttemptClaim, self._layout.claim(number), find_json)) is not None:
                self._claim = claim
                return claim
        return None

    def find_attempt(self, number: int) -> AttemptClaim | None:
        """Return the claim of an attempt that another machine may have made just now, None if there is none."""
        return self._read(AttemptClaim, self._layout.claim(number), find_json)

    def next_attempt(self, attempt: int) -> AttemptClaim | None:
        """Return the claim of the attempt after this one; reads it by name, since NFS may cache old listings."""
        return self._read(AttemptClaim, self._layout.claim(attempt + 1))

    def latest_attempt_here(self) -> AttemptClaim | None:
        """Return the claim of the latest attempt, None if it was opened in another start of the job.

        The nodes of one start may have claimed several allocations.
        """
        claim = self.latest_attempt()
        if claim is None:
            return None
        allocation = self._allocation_claim(claim.allocation)
        return claim if allocation is not None and self.is_this_start(allocation) else None

    def last_before_this_start(self) -> int:
        """Return the number of the latest attempt that an earlier start of the job opened, 0 if there is none."""
        for number in reversed(list_numbers(self._layout.attempts)):
            if number in self._attempts_here:  # each of them would be read again whenever this agent takes over
                continue
            claim = self._read(AttemptClaim, self._layout.claim(number), find_json)
            allocation = None if claim is None else self._allocation_claim(claim.allocation)
            if allocation is not None and not self.is_this_start(allocation):
                return number
            if allocation is not None:
                self._attempts_here.add(number)
        return 0

    def world(self, claim: AttemptClaim) -> World | None:
        """Return the roster of a claimed attempt, also where its head died before it gave the file its final name."""
        latest = self._world
        if latest is not None and (latest.attempt, latest.head) == (claim.attempt, claim.head):
            return latest
        written, proposed = self._layout.world(claim.attempt), self._layout.proposed_world(claim.attempt, claim.head)
        self._world = self._read(World, written) or self._read(World, proposed)
        return self._world

    def latest_world(self) -> World | None:
        """Return the roster of the run's latest attempt, None if there is none."""
        claim = self.latest_attempt()
        return None if claim is None else self.world(claim)

    def with_latest_head(self, allocation: AllocationClaim) -> AllocationClaim:
        """Return the claim with the allocation's current head: the one that opened its latest attempt."""
        claim = self.latest_attempt_here() if self.is_this_start(allocation) else None
        if claim is None:
            return allocation
        if claim.candidates is not None:
            head = claim.candidates.head
        else:
            world = self.world(claim)
            head = None if world is None else head_of(world)
        return allocation if head is None else replace(allocation, node=claim.head, head=head)

    def result(self) -> RunResultRecord | None:
        """Return the run's result, None if the run is not over; NFS does not hide one that was looked for before."""
        return self._read(RunResultRecord, self._layout.result, read_json_anew)

    def presence(self, attempt: int) -> HeadPresence | None:
        """Return the latest word that an attempt's head is there, None if there was none; NFS does not hide it."""
        return self._read(HeadPresence, self._layout.head_presence(attempt), read_json_anew)

    def read_records(self, *, needs_world: bool) -> Records:
        """Return all records that an agent without a head needs.

        Args:
            needs_world: the roster is needed too, even where the claim itself says whom to ask.

        Raises:
            RunDirectoryError: a record exists and cannot be read.
        """
        latest = self.latest_allocation()
        first = latest if latest is not None and self.is_this_start(latest) else None
        claim = None if first is None else self.latest_attempt_here()
        world = None
        if claim is not None and (claim.candidates is None or needs_world):
            world = self.world(claim)
        return Records(
            result=self.result(),
            first=first,
            claim=claim,
            world=world,
            is_finished=world is not None and self.is_finished(world),
            started_again=latest.allocation if latest is not None and first is None else None,
        )

    def is_finished(self, world: World) -> bool:
        """Return whether the records of a world's nodes say that every worker that counts has exited 0."""
        return all(self._has_succeeded(attempt, node) for attempt, node in counting_parts(world))

    def node_result(self, attempt: int, node: str) -> NodeResult | None:
        """Return the record that a node has written of its part in an attempt, None if there is none."""
        return self._read(NodeResult, self._layout.node_result(attempt, node))

    def _allocation_claim(self, number: int, read: Callable[[str], object] = read_json) -> AllocationClaim | None:
        claim = self._allocations.get(number)
        if claim is None and (claim := self._read(AllocationClaim, self._layout.allocation(number), read)) is not None:
            self._allocations[number] = claim
        return claim

    def _has_succeeded(self, attempt: int, node: str) -> bool:
        if (attempt, node) not in self._done:
            record = self.node_result(attempt, node)
            if record is None or record.state is not WorkerState.SUCCEEDED:
                return False
            self._done.add((attempt, node))
        return True

    def _read(self, cls: type[Record], path: str, read: Callable[[str], object] = read_json) -> Record | None:
        data = read(path)
        if data is None:
            return None
        try:
            return from_json(cls, data)
        except DecodeError as error:
            raise RunDirectoryError(f"a record in {self._layout.root} cannot be read: {error}") from error


def head_of(world: World) -> Endpoint | None:
    """Return the endpoint on which the head of a world listens; None if the head is not one of the world's nodes."""
    return next((node.agent for node in world.nodes if node.node == world.head), None)
