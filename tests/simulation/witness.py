"""What truly happened on the nodes of a simulated run, whatever the machines were told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.notices import TAKEN_EXIT_CODE
from hpc_elastic.membership.timing import DRIFT

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

SLOW_S = 3.0  # between what an agent does and what a head that is slow makes of it


@dataclass(frozen=True)
class Incident:
    """A failure that is to be answered by a restart: of a worker, or of a node (`rank` is None).

    The store host of a node has ended, or its state is damaged, which costs no restart: then it is not `is_charged`.
    """

    role: str
    attempt: int
    node: str
    rank: int | None
    moment: float
    is_charged: bool = True


@dataclass
class Witness:
    """`kinds` has what ends a run: stop, term, loss, missing, unfit, unhealthy, start_failed, disk."""

    run: SimulatedRun
    kinds: set[str] = field(default_factory=set)
    incidents: list[Incident] = field(default_factory=list)
    ended_well: dict[tuple[str, int], set[int]] = field(default_factory=dict)  # role and attempt: global ranks
    began_at: dict[tuple[str, int], float] = field(default_factory=dict)  # the same: when its first worker was started
    ended_at: dict[tuple[int, int], float] = field(default_factory=dict)  # attempt and rank: when it exited 0
    took_notice: dict[tuple[str, int], set[int]] = field(default_factory=dict)  # the same of those that exited 75
    first_end: dict[tuple[str, int], float] = field(
        default_factory=dict
    )  # role and attempt: when a rank that counts first exited 0
    started_in: set[tuple[str, int]] = field(
        default_factory=set
    )  # node and attempt whose workers have had their process
    joined: set[str] = field(default_factory=set)
    terminated: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    unkillable: set[str] = field(default_factory=set)
    told_to_stop_at: float | None = None
    is_requeued: bool = False
    last_end_at: float = 0.0  # of a worker that counts, which exited 0
    had_all_ended_well: bool = False  # when the result was written; a claim may come after it, and is void
    _delays: list[tuple[float, float, str]] = field(default_factory=list)

    def see(self, kind: str) -> None:
        self.kinds.add(kind)

    def started(self, agent: Agent, assign: Assign) -> None:
        self.started_in.add((agent.name, assign.attempt))

    def start_failed(self, agent: Agent, assign: Assign) -> None:
        if self.run.scenario.role(agent.role).restart != "ignore":
            self.see("start_failed")

    def broke(self, agent: Agent) -> None:
        """Its store host ended: that is ignored if only roles whose failures are ignored share the store.

        If the next attempt has just begun there, it is the one that goes without a store.
        """
        assign = agent.workers.assign
        assert assign is not None
        policies = {role.name: role.restart for role in self.run.scenario.roles}
        if policies[agent.role] == "ignore" and "restart_all" not in policies.values():
            return
        attempt = max(assign.attempt, agent.member.attempt)
        self.incidents.append(Incident(agent.role, attempt, agent.name, None, self.run.clock.now))

    def has_broken(self, agent: Agent) -> None:
        """An agent takes in that its store host has ended.

        An attempt that has begun there in the same moment, after the end and before this, is the one without a store.
        """
        attempt, is_at_work = agent.member.attempt, agent.member.phase is MemberPhase.WORKING
        mine = [each for each in self.incidents if each.node == agent.name and each.rank is None and each.is_charged]
        if mine and is_at_work and mine[-1].attempt < attempt:
            self.incidents[self.incidents.index(mine[-1])] = replace(mine[-1], attempt=attempt)

    def lacks_state(self, agent: Agent, assign: Assign) -> None:
        """The state that its workers were to begin with is damaged: the next attempt begins with another one."""
        now = self.run.clock.now
        self.incidents.append(Incident(agent.role, assign.attempt, agent.name, None, now, is_charged=False))

    def ended(self, agent: Agent, worker: Worker, exitcode: int, *, is_stopped: bool) -> None:
        self.run.changes()
        if is_stopped:
            return
        if exitcode == TAKEN_EXIT_CODE and self.run.scenario.heeds_notice:
            self.took_notice.setdefault((worker.role, worker.attempt), set()).add(worker.rank)
            return
        if exitcode == 0:
            self.ended_at[worker.attempt, worker.rank] = self.run.clock.now
            self.ended_well.setdefault((worker.role, worker.attempt), set()).add(worker.rank)
            if self.run.scenario.role(worker.role).restart != "ignore":
                self.first_end.setdefault((worker.role, worker.attempt), self.run.clock.now)
                self.last_end_at = self.run.clock.now
            return
        if self.run.scenario.role(worker.role).restart != "ignore":
            now = self.run.clock.now
            self.incidents.append(Incident(worker.role, worker.attempt, agent.name, worker.rank, now))
        self.run.spread(worker)

    def is_taken_for_stopped(self, worker: Worker) -> None:
        """Its agent has seen the end of this worker, by a TERM, after it had begun to stop all: no failure is known."""
        ended = (worker.attempt, worker.rank)
        self.incidents = [each for each in self.incidents if (each.attempt, each.rank) != ended]

    def delayed(self, node: str, seconds: float) -> None:
        """A pause or a stall; those that come close together may cost a lease."""
        now, scenario = self.run.clock.now, self.run.scenario
        heads = {claim.head for claim in self.run.disk.claims.values()} | {self.run.disk.head}
        self._delays.append((now, now + seconds, node))
        recent = [
            end - start
            for start, end, where in self._delays
            if end >= now - 2 * scenario.lease_s and (where == node or where in heads or node in heads)
        ]
        # Before a member knows how many there are it beats twice in its patience: it bears half of that.
        bears_s = 0.3 * (scenario.lease_s - 1.5 * scenario.profile.hurries_s)
        if sum(recent) + 4 * max(scenario.delays_s) > bears_s:
            self.see("loss")

    def is_suspect(self, agent: Agent) -> bool:
        """Whether this agent is gone, or has had no head for a moment since it was to be in the attempt before."""
        latest = self.run.disk.latest_claim
        before = self.run.disk.asked_at.get(latest.attempt - 1, 0.0) if latest is not None else 0.0
        return not agent.is_running or agent.parted_at >= before - SLOW_S

    # What follows from it.

    def group(self, role: str) -> str:
        """Who restarts together: a role that restarts alone, or all others."""
        return role if self.run.scenario.role(role).restart == "restart_role" else "*"

    def attempt_of(self, role: str) -> int:
        """The attempt that the role's workers belong to, by the latest claim."""
        world = self.run.disk.latest
        return next((each.attempt for each in world.roles if each.role == role), 0) if world else 0

    def unanswered(self) -> list[Incident]:
        """The failures that no attempt has followed yet."""
        return [incident for incident in self.incidents if self.attempt_of(incident.role) == incident.attempt]

    def keys(self) -> set[tuple[str, int]]:
        """The failures as they are paid for: once for everything that one restart answers."""
        charged = (incident for incident in self.incidents if incident.is_charged)
        return {(self.group(incident.role), incident.attempt) for incident in charged}

    def is_budget_over(self) -> bool:
        """Whether one more failure can end the run."""
        scenario = self.run.scenario
        is_stuck = scenario.progress == "stuck" and len(self.keys()) >= scenario.no_progress_limit
        return len(self.keys()) > scenario.max_restarts or is_stuck

    def is_exit_overdue(self, attempt: int | None = None) -> bool:
        """Whether exit_timeout has passed since a rank of a current attempt exited 0, by a clock that may be fast.

        `attempt`: the one that was the latest to who decided so; by default the latest of all.
        """
        timeout, now, disk = self.run.scenario.exit_timeout_s, self.run.clock.now, self.run.disk
        world = disk.latest if attempt is None else disk.worlds.get(attempt)
        parts = {(role.role, role.attempt) for role in world.roles} if world is not None else set()
        ends = [end for part, end in self.first_end.items() if part in parts]
        return timeout is not None and any((now - end) * (1 + DRIFT) >= timeout for end in ends)

    def have_all_ended_well(self) -> bool:
        """Whether every rank that counts has exited 0 in its role's latest attempt."""
        world = self.run.disk.latest
        if world is None:
            return False
        return all(
            len(self.ended_well.get((role.role, role.attempt), ())) == role.size
            for role in world.roles
            if role.restart != "ignore"
        )
