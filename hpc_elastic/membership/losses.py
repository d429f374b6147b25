"""The waits that lost members impose: no attempt before they have fenced, no end of the run while they may go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.lease import MemberLease
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.succession import Succession
from hpc_elastic.membership.timing import OTHERS_RETURN_WITHIN_S, SPARES_COME_WITHIN_S, Timing

NEVER = float("inf")


class Losses:
    """The members that a head has lost and that have not returned.

    Args:
        timing: the run's.
        count: how many nodes the run has lost so far.
    """

    __slots__ = (
        "_awaited_since",
        "_awaits_return_until",
        "_awaits_rivals_until",
        "_back",
        "_before",
        "_counted",
        "_dead",
        "_fenced_at",
        "_goodbyes",
        "_is_settled",
        "_is_successors",
        "_lost",
        "_returned_at",
        "_rivals",
        "_timing",
    )

    def __init__(self, timing: Timing, count: int) -> None:
        self._timing = timing
        self._before = count  # in the worlds before the latest one
        # Of the latest world: each node once, however often it returns and is lost, and whether its agent is dead.
        self._counted: dict[str, bool] = {}
        self._dead = 0  # how many of these are
        self._back: set[str] = set()  # of these, the ones that have returned
        self._is_settled = False  # the round is closed: who is not back is lost
        self._lost: dict[str, str] = {}  # and how
        self._goodbyes: dict[str, float] = {}  # of the latest world: until when each may return
        self._rivals: set[str] = set()  # lost, but not known to be dead: they may go on together
        self._fenced_at: dict[str, float] = {}  # when each lost member that may have workers has none any more
        self._awaits_rivals_until = self._awaits_return_until = self._returned_at = -NEVER
        self._awaited_since = NEVER  # since when a round that is closed has waited for members to return
        self._is_successors = False  # whether the latest world is that of the head before this one

    @property
    def count(self) -> int:
        """Return how many nodes the run has lost, if the next attempt begins now.

        Those that are back before it does have cost a restart, however many they were: they count as one.
        """
        return self._before + len(self._counted) - len(self._back) + bool(self._back)

    def count_if_back(self, here: int) -> int:
        """Return how many nodes the run has lost, if those return that are likely to: most of a world, lost together.

        It is asked for each of thousands that fall silent together.

        Args:
            here: how many nodes have joined.
        """
        return self._before + self._dead + 1 if self._are_likely_back(here) else self.count

    def _are_likely_back(self, here: int) -> bool:
        """Return whether at least as many have fallen silent as are here without them: it is the network then."""
        silent, back = len(self._counted) - self._dead, len(self._back)
        return silent >= here - back and silent > back and not self._is_settled

    def _silent(self) -> set[str]:
        return {node for node, is_dead in self._counted.items() if not is_dead}

    @property
    def may_start_at(self) -> float:
        """Return when no lost member has workers any more, in monotonic seconds."""
        return max(self._fenced_at.values(), default=-NEVER)

    @property
    def may_live(self) -> bool:
        """Return whether some lost member may still be alive."""
        return bool(self._rivals)

    def may_live_of(self, nodes: Iterable[str]) -> bool:
        """Return whether any of these nodes may still be alive."""
        return not self._rivals.isdisjoint(nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that are lost and have not returned."""
        return tuple(sorted(self._lost))

    def is_lost(self, node: str) -> bool:
        """Return whether a node is lost and has not returned."""
        return node in self._lost

    @property
    def counted(self) -> tuple[str, ...]:
        """Return the nodes of the latest world that count as lost, also those that have returned since."""
        return tuple(sorted(self._counted))

    @property
    def are_dead(self) -> bool:
        """Return whether the agents of all that count as lost are known to have ended; who said goodbye may live."""
        return all(self._counted.values()) and not self._goodbyes

    def describe(self, nodes: Collection[str], otherwise: str) -> str:
        """Return how these nodes were lost, each with its own words if these differ, or else with the given ones."""
        ways: dict[str, list[str]] = {}
        for node in nodes:
            ways.setdefault(self._lost.get(node) or otherwise, []).append(node)
        if len(ways) < 2:
            return next(iter(ways), otherwise)
        return ", ".join(f"{why} ({name_some(names)})" for why, names in ways.items())

    def add(
        self,
        node: str,
        lease: MemberLease,
        now: float,
        *,
        is_gone: bool,
        may_return: bool,
        is_counted: bool,
        why: str = "",
    ) -> None:
        """Record the loss of a member.

        A member that has said goodbye has lost this head, because the head was silent: if that member returns within
        `Timing.returns_within_s`, it does not count as lost.

        Args:
            node: the member's node.
            lease: the head's lease of that member.
            now: monotonic seconds.
            is_gone: its workers are known to be gone.
            may_return: it has said goodbye, so its agent most likely lives.
            is_counted: it was in the latest world.
            why: how it was lost, for people.
        """
        if is_counted and may_return:
            self._goodbyes[node] = now + self._timing.returns_within_s
        elif is_counted:
            self._count(node, is_dead=is_gone)
        self._lost[node] = "" if may_return else why  # who said goodbye is lost for want of a return
        if not is_gone:
            self._fenced_at[node] = lease.heard + self._timing.gone_after_heard_s
        if may_return or not is_gone:
            self._rivals.add(node)
            self._awaits_rivals_until = max(self._awaits_rivals_until, now + self._timing.awaits_rivals_s)
            self._awaits_return_until = max(self._awaits_return_until, now + self._timing.awaits_return_s)

    def succeed(self, succession: Succession, here: set[str], expected: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Record as lost the nodes of a predecessor's world that have not joined this head, its successor.

        However long ago the last contact was, the absent nodes have one lease from now on, and more if this agent comes
        late: it may have been paused, or have a slow disk, as the others then have, too.

        Returns:
            The nodes of that world that are absent.
        """
        lost, self._is_successors = succession.lost, True
        absent = tuple(node.node for node in succession.world.nodes if node.node not in here)
        for node in absent:
            self._count(node, is_dead=node == lost.node and lost.is_dead)
        self._lost.update(dict.fromkeys(absent, ""))
        self._rivals.update(set(expected) - here - ({lost.node} if lost.is_dead else set()))
        awaits_s = self._timing.awaits_others_s(now - lost.contact)
        self._awaits_rivals_until = max(lost.contact + self._timing.awaits_rivals_s, now + awaits_s)
        if succession.is_spare:  # a member that gathers meanwhile goes on, or ends the run, within its own times
            self._awaits_rivals_until += self._timing.lease_s
        self._awaits_return_until = self._awaits_rivals_until
        return absent

    def returns_until(self) -> float:
        """Return until when a member that has said goodbye may return, in monotonic seconds."""
        return max(self._goodbyes.values(), default=-NEVER)

    def others_return_until(self) -> float:
        """Return until when more of the lost nodes may be back, since one has just been, in monotonic seconds.

        They were lost together where it was the network, and find this head one after the other. Those that the run has
        done without since an earlier world were not.
        """
        if all(nodes.keys().isdisjoint(self._rivals) for nodes in (self._counted, self._goodbyes)):
            return -NEVER
        return self._returned_at + OTHERS_RETURN_WITHIN_S

    def never_returns(self, node: str) -> None:
        """Wait no longer for a node to return: its agent has ended, or cannot take part."""
        if node in self._goodbyes:
            self._goodbyes[node] = -NEVER

    def settle(self) -> tuple[str, ...]:
        """Count as lost the members that were expected back and have not returned, when the round is closed.

        Returns:
            The nodes of these members: who has said goodbye, or has fallen silent. They may have been forgiven for a
            while, as most of a world, with fewer nodes here than now.
        """
        absent = {*self._goodbyes, *(self._silent() - self._back)}
        if (returns_until := self.returns_until()) > -NEVER:
            self._awaited_since = returns_until - self._timing.returns_within_s
        for node in self._goodbyes:
            self._count(node)
        self._goodbyes.clear()
        self._is_settled = True
        return tuple(sorted(absent))

    def _count(self, node: str, *, is_dead: bool = False) -> None:
        self._dead += is_dead - self._counted.get(node, False)
        self._counted[node] = is_dead
        self._back.discard(node)

    def at_fault(self, here: Collection[str]) -> tuple[str, ...]:
        """Return the nodes whose loss from the latest world is most likely a fault of their own.

        These are the nodes whose agents are dead. Those that fell silent are among them only if they are fewer than
        the nodes that are here without them: else the fault is as likely of this head's own network.

        Args:
            here: the nodes that have joined, in which lost nodes may be that are back.
        """
        silent = self._silent()
        is_few = len(silent) < len(set(here).difference(self._counted))
        return tuple(sorted(node for node in self._counted if is_few or node not in silent))

    def begin_attempt(self) -> None:
        """Begin to count the losses of a new world, when the next attempt is claimed."""
        self._before = self.count
        self._counted.clear()
        self._back.clear()
        self._dead = 0
        self._awaited_since = NEVER
        self._is_successors = self._is_settled = False

    def go_on(self) -> None:
        """Await anew who is lost from now on: enough nodes are back, and those that are not have been awaited."""
        self._awaited_since = NEVER
        self._is_successors = False

    def returned(self, node: str, now: float) -> bool:
        """Forget the loss of a node that has joined, and return whether it was lost before; who joins has fenced."""
        was_lost = node in self._lost
        if was_lost:
            self._returned_at = now
        self._fenced_at.pop(node, None)
        self._lost.pop(node, None)
        if node in self._counted:
            self._count(node)  # its agent lived: a connection was reset
            self._back.add(node)
        self._rivals.discard(node)
        self._goodbyes.pop(node, None)
        return was_lost

    def may_end_at(self, min_nodes: int, here: int, now: float, *, can_resume: bool) -> float:
        """Return until when a head that has too few nodes from now on must not end the run, in monotonic seconds.

        It is minus infinity if the head may end the run at once. The lost nodes that may be alive may be enough to go
        on without this head: where the network has cut off one node, a connection that was reset may have been closed
        by an agent that lives, and whose goodbye was lost as well, so all nodes that the latest world has lost may be
        together. If even they are too few, neither side can go on without the other, and waiting for the silent nodes
        to return costs nothing.

        Nodes that fell silent while the run could do without them have time to return from now on, if they and the
        nodes that are here may be enough. A successor with too few nodes has waited for them since it lost its head,
        and a round that members have not returned to since they said goodbye.

        Args:
            min_nodes: with how many nodes the run goes on.
            here: how many nodes are left to this head.
            now: monotonic seconds.
            can_resume: the run goes on if enough nodes return. If not, as where it has lost one node too many, nothing
                but what the lost nodes may do without this head is waited for.
        """
        if not self._rivals:
            return -NEVER
        may_live = self._rivals | (self._counted.keys() & self._lost.keys())
        if not can_resume:
            return self._awaits_rivals_until if len(may_live) >= min_nodes else -NEVER
        ends = self._awaits_rivals_until if len(may_live) >= min_nodes else self._awaits_return_until
        if self._is_successors or len(may_live) + here < min_nodes:
            return ends
        return max(ends, min(now, self._awaited_since) + self._timing.awaits_return_s)


class SuccessionRound:
    """The one round in which a successor gathers the world that it carries on.

    The lost head has killed its own workers a lease after the last contact, because it lost this
    member then, and has told its other members to kill theirs: those that did not get the message have done so 2/3 of
    a lease later. Members that have all joined this round have fenced, so only the lost head's own workers matter;
    the workers of a dead agent are dead. If all members without the head are too few, spares that are on their way
    may make up the number. Where this agent stood still until it lost the head, as a suspend of the whole job makes it,
    the head has a moment to be found, as its members have if it wakes up first; and where it stood still since,
    members that it has not heard have one to return. Where the world has room for more nodes, spares have a moment to
    come.

    Args:
        succession: the lost head and the world that is carried on.
        timing: the run's times.
        roster: the agents that have joined.
        now: when the round begins, in monotonic seconds.
    """

    __slots__ = ("_awaited", "_began", "_departures", "_returns_until", "_roster", "_seen", "_timing", "succession")

    def __init__(self, succession: Succession, timing: Timing, roster: Roster, now: float) -> None:
        self._began = now
        self.succession = succession
        self._timing = timing
        self._roster = roster
        self._awaited = [node.node for node in succession.world.nodes if node.node != succession.lost.node]
        self._seen = 0  # how many of `_awaited` are known to be here, so that a join need not check all
        self._departures = roster.departures
        self._returns_until = -NEVER

    def woke(self, now: float, began: float) -> None:
        """Give members a moment to return that have not been heard because this process stood still until now.

        They get it once: a process that stands still again and again would otherwise wait without end.

        Args:
            now: monotonic seconds.
            began: since when, at the earliest, it stood still.
        """
        if began < self._gives_up_at:
            self._returns_until = now + self._timing.returns_within_s

    def joined(self, now: float) -> None:
        """Give the other members a moment to come since one has just joined, if the round would end before.

        They were kept apart together where it was the network. A link that drops messages must not prolong the round
        again and again, so half a lease is the most.
        """
        moment = min(OTHERS_RETURN_WITHIN_S, self._timing.returns_within_s)
        latest = self._gives_up_at + self._timing.returns_within_s
        self._returns_until = max(self._returns_until, min(now + moment, latest))

    @property
    def _gives_up_at(self) -> float:
        """Return until when nodes are waited for that are needed, or that belong to the world; they have to find it."""
        found = self._began + self._timing.is_found_within_s
        return max(self.succession.lost.contact + self._timing.closes_after_contact_s, found)

    def closes_at(self, is_enough: Callable[[], bool], has_room: Callable[[], bool]) -> float:
        """Return when the next attempt may be opened with the nodes that have joined, in monotonic seconds.

        Args:
            is_enough: whether no other node is needed, or can come.
            has_room: whether the next world has room for some more of the step's nodes.
        """
        lost = self.succession.lost
        if not (self._is_complete() and is_enough()):
            return max(self._gives_up_at, self._returns_until)
        at = lost.contact if lost.is_dead else lost.contact + self._timing.succeeds_after_contact_s
        if lost.was_paused and not lost.is_dead:  # a head that wakes up as this agent does has a moment to answer
            at = max(at, self._began + self._timing.is_found_within_s)
        return max(at, self._began + SPARES_COME_WITHIN_S) if has_room() else at

    def _is_complete(self) -> bool:
        if self._departures != self._roster.departures:
            self._seen, self._departures = 0, self._roster.departures
        while self._seen < len(self._awaited) and self._roster.get(self._awaited[self._seen]) is not None:
            self._seen += 1
        return self._seen == len(self._awaited)
