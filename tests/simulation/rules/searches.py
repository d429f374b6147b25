"""How an agent without a head asks others: how soon again, how long it waits for each, and nobody is forgotten.

All is of the time since the search has read of another claim, for then it begins anew. What one round asks is not known
here; but a node that is asked twice in a row is the only one of its round, and who is asked again and again is not the
only one that lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.discovery import DiscoveryPhase
from hpc_elastic.membership.timing import GATHERS_AFTER_S
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.actions import Leave
    from hpc_elastic.membership.discovery import Dial, HeadDiscovery
    from hpc_elastic.membership.succession import Records, Succession
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5  # between two rounds; each is twice as long as the one before
ANSWERS_WITHIN_S, LONGEST_ANSWER_S = 0.5, 4.0  # of who is asked; the time doubles after each four rounds
ROUND_TRIPS = 2  # to connect and to prove the secret; where those may take longer, it has doubled once before the first
MOST_SPARES = 64  # turns of members that they wait for at most
ROUNDS_OF_DEAD = 4  # of which a member asks the agent of a dead head in one
READS_EVERY_S = 1.0  # the run directory, after it has been read, or could not be
READS_LATE_S = 0.1
LATE_S = 0.02  # of timers, and of a clock that runs apart from the simulation's
SOON, LATE = 0.1, 0.9  # parts of the time for an answer
ASKS_WITHIN_S = 2 * LONGEST_ANSWER_S + 2.0  # somebody again, after the last one, who has had this time twice at most
FREEZES = "pause", "freeze"  # faults
TURNS_TO_ASK = 6  # of half a second each, before the allocation is claimed instead of a head that has claimed it
SLOW_DISK_S, TAKES_S = 0.1, 3.0  # of an operation; to read the roster, and to begin
ASKS_RIVAL_S = 3.0  # who has claimed the allocation meanwhile, before the next one is claimed
OFTEN = 2  # others may be asked so often while one that answers is not, for those that come before it may be back


@dataclass
class _Asked:
    node: str
    at: float
    ended_at: float | None = None
    is_silent: bool = False
    within_s: float = LONGEST_ANSWER_S  # for an answer
    is_accepted: bool = False  # whether its connection is there, and the question sent
    is_punctual: bool = False  # whether the one who asks may not stand still meanwhile


@dataclass
class _Search:
    """Since the latest claim was read."""

    began: float = 0.0
    read_first_at: float = 0.0
    records: Records | None = None
    asked: list[_Asked] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # nodes that others have named as their heads
    owed: tuple[str, float] | None = None  # who is to be asked next, since when
    read_at: float | None = None  # when the latest records came, or an error; None while they are read
    before: _Search | None = None  # the one whose rounds count on, for the end of the run begins no new ones

    @property
    def head(self) -> str:
        return self.records.claim.head if self.records is not None and self.records.claim is not None else ""

    @property
    def members(self) -> tuple[str, ...]:
        return self.records.claim.members if self.records is not None and self.records.claim is not None else ()


class Searches:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._of: dict[int, _Search] = {}
        self._kept: list[HeadDiscovery] = []  # so that no two have one id
        self._since: dict[int, float] = {}  # when it began, or another agent was quicker to claim
        self._have_read: set[int] = set()
        self._reading: set[int] = set()
        self._to_read: dict[int, float] = {}  # since when, for another agent was quicker to claim
        self._gatherers: set[tuple[int, int, str, str]] = set()  # by start and attempt, who gathers and asks whom
        self._are_late = any(fault.what == "late" for fault in run.scenario.faults)

    def begins(self, agent: Agent, discovery: HeadDiscovery) -> None:
        """An agent begins to search for a head."""
        self._kept.append(discovery)
        self._of[id(discovery)] = _Search(agent.now)
        self._since[id(discovery)] = agent.now
        self._wrap(discovery, "read", lambda records, now: self._reads(discovery, records, now))
        self._wrap(discovery, "read_failed", lambda error, now: self._has_read(discovery, now))
        self._wrap(discovery, "claiming", lambda: self._check_read(agent, discovery))
        self._wrap(discovery, "superseded", lambda now: self._forgets(discovery, now))
        self._wrap(discovery, "not_answered", lambda now, **how: self._is_over(discovery, now, **how))

    def _wrap(self, discovery: HeadDiscovery, name: str, note: Callable[..., None]) -> None:
        shipped = getattr(discovery, name)

        def noting(*arguments: Any, **more: Any) -> Any:
            note(*arguments, **more)
            return shipped(*arguments, **more)

        setattr(discovery, name, noting)

    def _reads(self, discovery: HeadDiscovery, records: Records, now: float) -> None:
        search = self._of[id(discovery)]
        before, search.records = search.records, records
        if before is None or (before.first, before.claim) != (records.first, records.claim):
            is_over = records.result is not None
            self._of[id(discovery)] = _Search(now, now, records, before=search if is_over else None)
        self._has_read(discovery, now)

    def _check_roster(self, agent: Agent, search: _Search) -> None:
        """Just after an attempt is found out about, who goes on first reads its large roster, and nobody else does."""
        claim = None if search.records is None else search.records.claim
        if claim is None or claim.candidates is None or agent.now - search.read_first_at >= GATHERS_AFTER_S - LATE_S:
            return
        first = claim.candidates.turns[0].node if claim.candidates.turns else agent.name
        is_over = search.records is not None and search.records.result is not None
        is_so = is_over or agent.name in (first, claim.head)
        require(is_so, f"{agent.name} reads the roster of attempt {claim.attempt} at once, and {first} goes on first")

    def _has_read(self, discovery: HeadDiscovery, now: float) -> None:
        self._reading.discard(id(discovery))
        self._of[id(discovery)].read_at = now

    def looks(self, agent: Agent, discovery: HeadDiscovery, *, needs_world: bool) -> None:
        """An agent reads the records: first without the roster, which says how the latest head's node may be asked."""
        search = self._of[id(discovery)]
        is_first = id(discovery) not in self._have_read
        require(not (is_first and needs_world), f"{agent.name} begins its search with the whole roster")
        self._have_read.add(id(discovery))
        require(id(discovery) not in self._reading, f"{agent.name} reads the records twice at a time")
        self._reading.add(id(discovery))
        if needs_world:
            self._check_roster(agent, search)
        search.read_at = None
        since_s = agent.now - self._to_read.pop(id(discovery), agent.now)
        is_so = since_s <= LATE_S or self._are_late or agent.process.has_ever_frozen
        require(is_so, f"{agent.name} has found that another agent was quicker, and reads {since_s:.2f} s later")
        is_punctual = not (agent.process.has_ever_frozen or self._are_late)
        if is_punctual and discovery.phase is DiscoveryPhase.SEARCHING and self._may_ask(agent, discovery, search):
            last = search.asked[-1] if search.asked else None
            idle_s = agent.now - max(search.read_first_at, search.began, last.ended_at or last.at if last else 0.0)
            require(idle_s <= ASKS_WITHIN_S, f"{agent.name} searches, and has asked nobody for {idle_s:.1f} s")

    def _may_ask(self, agent: Agent, discovery: HeadDiscovery, search: _Search) -> bool:
        """Whether there is a head, or one that may be, which an agent without one has to ask again and again."""
        if search.records is None or search.records.first is None:
            return False
        if search.records.claim is not None:
            return search.head != agent.name
        lost, first = discovery._lost, search.records.first
        return first.node != agent.name and not (lost.is_dead and lost.node in (None, first.node))

    def _check_read(self, agent: Agent, discovery: HeadDiscovery) -> None:
        """Who searches reads the records each second, and until it claims: others may have, or the run may be over."""
        if discovery.phase is DiscoveryPhase.CLAIMING or agent.process.has_ever_frozen or self._are_late:
            return
        read_at = self._of[id(discovery)].read_at
        since_s = 0.0 if read_at is None else agent.now - read_at
        what = f"{agent.name} searches, and has not read the records for {since_s:.2f} s"
        require(since_s <= READS_EVERY_S + READS_LATE_S, what)

    def _forgets(self, discovery: HeadDiscovery, now: float) -> None:
        """It reads all again, for another agent was quicker to claim: at once, or as soon as it has read."""
        if self._of[id(discovery)].read_at is not None:
            self._to_read[id(discovery)] = now
        self._of[id(discovery)].records = None
        self._since[id(discovery)] = now

    def claims(self, agent: Agent, discovery: HeadDiscovery) -> None:
        """An agent claims the next allocation: who has claimed the latest one instead of its lost head is asked first.

        Else those that supersede each other would do so for ever.
        """
        search, lost = self._of[id(discovery)], discovery._lost.node
        first = None if search.records is None else search.records.first
        if first is None or lost in (None, first.node) or first.node == agent.name:
            return
        since_s = agent.now - search.read_first_at
        what = f"{agent.name} has read {since_s:.2f} s ago that {first.node} has claimed the allocation"
        require(since_s >= ASKS_RIVAL_S - LATE_S, f"{what}, and claims the next one")

    def gathers(self, agent: Agent, discovery: HeadDiscovery, succession: Succession) -> None:
        """An agent takes the lost head's place: one that has no part in its world, after all of it, if it is dead."""
        world, search = succession.world, self._of[id(discovery)]
        is_spare = agent.name not in {node.node for node in world.nodes}
        require(succession.is_spare == is_spare, f"{agent.name} gathers as if it had {'a' if is_spare else 'no'} part")
        if not is_spare:
            return
        what = f"{agent.name}, a spare, takes the place of {world.head}"
        require(not self._run.peer(agent, world.head).is_running, f"{what}, which lives")
        waited_s, turns = agent.now - search.read_first_at, min(len(world.nodes), MOST_SPARES)
        require(waited_s >= GATHERS_AFTER_S * turns - LATE_S, f"{what} after {waited_s:.2f} s, before {turns} turns")

    def _check_turn(self, agent: Agent, discovery: HeadDiscovery) -> None:
        """Who gives up, and has known for long enough that there is no head, would have taken its place."""
        run, search, records = self._run, self._of[id(discovery)], self._of[id(discovery)].records
        is_held = "disk" in run.witness.kinds or any("disk" in fault.what for fault in run.scenario.faults)
        is_slow = max(run.scenario.disk_s) > SLOW_DISK_S or is_held or self._are_late
        if records is None or records.first is None or is_slow or agent.process.has_ever_frozen:
            return
        nodes, lost = records.first.nodes if records.claim is None else records.claim.members, discovery._lost
        if records.claim is None and records.first.relieves and lost.node != records.first.node:
            return  # it waits for the head that most nodes can reach
        is_alone = {fault.what for fault in run.scenario.faults} == {"kill_agent"}
        if records.claim is not None and is_alone and lost.is_dead and lost.node == search.head:
            nodes = records.first.nodes  # also who has no part in that attempt, after all others
        turns = GATHERS_AFTER_S * (len(nodes) + TURNS_TO_ASK) + TAKES_S
        since_s = agent.now - search.read_first_at
        what = f"{agent.name} gives up its search, and has known for {since_s:.1f} s that there is no head"
        require(agent.name not in nodes or since_s <= turns, f"{what}, and {len(nodes)} might have taken its place")

    def leaves(self, agent: Agent, discovery: HeadDiscovery, leave: Leave) -> None:
        """An agent ends: one that gives up has searched for `join_timeout`, since another one was quicker, if so."""
        require(not leave.ends_job or agent.can_end_job, f"{agent.name} leaves to end the job, and cannot end it")
        records = self._of[id(discovery)].records
        is_told = records is not None and (records.result is not None or records.started_again is not None)
        if is_told or leave.exit_code != ExitCode.NODE_LOST:
            return
        self._check_turn(agent, discovery)
        waited_s, waits_s = agent.now - self._since[id(discovery)], self._run.scenario.join_timeout_s
        require(
            waited_s >= waits_s - LATE_S, f"{agent.name} gives up its search after {waited_s:.1f} s, not {waits_s:g} s"
        )

    def is_asked(self, discovery: HeadDiscovery) -> None:
        """The connection to who is asked is there."""
        search = self._of[id(discovery)]
        if search.asked:
            search.asked[-1].is_accepted = True

    def _is_over(
        self, discovery: HeadDiscovery, now: float, *, is_silent: bool = False, elsewhere: Any = None, **_: object
    ) -> None:
        search = self._of[id(discovery)]
        if search.asked:
            search.asked[-1].ended_at, search.asked[-1].is_silent = now, is_silent
            self._check_silence(search.asked[-1], now, is_silent=is_silent, is_answered=elsewhere is not None)
        else:  # the question was asked before that claim was read, and nobody else was asked meanwhile
            search.began = now
        if elsewhere is not None:
            search.named.add(elsewhere.node)
            is_new = bool(search.asked) and all(each.node != elsewhere.node for each in search.asked)
            if is_new and discovery.phase is DiscoveryPhase.SEARCHING and elsewhere.node != discovery._settings.node:
                search.owed = elsewhere.node, now

    def _check_silence(self, asked: _Asked, now: float, *, is_silent: bool, is_answered: bool) -> None:
        """Who lets all the time for an answer pass is silent, and is asked last from then on; who refuses is not."""
        part, what = (now - asked.at) / asked.within_s, f"{asked.node} is asked, and gives no answer for"
        is_short = asked.is_accepted or not asked.is_punctual or now - asked.at <= asked.within_s + LATE_S
        require(is_short, f"{what} {part:.2f} of the time that there is for its connection")
        is_wrong = is_silent if part < SOON else (part > LATE and not is_silent and not is_answered)
        require(not is_wrong, f"{what} {part:.2f} of the time: it is {'' if is_silent else 'not '}taken for silent")

    def dials(self, agent: Agent, discovery: HeadDiscovery, dial: Dial) -> None:
        """An agent asks another one whether it is head."""
        search, now = self._of[id(discovery)], agent.now
        is_punctual = not (agent.process.has_ever_frozen or self._are_late)
        self._check_read(agent, discovery)
        self._check_patience(agent, discovery, search, dial)
        require(dial.node != agent.name, f"{agent.name} asks itself whether it is head")
        self._check_owed(agent, search, dial.node)
        self._check_gatherer(agent, discovery, search, dial.node)
        if search.asked and not search.named and is_punctual:
            self._check_pause(agent, discovery, search, dial)
            self._check_order(agent, search, dial.node)
            self._check_silent(agent, search, dial.node)
        is_punctual = is_punctual and not any(fault.what in FREEZES for fault in self._run.scenario.faults)
        search.asked.append(_Asked(dial.node, now, within_s=dial.within_s, is_punctual=is_punctual))

    def _check_owed(self, agent: Agent, search: _Search, node: str) -> None:
        """A node that somebody names as its head is asked at once: who gathers elsewhere waits for nobody for long."""
        owed, search.owed = search.owed, None
        if owed is not None:
            named, since = owed
            waited_s = agent.now - since
            is_so = node == named and (waited_s <= LATE_S or self._are_late or agent.process.has_ever_frozen)
            require(is_so, f"{agent.name} is told that {named} is head, and asks {node}, {waited_s:.2f} s later")

    def _check_gatherer(self, agent: Agent, discovery: HeadDiscovery, search: _Search, node: str) -> None:
        """Of two that gather for the same attempt one alone asks the other: else each could give way to the other."""
        if discovery.phase is DiscoveryPhase.GATHERING and search.records is not None and search.records.claim:
            attempt = search.records.claim.attempt
            self._gatherers.add((agent.start_number, attempt, agent.name, node))
            is_mutual = (agent.start_number, attempt, node, agent.name) in self._gatherers
            require(not is_mutual, f"{agent.name} and {node} gather after attempt {attempt}, and ask each other")

    def _has_doubled(self, agent: Agent, discovery: HeadDiscovery) -> bool:
        """Whether there is twice the time for an answer, for the lost head has answered late just before."""
        is_slow = discovery._lost.round_trip_s * ROUND_TRIPS > ANSWERS_WITHIN_S
        if is_slow and not (self._are_late or self._run.network.was_ever_closed):
            slowest_s = 2 * max(self._run.scenario.delays_s)
            has_frozen = any(each.process.has_ever_frozen for each in self._run.everybody)
            may_be = has_frozen or slowest_s * ROUND_TRIPS > ANSWERS_WITHIN_S
            what = f"{agent.name} has had an echo after {discovery._lost.round_trip_s:.3f} s"
            require(may_be, f"{what}, and the network needs {slowest_s} s at most")
        return is_slow

    def _check_patience(self, agent: Agent, discovery: HeadDiscovery, search: _Search, dial: Dial) -> None:
        """Who is asked for the n-th time has been asked in n rounds at least, and none of them was without a question.

        But where nobody is left to ask: such a round takes its pause; and a node that others name is asked at once. Who
        has read that the run is over goes on with its rounds.
        """
        asked, named, began = search.asked, search.named, search.began
        if search.before is not None:
            asked, named, began = search.before.asked + asked, search.before.named | named, search.before.began
        least = 0 if named else sum(each.node == dial.node for each in asked)
        most = len(asked) + int((agent.now - began) / LONGEST_PAUSE_S) + 1
        doubled = self._has_doubled(agent, discovery)
        shortest_s, longest_s = (
            min(LONGEST_ANSWER_S, ANSWERS_WITHIN_S * 2 ** (each // 4 + doubled)) for each in (least, most)
        )
        what = f"{agent.name} asks {dial.node}, and waits for {dial.within_s} s"
        require(shortest_s <= dial.within_s <= longest_s, f"{what}, not {shortest_s} to {longest_s} s")

    def _check_pause(self, agent: Agent, discovery: HeadDiscovery, search: _Search, dial: Dial) -> None:
        """Who asks one node alone waits twice as long before each round, up to half a second.

        Who has tried to claim the allocation meanwhile has had rounds before there was anybody to ask.
        """
        if discovery._claims:
            return
        asked, last = search.asked, search.asked[-1]
        if {each.node for each in asked} != {dial.node} or last.ended_at is None:
            return
        # Where the lost head is the only one to be asked, the first round is an empty one.
        round_ = len(asked) + (asked[0].at >= search.began + LONGEST_PAUSE_S - LATE_S)
        if (more := self._rounds_between(agent, discovery, search, dial.node)) is None:
            return
        round_ += (len(asked) - 1) * more
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (round_ - 1))
        due = max(last.at + pause_s, last.ended_at) + more * LONGEST_PAUSE_S
        what = f"{agent.name} asks {dial.node} again after {agent.now - last.at:.3f} s"
        is_so = due - LATE_S <= agent.now <= due + LATE_S
        require(is_so, f"{what}, not {due - last.at:.3f} s, in round {round_ + 1 + more}")
        doublings = (round_ + more) // 4 + self._has_doubled(agent, discovery)
        within_s = min(LONGEST_ANSWER_S, ANSWERS_WITHIN_S * 2**doublings)
        require(dial.within_s == within_s, f"{what}, and waits for {dial.within_s} s, not {within_s} s")

    def _rounds_between(self, agent: Agent, discovery: HeadDiscovery, search: _Search, node: str) -> int | None:
        """How many rounds pass without a question to the only node that is asked; None: that is not known."""
        records, lost = search.records, discovery._lost
        if records is None:
            return 0
        if records.claim is None:  # before the first attempt all ask a dead head, whose connection may have been reset
            return (ROUNDS_OF_DEAD - 1) * (lost.is_dead and lost.node == node)
        if records.claim.head != node or lost.node != node:
            return 0 if records.claim.head != node else None
        return (ROUNDS_OF_DEAD - 1) * (lost.is_dead and agent.name in records.claim.members)

    def _check_order(self, agent: Agent, search: _Search, node: str) -> None:
        """Nobody that was asked once is passed over for long: who gives an answer is asked in each round."""
        last: dict[str, int] = {each.node: number for number, each in enumerate(search.asked)}
        for other, number in last.items():
            if other in (node, search.head):
                continue
            since = Counter(each.node for each in search.asked[number + 1 :])[node] + 1
            most = OFTEN
            if search.asked[number].is_silent:  # and of those that were so by then, or are, one is asked in a round
                until_then = {each.node: each.is_silent for each in search.asked[: number + 1]}
                now = {each.node: each.is_silent for each in search.asked}
                most += max(sum(until_then.values()), sum(now.values()))
            require(since <= most, f"{agent.name} asks {node} {since} times, and {other} not once meanwhile")

    def _check_silent(self, agent: Agent, search: _Search, node: str) -> None:
        """Of those that gave no answer one is asked in a round, of members and of spares: each costs its time."""
        last: dict[str, _Asked] = {}
        again: dict[str, set[str]] = {}  # by who gives answers, since it was asked: whom else again, who gave none
        for asked in (*search.asked, _Asked(node, agent.now)):
            before = last.get(asked.node)
            if before is not None and before.is_silent and asked.node != search.head:
                for others in again.values():
                    others.add(asked.node)
            last[asked.node] = asked
            again.pop(asked.node, None)
            if asked.ended_at is not None and not asked.is_silent and asked.node != search.head:
                again[asked.node] = set()
        most = 1 if agent.name in search.members else 2
        for other, names in again.items():
            what = f"{agent.name} asks {sorted(names)} again, which gave no answer, before it asks {other} again"
            require(len(names) <= most, what)
