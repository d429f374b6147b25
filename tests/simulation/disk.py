"""What stands in the simulated run directory, as the rules see it: at once, and whatever a node believes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_elastic.codec import from_json
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, NodeResult, RunResultRecord, World

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

LAYOUT = RunLayout("/simulated")


class Disk:
    """Of one run; tells the rules of each record that comes into being."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.allocations: list[AllocationClaim] = []
        self.claims: dict[int, AttemptClaim] = {}
        self.asked_at: dict[int, float] = {}  # attempt: when its head decided who is in it
        self.asks: dict[tuple[int, str, int], float] = {}  # the same of each head and allocation that wants to open it
        self.worlds: dict[int, World] = {}
        self.node_results: dict[tuple[int, str], NodeResult] = {}
        self.results: list[RunResultRecord] = []
        self.ended_at = float("inf")
        self._valid: list[int] = []  # attempts
        run.files.changed = self._changed

    def _changed(self, agent: Agent, path: str) -> None:
        if path.startswith(LAYOUT.allocations):
            self.allocations.append(from_json(AllocationClaim, self._read(path)))
            self._run.promptness.allocated(agent, self.allocations[-1])
            self._run.endings.allocated(agent)
            self._run.resumed.allocated(agent, self.allocations[-1])
        elif path.endswith("/claim.json"):
            self._claimed(agent, from_json(AttemptClaim, self._read(path)))
        elif path == LAYOUT.result:
            result = from_json(RunResultRecord, self._read(path))
            self.results.append(result)
            self.ended_at = self._run.clock.now
            self._run.rules.ended(agent, result)
            self._run.conduct.ended(agent, result)
            self._run.written.ended(result)
            self._run.promptness.ended(result)
            self._run.silent_ends.ended(result)
            self._run.requested.ended(result)
            self._run.foretold.ended(result)
            self._run.causes.ended(result)
            self._run.taken.ended(result)
            self._run.large.ended(result)
            self._run.refused_disks.ended(result)
            self._run.wrapped.ended(result)
            self._run.goodbyes.ended(result)
            self._run.quorums.ended(result)
            self._run.starts.ended(agent, result)
            self._run.unfit_nodes.ended(result)
            self._run.wording.ended(result)
            self._run.unheard.ended(agent, result)
            self._run.late_ranks.ended(result)
        elif path.startswith(LAYOUT.attempts) and "/nodes/" in path:
            record = from_json(NodeResult, self._read(path))
            self._run.written.records(agent, record)
            self.node_results[record.attempt, record.node] = record
            self._run.conduct.records(record)
            self._run.bookkeeping.records(record)
        elif path == LAYOUT.rendezvous(agent.name):
            self._run.absences.writes(agent.name)

    def _claimed(self, agent: Agent, claim: AttemptClaim) -> None:
        before = self.latest_claim
        world = from_json(World, self._read(LAYOUT.proposed_world(claim.attempt, claim.head)))
        self.claims[claim.attempt] = claim
        self.asked_at[claim.attempt] = self.asks[claim.attempt, claim.head, claim.allocation]
        self.worlds[claim.attempt] = world
        if not self.results:
            self._valid.append(claim.attempt)
        self._run.rules.claimed(agent, claim, world, before)
        self._run.written.claimed(agent, claim, world, before)
        self._run.promptness.claimed(claim, world, before)
        self._run.silent_ends.claimed(claim)
        self._run.foretold.claimed(claim, world)
        self._run.large.claimed(claim)
        self._run.joins.claimed(claim)
        self._run.timeouts.claimed(claim, before)
        self._run.wrapped.claimed(claim, before)
        self._run.goodbyes.claimed(claim, before)
        self._run.quorums.claimed(claim, before)
        self._run.busy.claimed(claim, before)
        self._run.refused_disks.claimed(claim)
        self._run.starts.claimed(claim, before)
        self._run.wording.claimed(claim)
        self._run.unheard.claims(claim.attempt)
        self._run.untold.claimed(claim)

    def _read(self, path: str) -> object:
        return json.loads(self._run.files.content[path][0])

    @property
    def latest_claim(self) -> AttemptClaim | None:
        return self.claims[max(self.claims)] if self.claims else None

    @property
    def latest(self) -> World | None:
        """The roster of the latest attempt; a claim that came after the result is void."""
        return self.worlds[max(self._valid)] if self._valid else None

    def is_valid(self, attempt: int) -> bool:
        """Whether it was claimed before there was a result."""
        return attempt in self._valid

    @property
    def head(self) -> str | None:
        """Who is head, by the claims."""
        claim = self.latest_claim
        if claim is not None:
            return claim.head
        return self.allocations[-1].node if self.allocations else None
