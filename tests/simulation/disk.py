"""The simulated run directory, and each agent's thread that works on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hpc_elastic.codec import from_json, to_json
from hpc_elastic.membership.succession import Records
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Endpoint,
    NodeResult,
    RunResult,
    WorkerState,
    World,
)

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

T = TypeVar("T")


@dataclass
class Disk:
    """What is written, once and for all. What it answers is what `agent.journal` and `agent.chain` read."""

    nodes: tuple[str, ...] = ()
    allocations: list[AllocationClaim] = field(default_factory=list)
    claims: dict[int, AttemptClaim] = field(default_factory=dict)
    asked_at: dict[int, float] = field(default_factory=dict)  # attempt: when its head decided who is in it
    worlds: dict[int, World] = field(default_factory=dict)
    node_results: dict[tuple[int, str], NodeResult] = field(default_factory=dict)
    results: list[RunResult] = field(default_factory=list)
    ended_at: float = float("inf")
    _valid: list[int] = field(default_factory=list)  # attempts

    def claim_allocation(self, node: str, after: int) -> bool:
        """Claims the allocation that follows this one."""
        if len(self.allocations) != after or self.results:
            return False
        self.allocations.append(
            AllocationClaim(
                run="run",
                allocation=after + 1,
                job_id="1",
                restart_count=0,
                array_task=None,
                nodes=self.nodes,
                node=node,
                host=node,
                head=Endpoint(address=node, port=1),
                time="",
            )
        )
        return True

    def claim(self, claim: AttemptClaim, world: World, asked_at: float) -> bool:
        """Claims an attempt; whether it is ours and the run goes on."""
        if claim.attempt in self.claims:
            return False
        self.claims[claim.attempt] = from_json(AttemptClaim, to_json(claim))
        self.asked_at[claim.attempt] = asked_at
        self.worlds[claim.attempt] = world
        if not self.results:
            self._valid.append(claim.attempt)
        return not self.results

    def write_result(self, result: RunResult, now: float, *, is_asked: bool) -> tuple[int, str] | AttemptClaim:
        """Ends the run, unless it has ended, or goes on in a later attempt than the result knows of."""
        if not self.results:
            latest = self.latest_claim
            if is_asked and latest is not None and latest.attempt > result.attempts:
                return latest
            self.results.append(result)
            self.ended_at = now
        return self.results[0].exit_code, self.results[0].cause

    def read_records(self) -> Records:
        """What an agent without a head has to know."""
        first, claim = self.allocations[-1] if self.allocations else None, self.latest_claim
        world = self.worlds[claim.attempt] if claim is not None else None
        is_finished = world is not None and self._is_finished(world)
        result = self.results[0] if self.results else None
        return Records(result=result, first=first, claim=claim, world=world, is_finished=is_finished)

    def _is_finished(self, world: World) -> bool:
        attempts = {role.role: role.attempt for role in world.roles}
        ignored = {role.role for role in world.roles if role.restart == "ignore"}
        counting = [node for node in world.nodes if node.role not in ignored] or world.nodes
        records = [self.node_results.get((attempts[node.role], node.node)) for node in counting]
        return all(record is not None and record.state is WorkerState.SUCCEEDED for record in records)

    @property
    def latest_claim(self) -> AttemptClaim | None:
        return self.claims[max(self.claims)] if self.claims else None

    @property
    def latest(self) -> World | None:
        """The roster of the latest attempt; a claim that came after the result is void."""
        return self.worlds[max(self._valid)] if self._valid else None

    @property
    def head(self) -> str | None:
        """Who is head, by the claims."""
        claim = self.latest_claim
        if claim is not None:
            return claim.head
        return self.allocations[-1].node if self.allocations else None


class DiskThread:
    """One agent's operations, one after the other; a stall holds up the one under way too.

    What was asked of the file system may happen although the agent learns it late, or never.
    """

    def __init__(self, agent: Agent, latencies_s: tuple[float, ...], dice: random.Random) -> None:
        self._agent = agent
        self._latencies_s = latencies_s
        self._dice = dice
        self._busy_until = 0.0
        self.stalled_until = 0.0
        self.fails_until = 0.0

    @property
    def is_well(self) -> bool:
        return self._agent.run.clock.now >= max(self.stalled_until, self.fails_until)

    def call(self, work: Callable[[], T], done: Callable[[T], object], *, failed: Callable[[], object]) -> None:
        """Does the work some time from now, and hands its value over."""
        agent, clock = self._agent, self._agent.run.clock
        began = max(clock.now, self._busy_until)
        self._busy_until = began + self._dice.choice(self._latencies_s)
        is_on_its_way = self._dice.random() < 0.5  # it happens when it would have, and only the answer is late

        def end() -> None:
            if not is_on_its_way and clock.now < self.stalled_until:
                clock.at(self.stalled_until, end)
            elif not is_on_its_way:
                agent.do(act)
            elif agent.is_running or began < agent.died_at:
                act()

        def act() -> None:
            if clock.now < self.fails_until:
                agent.do(failed)
                return
            value = work()
            clock.at(self.stalled_until, lambda: agent.do(lambda: done(value)))

        clock.at(self._busy_until, end)
