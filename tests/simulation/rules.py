"""What must hold at every moment and at the end: checked on what nodes do, not on what machines believe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import Note, StopWorkers
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import AttemptClaim, World
from tests.simulation.headquarters import VERSIONS

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

STOPS_WITHIN_S = 90.0  # starting and stopping at their slowest
SETUP, NODES_MISSING, NODE_LOST, STOPPED, REQUEUE = 3, 6, 7, 10, 75


class BrokenRuleError(AssertionError):
    """The simulated agents did what agents must never do."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenRuleError(text)


class Rules:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._assigns: dict[str, Assign] = {}
        self._ports: set[tuple[str, int]] = set()

    # Of every moment.

    def check(self) -> None:
        """After every event that changed something on a node."""
        at_work: dict[str, set[int]] = {}
        for agent in self._run.agents:
            for worker in agent.workers.alive.values():
                at_work.setdefault(worker.role, set()).add(worker.attempt)
        self._check_stop_request(bool(at_work))
        for role, attempts in at_work.items():
            require(len(attempts) == 1, f"attempts {sorted(attempts)} of {role} are at work at once")
            (attempt,) = attempts
            claim = self._run.disk.claims.get(attempt)
            require(claim is not None, f"workers of attempt {attempt} run, which nobody claimed")
            require(
                claim is None or role in claim.roles, f"{role} runs in attempt {attempt}, whose claim leaves it out"
            )
            latest = self._run.witness.attempt_of(role)
            require(
                attempt == latest, f"{role} is at work in attempt {attempt}, and attempt {latest} is claimed for it"
            )

    def _check_stop_request(self, is_anybody_at_work: bool) -> None:
        told_at = self._run.witness.told_to_stop_at
        if is_anybody_at_work and told_at is not None and self._run.witness.kinds == {"stop"}:
            waited = self._run.clock.now - told_at
            require(waited < STOPS_WITHIN_S, f"workers run {waited:.0f} s after a person asked for the end")

    # Of claims.

    def asks_for(self, claim: AttemptClaim) -> None:
        """The head wants to open an attempt."""
        run, witness = self._run, self._run.witness
        require(
            witness.told_to_stop_at is None, f"attempt {claim.attempt} is opened although a person asked for the end"
        )
        if claim.attempt == 1:
            return
        incidents = witness.unanswered()
        require(bool(incidents), f"no failure explains attempt {claim.attempt}")
        before = run.disk.claims[max(run.disk.claims)]
        pause = min(60.0, run.scenario.backoff_first_s * 2**before.spend.restarts)
        waited = run.clock.now - min(incident.moment for incident in incidents)
        require(waited >= pause - 1e-6, f"attempt {claim.attempt} comes {waited:.2f} s after the failure, not {pause}")
        for incident in incidents:
            if incident.moment < run.clock.now - 5 * 60:
                raise BrokenRuleError(f"{incident} was not answered")

    def claimed(self, claim: AttemptClaim, world: World) -> None:
        """A claim is on disk."""
        run, number = self._run, claim.attempt
        run.is_dirty = True
        require(sorted(run.disk.claims) == list(range(1, len(run.disk.claims) + 1)), f"a gap before attempt {number}")
        before = run.disk.claims.get(number - 1)
        require(claim.predecessor == (before.attempt if before else None), f"attempt {number} follows from no attempt")
        spent, paid = claim.spend.restarts, before.spend.restarts if before else 0
        require(spent <= run.scenario.max_restarts, f"{spent} restarts of {run.scenario.max_restarts} are spent")
        require(spent > paid or not before, f"attempt {number} is not paid for")
        failures = len(run.witness.keys())
        require(spent <= failures, f"{spent} restarts are spent for {failures} failures")
        require(bool(claim.roles), f"nobody starts in attempt {number}")
        require(len(world.nodes) <= run.scenario.max_nodes, f"{len(world.nodes)} nodes are in the world")
        for role in run.scenario.roles:
            size = sum(node.role == role.name for node in world.nodes)
            require(size >= role.nodes_min, f"{role.name} has {size} of at least {role.nodes_min} nodes")
        if before is not None:
            self._check_partial(world, run.disk.worlds[number - 1], claim)

    def _check_partial(self, world: World, before: World, claim: AttemptClaim) -> None:
        for role in before.roles:
            if role.role not in claim.roles:
                require(role in world.roles, f"{role.role} runs on, and is another one in {claim.attempt}")
        if len(claim.roles) < len(world.roles):
            require(world.ranks == before.ranks, f"ranks change while some roles run on, in attempt {claim.attempt}")

    # Of nodes.

    def assigned(self, agent: Agent, assign: Assign) -> None:
        """A node is told to start workers."""
        disk, name = self._run.disk, agent.name
        world, claim = disk.worlds.get(assign.attempt), disk.claims.get(assign.attempt)
        if world is None or claim is None:
            raise BrokenRuleError(f"{name} starts attempt {assign.attempt}, which nobody claimed")
        role = next((role for role in world.roles if role.role == assign.role), None)
        ranks = [rank for rank in world.ranks if rank.node == name]
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
        """The store is where the server is, or will be when it starts: its socket exists already."""
        master, server = assign.master, self._run.agent(master_node)
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
        for incident in witness.unanswered():
            is_alone = witness.group(incident.role) != "*"
            if not is_alone or incident.role == agent.role or witness.is_budget_over():
                return
        raise BrokenRuleError(f"{agent.name} stops its workers of {agent.role}, attempt {action.attempt}, for nothing")

    def noted(self, note: Note) -> None:
        """The head says something for the records."""
        world = self._run.disk.worlds.get(note.attempt)
        if note.name != "attempt.started" or world is None:
            return
        attempts = {role.role: role.attempt for role in world.roles}
        for node in world.nodes:
            attempt = attempts[node.role]
            is_there = self._run.witness.running.get(node.node) == attempt
            is_written = (attempt, node.node) in self._run.disk.node_results
            require(is_there and is_written, f"attempt {note.attempt} is said to be started, {node.node} is not")

    def leaves(self, agent: Agent, exit_code: int) -> None:
        """An agent ends."""
        left = [worker.rank for worker in agent.workers.alive.values() if not worker.is_unkillable]
        require(not left, f"{agent.name} leaves with {exit_code} while ranks {left} run")

    # Of the end.

    def check_end(self) -> None:
        """When nobody runs any more."""
        run = self._run
        for agent in run.agents:
            self.leaves(agent, -1)
        require(len(run.disk.results) == 1 or self._may_have_no_result(), "the run ended without a result")
        for agent in run.agents:
            if agent.exit_code is not None:
                self._check_exit_code(agent, agent.exit_code)
        for result in run.disk.results:
            require(bool(result.cause), "the result names no cause")
            is_true = self._is_true(result.reason)
            require(is_true, f"the run is {result.state.value} for {result.reason} ({result.cause}), which is not so")
            self._check_cause(result.reason, result.cause)

    def _may_have_no_result(self) -> bool:
        """Whether everybody who could have written one was gone, or told that the scheduler will go on."""
        run, witness = self._run, self._run.witness
        able = [
            agent.name
            for agent in run.agents
            if agent.exit_code is not None and agent.name in witness.joined and agent.name not in witness.terminated
            if agent.name in witness.assigned or agent.is_told
        ]
        return witness.is_requeued or "disk" in witness.kinds or not able

    def _check_exit_code(self, agent: Agent, exit_code: int) -> None:
        witness, results = self._run.witness, self._run.disk.results
        if "disk" in witness.kinds or (witness.is_requeued and exit_code == REQUEUE):
            return
        expected = {results[0].exit_code} if results else set()
        if agent.is_refused:  # before the result is there, by what the head has decided
            is_unfit = agent.problem is not None
            expected |= self._run.decided_codes | ({SETUP} if is_unfit else set())
        if not agent.is_told and agent.name not in witness.joined:
            expected |= {NODES_MISSING, STOPPED}
        elif not agent.is_told and (agent.name in witness.terminated or agent.name not in witness.assigned):
            expected.add(NODE_LOST)
        if agent.versions != VERSIONS:
            expected.add(NODES_MISSING)
        require(exit_code in expected, f"{agent.name} left with {exit_code}, and should have with {expected}")

    def _is_true(self, reason: str) -> bool:
        witness, scenario = self._run.witness, self._run.scenario
        return {
            "succeeded": witness.have_all_ended_well(),
            "restarts_used_up": len(witness.keys()) > scenario.max_restarts,
            "no_progress": scenario.progress == "stuck" and len(witness.keys()) >= scenario.no_progress_limit,
            "start_failed": "start_failed" in witness.kinds,
            "exit_timeout": witness.is_exit_overdue(),
            "unkillable": bool(witness.unkillable),
            "stop_requested": witness.told_to_stop_at is not None,
            "terminated": "term" in witness.kinds,
            "node_lost": bool(witness.kinds & {"loss", "term", "disk"}),
            "setup_failed": "unfit" in witness.kinds,
            "nodes_missing": bool(witness.kinds & {"missing", "loss", "term", "disk", "unfit"}),
        }.get(reason, False)

    def _check_cause(self, reason: str, cause: str) -> None:
        """A failure that is named is one that happened in an attempt that it could end."""
        if reason not in ("restarts_used_up", "no_progress"):
            return
        named = [
            incident
            for incident in self._run.witness.unanswered()
            if incident.node in cause and (incident.rank is None or f"rank {incident.rank} " in cause)
        ]
        require(bool(named), f"the cause is no failure of the last attempt: {cause}")
