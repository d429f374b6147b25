"""The simulated run directory, and each agent's thread that works on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hpc_elastic.codec import from_json, to_json
from hpc_elastic.rundir.records import AttemptClaim, NodeResult, RunResult, World

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

T = TypeVar("T")


@dataclass
class Disk:
    """What is written, once and for all."""

    head: str | None = None  # who claimed the allocation
    claims: dict[int, AttemptClaim] = field(default_factory=dict)
    claimed_at: dict[int, float] = field(default_factory=dict)
    worlds: dict[int, World] = field(default_factory=dict)
    node_results: dict[tuple[int, str], NodeResult] = field(default_factory=dict)
    results: list[RunResult] = field(default_factory=list)

    def claim(self, claim: AttemptClaim, world: World, now: float) -> bool:
        if claim.attempt in self.claims:
            return False
        self.claims[claim.attempt] = from_json(AttemptClaim, to_json(claim))
        self.claimed_at[claim.attempt] = now
        self.worlds[claim.attempt] = world
        return True

    def write_result(self, result: RunResult) -> tuple[int, str]:
        if not self.results:
            self.results.append(result)
        return self.results[0].exit_code, self.results[0].cause

    @property
    def latest(self) -> World | None:
        """The roster of the latest attempt."""
        return self.worlds[len(self.worlds)] if self.worlds else None


class DiskThread:
    """One agent's operations, one after the other; a stall holds up the one under way too."""

    def __init__(self, agent: Agent, latencies_s: tuple[float, ...], dice: random.Random) -> None:
        self._agent = agent
        self._latencies_s = latencies_s
        self._dice = dice
        self._busy_until = 0.0
        self.stalled_until = 0.0
        self.fails_until = 0.0

    def call(self, work: Callable[[], T], done: Callable[[T], object], *, failed: Callable[[], object]) -> None:
        """Does the work some time from now, and hands its value over."""
        clock = self._agent.run.clock
        self._busy_until = max(clock.now, self._busy_until) + self._dice.choice(self._latencies_s)

        def end() -> None:
            if clock.now < self.stalled_until:
                clock.at(self.stalled_until, lambda: self._agent.do(end))
            elif clock.now < self.fails_until:
                failed()
            else:
                done(work())

        clock.at(self._busy_until, lambda: self._agent.do(end))
