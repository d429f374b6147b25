"""The round that gathers the members: when it closes, and what is logged while it is open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.errors import NO_SIGN, WAS_HEAD, ExitCode, MissingNode, RendezvousCause, RendezvousTimeoutError
from hpc_elastic.hostlist import name_some
from hpc_elastic.membership import losses
from hpc_elastic.membership.actions import Action, Log, Note
from hpc_elastic.membership.admission import left_out_note, why_not
from hpc_elastic.membership.messages import Join, Refused
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import AWAITS_RELIEF_S, SPARES_COME_WITHIN_S
from hpc_elastic.membership.versions import other_version

SAY_MISSING_EVERY_S = 30.0
REASONS_TOLD = 2  # at most so many in the cause of the run's end
NEVER = float("inf")
# What the head says of a node without a word of that node's agent.
WORDLESS = RendezvousCause.NEVER_STARTED, RendezvousCause.HEAD_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The reason why a node is missing, as far as is known.

    `gave_up`: its agent has ended and will not join. `ended`: that is the scheduler's word and not the agent's own, as
    where the agent could not be started.
    """

    missing: MissingNode
    gave_up: bool = False
    ended: bool = False


class Gathering:
    """The deadlines of one round after the other, and what is known of the nodes that are missing.

    The first round waits `join_timeout` for every node that can still join, but for the spares of a full world only a
    moment. A node that did not join then is not waited for again at every restart, as long as there are enough nodes
    without it, and otherwise no longer than a silent one. Neither is a node that was refused, or gave up. A member that
    has said goodbye has a moment to return, also where the run needs it. If enough nodes are here, a dead head before
    this one is not waited for either, and one that was only silent for two leases. A successor waits for the nodes of
    the world that it carries on, see `losses`.

    Args:
        roster: the agents that have joined.
        settings: how many nodes are enough, and how long the others are waited for.
        lost: the members that may still return.
        now: monotonic seconds, as in every method.
        succession: the head whose place this one takes, if it does.
    """

    def __init__(
        self,
        roster: Roster,
        settings: HeadSettings,
        lost: losses.Losses,
        now: float,
        succession: Succession | None = None,
    ) -> None:
        self._roster = roster
        self._settings = settings
        self._lost = lost
        self.set_aside: Callable[[], Collection[str]] = tuple  # the nodes, as whoever decides that tells
        self._min_nodes = settings.min_nodes
        self._spares = frozenset(settings.expected[settings.max_nodes :])  # see `plan.roles.place_roles`
        self._join_timeout_s = settings.join_timeout_s
        self._known: dict[str, MissingNode] = {}
        self._gone: set[str] = set()
        self._at_fault: set[str] = set()  # of `_gone`: unfit, or without an agent as the scheduler says
        self._has_waited = False
        self._relieved: MissingNode | None = None
        self._heads_before: dict[str, bool] = {}  # that are lost and have not joined: whether enough others go on
        self._heads_until = NEVER  # until when that may change
        self._due = self._deadline = NEVER  # when `join_timeout` is over, and until when the round waits
        self.has_world = succession is not None  # nodes have had their places
        self._unjoined: tuple[str, ...] = ()  # those that had not come when the first attempt was opened
        self._unjoined_until = -NEVER  # until when they may come in time
        self._is_waiting_for_returns = False
        self._left_behind: set[str] = set()
        self._late: list[MissingNode] = []
        self._round = (
            losses.SuccessionRound(succession, settings.timing, roster, now) if succession is not None else None
        )
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin a round, or the first one again, which has no more time for that."""
        deadline = now + self._join_timeout_s
        self._deadline = deadline if self.has_world else min(self._deadline, deadline)
        self._due = deadline if self.has_world else min(self._due, deadline)
        self._spares_until = NEVER  # until then spares may still come to a full world
        self._enough_since = NEVER  # since when enough nodes have been here
        self._relieved_until = NEVER  # until then another agent may take this head's place, which most cannot reach
        self._say_at = now + SAY_MISSING_EVERY_S

    @property
    def succession(self) -> Succession | None:
        """Return what a successor carries on until its round is closed; None afterwards, and for any other head."""
        return self._round.succession if self._round is not None else None

    def next_tick(self) -> float:
        """Return when `is_closed` must be asked again at the latest, in monotonic seconds."""
        return min(self._say_at, self._heads_until, self._closes_at())

    def _closes_at(self) -> float:
        if self._round is None:
            closes_at = min(self._deadline, self._spares_until, self._relieved_until)
            return min(closes_at, self._return_until()) if self._is_waiting_for_returns else closes_at
        if self._roster.get(self._settings.node) is None:
            return NEVER  # the contact may be so old that it closes at once, but not before this node is here
        return self._round.closes_at(self._needs_nobody, self._has_room)

    def _return_until(self) -> float:
        """Return until when lost nodes may be back that are waited for though there are enough; it may be past."""
        until = self._lost.returns_until()
        if self._usable() >= self._settings.max_nodes or self._enough_since == NEVER:
            return until
        # Not for ever: a node whose link drops messages may come back every 0.3 s.
        latest = self._enough_since + self._settings.timing.returns_within_s
        return max(until, min(self._lost.others_return_until(), latest))

    def _has_room(self) -> bool:
        """Return whether the next world has room for a node that has not joined yet, other than the lost head."""
        succession = self.succession
        if succession is None or succession.is_finished or self._usable() >= self._settings.max_nodes:
            return False
        return any(node != succession.lost.node for node in self._roster.missing())

    def _usable(self) -> int:
        """Return how many members may have workers, without those that are set aside: a spare may take their place."""
        aside = (self._roster.get(node) for node in self.set_aside())
        return self._roster.healthy - sum(
            member is not None and member.node not in self._roster.unhealthy for member in aside
        )

    def _needs_nobody(self) -> bool:
        """Return whether a successor has enough nodes, or has no attempt to open, or no other node can join."""
        succession = self.succession
        if succession is None or succession.is_finished or self.is_enough():
            return True
        dead = {succession.lost.node} if succession.lost.is_dead else set()
        return not set(self._roster.missing()) - dead

    def is_closed(self, now: float) -> bool:
        """Return whether the round is closed: no node is waited for any more."""
        if self._round is not None:
            return now >= self._closes_at()
        awaits_nobody = self._awaits_nobody(now)
        is_enough = self._has_waited and self.is_enough()
        self._enough_since = min(self._enough_since, now) if is_enough else self._enough_since
        may_return = now < self._lost.returns_until()
        waits = is_enough and now < self._return_until()
        self._is_waiting_for_returns = waits or (may_return and self.has_world)
        is_complete = awaits_nobody and not waits
        is_enough = is_enough and not waits
        is_in_time = now < self._deadline
        if self._roster.get(self._settings.node) is None and is_in_time:
            return False  # the head's own node, which was paused with it, is back in a moment
        is_settled = (self._is_hopeless(now) or is_complete) and not self._may_be_relieved(now)
        is_over = is_enough or is_settled or self._has_waited_for_spares(now)
        is_over = is_over or (not may_return and self._depends_on_lost())
        if is_in_time and not is_over:
            return False
        self._has_waited = True
        return True

    def give_up_returns(self, now: float) -> tuple[str, ...]:
        """Wait no longer for lost nodes that a world needs and whose time to return is over, and return them."""
        is_over = now >= min(self._lost.returns_until(), self._deadline)
        nodes = self._may_return() if is_over and self._depends_on_lost() else ()
        for node in nodes:
            self._roster.leave_out(node)
        return nodes

    def _depends_on_lost(self) -> bool:
        """Return whether there have been enough nodes, and are only if some return that have said goodbye."""
        if not self.has_world or self._round is not None or self.is_enough() or not self.can_be_enough():
            return False
        lost = len(self._may_return())
        least, missing = self._min_nodes + lost, len(self._roster.missing()) - lost
        return self._roster.possible < least or self._short() > missing

    def _may_return(self) -> tuple[str, ...]:
        """Return the lost nodes that can still join: those that have said goodbye."""
        return tuple(node for node in self._roster.missing() if self._lost.is_lost(node))

    def _awaits_nobody(self, now: float) -> bool:
        """Return whether all that can join have, but for heads before this one that enough others do not wait for.

        A dead one is given up after two leases where too few are here: a reset may have come from one that lives.
        """
        before = () if self.has_world else self._heads_before.items()
        self._heads_before = {node: is_passed for node, is_passed in before if self._roster.get(node) is None}
        if now >= self._heads_until:
            for node, is_dead in self._heads_before.items():
                if is_dead and self._roster.is_missing(node):
                    self._leave_out(self._known[node])
            self._heads_before = dict.fromkeys(self._heads_before, True)
        if now >= self._heads_until or not self._heads_before:
            self._heads_until = NEVER
        if not self._heads_before or not self.is_enough():
            return self._roster.is_complete
        return all(self._heads_before.get(node, False) for node in self._roster.missing())

    def _is_hopeless(self, now: float) -> bool:
        """Return whether too many are gone for good: those that can still join in time are too few."""
        return now < self._deadline and self._roster.possible < self._min_nodes

    def _may_be_relieved(self, now: float) -> bool:
        """Return whether one of the nodes that cannot reach this first head may still take its place.

        That it has is found in the run directory. Only the first head is relieved: where no node reaches another, the
        second one ends the run.
        """
        if self.has_world or self._relieved is not None or self.is_enough() or not self._is_out_of_reach():
            self._relieved_until = NEVER
            return False
        self._relieved_until = min(self._relieved_until, now + AWAITS_RELIEF_S)
        return now < self._relieved_until

    def _is_out_of_reach(self) -> bool:
        """Return whether so many cannot reach it, where one or the other has not given it up yet."""
        unreached = [
            node
            for node, missing in self._known.items()
            if missing.cause is RendezvousCause.CANNOT_ROUTE and self._roster.get(node) is None
        ]
        settings = self._settings
        placed = [settings.placed.get(node, "") for node in unreached]
        return can_relieve(placed, settings.role_nodes, self._min_nodes, len(self._roster.expected))

    def _has_waited_for_spares(self, now: float) -> bool:
        """Return whether the world has been full for a moment, and the nodes that are missing are spares."""
        is_full = self._roster.healthy >= self._settings.max_nodes and self.is_enough()
        if not is_full or not self._spares.issuperset(self._roster.missing()):
            self._spares_until = NEVER
            return False
        self._spares_until = min(self._spares_until, now + SPARES_COME_WITHIN_S)
        return now >= self._spares_until

    def can_be_enough(self) -> bool:
        """Return whether enough nodes have joined, or would have if all those joined that still can.

        A member that leaves a successor's round may join again: only when that round closes is it known what it lacks.
        """
        if self._round is not None:
            return True
        return self._roster.possible >= self._min_nodes and self._short() <= len(self._roster.missing())

    def goes_on(self, now: float) -> bool:
        """Return whether nodes that are back make enough, with those for which the first round still waits."""
        return self.is_enough() or (not self.has_world and now < self._deadline and self.can_be_enough())

    def is_enough(self) -> bool:
        """Return whether enough nodes have joined, in all and of each role."""
        return self._roster.healthy >= self._min_nodes and self._short() <= 0

    def _short(self) -> int:
        """Return how many nodes the roles lack, less the spares of other roles, which can take a place of any role.

        Before the first attempt there are no places yet, and each node waits for those of its own role. Afterwards a
        node that has the place of another role may be called back to its own.
        """
        least, most = self._settings.role_nodes, self._settings.role_max_nodes
        short = sum(self._roster.short_of(least).values())
        if not short or not self.has_world:
            return short
        return short - self._roster.surplus(most) - len(self._roster.called_back(least, most))

    def woke(self, now: float, late_s: float) -> None:
        """Take note that this process stood still until now, and heard nobody.

        Agents that have asked to join meanwhile are heard before the round is closed: they have come in time. Whoever
        asks while it stands still once more has not, else a head that does so again and again would wait without end.

        Args:
            now: monotonic seconds.
            late_s: for how long a look at the leases was due by then.
        """
        timing = self._settings.timing
        began = now - late_s - timing.looks_every_s
        if self._round is not None:
            self._round.woke(now, began)
        elif began < self._due:
            self._deadline = max(self._deadline, now + timing.returns_within_s)
            self._heads_until = max(self._heads_until, now + timing.returns_within_s)

    def joined(self, now: float) -> None:
        """Take note that a node has joined: where the network was down for all, the others come one after the other."""
        if self._round is not None:
            self._round.joined(now)

    def relieves(self, first: MissingNode) -> None:
        """Take note that this head is in the place of a first one that most nodes cannot reach; it has no part then.

        Its agent may reach them: but its workers would be as much out of reach of theirs.
        """
        self._relieved = first
        self._leave_out(first)

    def follows(self, heads: Sequence[str], lost: LostHead | None, now: float) -> None:
        """Take note that this head is in the place of others of this start, which have opened no attempt and are lost.

        Their agents may join all the same. A reset after a silence may be that of a head that lives.

        Args:
            heads: the nodes of these heads.
            lost: the one of them that this agent has lost, None if it has had none of them.
            now: monotonic seconds.
        """
        for node in heads:
            is_own = lost is not None and lost.node == node
            detail = f"{WAS_HEAD}: {lost.why}" if lost is not None and is_own else WAS_HEAD
            self._known[node] = MissingNode(node=node, cause=RendezvousCause.HEAD_LOST, detail=detail)
            self._heads_before[node] = lost is not None and is_own and lost.is_dead and not lost.was_silent
            self._heads_until = now + self._settings.timing.awaits_return_s

    def succeeds(self) -> None:
        """Close the round of a successor: nodes that did not join are not waited for, but may join later."""
        self._round = None
        self._has_waited = True
        for node in self._roster.missing():
            self._roster.leave_out(node)

    def opens(self) -> None:
        """Take note that an attempt is opened, though it may start no workers: no round waits for newcomers then."""
        if self.has_world:
            return
        self.has_world, self._unjoined_until = True, self._due
        self._unjoined = tuple(node for node in self._roster.missing() if not self._lost.is_lost(node))
        for node in self._unjoined:
            self._roster.leave_out(node)

    def newcomers_until(self, now: float) -> float:
        """Return until when nodes that have never come may make enough, in monotonic seconds; it may be past.

        They have what is left of `join_timeout`, but no longer than a silent node, which would end the run itself.
        """
        if now >= self._unjoined_until:
            return -NEVER
        coming = sum(node not in self._gone and self._roster.get(node) is None for node in self._unjoined)
        if self._roster.healthy + coming < self._min_nodes or not coming:
            return -NEVER
        return min(now + self._settings.timing.awaits_return_s, self._unjoined_until)

    def waits_for(self) -> tuple[str, ...]:
        """Return the nodes that can still join."""
        return self._roster.missing()

    def at_fault(self) -> tuple[str, ...]:
        """Return the nodes whose agents have ended, or could not be started, before they joined, or were sent away."""
        nodes = (node for node in self._roster.expected if node in self._at_fault)
        return tuple(node for node in nodes if self._roster.get(node) is None)

    def refusal(self, join: Join) -> Refused | None:
        """Return what to answer an agent that cannot join, None if it can.

        An agent whose versions do not match can never take part, so the round does not wait for its node any more.
        """
        if (refused := why_not(self._roster, join)) is not None:
            return refused
        if self._relieved is not None and join.node == self._relieved.node:
            return Refused(reason=str(self._relieved), exit_code=int(ExitCode.NODES_MISSING))
        other = other_version(self._settings.node, self._settings.versions, join)
        if other is None:
            return None
        missing = MissingNode(node=join.node, cause=RendezvousCause.OTHER_VERSION, detail=other)
        is_news = self._known.get(join.node) != missing  # its agent may ask again
        self._leave_out(missing)
        if is_news and (self.has_world or join.node in self._left_behind):  # else it is told when the round is closed
            self._left_behind.add(join.node)
            self._late.append(missing)
        return Refused(reason=str(missing), exit_code=int(ExitCode.NODES_MISSING))

    def refused_late(self, attempt: int) -> list[Action]:
        """Return, once, the events of nodes that were refused for their versions, and that the others go on without."""
        late, self._late = self._late, []
        return self._notes(late, attempt)

    def diagnosed(self, diagnoses: Sequence[Diagnosis], attempt: int) -> list[Action]:
        """Take in what was found out about missing nodes; `attempt` is the latest one.

        Returns:
            A log line for each piece of news, and an event for each node that the round goes on without, and that was
            not lost. That an agent has not started yet is no news: it may be slow.
        """
        lines: list[str] = []
        notes: list[Action] = []
        for diagnosis in diagnoses:
            missing = diagnosis.missing
            if not self._roster.is_missing(missing.node):
                continue
            before, has_no_word = self._known.get(missing.node), missing.cause in WORDLESS
            is_news = before is None or before.cause is not missing.cause
            is_gone = diagnosis.gave_up or self._lost.is_lost(missing.node)
            is_known = before is not None and before.cause is not RendezvousCause.NEVER_STARTED
            if is_known and has_no_word and not is_gone:
                continue  # it took its word back as it joined another head of this start, or was head itself
            self._known[missing.node] = missing
            if is_news and not has_no_word:
                lines.append(str(missing))
            if diagnosis.gave_up:
                self._leave_out(missing)
                what = f"{missing.node} has given up"
                if diagnosis.ended:
                    self._at_fault.add(missing.node)
                    self._left_behind.add(missing.node)  # it is logged here
                    what = str(self._describe(missing.node))
                    notes += self._notes([missing], attempt)
                lines.append(f"{what}; the others do not wait for it")
        return [*(Log(text=line, level="warning") for line in lines), *notes]

    def dismissed(self, join: Join) -> None:
        """Name a node that was sent away, because it cannot take part, if the others turn out to be too few."""
        detail = f"cannot take part: {join.problem}"
        self._leave_out(MissingNode(node=join.node, cause=RendezvousCause.UNHEALTHY, detail=detail))
        self._at_fault.add(join.node)
        self._left_behind.add(join.node)  # its problem was logged

    def left_behind(self, attempt: int) -> list[Action]:
        """Return a log line and the event of each node that a closed round goes on without, if it is news."""
        news = [missing for missing in self.missing() if missing.node not in self._left_behind]
        logs = [Log(text=f"{missing}; going on without it", level="warning") for missing in news]
        return [*logs, *self.absent(news, attempt)]

    def absent(self, nodes: Sequence[MissingNode], attempt: int) -> list[Action]:
        """Return the event of each of these nodes, which have no part in a closed round, if there was none before."""
        news = [missing for missing in nodes if missing.node not in self._left_behind]
        self._left_behind.update(missing.node for missing in news)
        return self._notes(news, attempt)

    def _notes(self, missing: Sequence[MissingNode], attempt: int) -> list[Action]:
        """Return the events of nodes that are left out; one that was lost, or is unhealthy, has an event of its own."""
        news = (
            each for each in missing if each.node not in self._roster.unhealthy and not self._lost.is_lost(each.node)
        )
        return [left_out_note(each.node, each.detail, attempt) for each in news]

    def too_few(self, now: float) -> RendezvousTimeoutError | None:
        """Return the error of a closed round with too few nodes, None if there are enough."""
        if self.is_enough():
            return None
        least, missing = self._min_nodes, self.missing()
        if (count := len(self._roster.expected)) < least:  # somebody has made it smaller while it waited
            has = f"{count} node{'' if count == 1 else 's'} ({name_some(self._roster.expected)})"
            return RendezvousTimeoutError(f"the job has {has}, and the run needs at least {least} (nodes.min)", ())
        counts = f"{self._roster.healthy} of at least {least} nodes joined within {self._join_timeout_s:g} s"
        if self._is_hopeless(now):
            can = "take part" if self._roster.unhealthy else "join"
            counts = f"at most {self._roster.possible} of at least {least} nodes can {can}"
            missing = tuple(node for node in missing if node.node in self._gone or node.node in self._roster.unhealthy)
        elif self._roster.healthy >= least:
            role = " and ".join(self._roster.short_of(self._settings.role_nodes))
            if now < self._deadline:  # nobody is waited for that could still come
                counts = f"{self._roster.healthy} of at least {least} nodes joined, and no other can"
            counts += f", too few for the role {role}"
        named = {node.node for node in missing}
        lost = [node for node in self._lost.nodes if node not in named and self._roster.get(node) is None]
        was_lost = f"; lost: {name_some(lost)}" if lost else ""
        if len(missing) == 1:
            return RendezvousTimeoutError(f"{counts}; missing: {missing[0]}{was_lost}", missing)
        why = _reasons([node for node in missing if node.cause is RendezvousCause.UNHEALTHY])
        return RendezvousTimeoutError(f"{counts}; missing: {_by_cause(missing)}{why}{was_lost}", missing)

    def missing(self) -> tuple[MissingNode, ...]:
        """Return the unhealthy nodes and those that have not joined and were not lost, in the order of their ids."""
        unhealthy = self._roster.unhealthy
        nodes = {node for node in (*self._roster.missing(), *self._gone) if self._roster.get(node) is None}
        return tuple(self._describe(node) for node in self._roster.expected if node in nodes or node in unhealthy)

    def reminder(self, now: float) -> list[Action]:
        """Return, every 30 s, a log line with the nodes that the round waits for."""
        if now < self._say_at:
            return []
        self._say_at = now + SAY_MISSING_EVERY_S
        if self._roster.is_complete:
            return []  # a successor waits until the lost head has fenced
        missing = self._roster.missing()
        names = name_some([_with_cause(node, self._known.get(node)) for node in missing])
        closes_at = self._closes_at()
        left = "" if closes_at == NEVER else f"; {max(0.0, closes_at - now):.0f} s left"
        return [Log(text=f"waiting for {names} to join{left}")]

    def _leave_out(self, missing: MissingNode) -> None:
        self._known[missing.node] = missing
        self._gone.add(missing.node)
        self._lost.never_returns(missing.node)
        self._roster.leave_out(missing.node)

    def _describe(self, node: str) -> MissingNode:
        if (found := self._roster.unhealthy.get(node)) is not None:
            return MissingNode(node=node, cause=RendezvousCause.UNHEALTHY, detail=f"is unhealthy: {found}")
        known, never = self._known.get(node), RendezvousCause.NEVER_STARTED
        if self._lost.is_lost(node) and (known is None or known.cause is never):
            return MissingNode(node=node, cause=never, detail="was lost and has not come back")
        return known or MissingNode(node=node, cause=never, detail=NO_SIGN)


def can_relieve(unreached: Sequence[str], role_nodes: Mapping[str, int], min_nodes: int, nodes: int) -> bool:
    """Return whether so many nodes that cannot reach the first head may go on without it.

    Args:
        unreached: the role of each of them.
        role_nodes: how many nodes of each role a world needs.
        min_nodes: how many it needs in all.
        nodes: how many the job has, with the head's.
    """
    are_most = len(unreached) >= min_nodes and 2 * len(unreached) >= nodes
    return are_most and all(unreached.count(role) >= least for role, least in role_nodes.items())


def timeout_announcement(error: RendezvousTimeoutError, attempt: int) -> list[Action]:
    """Return the log lines and the event of a round with too few nodes, a line for each missing node."""
    lines = [Log(text=str(missing), level="error") for missing in error.missing]
    fields = [{"node": node.node, "cause": node.cause.value, "detail": node.detail} for node in error.missing]
    note = Note(name="rendezvous.timeout", message=error.message, attempt=attempt, metadata={"missing": fields})
    return [*lines, note]


def _with_cause(node: str, missing: MissingNode | None) -> str:
    return node if missing is None else f"{node} ({_words(missing.cause)})"


def _by_cause(missing: Sequence[MissingNode]) -> str:
    """Return the nodes in groups by cause: `node2, node3 (cannot route), node7 (never started)`."""
    causes = dict.fromkeys(node.cause for node in missing)
    groups = []
    for cause in causes:
        names = name_some([node.node for node in missing if node.cause is cause])
        groups.append(f"{names} ({_words(cause)})")
    return ", ".join(groups) or "nobody"


def _reasons(unhealthy: Sequence[MissingNode]) -> str:
    """Return why the first of the unhealthy nodes are; the log has a line for each of them."""
    return "".join(f"; {node}" for node in unhealthy[:REASONS_TOLD])


def _words(cause: RendezvousCause) -> str:
    return cause.value.replace("_", " ")
