"""What must hold at every moment and at the end: checked on what nodes do, not on what machines believe."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpc_elastic.membership.actions import Note, StopWorkers
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord, RunState, World
from tests.simulation.clock import Clock
from tests.simulation.scenario import GRACE_S, LONGEST_PAUSE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.disk import Disk
    from tests.simulation.world import SimulatedRun

RESTART_GRACE_S = 5.0
STOPS_WITHIN_S = 90.0  # starting and stopping at their slowest
FENCES_S = 0.1  # that an agent has to kill its workers, before its guard's delay begins
KILL_S = 0.25  # that a guard takes
SILENT = frozenset(  # faults after which no kernel speaks for an agent that lives
    ("power_off", "partition", "one_way", "pause", "kill_agent", "kill_worker", "exit_worker", "term_worker")
)
SPREAD = 1.25  # of the pauses before restarts
SAME_S, MANY_PAUSES = 0.5, 3  # of a minute each, which are spread over a fifth of that
BOOTS_S = 0.1  # an agent that was frozen while it started workers finds out what time it is when they are there
LOSING = frozenset({"loss", "disk", "term", "joined", "asked"})  # after these an attempt needs no failure


class BrokenRuleError(AssertionError):
    """The simulated agents did what agents must never do.

    `first`: the first one of the run that is played. A rule that is broken in a task of an agent may raise where nobody
    looks, and the run would seem to go on without that task.
    `clock`: that of this run, which is told of it.
    """

    first: ClassVar[BrokenRuleError | None] = None
    clock: ClassVar[Clock | None] = None

    def __init__(self, text: str) -> None:
        super().__init__(text)
        BrokenRuleError.first = BrokenRuleError.first or self
        if BrokenRuleError.clock is not None:
            BrokenRuleError.clock.has_news = True


def require(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenRuleError(text)


def _at_slowest(seconds: float) -> float:
    """How long it takes until the slowest clock that a machine may have shows so many seconds."""
    return seconds / (1 - DRIFT / 2)


def start_of(disk: Disk, claim: AttemptClaim) -> int:
    """Which start of the job has opened an attempt."""
    return disk.allocations[claim.allocation - 1].restart_count


class Rules:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._assigns: dict[str, Assign] = {}
        self._ports: set[tuple[str, int]] = set()
        self._decided_in: dict[str, list[str]] = {}  # by head, the latest world as it decided to end the run
        self._decided_well: dict[str, bool] = {}  # whether every rank that counts had exited 0 by then
        self._longest: list[float] = []  # pauses before restarts
        self._at_work: dict[tuple[int, str], list[str]] = {}  # by attempt and head, whose workers lived as it decided

    # Of every moment.

    def check(self) -> None:
        """After every event that changed something on a node."""
        run = self._run
        at_work = [
            worker
            for agent in run.everybody
            for worker in agent.workers.alive.values()
            if not worker.is_unkillable  # it is killed, but for the kernel's word
        ]
        self._check_stop_request(bool(at_work))
        if not at_work:
            return
        run.progress.busy_at = run.clock.now
        latest = max(worker.attempt for worker in at_work)
        world = run.disk.worlds.get(latest)
        if world is None:
            raise BrokenRuleError(f"workers of attempt {latest} run, which nobody claimed")
        attempts = {role.role: role.attempt for role in world.roles}
        for worker in at_work:
            is_about_to_be_killed = worker.attempt < latest and run.clock.now < worker.started_at + BOOTS_S
            if worker.attempt != attempts.get(worker.role) and not is_about_to_be_killed:
                both = f"attempt {worker.attempt} of {worker.role} is at work beside attempt {latest}"
                raise BrokenRuleError(f"two worlds: {both}, at {run.clock.now:.3f} s")

    def _check_stop_request(self, is_anybody_at_work: bool) -> None:
        told_at = self._run.witness.told_to_stop_at
        if is_anybody_at_work and told_at is not None and self._run.witness.kinds == {"stop"}:
            waited = self._run.clock.now - told_at
            require(waited < STOPS_WITHIN_S, f"workers run {waited:.0f} s after a person asked for the end")

    # Of claims.

    def asks_for(self, head: Agent, claim: AttemptClaim) -> None:
        """A head wants to open an attempt."""
        run, witness = self._run, self._run.witness
        run.disk.asks.setdefault((claim.attempt, claim.head, claim.allocation), run.clock.now)
        self._at_work[claim.attempt, claim.head] = [
            f"rank {worker.rank} of attempt {worker.attempt} on {agent.name}"
            for agent in run.everybody
            for worker in agent.workers.alive.values()
            if worker.role in claim.roles and worker.attempt < claim.attempt and not worker.is_unkillable
            if not self._is_killing(agent, head)
        ]
        if claim.attempt == 1 or witness.kinds & LOSING or claim.attempt in run.disk.claims:
            return
        require(
            witness.told_to_stop_at is None, f"attempt {claim.attempt} is opened although a person asked for the end"
        )
        incidents = witness.unanswered()
        require(bool(incidents), f"no failure explains attempt {claim.attempt}")
        before = run.disk.claims[max(run.disk.claims)]
        # A quarter more or less comes to it, but it is never longer than a minute. What is not paid for waits for none:
        # with the state that is damaged no further attempt begins.
        is_free = claim.spend == before.spend and not all(incident.is_charged for incident in incidents)
        pause = 0.0 if is_free else min(LONGEST_PAUSE_S / SPREAD, run.scenario.pause_s(before.spend.restarts))
        waited = run.clock.now - min(incident.moment for incident in incidents)
        require(
            waited * (1 + DRIFT) >= pause - 1e-6,
            f"attempt {claim.attempt} comes {waited:.2f} s after the failure, not {pause}",
        )
        allowed = pause * SPREAD + RESTART_GRACE_S + run.progress.slack_s + (GRACE_S if run.scenario.save_s else 0.0)
        if not witness.kinds and not witness.unkillable and len(incidents) == 1 and not run.is_disturbed:
            require(waited <= allowed, f"attempt {claim.attempt} comes {waited:.2f} s after the failure, not {pause}")
        if pause * SPREAD >= LONGEST_PAUSE_S and len(incidents) == 1 and not (witness.kinds or run.is_disturbed):
            self._check_spread(claim, waited)
        for incident in incidents:
            if incident.moment < run.clock.now - 5 * 60:
                raise BrokenRuleError(f"{incident} was not answered")

    def _check_spread(self, claim: AttemptClaim, waited: float) -> None:
        """Runs that have failed together do not come back together: nor are three of the longest pauses alike."""
        self._longest.append(waited)
        is_spread = max(self._longest) - min(self._longest) >= SAME_S or len(self._longest) < MANY_PAUSES
        require(is_spread, f"attempt {claim.attempt} comes {waited:.2f} s after the failure, as {self._longest} before")

    def claimed(self, agent: Agent, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        run, number = self._run, claim.attempt
        run.changes()
        require(sorted(run.disk.claims) == list(range(1, len(run.disk.claims) + 1)), f"a gap before attempt {number}")
        require(claim.predecessor == (before.attempt if before else None), f"attempt {number} follows from no attempt")
        require(claim.head == world.head == agent.name, f"{agent.name} claims attempt {number} for {claim.head}")
        # Two nodes of one start may have claimed an allocation each, and the later claim counts for both.
        if before is not None and start_of(run.disk, before) == start_of(run.disk, claim):
            require(
                self._may_follow(agent, before), f"{agent.name} claims attempt {number}, and was not in the one before"
            )
        else:
            first = run.disk.allocations[claim.allocation - 1].node
            require(first == agent.name, f"{agent.name} opens allocation {claim.allocation}, which {first} has claimed")
        self._check_spend(agent, claim, before)
        run.states.claimed(agent, claim, world, before)
        require(bool(claim.roles), f"nobody starts in attempt {number}")
        require(len(world.nodes) <= run.scenario.max_nodes, f"{len(world.nodes)} nodes are in the world")
        for role in run.scenario.roles:
            size = sum(node.role == role.name for node in world.nodes)
            require(size >= role.nodes_min, f"{role.name} has {size} of at least {role.nodes_min} nodes")
        if before is not None and before.allocation == claim.allocation:
            self._check_partial(world, run.disk.worlds[number - 1], claim)
            self._check_places(world, run.disk.worlds[number - 1])
        self._check_health(agent, claim, world)
        run.returns.claimed(claim, world, before)
        run.requested.claimed(claim, world, before)
        run.causes.claimed(claim, world, before)
        self._check_gone(claim)
        if before is not None and before.allocation == claim.allocation:
            self._check_waits(agent, claim, before)

    def _check_waits(self, head: Agent, claim: AttemptClaim, before: AttemptClaim) -> None:
        """Who may be at work without a word has had the time to fence, by the slowest way: that of its guard."""
        run, decided_at = self._run, self._run.disk.asked_at[claim.attempt]
        is_told = not {fault.what for fault in run.scenario.faults} <= SILENT
        if is_told or head.process.has_ever_frozen:  # what came while it was frozen is heard later
            return
        profile, lease_s = run.scenario.profile, run.scenario.lease_s
        if claim.head != before.head:
            lost = run.peer(head, before.head)
            is_silent = (
                not lost.was_killed
                and lost.exit_code is None
                and lost.parted_at < max(lost.contacts.values(), default=0.0)
            )
            contact_at = head.contacts.get(before.head, 0.0)
            fenced_at = contact_at + _at_slowest(lease_s + FENCES_S + profile.guard_s + KILL_S)
            what = f"{head.name} takes the place of {before.head}"
            require(not is_silent or decided_at >= fenced_at - 1e-3, f"{what} at {decided_at:.3f}, not {fenced_at:.3f}")
            return
        # A spare is there, and has said that its workers are stopped.
        spares = {each.node for each in run.disk.worlds[claim.attempt].spares}
        for name in set(before.members) - set(claim.members) - spares:
            lost, heard_at = run.peer(head, name), run.heard_at.get((head.name, name), (0.0, True))
            # Who is heard while the claim is on its way to the disk has joined again since.
            if lost.was_killed or heard_at[1] or heard_at[0] > decided_at:
                continue
            patience_s = lease_s * 2 / 3 - profile.hurries_s
            fenced_at = heard_at[0] + _at_slowest(patience_s + profile.guard_s + KILL_S)
            what = f"{head.name} goes on without {name}, which it has heard at {heard_at[0]:.3f}"
            require(decided_at >= fenced_at - 1e-3, f"{what}, at {decided_at:.3f}, not {fenced_at:.3f}")

    def _is_killing(self, agent: Agent, head: Agent) -> bool:
        """Whether an agent's workers are being killed just now: it has ended, or this head takes it for dead.

        A connection that is reset has lost its agent, for all that its head knows, and the agent its head: both act at
        once, and to kill takes as long for an agent that lives as for the kernel after one that has died.
        """
        other, reset_at = agent.reset_from
        if agent.is_running and other is not head:
            return False
        began_at = reset_at if agent.is_running else agent.gone_at
        return self._run.clock.now <= began_at + FENCES_S

    def _check_gone(self, claim: AttemptClaim) -> None:
        """When a head decides to open an attempt, no worker is left of those whose place its workers take."""
        left = self._at_work.get((claim.attempt, claim.head), ())
        is_excused = self._run.witness.unkillable or any(each.process.has_ever_frozen for each in self._run.everybody)
        require(not left or bool(is_excused), f"attempt {claim.attempt} is opened, and {left} are at work")

    def _check_health(self, head: Agent, claim: AttemptClaim, world: World) -> None:
        """No node gets workers that was unhealthy from its start, or whose checks have said so for long."""
        for node in (each for each in world.nodes if each.role in claim.roles):
            agent = self._run.peer(head, node.node)
            is_fit = agent.problem is None and agent.has_versions_of(self._run.peer(head, head.name))
            require(is_fit, f"{node.node} is in attempt {world.attempt}, and is not fit for it")
            if agent.found_at is None or not agent.is_running:
                continue
            since_s = self._run.clock.now - agent.found_at
            is_known = not agent.was_well or since_s > self._run.progress.bound_s
            require(not is_known, f"{node.node} is in attempt {world.attempt}, unhealthy for {since_s:.1f} s")

    def _may_follow(self, agent: Agent, before: AttemptClaim) -> bool:
        """Whether an agent may open the attempt after this one: of its members, or a spare whose head is dead."""
        head = self._run.peer(agent, before.head)
        return agent.name in (*before.members, before.head) or not head.is_running

    def _check_spend(self, head: Agent, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """Every failure and every loss is paid for once, by what became of the agents of the head's own start."""
        witness, scenario, number = self._run.witness, self._run.scenario, claim.attempt
        spent, paid = claim.spend.restarts, before.spend.restarts if before else 0
        require(spent <= scenario.max_restarts, f"{spent} restarts of {scenario.max_restarts} are spent")
        require(spent >= paid, f"attempt {number} gets {paid - spent} restarts back")
        starts = {role.role: role.attempt for role in self._run.disk.worlds[before.attempt].roles} if before else {}
        charges = [
            each.is_charged
            for each in witness.incidents
            if before and (each.attempt == before.attempt or (each.role, each.attempt) in starts.items())
        ]
        # What fails while the workers are stopped for a damaged state is answered by that restart, which costs nothing.
        is_free = bool(witness.kinds & LOSING) or not all(charges)
        require(spent > paid or not before or is_free, f"attempt {number} is not paid for")
        failures = len(witness.keys())
        require(spent <= failures, f"{spent} restarts are spent for {failures} failures")
        lost, counted = claim.spend.node_losses, before.spend.node_losses if before else 0
        require(lost <= scenario.max_node_losses, f"{lost} node losses are counted, of {scenario.max_node_losses}")
        members = before.members if before is not None else ()
        is_succession = before is not None and before.head != claim.head
        suspects = [
            node
            for node in members
            if witness.is_suspect(self._run.peer(head, node))
            or (is_succession and before is not None and (node == before.head or self._is_cut_off(node, claim.head)))
        ]
        require(0 <= lost - counted <= len(suspects), f"attempt {number} counts {lost - counted} losses of {suspects}")
        dead = [node for node in members if not self._run.peer(head, node).is_running and node not in claim.members]
        asked_at = self._run.disk.asked_at.get(number, self._run.clock.now)  # a disk may be long about it
        aside = self._run.requested.drained | {each.node for each in claim.set_aside}  # nobody waits for their silence
        gone = [node for node in dead if self._run.peer(head, node).died_at < asked_at and node not in aside]
        is_same_start = before is not None and before.allocation == claim.allocation
        require(
            not is_same_start or lost - counted >= len(gone),
            f"attempt {number} counts {lost - counted} losses: {gone} are gone",
        )

    def _is_cut_off(self, node: str, head: str) -> bool:
        """Whether a successor lacked this node lately: it may be with the old head, and has had one all the time.

        One that stands still does not know yet that it has lost its head.
        """
        run = self._run
        calm_since = run.network.calm_since(run.agent(node).number, run.agent(head).number)
        return calm_since > run.clock.now - run.progress.bound_s or run.agent(node).is_paused

    def _check_partial(self, world: World, before: World, claim: AttemptClaim) -> None:
        for role in before.roles:
            if role.role not in claim.roles:
                require(role in world.roles, f"{role.role} runs on, and is another one in {claim.attempt}")
        if len(claim.roles) < len(world.roles):
            require(world.ranks == before.ranks, f"ranks change while some roles run on, in attempt {claim.attempt}")

    def _is_called_back(self, name: str, world: World) -> bool:
        agent = self._run.agent(name)
        for own in (agent.first_role, agent.role):  # the one that it has joined its head with
            in_it = [node.node for node in world.nodes if node.role == own]
            if name in in_it and len(in_it) == self._run.scenario.role(own).nodes_min:
                return True
        return False

    def _check_places(self, world: World, before: World) -> None:
        """Who is in both worlds keeps its role, and its place among the others: ranks move as little as they can.

        A spare that had taken the place of another role goes back to its own where that one would have too few nodes.
        """
        then = {node.node: (node.role, node.workers) for node in before.nodes}
        now = {node.node: (node.role, node.workers) for node in world.nodes}
        kept = [node for node in then if node in now]
        moved = [node for node in kept if then[node] != now[node] and not self._is_called_back(node, world)]
        require(not moved, f"{moved} have other roles in attempt {world.attempt} than before")
        own = {name: self._run.agent(name).first_role for name in now}
        for name in (each for each in now if now[each][0] not in (own[each], then.get(each, ("",))[0])):
            size = sum(role == own[name] for role, _ in now.values())
            has_room = size < self._run.scenario.role(own[name]).nodes_max
            what = f"{name} gets a place of {now[name][0]} in attempt {world.attempt}"
            require(not has_room, f"{what}, and {own[name]}, its own role, has room for it")
        back = {node for node in kept if then[node][0] != now[node][0]}
        order, kept = (
            [node for node in each if node in now and node in then and node not in back] for each in (now, then)
        )
        require(order == kept, f"the places of {kept} change to {order} in attempt {world.attempt}")
        if len(world.nodes) == len(before.nodes):
            places = [(one.node, other.node) for one, other in zip(before.nodes, world.nodes, strict=True)]
            new = [
                (gone, node)
                for gone, node in places
                if gone != node and (gone in now or node in then) and not back & {gone, node}
            ]
            short = {role for role, _ in then.values()} - {role for role, _ in now.values()}
            is_filled = sorted(role for role, _ in then.values()) == sorted(role for role, _ in now.values())
            require(not new or bool(short) or not is_filled, f"places change without need: {new}")

    # Of nodes.

    def assigned(self, agent: Agent, assign: Assign) -> None:
        """A node is told to start workers."""
        disk, name = self._run.disk, agent.name
        world, claim = disk.worlds.get(assign.attempt), disk.claims.get(assign.attempt)
        if world is None or claim is None:
            raise BrokenRuleError(f"{name} starts attempt {assign.attempt}, which nobody claimed")
        role = next((role for role in world.roles if role.role == assign.role), None)
        ranks = [rank for rank in world.ranks if rank.node == name]
        require(
            self._assigns.get(name, assign).attempt <= assign.attempt, f"{name} goes back to attempt {assign.attempt}"
        )
        require(
            disk.is_valid(assign.attempt), f"{name} starts attempt {assign.attempt}, claimed after the end of the run"
        )
        if role is None or not ranks:
            raise BrokenRuleError(f"{name} starts attempt {assign.attempt}, which it is not in")
        require(assign.role in claim.roles, f"{name} starts attempt {assign.attempt}, whose claim leaves its role out")
        require(len(ranks) == assign.workers == agent.join.workers, f"{name} starts {assign.workers} workers")
        mine = (assign.first_rank, assign.first_role_rank, assign.world_size, assign.role_world_size)
        theirs = (ranks[0].rank, ranks[0].role_rank, len(world.ranks), role.size)
        require(mine == theirs, f"{name} has ranks and sizes {mine}, its attempt says {theirs}")
        require(assign.master == role.master, f"{name} is told another store than its role")
        require(assign.serves_store == (role.master_node == name), f"{name} is told wrongly who serves the store")
        self._check_store(agent, assign, role.master_node)
        self._run.witness.assigned.add(name)
        self._assigns[name] = assign

    def _check_store(self, agent: Agent, assign: Assign, master_node: str) -> None:
        """The store is where the server is, or will be when it starts: its socket exists already.

        An agent that stood still since the assignment came may find the server at a later attempt: then it may ask for
        its workers, but none of them may come to work, which `check` sees.
        """
        if assign.attempt < max(self._run.disk.claims):
            return
        master, server = assign.master, self._run.peer(agent, master_node)
        is_served = server.workers.served == (assign.attempt, master.port)
        is_offered = server.workers.store_port == master.port and not is_served
        require(master.address == server.join.agent.address, f"the store of {agent.name} is not on {master_node}")
        require(
            is_served or is_offered, f"{agent.name} meets at port {master.port}, which {master_node} does not offer"
        )
        if assign.serves_store:
            require((agent.name, master.port) not in self._ports, f"{agent.name} serves port {master.port} again")
            self._ports.add((agent.name, master.port))

    def stops(self, agent: Agent, action: StopWorkers) -> None:
        """A node stops its workers: there must be a reason for these."""
        witness = self._run.witness
        if witness.kinds or witness.unkillable or witness.is_exit_overdue() or witness.have_all_ended_well():
            return
        if self._run.causes.is_widened(max(self._run.disk.claims)):  # a node loses its place, so all do for a moment
            return
        if self._run.taken.are_all_over:  # some to go on later
            return
        for incident in witness.unanswered():
            is_alone = witness.group(incident.role) != "*"
            if not is_alone or incident.role == agent.role or witness.is_budget_over():
                return
        raise BrokenRuleError(f"{agent.name} stops its workers of {agent.role}, attempt {action.attempt}, for nothing")

    def noted(self, note: Note) -> None:
        """The head says something for the records: each node has its own, unless the file server would not take it."""
        world = self._run.disk.worlds.get(note.attempt)
        if note.name != "attempt.started" or world is None:
            return
        attempts = {role.role: role.attempt for role in world.roles}
        for node in world.nodes:
            attempt = attempts[node.role]
            is_there = (node.node, attempt) in self._run.witness.started_in
            is_written = (attempt, node.node) in self._run.disk.node_results
            is_written = is_written or attempt in self._run.agent(node.node).unrecorded
            require(is_there and is_written, f"attempt {note.attempt} is said to be started, {node.node} is not")

    def searches(self, agent: Agent) -> None:
        """An agent hangs up on a head that is lost: whoever sees that takes its workers for gone."""
        self.leaves(agent, -1)

    def decides(self, agent: Agent) -> None:
        """A head wants to end the run, whose latest attempt it may have opened."""
        world = self._run.disk.latest
        self._decided_in[agent.name] = [] if world is None else [node.node for node in world.nodes]
        self._decided_well[agent.name] = self._run.witness.have_all_ended_well()

    def ended(self, agent: Agent, result: RunResultRecord) -> None:
        """The result is on disk."""
        disk = self._run.disk
        world, claim = disk.latest, disk.latest_claim
        is_new_start = claim is not None and disk.allocations[-1].restart_count > start_of(disk, claim)
        members = [node.node for node in world.nodes] if world is not None else []
        members += self._decided_in.get(agent.name, [])  # a successor's claim may be on disk before it is written
        if world is None or is_new_start:  # which the older start may not have seen, if its claim is just being made
            members += [each.node for each in disk.allocations]
        may_end = agent.name in members or (claim is not None and self._may_follow(agent, claim))
        require(may_end, f"{agent.name} ends the run, and was not in the latest world: {members}")
        had_ended_well = self._decided_well.get(agent.name, False)  # then any later claim is void
        self._run.witness.had_all_ended_well = had_ended_well or self._run.witness.have_all_ended_well()
        self._check_all_stopped(result)
        self._run.progress.ended(agent, result)

    def _check_all_stopped(self, result: RunResultRecord) -> None:
        """A run that has not succeeded has stopped the workers of all roles before: what they hold is known then."""
        run = self._run
        is_usual = not (run.witness.kinds or run.witness.unkillable or run.is_disturbed)
        if not is_usual or result.state is RunState.SUCCEEDED:
            return
        left = [worker.rank for agent in run.everybody for worker in agent.workers.alive.values()]
        require(not left, f"the run has ended ({result.reason}), and ranks {left} run")

    def leaves(self, agent: Agent, exit_code: int) -> None:
        """An agent ends."""
        left = [worker.rank for worker in agent.workers.alive.values() if not worker.is_unkillable]
        require(not left, f"{agent.name} leaves with {exit_code} while ranks {left} run")
