"""An agent without a head: finds the one there is, gathers the others, or waits to be invited.

Theory of operation. It asks the run directory again and again: a result means that the run is over; else
the latest claim says who the head is and which nodes its world has.

    SEARCHING --nobody answers, and it is this node's turn--> GATHERING (a member of that world only)
    GATHERING --a head, or a member of lower order that gathers too, answers--> SEARCHING, and joined there
    GATHERING --the round is closed--> CLAIMING
    CLAIMING  --another one has claimed the attempt--> SEARCHING

Where no attempt was claimed yet in this allocation, there is no world to carry on: then the nodes of
the step claim the next allocation, in their order, and gather as a first head does.

Who gathers is a Head, to which the others join as to any other; `gathering` says when it may close its
round. Only members of the latest claimed world gather, so that each claim follows from the one before;
everybody else dials them and waits to be invited, for `join_timeout`. Who cannot read the run directory
does nothing but try again: it could not claim either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave, Log
from hpc_elastic.membership.messages import Elsewhere
from hpc_elastic.membership.succession import LostHead, Records, Succession, order_of_succession
from hpc_elastic.membership.timing import (
    ANSWERS_WITHIN_S,
    FIRST_PAUSE_S,
    GATHERS_AFTER_S,
    LONGEST_ANSWER_S,
    LONGEST_PAUSE_S,
    READS_EVERY_S,
    TURNS_AHEAD,
)
from hpc_elastic.rundir.records import Endpoint, World

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Read the run directory, then call `read`, or `read_failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Ask to join the agent there, then call `answered` when it has said Welcome, else `not_answered`."""

    node: str
    agent: Endpoint
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Be a head that gathers members; call `claiming` once it claims, and `superseded` if another one did."""

    succession: Succession


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """Claim the allocation after this number, and be its head if it is ours; else call `superseded`."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """Be a head no more: those who have joined are to look elsewhere."""

    reason: str


DiscoveryAction = ReadRecords | Dial | Gather | ClaimAllocation | StepDown | Leave | Log


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """What does not change while an agent seeks."""

    node: str
    join_timeout_s: float


class Phase(str, Enum):
    """Where the search stands; the module's docstring has the transitions."""

    SEARCHING = "searching"
    GATHERING = "gathering"
    CLAIMING = "claiming"
    OVER = "over"


class HeadDiscovery:
    """One search, from the loss of a head until there is one, or this agent leaves.

    Args:
        settings: what does not change.
        lost: the head that is lost.
        now: monotonic seconds, as in every method.
    """

    def __init__(self, settings: DiscoverySettings, lost: LostHead, now: float) -> None:
        self._settings = settings
        self._lost = lost
        self.phase = Phase.SEARCHING
        self._records: Records | None = None
        self._began = now
        self._gives_up_at = now + settings.join_timeout_s
        self._read_at = now
        self._is_reading = False
        self._dialled: list[tuple[str, Endpoint]] = []  # who is left of this round
        self._asked: set[str] = set()  # in this round
        self._dialling = ""
        self._silent: list[str] = []  # who has not answered, neither yes nor no; the one to be asked next comes first
        self._is_dialling = False
        self._rounds = 0
        self._dial_at = now

    def next_tick(self) -> float:
        """When `tick` must be called at the latest, in monotonic seconds."""
        if self.phase in (Phase.CLAIMING, Phase.OVER):
            return NEVER
        times = [self._gives_up_at if self.phase is Phase.SEARCHING else NEVER]
        if not self._is_reading:
            times.append(self._read_at)
        if self._records is not None and not self._is_dialling:
            times.append(self._dial_at)
        if self.phase is Phase.SEARCHING:
            times.append(self._gathers_at())
        return min(times)

    def tick(self, now: float) -> list[DiscoveryAction]:
        """Time has passed."""
        if self.phase in (Phase.CLAIMING, Phase.OVER):
            return []
        actions: list[DiscoveryAction] = []
        if self.phase is Phase.SEARCHING and now >= self._gives_up_at:
            return self._leave(f"{self._loss()}; nobody has taken its place within join_timeout, or invited this node")
        if now >= self._read_at and not self._is_reading:
            self._is_reading = True
            actions.append(ReadRecords())
        if self.phase is Phase.SEARCHING and now >= self._gathers_at():
            actions.append(self._gather())
        return actions + self._dial(now)

    def read(self, records: Records, now: float) -> list[DiscoveryAction]:
        """What the run directory says now."""
        self._is_reading = False
        self._read_at = now + READS_EVERY_S
        if self.phase in (Phase.CLAIMING, Phase.OVER):
            return []
        before, self._records = self._records, records
        if records.result is not None:
            return [*self._step_down("the run is over"), *self._leave(records.result.cause, records.result.exit_code)]
        if records.started_again is not None:
            cause = f"the job has started again: allocation {records.started_again}"
            return [*self._step_down(cause), *self._leave(cause, int(ExitCode.REQUEUE))]
        if before is not None and (before.first, before.claim) == (records.first, records.claim):
            return self.tick(now)
        self._dialled, self._rounds, self._dial_at = [], 0, now
        self._began = now
        reason = f"{records.claim.head} has opened attempt {records.claim.attempt}" if records.claim else ""
        return [*self._step_down(reason), *self.tick(now)]

    def read_failed(self, error: str, now: float) -> list[DiscoveryAction]:
        """The run directory cannot be read: it is asked again."""
        self._is_reading = False
        self._read_at = now + READS_EVERY_S
        return [Log(text=f"{error}; trying again", level="warning")]

    def answered(self) -> list[DiscoveryAction]:
        """The agent that was dialled has taken this one in: the search is over.

        Unless this one claims the attempt meanwhile: then `phase` is not OVER, and it must hang up.
        """
        self._is_dialling = False
        if self.phase is Phase.CLAIMING:
            return []
        actions = self._step_down("another agent gathers the members, or is head")
        self.phase = Phase.OVER
        return actions

    def not_answered(
        self, now: float, *, is_silent: bool = False, elsewhere: Elsewhere | None = None
    ) -> list[DiscoveryAction]:
        """The agent that was dialled is no head, or not there.

        Args:
            now: monotonic seconds.
            is_silent: it took its time to say nothing.
            elsewhere: what it says of its own head.
        """
        self._is_dialling = False
        if self._dialling in self._silent:
            self._silent.remove(self._dialling)
        if is_silent:
            self._silent.append(self._dialling)
        if elsewhere is not None and self._may_follow(elsewhere.node):
            left = [each for each in self._dialled if each[0] != elsewhere.node]
            self._dialled = [(elsewhere.node, elsewhere.agent), *left]
            self._dial_at = now
        return self.tick(now)

    def claiming(self) -> None:
        """The head that this agent is claims the next attempt: from now on nobody else is dialled."""
        if self.phase is Phase.GATHERING:
            self.phase = Phase.CLAIMING
            self._dialled = []

    def superseded(self, now: float) -> list[DiscoveryAction]:
        """Another one has claimed the attempt: where, the run directory says."""
        self.phase = Phase.SEARCHING
        self._records = None
        self._gives_up_at = now + self._settings.join_timeout_s
        self._read_at = now
        return self.tick(now)

    # Steps.

    def _gather(self) -> DiscoveryAction:
        records, lost = self._records, self._lost
        if records is None or records.world is None:
            self.phase = Phase.CLAIMING
            first = records.first if records is not None else None
            return ClaimAllocation(after=first.allocation if first is not None else 0)
        self.phase = Phase.GATHERING
        if lost.node != records.world.head:
            # The head of the latest claim is one that this agent has never heard: its silence counts from now.
            lost = LostHead(node=records.world.head, contact=self._began, is_dead=False, why="it does not answer")
        elif lost.attempt != _attempt_of(records.world, self._settings.node):
            # It went on without a word to this node, and may count on it since: it may have got an old question.
            lost = replace(lost, contact=self._began)
        return Gather(succession=Succession(lost=lost, world=records.world, is_finished=records.is_finished))

    def _gathers_at(self) -> float:
        """When it is this node's turn to gather, each one before it having had its time; never for who may not."""
        if self._records is None:
            return NEVER
        turn = _turn(self._records, self._settings.node)
        return NEVER if turn is None else self._began + GATHERS_AFTER_S * turn

    def _dial(self, now: float) -> list[DiscoveryAction]:
        """The next one to ask, in the order of the round; one at a time, so that this node joins but one."""
        if self._records is None or self._is_dialling or now < self._dial_at:
            return []
        if not self._dialled:
            self._dialled = self._candidates(self._records, now)
            self._asked.clear()
            self._rounds += 1
        if not self._dialled:
            self._dial_at = now + LONGEST_PAUSE_S
            return []
        (node, agent), *self._dialled = self._dialled
        self._dialling = node
        self._asked.add(node)
        if not self._dialled:
            pause = FIRST_PAUSE_S * 2 ** min(self._rounds - 1, 10)
            self._dial_at = now + min(LONGEST_PAUSE_S, pause)
        self._is_dialling = True
        within_s = min(LONGEST_ANSWER_S, ANSWERS_WITHIN_S * 2 ** min((self._rounds - 1) // 4, 10))
        return [Dial(node=node, agent=agent, within_s=within_s)]

    def _may_follow(self, node: str) -> bool:
        """Whether to ask a node that another one has named; two that gather must not leave for each other."""
        if self._records is None or node == self._settings.node or node in self._asked:
            return False
        if self.phase is not Phase.GATHERING:
            return self.phase is Phase.SEARCHING
        world = self._records.world
        return world is not None and (node == world.head or node in _before(world, self._settings.node))

    def _candidates(self, records: Records, now: float) -> list[tuple[str, Endpoint]]:
        """Whom to ask in one round: those who may gather in this node's place, and the head itself.

        A head that is lost comes last, and only from the second round on: it may be back, but it
        takes its time to be silent. One that is known dead is not asked.
        """
        world, own, lost = records.world, self._settings.node, self._lost
        if world is None:
            first = records.first
            if first is None:
                return []
            is_dead = lost.is_dead and lost.node in (None, first.node)
            return [] if is_dead or first.node == own else [(first.node, first.head)]
        asked = self._near(_before(world, own) if own in _names(world) else _turns(world), now)
        if lost.node != world.head:
            asked.insert(0, world.head)
        elif self._rounds and not lost.is_dead:
            asked.append(world.head)
        agents = {node.node: node.agent for node in world.nodes}
        return [(node, agents[node]) for node in asked if node != own and node in agents]

    def _near(self, turns: list[str], now: float) -> list[str]:
        """Of those who come before this node the ones whose turn may have come, and of the silent ones one.

        A silent agent is dead, most likely, and costs the time that it has to answer.
        """
        near = int((now - self._began) / GATHERS_AFTER_S) + TURNS_AHEAD
        return [node for node in turns if node not in self._silent][:near] + [
            node for node in turns if node in self._silent[:1]
        ]

    def _step_down(self, reason: str) -> list[DiscoveryAction]:
        if self.phase is not Phase.GATHERING:
            return []
        self.phase = Phase.SEARCHING
        return [StepDown(reason=reason)]

    def _leave(self, cause: str, exit_code: int = int(ExitCode.NODE_LOST)) -> list[DiscoveryAction]:
        self.phase = Phase.OVER
        return [Leave(exit_code=exit_code, cause=cause)]

    def _loss(self) -> str:
        return f"{self._lost.node or 'the head'} was lost: {self._lost.why}"


def _attempt_of(world: World, node: str) -> int:
    """The attempt that a member's workers belong to; 0 of who is none."""
    role = next((each.role for each in world.nodes if each.node == node), None)
    return next((each.attempt for each in world.roles if each.role == role), 0)


def _names(world: World) -> list[str]:
    """The nodes of a world, by node id."""
    return [node.node for node in sorted(world.nodes, key=lambda node: node.node_id)]


def _before(world: World, node: str) -> list[str]:
    """Who gathers before this member, if it can; the head is lost, or, if it is this one, comes before everybody."""
    if node == world.head:
        return []
    names = _turns(world)
    return names[: names.index(node)]


def _turns(world: World) -> list[str]:
    """Who may gather when the head is lost, by turns."""
    return order_of_succession([name for name in _names(world) if name != world.head])


def _turn(records: Records, node: str) -> int | None:
    """How many come before this node; None if it may not gather at all."""
    if records.first is None:
        return None
    if records.world is None:
        # Its head comes last: an agent of an earlier start of the job may have superseded it with a last claim.
        nodes = order_of_succession([name for name in records.first.nodes if name != records.first.node])
        nodes.append(records.first.node)
        return nodes.index(node) if node in nodes else None
    return len(_before(records.world, node)) if node in _names(records.world) else None
