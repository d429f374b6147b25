"""How soon and with whom the run goes on, where one thing alone went wrong, or nothing did.

The bounds are those of `membership.timing` for one loss: a dead agent's connections are closed at once, a silent member
is lost a lease and a look after its last word, a silent head is succeeded a lease and a margin after it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpc_elastic.membership.timing import DRIFT, SPARES_COME_WITHIN_S, Timing
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, RunResultRecord, World
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.absences import LOOKS_EVERY_S
from tests.simulation.rules.causes import MOST_BLAMED
from tests.simulation.rules.invariants import require, start_of
from tests.simulation.scenario import GRACE_S, Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

ABSENT = ("unfit", "other_version", "never_starts", "starts_late")
LOSSES = ("power_off", "kill_agent")
CLAIMS_AFTER_S, CLAIM_STEP_S = 20.0, 5.0  # the allocation, in the first node's place
READS_CLAIM_WITHIN_S = 2.0  # an agent without a head
JOINS_WITHIN_S = 2.0  # the pause between two rounds of dialling, and the handshake
STARTS_AGAIN_AFTER_S = 3.0
LEAVES_S = 2.0  # for the last record of a start
LOOKS_WITHIN_S = 1.0  # a head, into the run directory
SLOW_DISK_S = 0.1  # of an operation
SEEKS_WITHIN_S = 2.0  # reading, a turn or two, and the others' dialling


class Promptness:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._allocated_at = 0.0
        self.allocated_at: dict[int, float] = {}  # by allocation, when it was claimed

    def claimed(self, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        run, lost = self._run, self._lost_alone()
        # Before anybody was in a world, nodes are known to come too late.
        if self._is_undisturbed() or (lost is not None and before is not None and self._is_quick):
            self._check_world(claim, world, before)
        if self._is_undisturbed() and before is None:
            began = max(agent.started_at for agent in self._run.agents)
            self._check_wait("the first attempt comes", began, JOINS_WITHIN_S)
        if lost is not None and before is not None:
            self._check_answer(lost, claim, before)
        if (fault := self._only(ABSENT)) is not None:
            self._check_joins(fault, claim, before)
        if before is not None and before.allocation != claim.allocation and run.earlier:
            self._check_new_start(claim, before)

    def welcomed(self, agent: Agent) -> None:
        """A node has a head for the first time."""
        fault = self._only(("never_starts",))
        if fault is not None and fault.node == 0 and agent.name != self._run.disk.allocations[0].node:
            began = max(agent.started_at, self._allocated_at)
            self._check_wait(f"{agent.name} finds the head", began, READS_CLAIM_WITHIN_S + JOINS_WITHIN_S)

    def allocated(self, agent: Agent, claim: AllocationClaim) -> None:
        """The claim of an allocation is on disk: the first node makes it, or another one that has waited for that."""
        scenario, number = self._run.scenario, agent.number
        self._allocated_at = self.allocated_at[claim.allocation] = self._run.clock.now
        if claim.allocation > 1 or number == 0:
            return
        latest_s = scenario.join_timeout_s * (0.5 + 0.25 * number / scenario.nodes)
        waits_s = min(CLAIMS_AFTER_S + CLAIM_STEP_S * number, latest_s)
        waited_s = (self._run.clock.now - agent.started_at) * (1 + DRIFT)
        require(waited_s >= waits_s, f"{agent.name} claims the allocation after {waited_s:.2f} s, not {waits_s:.2f} s")
        fault = self._only(("never_starts",))
        if number == 1 and fault is not None and fault.node == 0:
            self._check_wait(f"{agent.name} claims the allocation", agent.started_at, waits_s + JOINS_WITHIN_S)

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        witness = self._run.witness
        is_ignored = any(role.restart == "ignore" for role in self._run.scenario.roles)  # which may run on for a while
        if result.reason == "succeeded" and self._is_undisturbed() and not is_ignored:
            self._check_wait("the success is noted", witness.last_end_at, 0.0)
        elif result.reason in ("restarts_used_up", "no_progress") and self._is_undisturbed():
            patience_s = GRACE_S if any(role.patience_s for role in self._run.scenario.roles) else 0.0
            unanswered = witness.unanswered()
            require(bool(unanswered), "the run ends for a failure that was answered")
            first: dict[str, float] = {}  # by who restarts together: one group may wait for its restart meanwhile
            for incident in unanswered:
                group = witness.group(incident.role)
                first[group] = min(incident.moment, first.get(group, incident.moment))
            self._check_wait("the end of the run is noted", max(first.values()), patience_s)

    def stop_told(self) -> None:
        """The head hears of a person's request."""
        run = self._run
        if run.witness.kinds == {"stop"} and run.disk.claims and self._only(("stop",)) is not None:
            began = max(run.stop_requested_at, run.disk.asked_at[min(run.disk.asked_at)])
            self._check_wait("the head hears of the request to stop", began, LOOKS_WITHIN_S)

    def _check_new_start(self, claim: AttemptClaim, before: AttemptClaim) -> None:
        """The first attempt of another start of the job: old agents that may be at work have the time to fence.

        Nobody needs to wait if the new head can read that they have left; it looks for that once, after its claim of
        the allocation, and one of them may leave only then.
        """
        run, scenario, now = self._run, self._run.scenario, self._run.disk.asked_at[claim.attempt]
        lines = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines() if line]
        has_left = any(line.get("kind") == "left" and line.get("allocation") == before.allocation for line in lines)
        is_simple = {fault.what for fault in scenario.faults} <= {"term_all", "requeue"} and not run.witness.unkillable
        # A start between the two may have left before it opened an attempt: that tells nothing of the one that did.
        is_simple = is_simple and start_of(run.disk, before) == run.earlier[0].start_number
        if not has_left:
            timing = Timing(lease_s=scenario.lease_s, profile=scenario.profile)
            waits_s = max(STARTS_AGAIN_AFTER_S, timing.succeeds_after_contact_s)
            waited_s = (now - self.allocated_at[claim.allocation]) * (1 + DRIFT)
            require(
                waited_s >= waits_s - 0.01, f"a new start waits {waited_s:.2f} s for the old one, not {waits_s:.2f} s"
            )
        elif is_simple and self._have_left_before(self.allocated_at[claim.allocation]):
            began = max(agent.started_at for agent in run.agents)
            self._check_wait("the first attempt of a new start comes", began, JOINS_WITHIN_S)
        requeued_at = max(fault.at for fault in scenario.faults if fault.what == "requeue" and fault.at <= now)
        left_at = max(agent.left_at for agent in run.earlier)
        is_owed = is_simple and left_at + LEAVES_S < requeued_at
        require(has_left or not is_owed, "all agents of the old start have left, and no record says so")

    def _have_left_before(self, moment: float) -> bool:
        """Whether all agents of the old start that have left had written so by then."""
        return all(agent.left_at + LEAVES_S < moment for agent in self._run.earlier if agent.exit_code is not None)

    # Of one thing.

    def _is_undisturbed(self) -> bool:
        """Whether only workers may have failed."""
        run = self._run
        return not (run.witness.kinds or run.witness.unkillable or run.is_disturbed)

    def _only(self, kinds: tuple[str, ...]) -> Fault | None:
        """The only fault of the scenario, if it is one of these and no worker has failed."""
        faults = self._run.scenario.faults
        is_alone = len(faults) == 1 and faults[0].what in kinds and not self._run.witness.incidents
        return faults[0] if is_alone else None

    def _lost_alone(self) -> str | None:
        """The node whose loss is all that has happened, once it has."""
        run = self._run
        if self._only(LOSSES) is None or run.witness.kinds != {"loss"} or run.earlier or run.scenario.stale_s:
            return None
        dead = [agent.name for agent in run.agents if agent.died_at < run.clock.now and agent.exit_code is None]
        return dead[0] if len(dead) == 1 else None

    def _check_joins(self, fault: Fault, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """One node cannot take part, or comes late."""
        run, agent, head = self._run, self._run.agents[fault.node], self._run.agents[0]
        if fault.node == 0:
            return
        if before is None and fault.what in ("unfit", "other_version"):
            began = max(each.started_at for each in run.agents)
            self._check_wait(f"the first attempt comes without {agent.name}", began, JOINS_WITHIN_S)
        elif before is None and agent.name in run.scenario.known_to_be_without_agent:
            began = max(each.started_at for each in run.agents if each is not agent)
            last_look = LOOKS_EVERY_S + JOINS_WITHIN_S
            self._check_wait(f"the first attempt comes without {agent.name}, as srun says", began, last_look)
        elif before is None and not agent.is_running and fault.node >= run.scenario.max_nodes:
            began = max(each.started_at for each in run.agents if each.number < run.scenario.max_nodes)
            self._check_wait(f"the first attempt comes without the spare {agent.name}", began, JOINS_WITHIN_S)
        elif before is None and not agent.is_running:
            waited_s, waits_s = run.clock.now - head.started_at, run.scenario.join_timeout_s
            require(
                waited_s * (1 + DRIFT) >= waits_s,
                f"{agent.name} is awaited for {waited_s:.2f} s, not for join_timeout, {waits_s:g} s",
            )
            self._check_wait(f"the first attempt comes without {agent.name}", head.started_at, waits_s)
        elif before is not None and fault.what == "starts_late" and agent.name in claim.members:
            began = max(agent.started_at, run.disk.asked_at[before.attempt])
            stops_s = max(min(role.patience_s, GRACE_S) for role in run.scenario.roles)
            self._check_wait(f"attempt {claim.attempt} comes with {agent.name}", began, JOINS_WITHIN_S + stops_s)
            require(claim.spend == before.spend, f"the coming of {agent.name} is paid for")

    def _check_answer(self, lost: str, claim: AttemptClaim, before: AttemptClaim) -> None:
        """One member is lost, and the others go on."""
        run, scenario = self._run, self._run.scenario
        if lost not in before.members or claim.allocation != before.allocation:
            return
        losses = claim.spend.node_losses - before.spend.node_losses
        require(losses == 1 or not self._is_quick, f"the loss of {lost} alone is counted {losses} times")
        spent = claim.spend.restarts - before.spend.restarts
        require(spent == 0, f"the loss of {lost} alone costs {spent} restarts")
        timing, agent = Timing(lease_s=scenario.lease_s, profile=scenario.profile), run.agent(lost)
        began = max(agent.died_at, run.disk.asked_at[before.attempt])
        is_silent, was_head = not agent.is_powered, before.head == lost
        within_s = SEEKS_WITHIN_S + SPARES_COME_WITHIN_S if was_head else 0.0
        if is_silent:
            within_s += timing.succeeds_after_contact_s if was_head else scenario.lease_s + 2 * timing.looks_every_s
        if is_silent and was_head and not self._has_been_told(claim.head, before):
            within_s += timing.patience_s  # the contact is when it found the claim, which it looked for after that
        self._check_wait(f"attempt {claim.attempt} comes without {lost}", began, within_s)

    @property
    def _is_quick(self) -> bool:
        """Whether messages and the disk are quick for the lease; else nodes may come to a successor too late."""
        scenario = self._run.scenario
        return max(100 * max(scenario.delays_s), 2 * max(scenario.disk_s)) <= scenario.lease_s

    def _has_been_told(self, node: str, claim: AttemptClaim) -> bool:
        """Whether a node has heard from the head of an attempt that it is in it."""
        attempts = {role.role: role.attempt for role in self._run.disk.worlds[claim.attempt].roles}
        return (node, attempts[self._run.agent(node).role]) in self._run.witness.started_in

    def _check_world(self, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """Everybody who is there, and is not blamed, takes part, as far as there is room."""
        inside = {node.node: node.role for node in world.nodes}
        blamed = {each.node for each in claim.set_aside}
        if len(blamed) == MOST_BLAMED:  # and their head knows of others
            blamed |= self._run.causes.blamed
        agents = [
            agent
            for agent in self._run.agents
            if agent.is_running
            and (agent.name in inside or not (agent.name in blamed or self._is_late_for(agent, world, before)))
        ]
        roles = {agent.name: agent.role for agent in agents} | inside
        for role in self._run.scenario.roles:
            there = [agent.name for agent in agents if roles[agent.name] == role.name]
            taken = [node.node for node in world.nodes if node.role == role.name]
            room = min(role.nodes_max, len(there))
            require(
                len(taken) == room, f"{taken} are in the world for {role.name}: {there} are there for {room} places"
            )

    def _is_late_for(self, agent: Agent, world: World, before: AttemptClaim | None) -> bool:
        """Whether an agent that runs is not there yet.

        One that had no head yet when that one died looks for it first. A spare whose file server takes seconds for an
        answer learns late of the next one. Who found no head within `join_timeout`, on a disk on which a claim takes
        longer than that, claims the next allocation, and joins after the attempt; others may have joined it meanwhile.
        So do a head that others had no answer of, and those with it, until they find that another one has claimed.
        """
        run, lost = self._run, self._lost_alone()
        if lost is not None and agent.name not in run.witness.joined:
            return True
        is_slow = max(run.scenario.disk_s) > SLOW_DISK_S
        if before is not None and is_slow and lost == before.head and agent.name not in before.members:
            return True
        has_claimed = any(
            each.allocation > world.allocation and (before is None or each.node == agent.name)
            for each in run.disk.allocations
        )
        start = [each for each in run.disk.allocations if each.restart_count == agent.start_number]
        if before is None and is_slow and start[0].allocation < world.allocation:
            return True
        searched_s = 0.0 if agent.name in run.witness.joined else (run.clock.now - agent.started_at) * (1 + DRIFT)
        return has_claimed or searched_s >= run.scenario.join_timeout_s

    def _check_wait(self, what: str, began: float, within_s: float) -> None:
        waited_s = self._run.clock.now - began
        allowed_s = within_s * (1 + DRIFT) + self._run.progress.slack_s
        require(waited_s <= allowed_s, f"{what} after {waited_s:.2f} s, not within {allowed_s:.2f} s")
