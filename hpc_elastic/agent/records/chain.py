"""Reads the chain of claims: who opened the latest attempt, with whom, and whether its workers are done; blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.succession import Records
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Endpoint,
    NodeResult,
    RunResult,
    WorkerState,
    World,
)
from hpc_elastic.rundir.store import find_json, list_numbers, read_json
from hpc_elastic.scheduler.allocation import Allocation

Record = TypeVar("Record")


class ClaimChain:
    """The claims of one run, as one agent finds them.

    A claim without content is one that is being made; it is passed over until it is complete.

    Args:
        layout: the file names.
        place: this node's place.
    """

    def __init__(self, layout: RunLayout, place: Allocation) -> None:
        self._layout = layout
        self._place = place
        self._world: World | None = None  # the latest that was read
        self._done: set[tuple[int, str]] = set()  # attempts of nodes that have succeeded

    def latest_allocation(self) -> AllocationClaim | None:
        """The run's latest start by a scheduler."""
        for number in reversed(list_numbers(self._layout.allocations)):
            if (claim := self._read(AllocationClaim, self._layout.allocation(number))) is not None:
                return claim
        return None

    def first_of_this_start(self) -> AllocationClaim | None:
        """The earliest claim of this start of the job, after which its nodes may have claimed several."""
        first = None
        for number in reversed(list_numbers(self._layout.allocations)):
            claim = self._read(AllocationClaim, self._layout.allocation(number))
            if claim is not None and not self.is_this_start(claim):
                break
            first = claim or first
        return first

    def allocations(self, *, above: int) -> list[int]:
        """The numbers of the allocations above this one, of whatever start."""
        return list_numbers(self._layout.allocations, above=above)

    def predecessor(self) -> int | None:
        """The number of the latest allocation of another start of the run than this one, None if there is none."""
        return self.later_start(above=0)

    def later_start(self, *, above: int) -> int | None:
        """The same among the allocations above this one: the nodes of one start may claim several."""
        for number in reversed(list_numbers(self._layout.allocations, above=above)):
            claim = self._read(AllocationClaim, self._layout.allocation(number))
            if claim is not None and not self.is_this_start(claim):
                return number
        return None

    def is_this_start(self, claim: AllocationClaim) -> bool:
        """Whether a claim is of the start that this agent belongs to."""
        return (claim.job_id, claim.restart_count) == (self._place.job_id, self._place.restart_count)

    def latest_attempt(self, *, above: int = 0) -> AttemptClaim | None:
        """The claim of the run's latest attempt, if it is above this one."""
        for number in reversed(list_numbers(self._layout.attempts, above=above)):
            if (claim := self._read(AttemptClaim, self._layout.claim(number), find_json)) is not None:
                return claim
        return None

    def next_attempt(self, attempt: int) -> AttemptClaim | None:
        """The claim of the attempt after this one, asked for by its name: NFS may remember a folder without it."""
        return self._read(AttemptClaim, self._layout.claim(attempt + 1))

    def latest_attempt_here(self) -> AttemptClaim | None:
        """The latest attempt, if it was opened in this start; its nodes may have claimed several allocations."""
        claim = self.latest_attempt()
        if claim is None:
            return None
        allocation = self._read(AllocationClaim, self._layout.allocation(claim.allocation))
        return claim if allocation is not None and self.is_this_start(allocation) else None

    def world(self, claim: AttemptClaim) -> World | None:
        """The roster of a claimed attempt; its head may have died before it gave it its name.

        A roster never changes, and is large where there are many nodes, which all look once a second: it is read once.
        """
        latest = self._world
        if latest is not None and (latest.attempt, latest.head) == (claim.attempt, claim.head):
            return latest
        written, proposed = self._layout.world(claim.attempt), self._layout.proposed_world(claim.attempt, claim.head)
        self._world = self._read(World, written) or self._read(World, proposed)
        return self._world

    def latest_world(self) -> World | None:
        """The roster of the run's latest attempt."""
        claim = self.latest_attempt()
        return None if claim is None else self.world(claim)

    def with_latest_head(self, allocation: AllocationClaim) -> AllocationClaim:
        """The same claim with the head that the allocation has now: the one that opened its latest attempt."""
        claim = self.latest_attempt_here() if self.is_this_start(allocation) else None
        world = None if claim is None else self.world(claim)
        head = None if world is None else head_of(world)
        return allocation if world is None or head is None else replace(allocation, node=world.head, head=head)

    def result(self) -> RunResult | None:
        """The run's result, if it is over."""
        return self._read(RunResult, self._layout.result)

    def read_records(self) -> Records:
        """All that an agent without a head has to know.

        Raises:
            RunDirectoryError: something is there and cannot be read.
        """
        latest = self.latest_allocation()
        first = latest if latest is not None and self.is_this_start(latest) else None
        claim = None if first is None else self.latest_attempt_here()
        world = None if claim is None else self.world(claim)
        return Records(
            result=self.result(),
            first=first,
            claim=claim,
            world=world,
            is_finished=world is not None and self.is_finished(world),
            started_again=latest.allocation if latest is not None and first is None else None,
        )

    def is_finished(self, world: World) -> bool:
        """Whether the records of its nodes say that every worker exited 0.

        A role works in the attempt that it was started in last. One whose failures are ignored
        does not count, unless there is no other.
        """
        attempts = {role.role: role.attempt for role in world.roles}
        ignored = {role.role for role in world.roles if role.restart == "ignore"}
        counting = [node for node in world.nodes if node.role not in ignored] or world.nodes
        return all(self._has_succeeded(attempts[node.role], node.node) for node in counting)

    def node_result(self, attempt: int, node: str) -> NodeResult | None:
        """What a node has recorded of its part in an attempt."""
        return self._read(NodeResult, self._layout.node_result(attempt, node))

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
    """Where the head of a world listens; None if it is none of its nodes."""
    return next((node.agent for node in world.nodes if node.node == world.head), None)
