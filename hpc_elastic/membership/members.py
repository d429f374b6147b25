"""The members of a head: their joins and losses, the world they are in, and the actions that follow from these."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hpc_elastic.membership.actions import Action, Drop, Log, Note, SendToMember, Superseded
from hpc_elastic.membership.admission import admit, dismiss, health_news
from hpc_elastic.membership.gathering import Gathering
from hpc_elastic.membership.job_end import JobEnd
from hpc_elastic.membership.leases import Leases
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.messages import Dropped, Join, Spares, Stop, StopManner, Welcome
from hpc_elastic.membership.node_news import BACK, Arrivals
from hpc_elastic.membership.roster import Roster, RosterEntry
from hpc_elastic.membership.rounds import HeadSettings, starting_roles
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.timing import MOST_SPARES
from hpc_elastic.rundir.records import Candidate, World

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMember:
    """A member that a head has lost.

    `is_gone`: it surely has no workers. `may_return`: its agent most likely lives, and may join again. `has_left`: its
    agent has ended while its machine is up, so it does what it was told to do at its end.
    """

    entry: RosterEntry
    is_gone: bool
    may_return: bool
    has_left: bool

    @property
    def is_dead(self) -> bool:
        """Return whether its agent has surely ended."""
        return self.is_gone and not self.may_return

    @property
    def may_live(self) -> bool:
        """Return whether its agent may be at work still."""
        return not self.is_dead


class Members:
    """The agents of one head, and the world that they are or were last in.

    Args:
        settings: the head's settings.
        node_losses: how many nodes the run has lost before.
        now: monotonic seconds, as in every method.
        succession: the head whose place this one takes, if it does.
    """

    def __init__(
        self, settings: HeadSettings, *, node_losses: int, now: float, succession: Succession | None = None
    ) -> None:
        self._settings = settings
        self.roster = Roster(settings.expected)
        self.world = succession.world if succession is not None else None
        self.losses = Losses(settings.timing, node_losses)
        self.gathering = Gathering(self.roster, settings, self.losses, now, succession)
        self.leases = Leases(self.roster, settings, now)
        self.job_end = JobEnd(self.world, succession.lost if succession is not None else None)
        self._has_fenced = False  # members with workers were told to kill them
        self._has_gathered = False  # members were told that this head only gathers
        self._newcomers: set[str] = set()  # nodes that joined while a world was at work
        self._doubts_resets_until = -NEVER  # a live member has given its connection up, so others may have, too
        self.arrivals = Arrivals()

    def admit(self, join: Join, now: float, *, is_late: bool, attempt: int) -> list[Action]:
        """Add an agent that is not refused; one that comes late and cannot take part is sent away instead."""
        welcome = Welcome(
            allocation=self._settings.allocation,
            head=self._settings.node,
            is_late=is_late,
            gathers=self.gathering.succession is not None,
        )
        actions = admit(self.roster, join, now, welcome=welcome, attempt=attempt, arrivals=self.arrivals)
        member = self.roster.get(join.node)
        if member is None:
            return actions
        if (place := self._places.get(join.node)) is not None:
            self.roster.take_place(place.node, place.role, place.workers)
        self._has_gathered |= welcome.gathers
        self.job_end.joined(join)
        self.gathering.joined(now)
        if is_late:
            self._newcomers.add(join.node)
        if self.losses.returned(join.node, now):
            text = f"{join.node} is back"
            note = Note(name="node.returned", message=text, attempt=attempt, metadata={"node": join.node})
            # One line for each join: a node whose link drops messages may lose its head and return every 0.3 s.
            actions += [note] if is_late else [*self.arrivals.one(join.node, BACK, now), note]
        return actions + self._name_spares(member)

    def _name_spares(self, newcomer: RosterEntry) -> list[Action]:
        """Tell the nodes without a part in the world of each other, if this one, which has joined, is among them.

        Spares that a world's record does not name would not find each other when its head and all its members are lost.
        """
        if self.world is None or self.is_in_world(newcomer.node):
            return []
        waiting = sorted((each for each in self.roster if not self.is_in_world(each.node)), key=_node_id)
        named = waiting[:MOST_SPARES]
        spares = Spares(agents=tuple(Candidate(node=each.node, agent=each.join.agent) for each in named))
        told = waiting if newcomer in named else [newcomer]
        return [SendToMember(node=each.node, message=spares) for each in told] if len(waiting) > 1 else []

    def dismiss(self, join: Join, now: float, attempt: int) -> list[Action] | None:
        """Send an unfit node away; return None if too few nodes would remain, or if it is the head's own node."""
        self.roster.remove(join.node)
        if self.gathering.can_be_enough() and join.node != self._settings.node:
            self.gathering.dismissed(join)
            return dismiss(join, f"{join.node} cannot take part: {join.problem}; going on without it", attempt)
        self.roster.add(join, now)
        return None

    def examined(self, member: RosterEntry, problem: str | None, attempt: int) -> list[Action]:
        """Record what the health checks of a member found, and return what is said of it, if it is news."""
        before = self.roster.unhealthy.get(member.node)
        self.roster.examined(member, problem)
        if before == problem:
            return []
        if problem is None and self.world is not None and not self.is_in_world(member.node):
            self._newcomers.add(member.node)
        return health_news(member.node, problem, attempt)

    def lose(self, node: str, now: float, *, is_gone: bool, may_return: bool, why: str = "") -> LostMember | None:
        """Remove a member that is lost, and return what is known of it, None if there was no such member.

        Args:
            node: the member's node.
            now: monotonic seconds.
            is_gone: it surely has no workers.
            may_return: its agent most likely lives, so that a round waits for it as for a node that is still to join.
            why: how it was lost, for people.
        """
        is_agent_alone = is_gone and (may_return or not self._may_have_restarted(node, now))
        if is_gone and may_return:  # a live member has given its connection up, so no reset proves an agent's death
            self._doubts_resets_until = now + self._settings.timing.returns_within_s
        may_have_left = is_gone and self._may_have_left(node, now)
        member = self.roster.remove(node)
        if may_return:
            self.roster.expect(node)
        if member is None:
            return None
        lost = LostMember(
            entry=member,
            is_gone=is_gone,
            may_return=may_return or may_have_left,
            has_left=is_agent_alone and not may_return,
        )
        # Members that did not join a successor are counted as lost when its round is closed.
        is_counted = self.is_in_world(node) and self.gathering.succession is None
        self.losses.add(
            node, member.lease, now, is_gone=is_gone, may_return=lost.may_return, is_counted=is_counted, why=why
        )
        self.job_end.lost(node, is_agent_alone=is_agent_alone)
        return lost

    def lacks(self, member: RosterEntry, *, is_gathering: bool) -> bool:
        """Return whether the run cannot go on as it does without a member that is lost.

        While a role gathers to start again by itself, the others run on.
        """
        is_needed = self.is_in_world(member.node) and (not is_gathering or member.is_in_world)
        return is_needed or not self.gathering.can_be_enough()

    def _may_have_left(self, node: str, now: float) -> bool:
        """Return whether a member whose connection has ended may have given this head up, and its goodbye was lost.

        Where the network between them was down for as long as a member is patient, its kernel answers this head with a
        reset when it is up again, as that of a dead agent does. And where another member has just done so that lives,
        whatever made it do that has perhaps made this one, too, however short its silence was. Of the head's own member
        this is never in doubt.
        """
        was_silent = self._silence_s(node, now) >= self._settings.timing.silent_before_reset_s
        return was_silent or (now < self._doubts_resets_until and node != self._settings.node)

    def _may_have_restarted(self, node: str, now: float) -> bool:
        """Return whether the machine of a member whose connection has ended may have started again since."""
        member, timing = self.roster.get(node), self._settings.timing
        nodes = 0 if member is None else member.lease.nodes
        return self._silence_s(node, now) >= timing.silent_before_restart_s(nodes)

    def _silence_s(self, node: str, now: float) -> float:
        member = self.roster.get(node)
        return -NEVER if member is None or node == self._settings.node else now - member.lease.heard

    @property
    def world(self) -> World | None:
        """Return the latest world; None before the first attempt of this start."""
        return self._world

    @world.setter
    def world(self, world: World | None) -> None:
        self._world = world
        self._places = {} if world is None else {node.node: node for node in world.nodes}
        for place in self._places.values():
            self.roster.take_place(place.node, place.role, place.workers)

    def is_in_world(self, node: str) -> bool:
        """Return whether a node is in the latest world."""
        return node in self._places

    def are_unhealthy_in(self, roles: Collection[str]) -> bool:
        """Return whether an unhealthy node has a place of the latest world in one of these roles."""
        places = (self._places.get(node) for node in self.roster.unhealthy)
        return any(place is not None and place.role in roles for place in places)

    def are_others_too_few(self) -> bool:
        """Return whether the nodes that are not here could not open an attempt by themselves, even if all of them live.

        A connection may be reset between agents that live, and then what counts as dead here may look for the others.
        """
        return len(self._settings.expected) - len(self.roster) < self._settings.min_nodes

    def begin(self, now: float) -> None:
        """Begin the attempt of the latest world."""
        if self.world is not None:
            self._has_fenced = False
            self.roster.seat(self.world, starting_roles(self.world))
            self.leases.begin(self.world, now)
            self._newcomers -= {node.node for node in self.world.nodes}

    def welcome_spares(self) -> list[Action]:
        """Tell the members without a part in a successor's first world that it is their head now, as it was not before.

        When this head dies in its turn, a spare may take its place only if it knows that it was the head.
        """
        if not self._has_gathered:
            return []
        self._has_gathered = False
        welcome = Welcome(allocation=self._settings.allocation, head=self._settings.node, is_late=True)
        spares = (member for member in self.roster if not self.is_in_world(member.node))
        return [SendToMember(node=member.node, message=welcome) for member in spares]

    def take_newcomers(self) -> tuple[str, ...]:
        """Return, once each, the nodes that joined while a world with room is at work and are to be added at once."""
        world = self.world
        if self._settings.rejoin != "immediately" or world is None or len(world.nodes) >= self._settings.max_nodes:
            return ()
        newcomers = (self._newcomers & self.roster.names()) - self.roster.unhealthy.keys()
        self._newcomers = set()
        members = (self.roster.get(node) for node in sorted(newcomers))
        return tuple(each.node for each in members if each is not None and self._has_room_for(each.role, world))

    def called_back(self) -> Collection[str]:
        """Return the nodes whose own role lacks nodes, and that leave the place of another role for it."""
        return self.roster.called_back(self._settings.role_nodes, self._settings.role_max_nodes)

    def _has_room_for(self, role: str, world: World) -> bool:
        """Return whether a world could take in a node of a role without exceeding the limit of that role."""
        limit = self._settings.role_max_nodes.get(role, self._settings.max_nodes)
        return sum(each.role == role for each in world.nodes) < limit

    def fence(self) -> list[Action]:
        """Tell the members that still have workers to kill them: the lost members may start workers elsewhere soon.

        Each member is told once: when 4,096 members fall silent together, each would else be told 4,096 times.
        """
        if self._has_fenced:
            return []
        self._has_fenced = True
        return [SendToMember(node=member.node, message=_fence(member)) for member in self.roster.unstopped.of()]

    def superseded(self, reason: str, attempt: int) -> list[Action]:
        """Drop all members except this head's own node, because another head has taken this one's place."""
        actions: list[Action] = [
            Log(text=reason, level="warning"),
            Note(name="head.superseded", message=reason, attempt=attempt),
        ]
        for node in sorted(self.roster.names() - {self._settings.node}):
            actions += drop(node, reason)
        return [*actions, Superseded(reason=reason)]


def drop(node: str, reason: str) -> list[Action]:
    """Tell a member that it is dropped, then close its connection: a close without a message means a dead agent."""
    return [SendToMember(node=node, message=Dropped(reason=reason)), Drop(node=node)]


def _node_id(member: RosterEntry) -> int:
    return member.join.node_id


def _fence(member: RosterEntry) -> Stop:
    return Stop(attempt=member.attempt, manner=StopManner.FENCE, reason="a node was lost")
