"""What each field of a record says, held against the nodes themselves: places, addresses, process ids, times, turns.

`hpc_elastic.rundir.records` says what each field is for. Nothing here asks a machine: where an agent listens, which
process ids it has and when something happened is known from the simulated nodes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import (
    AttemptClaim,
    Candidate,
    Endpoint,
    NodeResult,
    RootCause,
    RunResultRecord,
    WorkerState,
    World,
    utc_text,
)
from tests.simulation.rules.invariants import require
from tests.simulation.rules.returns import FORGETS_AFTER

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

MOST_NAMED = 64  # successors, and as many spares, in a claim
MOST_LOST = 64  # nodes that were lost, in a claim: the latest
PIDS = 100  # the process id of rank 0; the others follow
SOON_S = 0.001  # a time is written as its text is made
ALONE = "restart_role"
LOST = ("node_lost", "agent_lost")  # classes of causes
OF_NODES = (*LOST, "unkillable")


def in_turn(nodes: list[str]) -> list[str]:
    """The order in which nodes may take a head's place: the first, the middle, the quarters, the eighths and so on."""
    order: list[str] = []
    parts = 1
    while len(order) < len(nodes):
        width = 1
        while width < len(nodes):
            width *= 2
        places = sorted(range(0, width, max(1, width // parts)), key=lambda place: _halves(place, width))
        order += [nodes[place] for place in places if place < len(nodes) and nodes[place] not in order]
        parts *= 2
    return order


def _halves(place: int, width: int) -> tuple[bool, ...]:
    """On which side of each halving a place is, the last halving first."""
    sides = []
    while width > 1:
        width //= 2
        sides.append(place >= width)
        place %= width
    return tuple(reversed(sides))


class Written:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.kept_flight_records: set[tuple[int, int]] = set()  # by attempt and rank

    def keeps_flight_records(self, agent: Agent, result: NodeResult) -> None:
        """A node's result is on disk; of ranks that were stopped or failed the last collectives are kept beside it."""
        wanted = {(result.attempt, rank) for rank in result.ranks}
        if result.state in (WorkerState.FAILED, WorkerState.STOPPED):
            missing = sorted(wanted - self.kept_flight_records)
            require(not missing, f"{agent.name} has not kept the flight records of {missing}")

    def claimed(self, head: Agent, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk, and the roster beside it."""
        what = f"attempt {claim.attempt}"
        names = tuple(node.node for node in world.nodes)
        require(claim.members == names, f"{what} names the members {claim.members}, and its world has {names}")
        same = (world.run, world.attempt, world.allocation) == (claim.run, claim.attempt, claim.allocation)
        require(same and claim.run == self._run.plan.run, f"{what} is claimed, and its world is another one's")
        began = self._run.disk.asked_at[claim.attempt]
        # A head that stood still between its decision and the text of its claim writes the time at which it woke up.
        until = self._run.clock.now if head.process.has_ever_frozen else began
        earliest, latest = utc_text(began - SOON_S), utc_text(until + SOON_S)
        require(earliest <= claim.time <= latest, f"{what} was opened at {began:.3f} s, and says {claim.time}")
        self._check_nodes(head, what, world)
        self._check_roles(what, claim, world)
        self._check_spares(head, what, world)
        self._check_candidates(head, what, claim, world)
        self._check_lost(what, claim, before)
        if claim.root_cause is not None and before is not None:
            self._check_places(what, claim.root_cause, before.attempt)
            self._check_absent(what, claim.root_cause, claim, before)

    def _check_places(self, what: str, cause: RootCause, latest: int) -> None:
        """A cause is about one node, or about several, or about none; and what is about a node names it."""
        named = (cause.node,) if cause.node else cause.nodes
        told = f"{what} names the node {cause.node!r} and the nodes {cause.nodes} as the cause ({cause.failure_class})"
        is_so = not (cause.node and cause.nodes) and len(cause.nodes) != 1 and len({*named}) == len(named)
        require(is_so and {*named} <= {*self._run.scenario.names}, told)
        require(bool(named) or cause.failure_class not in OF_NODES, told)
        said = [node for node in named if node in cause.line]  # of many the first ones, and how many more
        more = f" and {len(named) - len(said)} more "
        is_said = cause.failure_class not in OF_NODES or len(said) == len(named) or more in cause.line
        require(is_said, f"{told}, and says {cause.line!r}")
        require(0 < cause.attempt <= latest + 1, f"{told}, in attempt {cause.attempt} of {latest}")
        places = {rank.rank: rank.node for rank in self._run.disk.worlds[min(cause.attempt, latest)].ranks}
        require(cause.rank is None or cause.node == places.get(cause.rank), f"{told}, and rank {cause.rank}")

    def _check_absent(self, what: str, cause: RootCause, claim: AttemptClaim, before: AttemptClaim) -> None:
        """A new head names all whom it has lost with the one before, for none of them came."""
        if cause.failure_class not in LOST or claim.head == before.head or claim.allocation != before.allocation:
            return
        spares = {spare.node for spare in self._run.disk.worlds[claim.attempt].spares}
        gone = {*before.members} - {*claim.members} - spares
        named = {cause.node, *cause.nodes}
        require(gone <= named, f"{what} is without {sorted(gone)}, and names {sorted(named)} as the cause")

    def _check_nodes(self, head: Agent, what: str, world: World) -> None:
        first, places = 0, []
        sizes: Counter[str] = Counter()
        for node in world.nodes:
            agent = self._run.peer(head, node.node)
            listens = Endpoint(address=agent.name, port=agent.port)
            require(node.agent == listens, f"{what} says that {node.node} listens at {node.agent}")
            require(node.node_id == agent.number, f"{what} says that {node.node} is node {node.node_id}")
            require(node.first_rank == first, f"{what} says that {node.node} begins with rank {node.first_rank}")
            for local_rank in range(node.workers):
                places.append((first + local_rank, node.node, local_rank, node.role, sizes[node.role]))
                sizes[node.role] += 1
            first += node.workers
        found = [(each.rank, each.node, each.local_rank, each.role, each.role_rank) for each in world.ranks]
        require(found == places, f"{what} has the ranks {found}, and its nodes have {places}")

    def _check_roles(self, what: str, claim: AttemptClaim, world: World) -> None:
        sizes = Counter(rank.role for rank in world.ranks)
        for role in world.roles:
            policy = self._run.scenario.role(role.role).restart
            told = role.size, role.restart
            require(told == (sizes[role.role], policy), f"{what} says of {role.role}: {told}")
            is_new = role.attempt == claim.attempt
            require(is_new == (role.role in claim.roles), f"{what} starts {claim.roles}, and has {role}")
            policies = {each.role: each.restart for each in world.roles}
            sharing = [
                node.node
                for node in world.nodes
                if (node.role == role.role if policy == ALONE else policies[node.role] != ALONE)
            ]
            is_first = not is_new or role.master_node == sharing[0]
            require(is_first, f"{what} has the store of {role.role} on {role.master_node}, not on {sharing[0]}")

    def _check_spares(self, head: Agent, what: str, world: World) -> None:
        """Nodes that wait beside the world, in the order of their ids, those that may be unhealthy at the end."""
        numbers = [spare.node_id for spare in world.spares]
        well = [spare.node_id for spare in world.spares if not self._run.peer(head, spare.node).unhealthy]
        is_in_order = well == sorted(well) and len({*numbers}) == len(numbers) <= MOST_NAMED
        require(is_in_order, f"{what} names the spares {numbers}")
        for spare in world.spares:
            agent = self._run.peer(head, spare.node)
            is_so = (spare.agent, spare.node_id) == (Endpoint(address=agent.name, port=agent.port), agent.number)
            is_beside = spare.node not in {node.node for node in world.nodes}
            has_begun = agent.started_at < self._run.clock.now  # it may not have heard yet that it is welcome
            require(is_so and is_beside and has_begun, f"{what} names the spare {spare}")

    def _check_candidates(self, head: Agent, what: str, claim: AttemptClaim, world: World) -> None:
        found = claim.candidates
        require(found is not None, f"{what} names nobody who may take its head's place")
        assert found is not None
        ids = {node.node: node.node_id for node in world.nodes}
        others = sorted((name for name in ids if name != head.name), key=lambda name: ids[name])

        def listens(name: str) -> Candidate:
            return Candidate(node=name, agent=Endpoint(address=name, port=self._run.peer(head, name).port))

        turns = tuple(listens(name) for name in in_turn(others)[:MOST_NAMED])
        require(found.turns == turns, f"{what} names the turns {found.turns}, not {turns}")
        spares = tuple(listens(spare.node) for spare in world.spares if spare.node != head.name)
        require(found.spares == spares, f"{what} names the spares {found.spares}, not {spares}")
        is_known = head.name in ids or head.name in {spare.node for spare in world.spares}
        own = listens(head.name).agent if is_known else None
        require(found.head == own, f"{what} says that its head listens at {found.head}")

    def _check_lost(self, what: str, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """Losses are counted one by one, and each node that has more of them than before was in the latest world.

        What is old is forgotten, and may be named until something else is written about losses.
        """
        earlier = before.lost_nodes if before is not None else ()
        late = (each for each in earlier if claim.allocation - each.allocation <= FORGETS_AFTER)
        then = {each.node: each.times for each in late}
        old = [each for each in earlier if each.node not in then]
        now = {each.node: each.times for each in claim.lost_nodes}
        members = before.members if before is not None else ()
        for node, times in now.items():
            is_so = times == then.get(node, 0) or (times == then.get(node, 0) + 1 and node in members)
            is_so = is_so or any((each.node, each.times) == (node, times) for each in old)
            require(is_so, f"{what} says that {node} was lost {times} times, after {then.get(node, 0)}")
        require(len(now) <= MOST_LOST, f"{what} names {len(now)} lost nodes")
        is_full = len(now) == MOST_LOST
        require(is_full or then.keys() <= now.keys(), f"{what} has forgotten the losses of {then.keys() - now.keys()}")

    def _check_success(self, agent: Agent, record: NodeResult, what: str) -> None:
        """Whose workers had all exited 0 has succeeded, also if a stop came before its head heard of it.

        Only a TERM from outside, or one that is coming, makes that doubtful: they may have exited 0 for that.
        """
        before = self._run.disk.node_results.get((record.attempt, record.node))
        if before is None or before.state is not WorkerState.SUCCEEDED or record.state is not WorkerState.STOPPED:
            return
        is_doubtful = agent.member._is_terminated or agent.member._expects_term
        require(is_doubtful, f"{what} was of a success")

    def records(self, agent: Agent, record: NodeResult) -> None:
        """A node's part in an attempt is on disk, as this agent has written it."""
        what = f"the record of {record.node} in attempt {record.attempt} ({record.state.value})"
        require(record.run == self._run.plan.run and bool(record.reason), f"{what} says neither which run nor why")
        now = utc_text(self._run.clock.now + SOON_S)
        times = (record.started, record.ended or record.started, now)
        require(tuple(sorted(times)) == times, f"{what} has the times {times[:2]}, at {now}")
        expected = {str(rank): PIDS + rank for rank in record.ranks}
        has_processes = record.state in (WorkerState.HEALTHY, WorkerState.SUCCEEDED)
        was_known = (record.attempt, record.node) in self._run.disk.node_results
        is_so = record.pids == expected or (not record.pids and not has_processes and not was_known)
        require(is_so or record.state is not WorkerState.HEALTHY, f"{what} has the process ids {record.pids}")
        self._check_success(agent, record, what)
        for rank, failure in record.failures.items():
            told = str(failure.rank), failure.node, failure.attempt, failure.role
            truth = rank, record.node, record.attempt, record.role
            require(told == truth, f"{what} has the failure {told} as that of {truth}")
            local_rank = record.ranks.index(failure.rank) if failure.rank in record.ranks else -1
            require(failure.local_rank == local_rank, f"{what} says that rank {rank} is local rank {local_rank}")
            has_pid = failure.pid in (0, PIDS + failure.rank)
            require(has_pid, f"{what} says that rank {rank} was process {failure.pid}")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        run, claim = self._run, self._run.disk.latest_claim
        what = f"the result ({result.reason})"
        require(result.run == run.plan.run, f"{what} is that of run {result.run!r}")
        now = utc_text(run.clock.now + SOON_S)
        times = (result.started or result.ended, result.ended, now)
        require(tuple(sorted(times)) == times, f"{what} has the times {times[:2]}, at {now}")
        for rank, failure in result.failures.items():
            require(rank == str(failure.rank), f"{what} has the failure of rank {failure.rank} as that of {rank}")
            has_ended = any((each.node, each.rank) == (failure.node, failure.rank) for each in run.witness.incidents)
            has_ended |= run.wrapped.is_inside(failure.attempt, failure.rank)
            is_ignored = run.scenario.role(failure.role).restart == "ignore"  # of these the witness keeps no list
            is_known = has_ended or is_ignored or bool(run.witness.kinds) or bool(run.witness.unkillable)
            require(is_known, f"{what} has a failure of rank {rank} on {failure.node}, and there was none")
        if claim is not None and not run.earlier:
            require(result.attempts <= claim.attempt, f"{what} is of attempt {result.attempts}, of {claim.attempt}")
        cause = result.root_cause
        if cause is not None and claim is not None:
            self._check_places(what, cause, claim.attempt)
        is_about_failure = run.silent_ends.is_of_failure(result.reason)
        require(not is_about_failure or cause is not None, f"{what} names no cause")
        if cause is not None and is_about_failure:
            require(
                bool(cause.line) and cause.line in result.cause, f"{what} says {result.cause!r}, not {cause.line!r}"
            )
