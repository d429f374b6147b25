"""The search of an agent without a head: find the present head, gather the other members, or wait to be taken in.

Theory of operation. The agent reads the run directory again and again: a result means that the run is over;
else the latest claim says which node is head and which nodes its world has.

    SEARCHING --no head answers, and it is this node's turn--> GATHERING (a member of that world only)
    GATHERING --a head answers, or a member that gathers too and comes earlier in the order of succession-->
                                                                SEARCHING, and this agent joins the one that answered
    GATHERING --the round is closed--> CLAIMING
    CLAIMING  --another agent has claimed the attempt--> SEARCHING

Where no attempt was claimed yet in this allocation, there is no world to carry on: then the nodes of
the step claim the next allocation, in their order, and gather as a first head does.

An agent that gathers is a Head, which the others join as they join any other head; `gathering` says when it may
close its round. The members of the latest claimed world gather, so that each claim follows from the one before.
Every other agent dials them and waits to be taken in, for `join_timeout`. A spare, which was a member of that world's
head without a part in the world, gathers after all members, if that head is known to be dead: its kernel has closed
the connection, and has refused another one since. No member has had an answer since, so each has fenced when a round
closes without it. If the head is only silent, it may be at work with members that this agent does not reach, and the
head loses no lease by the silence of a spare. An agent that cannot read the run directory only tries to read it again:
it could not claim an attempt either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave, Log
from hpc_elastic.membership.job_end import is_left_to_readers
from hpc_elastic.membership.messages import Elsewhere
from hpc_elastic.membership.succession import LostHead, Order, Records, Succession, order_of, order_of_succession
from hpc_elastic.membership.timing import (
    ANSWERS_WITHIN_S,
    DIAL_PAUSES_S,
    EARLY_TURNS,
    GATHERS_AFTER_S,
    LONGEST_ANSWER_S,
    MOST_DOUBLINGS,
    MOST_SPARES,
    READS_EVERY_S,
    ROUND_TRIPS,
    TURNS_AHEAD,
    TURNS_TO_ASK,
)
from hpc_elastic.rundir.allocation_ends import describe_reason
from hpc_elastic.rundir.records import Endpoint, RunResultRecord, World

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Read the run directory, then call `read`, or `read_failed`.

    `needs_world`: the whole roster too, and whether its work is done. Without it they may be left out where the claim
    itself says whom to ask: the roster of 4,096 nodes has 2 MB, and all of them would read it in the same second.
    """

    needs_world: bool = False


DEAD_HEAD_ROUNDS = 4  # of which a member asks a head that counts as dead in one

# Two sides of a partition, neither of which has enough nodes for a first attempt, would each take the other's claim for
# the reason to go on, and nobody would end the run.
MOST_CLAIMS = 8
CLAIMED_IN_VAIN = f"this node has been head {MOST_CLAIMS} times, and never did enough nodes join for a first attempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Ask the agent of a node to be its member, then call `answered` when it has said Welcome, else `not_answered`.

    `within_s`: how long it may take to accept the connection; `answer_s`: to answer the join then.
    """

    node: str
    agent: Endpoint
    within_s: float
    answer_s: float = LONGEST_ANSWER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Be a head that gathers members; call `claiming` once it claims the attempt, `superseded` if another head did."""

    succession: Succession


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """Claim the allocation that follows `after`, and be its head if the claim succeeds; else call `superseded`.

    `lost`: the head that this agent has lost.
    """

    after: int
    lost: LostHead


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """Stop being a head, and tell the agents that have joined to look for another one."""

    reason: str


DiscoveryAction = ReadRecords | Dial | Gather | ClaimAllocation | StepDown | Leave | Log


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """The values that stay the same during one search.

    `claims_left`: how often this agent may still claim an allocation that has no attempt. `can_end_job`: it has had an
    answer from Slurm at its start. `asks_again_s`: for how long it asks a head that fell silent before the first
    attempt, until it claims in the place of that one.
    """

    node: str
    join_timeout_s: float
    claims_left: int = MOST_CLAIMS
    can_end_job: bool = False
    asks_again_s: float = 0.0


class DiscoveryPhase(str, Enum):
    """Where the search stands; the module's docstring has the transitions."""

    SEARCHING = "searching"
    GATHERING = "gathering"
    CLAIMING = "claiming"
    OVER = "over"


class HeadDiscovery:
    """One search for a head, from the loss of the last one until this agent has a head again, or leaves.

    Args:
        settings: the values that stay the same during the search.
        lost: the head that is lost.
        now: monotonic seconds, as in every method.
    """

    def __init__(self, settings: DiscoverySettings, lost: LostHead, now: float) -> None:
        self._settings = settings
        self._lost = lost
        self.phase = DiscoveryPhase.SEARCHING
        self._records: Records | None = None
        self._order: Order | None = None  # of the claim in `_records`
        self._reads_world: bool  # the whole roster, with the reading that is under way
        self._claims = 0  # of allocations, during this search
        self._gives_up_at = now + settings.join_timeout_s
        self._reading_since, self._read_took_s = now, 0.0
        self._read_at = now
        self._is_reading = False
        self._asked: set[str] = set()  # dialled in this round
        self._dialling = ""  # the node that is being dialled, "" if none is
        self._silent: list[str] = []  # nodes that gave no answer at all, in the order to redial them
        self._begin_rounds(now)

    def _begin_rounds(self, now: float) -> None:
        """Forget what was found out under the claim before this one."""
        self._began = self._dial_at = now
        self._dialled: list[tuple[str, Endpoint]] = []  # still to be dialled in this round
        self._rounds = 0
        self._needs_world = False  # the whole roster, with the next reading
        self._is_refused = False  # the machine of the latest claim's head has said that nobody listens there

    def next_tick(self) -> float:
        """Return when `tick` must be called at the latest, in monotonic seconds."""
        if self.phase in (DiscoveryPhase.CLAIMING, DiscoveryPhase.OVER):
            return NEVER
        times = [self._gives_up_at if self.phase is DiscoveryPhase.SEARCHING else NEVER]
        if not self._is_reading:
            times.append(self._read_at)
        if self._records is not None and not self._dialling:
            times.append(self._dial_at)
        if self.phase is DiscoveryPhase.SEARCHING and not (self._needs_world and self._lacks_roster()):
            times.append(self._gathers_at())
        return min(times)

    def tick(self, now: float) -> list[DiscoveryAction]:
        """Return the actions that are due at the time `now`."""
        if self.phase in (DiscoveryPhase.CLAIMING, DiscoveryPhase.OVER):
            return []
        actions: list[DiscoveryAction] = []
        if self.phase is DiscoveryPhase.SEARCHING and now >= self._gives_up_at:
            return self._leave(f"{self._loss()}; nobody has taken its place within join_timeout, or invited this node")
        is_its_turn = self.phase is DiscoveryPhase.SEARCHING and now >= self._gathers_at()
        if is_its_turn and self._lacks_roster() and not self._needs_world:
            self._needs_world, self._read_at = True, now
        if now >= self._read_at and not self._is_reading:
            self._is_reading, self._reads_world, self._reading_since = True, self._needs_world, now
            actions.append(ReadRecords(needs_world=self._needs_world))
        if is_its_turn and not self._lacks_roster():
            if self._claims >= self._settings.claims_left and self._records is not None and self._records.world is None:
                return self._leave(CLAIMED_IN_VAIN, int(ExitCode.NODES_MISSING))
            actions.append(self._gather())
        return actions + self._dial(now)

    def _lacks_roster(self) -> bool:
        """Return whether the whole roster must be read before this node can gather; it is read only in its turn."""
        records = self._records
        return records is not None and records.claim is not None and records.world is None

    def read(self, records: Records, now: float) -> list[DiscoveryAction]:
        """Take in what the run directory says now."""
        self._is_reading = False
        # The half of the one before: one quick answer does not make the disk a quick one, nor one pause it a slow one.
        self._read_took_s = max(now - self._reading_since, self._read_took_s / 2)
        self._read_at = now + (READS_EVERY_S if self._reads_world or not self._needs_world else 0.0)
        if self.phase in (DiscoveryPhase.CLAIMING, DiscoveryPhase.OVER):
            return []
        before, self._records = self._records, records
        if before is None or (before.claim, before.world) != (records.claim, records.world):
            self._order = order_of(records, self._lost.spares)
        if records.result is not None:
            return [*self._step_down("the run is over"), *self._leave_at(records.result)]
        if records.started_again is not None:
            cause = f"the job has started again: allocation {records.started_again}"
            return [*self._step_down(cause), *self._leave(cause, int(ExitCode.REQUEUE))]
        if records.left_for:
            cause = describe_left(records.left_for)
            return [*self._step_down(cause), *self._leave(cause, int(ExitCode.REQUEUE))]
        if before is not None and (before.first, before.claim) == (records.first, records.claim):
            return self.tick(now)
        self._begin_rounds(now)
        reason = f"{records.claim.head} has opened attempt {records.claim.attempt}" if records.claim else ""
        return [*self._step_down(reason), *self.tick(now)]

    def read_failed(self, error: str, now: float) -> list[DiscoveryAction]:
        """Plan another reading of the run directory, because this one failed."""
        self._is_reading = False
        self._read_at = now + READS_EVERY_S
        if self._records is not None and self._records.result is not None:  # the roster is not worth waiting for
            return self._leave(self._records.result.cause, self._records.result.exit_code)
        return [Log(text=f"{error}; trying again", level="warning")]

    def answered(self) -> list[DiscoveryAction]:
        """End the search: the agent that was dialled has taken this one in.

        If this agent is about to claim the attempt itself, the search goes on: then `phase` is not OVER, and the
        caller must close the connection.
        """
        self._dialling = ""
        if self.phase is DiscoveryPhase.CLAIMING:
            return []
        actions = self._step_down("another agent gathers the members, or is head")
        self.phase = DiscoveryPhase.OVER
        return actions

    def not_answered(
        self, now: float, *, is_silent: bool = False, is_refused: bool = False, elsewhere: Elsewhere | None = None
    ) -> list[DiscoveryAction]:
        """Go on with the search: the agent that was dialled is no head, or cannot be reached.

        Args:
            now: monotonic seconds.
            is_silent: no answer came, and at least half the time for one had passed.
            is_refused: the agent's machine has answered that nobody listens there, so the agent has ended.
            elsewhere: the address of the head that the dialled agent itself follows, if it named one.
        """
        node, self._dialling = self._dialling, ""
        if is_refused and self._order is not None and node == self._order.head:
            self._is_refused = True
        if node in self._silent:
            self._silent.remove(node)
        if is_silent:
            self._silent.append(node)
        if elsewhere is not None and self._may_follow(elsewhere.node):
            left = [each for each in self._dialled if each[0] != elsewhere.node]
            self._dialled = [(elsewhere.node, elsewhere.agent), *left]
            self._dial_at = now
        return self.tick(now)

    def claiming(self) -> None:
        """Stop dialling other agents, because this agent, as head, claims the next attempt now."""
        if self.phase is DiscoveryPhase.GATHERING:
            self.phase = DiscoveryPhase.CLAIMING
            self._dialled = []

    def superseded(self, now: float) -> list[DiscoveryAction]:
        """Search again: another agent has claimed the attempt, and the run directory says which."""
        self.phase = DiscoveryPhase.SEARCHING
        self._records = self._order = None
        self._gives_up_at = now + self._settings.join_timeout_s
        self._read_at = now
        return self.tick(now)

    # Steps.

    def _gather(self) -> DiscoveryAction:
        records, lost = self._records, self._lost
        if records is None or records.world is None:
            self.phase = DiscoveryPhase.CLAIMING
            self._claims += 1
            first = records.first if records is not None else None
            return ClaimAllocation(after=first.allocation if first is not None else 0, lost=lost)
        self.phase = DiscoveryPhase.GATHERING
        if lost.node != records.world.head:
            # This agent has never heard the head of the latest claim: that head's silence counts from now.
            lost = LostHead(node=records.world.head, contact=self._began, is_dead=False, why="it does not answer")
        elif lost.attempt != _attempt_of(records.world, self._settings.node):
            # The head opened a later attempt without a word to this node, and may count it as a member since then: an
            # old request to join may have reached the head late.
            lost = replace(lost, contact=self._began)
        if is_spare := all(node.node != self._settings.node for node in records.world.nodes):
            lost = replace(lost, contact=self._began)  # members may have heard the head after its last word to a spare
        return Gather(
            succession=Succession(lost=lost, world=records.world, is_finished=records.is_finished, is_spare=is_spare)
        )

    def _gathers_at(self) -> float:
        """Return when it is this node's turn to gather, after the time of each node before it.

        It is never the turn of a node that may not gather.
        """
        if self._records is None or not self._may_be_headless():
            return NEVER
        turn = _turn(self._records, self._order, self._settings.node, self._lost)
        if turn is None:
            return NEVER
        if self._order is not None:
            return self._began + GATHERS_AFTER_S * turn
        asks_s = 0.0
        if self._is_news_of_another_head():
            turn += TURNS_TO_ASK
        elif not self._lost.is_dead:  # perhaps this node stood still, or its link did, and no other
            asks_s = self._settings.asks_again_s
        elif self._lost.node is not None:  # or its connection was reset, and it answers at once
            asks_s = GATHERS_AFTER_S
        # On a disk that answers later than a turn all nodes would claim before they see each other's claims, again and
        # again.
        turns_s = max(GATHERS_AFTER_S * turn, min(turn * self._read_took_s, self._settings.join_timeout_s / 2))
        return self._began + asks_s + turns_s

    def _may_be_headless(self) -> bool:
        """Return whether the latest claim's head may be gone, by what its machine has told a spare.

        Before the first attempt, who has never had the head that relieves another one waits until it does, or is dead.

        A connection may be reset while the head lives, and by the loss of a spare a head loses no lease: it may have
        opened the latest attempt since, without this node. So a spare waits for the answer that nobody listens there;
        an answer that is only late is none.
        """
        order = self._order
        if order is None and self._records is not None and self._records.first is not None:
            # The side that most nodes cannot reach would claim in turns with the other one, and neither go on.
            return not self._records.first.relieves or self._lost.node == self._records.first.node
        if order is None or self._settings.node in order.members or order.head not in order.agents:
            return True
        return self._is_refused

    def _is_news_of_another_head(self) -> bool:
        """Return whether another node than the lost head has claimed the allocation, which has opened no attempt yet.

        It is asked first: if each agent that it has superseded claimed the next allocation at once, they would
        supersede each other for ever.
        """
        first = self._records.first if self._records is not None else None
        return first is not None and self._lost.node not in (None, first.node) and first.node != self._settings.node

    def _dial(self, now: float) -> list[DiscoveryAction]:
        """Dial the next agent in the order of the round; one at a time, so that this node joins only one."""
        if self._records is None or self._dialling or now < self._dial_at:
            return []
        if not self._dialled:
            self._dialled = self._candidates(self._records, now)
            self._asked.clear()
            self._rounds += 1
        if not self._dialled:
            self._dial_at = now + DIAL_PAUSES_S[-1]
            return []
        before = max(0, self._rounds - 1)  # an agent that another one has named may be asked before the first round
        (node, agent), *self._dialled = self._dialled
        self._dialling = node
        self._asked.add(node)
        if not self._dialled:
            self._dial_at = now + DIAL_PAUSES_S[min(before, len(DIAL_PAUSES_S) - 1)]
        is_slow = self._lost.round_trip_s * ROUND_TRIPS > ANSWERS_WITHIN_S
        within_s = ANSWERS_WITHIN_S * 2 ** min(before // 4 + is_slow, MOST_DOUBLINGS)
        return [Dial(node=node, agent=agent, within_s=within_s)]

    def _may_follow(self, node: str) -> bool:
        """Return whether to dial a node that the dialled agent has named as its head.

        An agent that gathers follows only to a node before it in the order of succession, or to the head: else two
        agents that gather could each step down in favour of the other.
        """
        if self._records is None or node == self._settings.node or node in self._asked:
            return False
        if self.phase is not DiscoveryPhase.GATHERING:
            return self.phase is DiscoveryPhase.SEARCHING
        order = self._order
        return order is not None and (node == order.head or node in self._comes_before(order))

    def _comes_before(self, order: Order) -> tuple[str, ...]:
        """Return the nodes whose turn to gather comes before this node's."""
        own = self._settings.node
        if own in order.members:
            return order.before(own)
        return order.turns + _spares_before(order, own, may_gather=True)

    def _candidates(self, records: Records, now: float) -> list[tuple[str, Endpoint]]:
        """Return the nodes to dial in one round: those that may gather in this node's place, and the head itself.

        A head that is lost comes last, and only from the second round on: it may be back, but if it is not,
        waiting for its answer takes time. It is dialled even if it counts as dead, by a spare at once: a connection may
        have been reset while it lives, and it opens no attempt while its members save. A dead agent's kernel refuses,
        so members ask it in every fourth round only, lest a thousand of them dial it in vain all the time.
        """
        order, own, lost = self._order, self._settings.node, self._lost
        if order is None:
            first = records.first
            if first is None:
                return []
            is_dead = lost.is_dead and lost.node in (None, first.node)
            if first.node == own or (is_dead and (lost.node is None or self._rounds % DEAD_HEAD_ROUNDS)):
                return []
            return [(first.node, first.head)]
        is_member = own in order.members
        asked = self._near(order.before(own) if is_member else order.turns, now)
        if not is_member:
            spares = _spares_before(order, own, may_gather=_may_succeed(lost, order))
            asked += self._near([spare for spare in spares if spare in order.agents], now)
        if lost.node != order.head or (lost.is_dead and not is_member):
            asked.insert(0, order.head)
        elif self._rounds and (not lost.is_dead or self._rounds % DEAD_HEAD_ROUNDS == 1):
            asked.append(order.head)
        return [(node, order.agents[node]) for node in asked if node != own and node in order.agents]

    def _near(self, turns: Sequence[str], now: float) -> list[str]:
        """Return the nodes of `turns` whose turn may have come, and one of those that gave no answer before.

        An agent that gives no answer is most likely dead, and each try costs the whole time that it has to answer. In
        a large world those whose own turn comes late dial one at first: thousands ask, and whoever has found the agent
        that gathers names it to the next.
        """
        ahead = TURNS_AHEAD if len(turns) < EARLY_TURNS else 1
        near = int((now - self._began) / GATHERS_AFTER_S) + ahead
        # Nodes of an earlier world may be among the silent ones, and are asked no more.
        again = [node for node in self._silent if node in turns][:1]
        return [node for node in turns if node not in self._silent][:near] + again

    def _step_down(self, reason: str) -> list[DiscoveryAction]:
        if self.phase is not DiscoveryPhase.GATHERING:
            return []
        self.phase = DiscoveryPhase.SEARCHING
        return [StepDown(reason=reason)]

    def _leave_at(self, result: RunResultRecord) -> list[DiscoveryAction]:
        """Leave as the result says; who could end the Slurm job reads first whether somebody has to."""
        records, lost, ends_job = self._records, self._lost, False
        if self._settings.can_end_job and records is not None:
            if self._lacks_roster() and not self._reads_world:
                self._is_reading = self._reads_world = True
                return [ReadRecords(needs_world=True)]
            if records.world is not None:
                attempt = _attempt_of(records.world, self._settings.node)
                is_spare = any(spare.node == self._settings.node for spare in records.world.spares)
                was_there = lost.node == records.world.head and (is_spare or 0 < lost.attempt == attempt)
                ends_job = is_left_to_readers(result, records.world, lost, was_there=was_there)
        return self._leave(result.cause, result.exit_code, ends_job=ends_job)

    def _leave(
        self, cause: str, exit_code: int = int(ExitCode.NODE_LOST), *, ends_job: bool = False
    ) -> list[DiscoveryAction]:
        self.phase = DiscoveryPhase.OVER
        return [Leave(exit_code=exit_code, cause=cause, ends_job=ends_job)]

    def _loss(self) -> str:
        return f"{self._lost.node or 'the head'} was lost: {self._lost.why}"


def describe_left(reason: str) -> str:
    """Return why an agent leaves whose head has left for this reason before the first attempt."""
    return f"the head has left: {describe_reason(reason)}; the job is started again"


def _attempt_of(world: World, node: str) -> int:
    """Return the attempt that a member's workers belong to; 0 for a node that is not a member of the world."""
    role = next((each.role for each in world.nodes if each.node == node), None)
    return next((each.attempt for each in world.roles if each.role == role), 0)


def _may_succeed(lost: LostHead, order: Order) -> bool:
    """Return whether a spare that has lost this head may gather, once no member does: its head is dead for certain."""
    return lost.is_dead and lost.node == order.head


def _spares_before(order: Order, node: str, *, may_gather: bool) -> tuple[str, ...]:
    """Return the spares that a spare dials: those before it, or, if it may not gather itself, all others."""
    spares = order.spares
    if node not in spares:
        return spares
    return spares[: spares.index(node)] if may_gather else tuple(spare for spare in spares if spare != node)


def _turn_of_spare(order: Order, node: str) -> int | None:
    """Return how many turns come before that of a node that is not in the world.

    All members come first, the head among them, and after `MOST_SPARES` turns the spares do: a round that a spare opens
    too early is closed as soon as it finds a member. The head's turn is there for the spare to ask it: the connection
    may have been reset while the head lives, and nobody else may be left who would say so.
    """
    spares = order.spares
    return min(order.others + 1, MOST_SPARES) + spares.index(node) if node in spares else None


def _turn(records: Records, order: Order | None, node: str, lost: LostHead) -> int | None:
    """Return how many nodes may gather before this node; None if this node may not gather at all.

    For a member that the claim does not name it is the number of those that it does: then this node reads the roster,
    and knows its turn.
    """
    if records.first is None:
        return None
    if order is None:
        # The allocation's head comes last: an agent of an earlier start of the job may have superseded it with one
        # last claim.
        nodes = order_of_succession([name for name in records.first.nodes if name != records.first.node])
        nodes.append(records.first.node)
        return nodes.index(node) if node in nodes else None
    if node in order.members:
        return len(order.before(node))
    return _turn_of_spare(order, node) if _may_succeed(lost, order) else None
