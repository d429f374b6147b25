"""Nobody waits for ever: a side that can go on does so in bounded time, and whoever is not needed leaves.

A side is what theory calls stable: members of the latest claimed world, at least as many as the run needs,
that can all talk to each other and to the run directory, and could for a while. How long it may take
follows from the lease L: the others are silent for L at most when a head gives them up, a successor waits
2L + 0.5 s after its last contact, and who has too few waits 3L + 1 s.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.timing import DRIFT, RELIEVED_WITHIN_S
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.disk import LAYOUT
from tests.simulation.file_system import Written
from tests.simulation.rules.invariants import STOPS_WITHIN_S, require
from tests.simulation.rules.starts import OPERATIONS
from tests.simulation.scenario import GRACE_S, Scenario

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

TALKS_S = 8.0  # reading, dialling, answering, and trying again
DISK_OPERATIONS = 12  # one after the other, from a loss to the next start
LEAVES_WITHIN_S = 30.0
HEARD_AFTER_S = 1.5  # is a word on disk, by whoever looks for it
QUICK_S = 0.1  # of an operation of a disk
PROBES_S = 5.0  # of other ports of the machine that does not answer
DEATHS = frozenset({"kill_agent", "power_off", "exit_worker", "kill_worker", "break_gpu"})
ENDED_FOR_TOO_FEW = ("node_lost", "nodes_missing")


class Progress:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.busy_at = 0.0
        self._last_start = 0.0  # of a worker that counts, ended since or not
        scenario = run.scenario
        self.bound_s = 3 * scenario.lease_s + 1 + TALKS_S + DISK_OPERATIONS * max(scenario.disk_s)
        self.bound_s += max(scenario.spawn_s) + 20 * max(scenario.delays_s)

    @property
    def slack_s(self) -> float:
        """What disks, messages, starts and the looks of a head may take in a run where nothing else is wrong."""
        scenario = self._run.scenario
        steps_s = DISK_OPERATIONS * max(scenario.disk_s) + 20 * max(scenario.delays_s) + max(scenario.spawn_s)
        return steps_s + scenario.lease_s / 6 + 1.0

    def watch(self) -> None:
        """From time to time, as long as somebody is there."""
        run, now = self._run, self._run.clock.now
        self._check_exit_barrier()
        self._check_recovered()
        self._check_old_start()
        if run.disk.results:
            self._check_leaving()
        elif any(agent.workers.alive for agent in run.everybody) or self._gathers_first():
            self.busy_at = now
        else:
            idle_s = now - self.busy_at
            allowed_s = self.bound_s + self._pause_s() + (STOPS_WITHIN_S if run.witness.kinds - {"loss"} else 0.0)
            is_excused = run.witness.unkillable or self._waits_for_a_disk() or not self._may_lose()
            if idle_s > allowed_s and not is_excused:
                side = self.side()
                require(not side, f"nobody works for {idle_s:.1f} s, though {side} could go on, at {now:.1f} s")

    def _gathers_first(self) -> bool:
        """Whether a start of the job has opened no attempt yet: it may wait for everybody, or for the scheduler.

        Where its first node is gone before it has claimed the allocation, another one does so in its turn.
        """
        run, claim, allocations = self._run, self._run.disk.latest_claim, self._run.disk.allocations
        is_unopened = claim is None or (bool(allocations) and claim.allocation < allocations[-1].allocation)
        is_new = bool(run.earlier) and run.agents[0].start_number > run.earlier[0].start_number
        is_unclaimed = is_new and run.agents[0].start_number not in {each.restart_count for each in allocations}
        return is_unopened or is_unclaimed or run.resumed.is_held_up

    def _has_slow_head(self) -> bool:
        """Whether there is a head that waits for the run directory: its members have it, and wait with it."""
        return any(self._has_slow_disk(agent) for agent in self._run.agents if agent.headquarters is not None)

    def _stops_late(self) -> bool:
        """Whether a worker that survives its KILL holds its head up for longer than those with too few nodes wait.

        They wait 3 L + 1 s, and the head goes on a lease and the bound of a KILL after it has lost them: with a lease
        of the default of 10 s it is sooner.
        """
        return bool(self._run.witness.unkillable) and 2 * self._run.scenario.lease_s < STOPS_WITHIN_S

    def _waits_for_a_disk(self) -> bool:
        """The head's, or that of a member whose record of its success is awaited."""
        is_done = self._run.witness.have_all_ended_well()
        return self._has_slow_head() or (is_done and any(map(self._has_slow_disk, self._run.agents)))

    def _has_slow_disk(self, agent: Agent) -> bool:
        since = self._run.clock.now - self.bound_s
        return agent.is_running and max(agent.disk.stalled_until, agent.disk.fails_until) > since

    def ended(self, agent: Agent, result: RunResultRecord) -> None:
        """A run that a side could carry on is not ended for too few nodes."""
        is_slow = self._has_slow_head() or self._has_slow_disk(agent)  # a head of an earlier start, too
        is_slow = is_slow or self._was_on_its_way(agent)
        is_excused = is_slow or self._stops_late() or not self._may_lose()
        if result.reason in ENDED_FOR_TOO_FEW and result.attempts and not is_excused:
            side = self.side()
            ends = f"{agent.name} ends the run for {result.reason} ({result.cause})"
            # The nodes of a later start may need all of `join_timeout` to find that they cannot reach its first head.
            waits = self._gathers_first() and agent.name not in side and not is_relieved_in_time(self._run.scenario)
            require(not side or waits, f"{ends}, though {side} could go on, at {self._run.clock.now:.1f} s")
        if result.reason in ENDED_FOR_TOO_FEW and result.attempts and self._may_lose():
            self._check_spares(agent, result)
        if result.reason in ENDED_FOR_TOO_FEW and not is_slow:
            self._check_who_ends(agent, result)
        if result.reason in ENDED_FOR_TOO_FEW and not result.attempts and self._run.witness.kinds == {"unhealthy"}:
            healthy = [each for each in self._run.agents if each.found_at is None]
            require(not self._is_enough(healthy), f"{agent.name} ends the run ({result.cause}), with enough of them")

    def _check_who_ends(self, agent: Agent, result: RunResultRecord) -> None:
        """No other node ends a run for want of nodes, as long as the head of its latest attempt is there, and says so.

        It has said so in the last two leases, some seconds ago: whoever is to end the run looks once a second.
        """
        run, claim = self._run, self._run.disk.latest_claim
        if claim is None or claim.head == agent.name or claim.allocation != len(run.disk.allocations):
            return
        opener, now, lease_s = run.agent(claim.head), run.clock.now, run.scenario.lease_s
        path = LAYOUT.head_presence(claim.attempt)
        said = [
            at for at, who, what in run.events if isinstance(what, Written) and (who, what.path) == (opener.name, path)
        ]
        is_there = opener.headquarters is not None and opener.headquarters._head.attempt == claim.attempt
        is_quick = max(run.scenario.disk_s) < QUICK_S and self._is_calm(agent)
        is_said = any(HEARD_AFTER_S < now - at < 2 * lease_s - HEARD_AFTER_S for at in said)
        what = f"{agent.name} ends the run ({result.cause}), and its head, {opener.name}, is there, and says so"
        require(not (is_there and is_quick and is_said), what)

    def _check_spares(self, agent: Agent, result: RunResultRecord) -> None:
        """Where agents have only died, a run is not ended for too few nodes of a role as long as spares can help.

        A spare of whichever role can have the place of a node that is gone, and one that has such a place already is
        called back where its own role lacks nodes and the other one does not.
        """
        run = self._run
        if not {fault.what for fault in run.scenario.faults} <= DEATHS:
            return
        there = Counter(each.role for each in run.agents if each.is_running and each.name in run.witness.joined)
        lacks = sum(max(0, role.nodes_min - there[role.name]) for role in run.scenario.roles)
        spares = sum(max(0, there[role.name] - role.nodes_max) for role in run.scenario.roles)
        what = f"{agent.name} ends the run for {result.reason} ({result.cause}), and {dict(there)} are there"
        require(lacks > spares + self._called_back(there), what)

    def _called_back(self, there: Counter[str]) -> int:
        """How many nodes work for another role, which has enough without them, while their own lacks nodes."""
        run, placed = self._run, self._run.scenario.placed()
        least = {role.name: role.nodes_min for role in run.scenario.roles}
        left, back = Counter(there), 0
        for each in run.agents:
            own, _ = placed[each.number]
            is_away = each.is_running and each.name in run.witness.joined and each.role != own
            if is_away and left[own] < least[own] and left[each.role] > least[each.role]:
                left[own], left[each.role], back = left[own] + 1, left[each.role] - 1, back + 1
        return back

    def _may_lose(self) -> bool:
        """Whether the run has losses left even if the head has taken everybody for lost, who is back since."""
        claim = self._run.disk.latest_claim
        return claim is None or claim.spend.node_losses + len(claim.members) <= self._run.scenario.max_node_losses

    def _check_exit_barrier(self) -> None:
        """When a rank has exited 0, the others that count may run for `exit_timeout`, and are stopped then.

        A role that waits to start again is let start first, and the time that is over ends the run then.
        """
        run, timeout_s = self._run, self._run.scenario.exit_timeout_s
        if timeout_s is None or run.witness.kinds or run.witness.unkillable or self._waits_for_a_disk():
            return
        stops_s = max(min(role.patience_s, GRACE_S) for role in run.scenario.roles)
        allowed_s = timeout_s * (1 + DRIFT) + stops_s + self.slack_s
        if any(role.restart == "restart_role" for role in run.scenario.roles):
            allowed_s += self._pause_s()
        world = run.disk.latest
        current = {(role.role, role.attempt) for role in world.roles} if world is not None else set()
        ends = [end for part, end in run.witness.first_end.items() if part in current]
        if not ends:
            return
        running = [
            worker
            for agent in run.everybody
            for worker in agent.workers.alive.values()
            if run.scenario.role(worker.role).restart != "ignore"
        ]
        self._last_start = max([self._last_start, *(worker.started_at for worker in running)])
        # A run that succeeds then stops nobody at work: it waits for those that have started last.
        waits_for_last = run.scenario.after_exit_timeout == "succeed"
        for worker in running:  # a role may have ended in an older attempt
            started = self._last_start if waits_for_last else worker.started_at
            ran_s = run.clock.now - max(min(ends), started)
            require(ran_s <= allowed_s, f"rank {worker.rank} runs {ran_s:.0f} s after another one has exited 0")

    def _check_old_start(self) -> None:
        """Agents of the job's start before leave when they can read that there is another one."""
        run, now = self._run, self._run.clock.now
        starts = {each.allocation: each.restart_count for each in run.disk.allocations}
        if not run.earlier or run.earlier[0].start_number not in starts.values():
            return
        latest = run.agents[0].start_number
        since = min((at for number, at in run.promptness.allocated_at.items() if starts[number] == latest), default=now)
        for agent in run.earlier:
            is_calm = agent.is_running and not agent.is_paused and agent.disk.is_well
            late_s = now - max(since, agent.troubled_until) - self.bound_s - GRACE_S
            require(
                not (is_calm and late_s > 0),
                f"{agent.name} of the old start is there {now - since:.1f} s after the new",
            )

    def _check_recovered(self) -> None:
        """Where nodes rejoin immediately, one that is well again, or late, is taken in soon, if there is room."""
        run, claim, world = self._run, self._run.disk.latest_claim, self._run.disk.latest
        is_usual = (
            run.witness.kinds <= {"unhealthy", "joined", "missing"}
            and not run.witness.unkillable
            and not run.disk.results
        )
        if not is_usual or run.scenario.rejoin != "immediately" or run.head_phase != "running":
            return
        if world is None or claim is None or len(world.nodes) >= run.scenario.max_nodes:
            return
        members = {node.node for node in world.nodes} | {each.node for each in claim.set_aside}
        for agent in run.agents:
            is_parked = hasattr(agent, "part") and agent.member.phase is MemberPhase.PARKED
            came_at = max(agent.started_at, run.disk.asked_at[claim.attempt]) if is_parked else None
            since, role = agent.well_since or came_at, run.scenario.role(agent.role)
            has_room = sum(node.role == role.name for node in world.nodes) < role.nodes_max
            if since is None or agent.found_at is not None or not agent.is_running or not has_room:
                continue
            well_s = run.clock.now - since
            is_late = well_s > self.bound_s and agent.name not in members
            require(
                not is_late, f"{agent.name} is there and healthy for {well_s:.1f} s, and waits though there is room"
            )

    def _check_leaving(self) -> None:
        run, now = self._run, self._run.clock.now
        bound_s = self.bound_s + LEAVES_WITHIN_S + GRACE_S + STOPS_WITHIN_S * bool(run.witness.unkillable)
        for agent in run.everybody:
            is_calm = agent.is_running and not agent.is_paused and agent.disk.is_well
            since = max(run.disk.ended_at, agent.troubled_until, agent.started_at)
            require(
                not (is_calm and now > since + bound_s),
                f"{agent.name} is still there {now - since:.0f} s after the end of the run",
            )

    def _was_on_its_way(self, agent: Agent) -> bool:
        """Whether the agents of a later start came when the result of this one was on its way to the disk."""
        latest, written_s = self._run.agents, OPERATIONS * max(self._run.scenario.disk_s)
        return agent not in latest and all(each.started_at > self._run.clock.now - written_s for each in latest)

    def _pause_s(self) -> float:
        """Several roles may have failed since the latest claim, and each failure makes the pause longer."""
        return self._run.scenario.pause_s(len(self._run.witness.keys()))

    def side(self) -> list[str]:
        """The nodes that could go on and have been able to for a while; none if they are too few."""
        run, world = self._run, self._run.disk.latest
        if world is None:
            return []
        members = [run.agent(node.node) for node in world.nodes]
        calm = [agent for agent in members if self._is_calm(agent)]
        for first in calm:
            side = [first]
            for other in calm:
                if other is not first and all(self._are_connected(other, each) for each in side):
                    side.append(other)
            if self._is_enough(side):
                return [agent.name for agent in side]
        return []

    def _is_calm(self, agent: Agent) -> bool:
        run, since = self._run, self._run.clock.now - self.bound_s
        is_well = agent.is_running and agent.is_powered and not agent.is_paused and agent.disk.is_well
        is_fit = agent.problem is None and agent.found_at is None
        is_able = is_fit and agent.name not in run.witness.terminated | run.witness.unkillable
        return is_well and is_able and agent.troubled_until <= since

    def _are_connected(self, one: Agent, other: Agent) -> bool:
        return self._run.network.calm_since(one.number, other.number) <= self._run.clock.now - self.bound_s

    def _is_enough(self, side: list[Agent]) -> bool:
        scenario = self._run.scenario
        if len(side) < min(scenario.min_nodes, scenario.nodes):
            return False
        placed = [role for role, _ in scenario.placed()]
        roles = [agent.role for agent in side]
        return all(roles.count(role.name) >= min(role.nodes_min, placed.count(role.name)) for role in scenario.roles)


def is_relieved_in_time(scenario: Scenario) -> bool:
    """Whether nodes that cannot reach their first head find that, and relieve it, within `join_timeout`."""
    times = SEARCH_TIMES
    pauses_s: float = times.first_retry_s * (2**scenario.join_retries - 1)
    needs_s = (scenario.join_retries + 1) * (times.persists_s + PROBES_S) + pauses_s + RELIEVED_WITHIN_S
    return scenario.join_timeout_s > needs_s + DISK_OPERATIONS * max(scenario.disk_s)
