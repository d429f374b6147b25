"""What a head does as soon as it has lost a node that may live: the other may go on without it, and take its place.

Its own node's workers are killed within a moment, by its guard if it is frozen itself; each member is told once to
kill its own; and as long as the node is lost, nothing that the records say of ranks is about those on it: nobody knows
what they do. That an agent has ended while its node lived is said of those alone whose kernel has told so, and where
the head itself stood still, no attempt is said to come because of others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.messages import Join, Stop, StopManner
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import AttemptClaim, RootCause, RunResultRecord
from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import FENCES_S, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

EXACT_S = 1e-6
DEAD, SILENT, ASLEEP = "its agent is dead", "it may live", "the head stood still"
RESUMED = "enough nodes are back"  # for want of nodes, whose loss counts then, the run was to end before
AGENT_LOST, LOST = "agent_lost", ("node_lost", "agent_lost")  # classes of causes
ENDED = HeadPhase.CLOSING, HeadPhase.OVER


class Fences:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._lost: dict[Any, set[str]] = {}  # by head: who is lost, and not back
        self._stopped: dict[Any, set[str]] = {}  # by head: who of them had told before how all its ranks had ended
        self._how: dict[tuple[Any, str], str] = {}  # by head and node, at last
        self._hows: defaultdict[tuple[Any, str], set[str]] = defaultdict(set)  # in the latest attempt, each time
        self._woke_at: dict[Any, float] = {}
        self._told: Counter[tuple[object, str, Stop]] = Counter()

    def leads(self, agent: Agent, head: Any) -> None:
        """An agent has a head: from now on it is seen whom it loses."""
        loses, joined = head._lose, head.joined
        lost = self._lost[head] = set()
        stopped = self._stopped[head] = set()

        def lose(node: str, why: str, now: float, *, is_gone: bool, may_return: bool) -> Any:
            was_there, before = head._roster.get(node) is not None, head.fence_deadline()
            member = head._roster.get(node)
            if member is not None and all(member is not each for each in head._roster.unstopped.of()):
                stopped.add(node)
            done = loses(node, why, now, is_gone=is_gone, may_return=may_return)
            if was_there:
                lost.add(node)
                self._how[head, node] = self._finds(head, now, is_gone=is_gone, may_return=may_return)
                self._hows[head, node].add(self._how[head, node])
                if may_return or not is_gone:
                    self._check_deadline(agent, head, node, now, before, is_goodbye=may_return)
            return done

        def joins(join: Join, now: float) -> Any:
            lost.discard(join.node)
            stopped.discard(join.node)
            return joined(join, now)

        head._lose, head.joined = lose, joins

    def _finds(self, head: Any, now: float, *, is_gone: bool, may_return: bool) -> str:
        """How a head has lost a node; one that says goodbye as the head wakes up has stood still as it did."""
        if may_return and not is_gone:
            self._woke_at[head] = now
        if may_return and now < self._woke_at.get(head, -NEVER) + self._run.scenario.lease_s / 2:
            return ASLEEP
        return DEAD if is_gone and not may_return else SILENT

    def _check_deadline(
        self, agent: Agent, head: Any, node: str, now: float, before: float, *, is_goodbye: bool
    ) -> None:
        """The workers beside a head that has lost a member of its world are killed, and not before it can do so."""
        claim = self._run.disk.latest_claim
        if claim is None or claim.head != agent.name or node not in claim.members or head.phase in ENDED:
            return
        if not agent.workers.alive:
            return
        left_s, what = head.fence_deadline() - now, f"{agent.name} has lost {node}, which may live"
        require(left_s <= FENCES_S + EXACT_S, f"{what}, and its own workers may run for {left_s:.3f} s")
        least_s = min(before - now, FENCES_S)
        is_so = not is_goodbye or left_s >= least_s - EXACT_S or agent.process.has_ever_frozen
        require(is_so, f"{what}, and has {left_s:.3f} s to kill its own workers, not {least_s:.3f}")

    def searches(self, agent: Agent) -> None:
        """A member has lost its head: what that knows of the member's contact, it counts its own lease from.

        Were it later than the contact, another one could succeed while this head's workers run.
        """
        head = agent.member._allegiance.head
        if head == agent.name:  # there is no lease
            return
        contact = agent.clock.moment_of(agent.member._lease.contact)
        for other in self._run.everybody:
            if (other.name, other.start_number) != (head, agent.start_number) or other.headquarters is None:
                continue
            entry = other.headquarters._head._roster.get(agent.name)
            acked = -NEVER if entry is None else other.clock.moment_of(entry.lease.acked)
            what = f"{agent.name} has heard {head} at {contact:.3f} s at last"
            require(acked <= contact + EXACT_S, f"{what}, and that takes it for {acked:.3f} s")

    def tells(self, agent: Agent, head: Any, node: str, stop: Stop) -> None:
        """A head tells a member to stop its workers.

        Ranks that save may go on only if nobody else can: a node that is silent may have gone on with others, if these
        are enough.
        """
        claim, others = self._run.disk.latest_claim, self._run.scenario.nodes - len(head._roster)
        are_enough = others >= self._run.scenario.min_nodes
        if are_enough and stop.manner is StopManner.LOSS and claim is not None and claim.head == agent.name:
            lost = self._lost[head] & set(claim.members)
            silent = sorted(each for each in lost if self._how.get((head, each)) == SILENT)
            require(not silent, f"{agent.name} lets ranks save on {node}, and {silent} may live, which it has lost")
        if stop.manner is StopManner.FENCE:
            self._told[head, node, stop] += 1
            is_first = self._told[head, node, stop] == 1
            require(is_first, f"{agent.name} tells {node} again to kill its workers: {stop.reason}")

    def claims(self, agent: Agent, head: Any, claim: AttemptClaim) -> None:
        """A head wants to open an attempt, and says why; it does not if another one has opened it."""
        hows = {node: how for (other, node), how in self._hows.items() if other is head}
        for node in hows:
            del self._hows[head, node]
        cause = claim.root_cause
        if cause is None or claim.reason == RESUMED or claim.attempt in self._run.disk.claims:
            return
        self._check_class(agent, hows, cause)
        # A successor names whom it goes on without, once these have had a moment to find it again.
        latest, returned_by = (
            self._run.disk.latest_claim,
            self._woke_at.get(head, -NEVER) + self._run.scenario.lease_s / 2,
        )
        is_successors = latest is not None and latest.head != agent.name and agent.now >= returned_by
        if cause.failure_class in LOST and not is_successors:
            named = {cause.node, *cause.nodes}
            asleep = sorted(node for node in named if hows.get(node) == {ASLEEP})
            what = f"{agent.name} names {sorted(named)} as the cause of attempt {claim.attempt}"
            require(not asleep, f"{what}, and {asleep} were silent while it stood still itself")

    def _check_class(self, agent: Agent, hows: Mapping[str, set[str]], cause: RootCause) -> None:
        """Whether a node is to be looked at, or the end of its agent's output, which people read out of the class.

        One that was lost, came back and was lost again may be named for the first time.
        """
        if cause.failure_class != AGENT_LOST or " lost: " not in cause.line:
            return
        silent = [node for node in {cause.node, *cause.nodes} if DEAD not in hows.get(node, {DEAD})]
        require(
            not silent, f"{agent.name} says that the agents of {silent} have ended, and they may live: {cause.line}"
        )

    def decides(self, agent: Agent, head: Any, result: RunResultRecord) -> None:
        """A head wants to end the run: what its ranks did is said of those alone that it can know it of."""
        cause, world = result.root_cause, self._run.disk.latest
        if cause is not None:
            hows = {node: how for (other, node), how in self._hows.items() if other is head}
            self._check_class(agent, hows, cause)
        if cause is None or not cause.silent or world is None or world.head != agent.name:
            return
        silent = {*parse_ranks(cause.silent)}
        lost = self._lost[head] - self._stopped[head]
        unknown = [rank.rank for rank in world.ranks if rank.rank in silent and rank.node in lost]
        require(not unknown, f"the result says that ranks {unknown} had not failed, and their nodes are lost")
