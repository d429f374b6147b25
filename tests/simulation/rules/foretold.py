"""What must come of one thing after the other, foretold from the scenario alone: attempt by attempt, and the result.

Theory of operation. In a scenario that `draw_foretold` makes, each fault comes when all is quiet. Then what the run
directory will say follows from what happened so far: who is in the next world and in which places, who is head, what is
charged, why, and, within some tenths of a second, when; or how the run ends. The times are what the package promises in
words: a dead agent is known at once, a silent one after the lease, a head looks into the run directory once a second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord, World
from tests.simulation.rules.invariants import SPREAD, require
from tests.simulation.scenario import JOINS, Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

SOON_S = 0.45  # messages, a stop, some files
LOOKS_S = 1.0  # a head into the run directory
SPARES_S = 1.0  # a successor that has room waits so long for more nodes

BACK_S = 5.0  # who was cut off dials again within that
ANY = "*"  # as a cause
LOST_TOO_OFTEN = 2  # times in a run: then a node is set aside, as one that was drained
CALM_S = 4.0  # after which all is at work
ASKS_PER_S = 6  # of a head
TURNS_PER_LEASE = 40  # of a member, and of a head for each
SETTLES_S = 0.25  # a worker's TERM may be one for all
FENCED_S = 0.1 + 0.15 + 0.25  # of a lost head: the agent, the guard, the kill


@dataclass
class Next:
    """What comes next, between two moments: an attempt, or with a `reason` the result."""

    what: str
    earliest: float
    latest: float
    reason: str = ""
    cause: str = ""  # what the result or the claim names


class Foretold:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.is_played = run.scenario.is_foretold
        scenario = run.scenario
        absent = {f"node{fault.node}" for fault in scenario.faults if fault.what in JOINS and self.is_played}
        names = [name for name in scenario.names if name not in absent]
        self._places = names[: scenario.max_nodes]
        self._here = set(names)
        self._head = names[0]
        self._members = set[str]()  # of the attempt before
        self._before_loss, self._lost_head = list(self._places), self._head
        self._rivals = set[str]()  # that this head lacks, and that may be alive for all that it knows
        self._before = ""  # the head of the attempt before
        self._attempt = self._restarts = self._losses = 0
        self._aside: set[str] = set()  # drained, or lost too often
        self._times_lost = Counter[str]()
        self._away: dict[str, float] = {}  # nodes that are cut off, and until when
        self._next: Next | None = Next("the first attempt", 0.0, 2.0 + 1.5 + SOON_S)
        self._calm_at = 0.0  # when something happened last
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}  # in this second
        self._is_finished = False

    # What happens.

    def happens(self, fault: Fault, agent: Agent) -> None:
        """A fault strikes this agent."""
        if not self.is_played or self._is_finished or self._run.disk.results:
            return
        self.watch()
        self._calm_at = self._run.clock.now
        now, name, what = self._run.clock.now, agent.name, fault.what
        if what.endswith("_worker"):
            if agent.workers.alive:  # else all have exited by themselves
                self._fails(name, now, SETTLES_S if what == "term_worker" else 0.0)
        elif what in ("kill_agent", "power_off") and name in self._here:
            self._dies(name, now, is_silent=what == "power_off")
        elif what == "partition":
            self._is_cut_off(name, now, fault.lasts_s)
        elif what == "pause":
            self._stands_still(name, now, fault.lasts_s)
        elif what == "ask_restart":
            self._fill()
            self._expect("a restart that was asked for", now, 0.0, LOOKS_S)
        elif what == "ask_drain":
            self._is_drained(name, now)
        elif what == "stop":
            self._end("a stop", now, 0.0, LOOKS_S, "stop_requested", "ada@login")
        elif what == "ask_stop":
            self._end("an announced stop", now, fault.lasts_s, fault.lasts_s + LOOKS_S, "stop_requested", "ada@login")

    def _expect(self, what: str, now: float, earliest_s: float, latest_s: float, cause: str = "") -> None:
        require(self._next is None, f"foretold: {what} comes before {self._next}")
        self._next = Next(what, now + earliest_s, now + latest_s + SOON_S, cause=cause)

    def _end(self, what: str, now: float, earliest_s: float, latest_s: float, reason: str, cause: str = "") -> None:
        self._expect(what, now, earliest_s, latest_s, cause)
        assert self._next is not None
        self._next.reason = reason
        self._is_finished = True

    def _fails(self, name: str, now: float, settles_s: float) -> None:
        scenario = self._run.scenario
        if name not in self._places:
            return
        if self._restarts >= scenario.max_restarts:
            self._end("one failure too many", now, settles_s, settles_s, "restarts_used_up", name)
            return
        pause_s = scenario.backoff_first_s * 2**self._restarts
        self._restarts += 1
        self._fill()  # who is back takes part
        longest_s = settles_s + pause_s * SPREAD
        self._expect(f"a restart after a failure on {name}", now, settles_s + pause_s, longest_s, name)

    def _die_together(self, name: str, now: float) -> None:
        """The head has fallen silent just now, and so does one who would have come to the next one."""
        coming, lease_s = self._next, self._run.scenario.lease_s
        self._here.discard(name)
        self._rivals.add(name)
        self._is_lost(name)
        assert coming is not None
        if len(self._usable) < self._run.scenario.min_nodes or (successor := self._successor(self._lost_head)) is None:
            self.is_played = False
            return
        self._head = successor
        self._places = self._before_loss
        self._fill()
        earliest_s = 2 * lease_s - lease_s / 6 + FENCED_S - 0.01
        self._next = Next(coming.what, now + earliest_s, now + 2 * lease_s + FENCED_S + 2 * SOON_S, cause=ANY)

    def _dies(self, name: str, now: float, *, is_silent: bool) -> None:
        if self._next is not None and self._next.what.startswith("an attempt without") and name in self._places:
            self._die_together(name, now)
            return
        self._before_loss, self._lost_head = list(self._places), self._head
        self._here.discard(name)
        is_head, scenario, lease_s = name == self._head, self._run.scenario, self._run.scenario.lease_s
        if is_silent and not is_head:
            self._rivals.add(name)
        if name not in self._places and not is_head:
            return  # a spare is not missed
        if name in self._places:
            self._is_lost(name)
        earliest_s, latest_s = 0.0, 0.0
        if is_silent and not is_head:
            # The newest answer that it is known to have got was sent one or two beats before.
            earliest_s, latest_s = lease_s * 2 / 3 - SOON_S, lease_s * 11 / 12
        elif is_head:
            latest_s = SPARES_S + SOON_S
            if is_silent:
                earliest_s += lease_s * 5 / 6 + FENCED_S - 0.01
                latest_s += lease_s + FENCED_S
        if is_head:  # the next one does not know who of the others is dead
            self._rivals = set(scenario.names) - self._here - (set() if is_silent else {name})
        if len(self._usable) < scenario.min_nodes:
            self._fall_short(name, now, earliest_s, latest_s, is_silent=is_silent)
            return
        successor = self._successor() if is_head else self._head
        if successor is None:
            self.is_played = False  # spares, which take a silent head's place only when they know more
            return
        self._head = successor
        self._fill()
        self._expect(f"an attempt without {name}", now, earliest_s, latest_s, name)

    def _is_lost(self, name: str) -> None:
        """A node is lost from the world: the second time that is taken for its fault, if two others are there."""
        self._losses += 1
        self._times_lost[name] += len(self._there - {name}) > 1
        if self._times_lost[name] >= LOST_TOO_OFTEN:
            self._aside.add(name)

    def _fall_short(self, name: str, now: float, earliest_s: float, latest_s: float, *, is_silent: bool) -> None:
        """Too few are left; those that are only silent may go on by themselves, or come back."""
        scenario, lease_s = self._run.scenario, self._run.scenario.lease_s
        if name == self._head:
            others = set(scenario.names) - self._here - {name}  # a new head does not know that they are dead
            if is_silent or others:
                earliest_s = 3 * lease_s + 1 - lease_s / 6 - 0.05  # from the last beat that was answered
                latest_s = 3 * lease_s + 1 + SOON_S
        elif is_silent:  # they may be enough to go on without this head, or can only come back
            waits_s = 3 * lease_s + 1 if len(self._rivals) >= scenario.min_nodes else 2 * lease_s
            earliest_s, latest_s = earliest_s + waits_s, latest_s + waits_s
        elif self._rivals and len(self._rivals | {name}) + len(self._there) >= scenario.min_nodes:
            earliest_s, latest_s = 2 * lease_s - 0.05, 2 * lease_s  # those that were silent long ago may come back
        self._end(f"the end without {name}", now, earliest_s, latest_s, "node_lost", name)

    @property
    def _there(self) -> set[str]:
        return self._here - self._away.keys()

    @property
    def _usable(self) -> set[str]:
        """Who may have workers: those who are set aside only if the others are too few."""
        others = self._there - self._aside
        return others if len(others) >= self._run.scenario.min_nodes else self._there

    def _successor(self, lost: str = "") -> str | None:
        """Who comes first: in the middle of those that are left, after the first, at the quarters, and so on."""
        lost, places = lost or self._head, self._before_loss if lost else self._places
        others = sorted((name for name in places if name != lost), key=self._run.scenario.names.index)
        bits = max(len(others) - 1, 1).bit_length()
        turns = [int(f"{turn:0{bits}b}"[::-1], 2) for turn in range(2**bits)]
        order = [others[turn] for turn in turns if turn < len(others)]
        return next((name for name in order if name in self._here and name not in self._away), None)

    def _fill(self) -> None:
        """Spares take the places of who is gone; the others close up."""
        names, usable = self._run.scenario.names, self._usable
        spares = sorted(usable - set(self._places), key=lambda name: (name != self._head, names.index(name)))
        places = [name if name in usable else (spares.pop(0) if spares else None) for name in self._places]
        self._places = [name for name in places if name is not None]
        while spares and len(self._places) < self._run.scenario.max_nodes:
            self._places.append(spares.pop(0))

    def _stands_still(self, name: str, now: float, lasts_s: float) -> None:
        """The head is frozen: within its lease that costs nothing, and after it another one takes its place."""
        scenario = self._run.scenario
        if lasts_s < scenario.lease_s * 2 / 3:
            return
        if lasts_s < scenario.lease_s:  # the others have stopped, come back, and nobody is lost
            self._calm_at = now + lasts_s  # the others look for it meanwhile, also those without a part in the world
            if set(self._places) - {name}:
                self._fill()
                self._expect("an attempt after a pause of the head", now + lasts_s, 0.0, BACK_S, ANY)
            return
        if len(self._usable - {name}) < scenario.min_nodes:
            self.is_played = False
            return
        self._dies(name, now, is_silent=True)
        self._here.add(name)
        self._away[name] = now + lasts_s

    def _is_cut_off(self, name: str, now: float, lasts_s: float) -> None:
        scenario = self._run.scenario
        is_short = len(self._here - self._away.keys() - {name}) < scenario.min_nodes
        if is_short and name in self._places and name != self._head and lasts_s < 1.6 * scenario.lease_s:
            self._is_lost(name)  # the head waits for it, and so does it for the head
            self._expect(f"an attempt with {name}, which is back", now + lasts_s, 0.0, BACK_S, name)
            return
        if name == self._head or name not in self._here or is_short:
            self._is_finished = True  # two sides: that is for other scenarios
            self._next = None
            self.is_played = False
            return
        self._away[name] = now + lasts_s
        self._rivals.add(name)
        if name in self._places:
            self._is_lost(name)
            self._fill()
            lease_s = self._run.scenario.lease_s
            self._expect(f"an attempt without {name}", now, lease_s * 2 / 3 - SOON_S, lease_s * 11 / 12, name)

    def _is_drained(self, name: str, now: float) -> None:
        if name in self._aside or len(self._usable - {name}) < self._run.scenario.min_nodes:
            return  # nothing is done
        self._aside.add(name)
        if name in self._places:
            self._fill()
            self._expect(f"an attempt without {name}, which was drained", now, 0.0, LOOKS_S)

    def _return(self) -> None:
        """Who was cut off is back, if it has had the time."""
        now, scenario = self._run.clock.now, self._run.scenario
        for name, until in list(self._away.items()):
            if now >= until and self._next is None and not self._is_finished:
                del self._away[name]
                self._rivals.discard(name)
                self._calm_at = now + 2 * CALM_S
                is_wanted = len(self._places) < scenario.max_nodes and scenario.rejoin == "immediately"
                if is_wanted and name in self._here and name not in self._aside:
                    self._fill()
                    self._expect(f"an attempt with {name}, which is back", until, 0.0, BACK_S)

    # What it costs to be at work.

    @property
    def _is_quiet(self) -> bool:
        """Whether all is known to be at work, and nothing is to be done but to send beats and to look for requests."""
        is_calm = self._next is None and not self._is_finished and not self._away
        is_at_work = self._attempt > 0 and not self._run.witness.first_end and not self._run.disk.results
        return self.is_played and is_calm and is_at_work and self._run.clock.now > self._calm_at + CALM_S

    def asks(self, agent: Agent) -> None:
        """An agent asks the file server something."""
        if self._is_quiet:
            require(agent.name == self._head, f"{agent.name} asks the file server, and is no head")
            self._often(agent, "asks the file server", ASKS_PER_S)

    def turns(self, agent: Agent) -> None:
        """An agent's event loop takes a turn."""
        if self._is_quiet:
            members = len(self._here)
            most = TURNS_PER_LEASE * (members if agent.name == self._head else 1) / self._run.scenario.lease_s
            self._often(agent, "takes turns", int(most) + 10)

    def sends(self, agent: Agent, kind: str) -> None:
        """An agent sends a message to another one."""
        if kind in ("beat", "echo", "dropped") or not self._is_quiet:
            return
        is_usual = any(fault.what == "partition" for fault in self._run.scenario.faults)
        require(is_usual, f"{agent.name} sends {kind}, at {self._run.clock.now:.3f}")

    def _often(self, agent: Agent, what: str, most: int) -> None:
        second = int(self._run.clock.now)
        key = agent.name, what
        last, count = self._counts.get(key, (second, 0))
        count = count + 1 if last == second else 1
        self._counts[key] = second, count
        require(count <= most, f"{agent.name} {what} {count} times in a second, and all are at work")

    # What is seen.

    def watch(self) -> None:
        """From time to time."""
        if not self.is_played:
            return
        self._return()
        coming = self._next
        if coming is not None and self._run.clock.now > coming.latest:
            require(bool(self._run.disk.results), f"{coming.what} was to come by {coming.latest:.2f} s")

    def claimed(self, claim: AttemptClaim, world: World) -> None:
        """A claim is on disk."""
        if not self.is_played:
            return
        self._return()
        self._calm_at = self._run.clock.now
        coming, self._next = self._next, None
        attempt, now = claim.attempt, self._run.disk.asked_at[claim.attempt]
        require(coming is not None and not coming.reason, f"attempt {attempt} comes, and {coming} was to")
        assert coming is not None
        what = f"attempt {attempt}, {coming.what},"
        is_in_time = coming.earliest <= now <= coming.latest
        require(is_in_time, f"{what} comes at {now:.2f} s, not from {coming.earliest:.2f} to {coming.latest:.2f} s")
        self._attempt += 1
        require(attempt == self._attempt, f"{what} is the {self._attempt}th")
        is_new_head, self._before = claim.head != self._before, claim.head
        require(claim.head == self._head, f"{what} has the head {claim.head}, not {self._head}")
        names = [node.node for node in world.nodes]
        if is_new_head and sorted(set(names) - self._members) != sorted(set(self._places) - self._members):
            # Of some spares those have places that are there first.
            places = zip(names, self._places, strict=True) if len(names) == len(self._places) else ()
            taken = [name if {name, place}.isdisjoint(self._members) else place for name, place in places]
            self._places = taken if set(taken) <= self._usable else self._places
        require(names == self._places, f"{what} has {names}, not {self._places}")
        self._members = set(names)
        spent = claim.spend.restarts, claim.spend.node_losses
        require(spent == (self._restarts, self._losses), f"{what} says {spent}, not {(self._restarts, self._losses)}")
        spares = sorted(spare.node for spare in world.spares)
        free = sorted(name for name in self._here if name not in self._away and name not in self._places)
        # Those that have lost the head, or looked for it while it stood still, may still be on their way.
        is_early = (is_new_head or coming.cause == ANY) and set(spares) <= set(free)
        require(spares == free or is_early, f"{what} has the spares {spares}, not {free}")
        self._check_cause(what, claim, coming)

    def _check_cause(self, what: str, claim: AttemptClaim, coming: Next) -> None:
        cause = claim.root_cause
        if coming.cause == ANY:
            return
        if not coming.cause:
            require(cause is None, f"{what} names the cause {cause}, and there is none")
            return
        named = (cause.node, *cause.nodes) if cause is not None else ()
        require(coming.cause in named, f"{what} names {cause}, not {coming.cause}")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if not self.is_played:
            return
        coming, now = self._next, self._run.clock.now
        is_stop = coming is not None and coming.reason == "stop_requested"
        is_before = is_stop and result.reason == "succeeded" and self._calm_at < self._run.witness.last_end_at
        if is_before or (coming is None and not self._is_finished):  # the last worker ends before a stop is due
            coming = Next("the success", 0.0, self._run.witness.last_end_at + SOON_S, reason="succeeded")
        what = f"the result, {result.reason}: {result.cause},"
        require(coming is not None and bool(coming.reason), f"{what} comes, and {coming} was to")
        assert coming is not None
        require(result.reason == coming.reason, f"{what} comes, and {coming} was to")
        is_in_time = coming.earliest <= now <= coming.latest
        require(is_in_time, f"{what} comes at {now:.2f} s, not from {coming.earliest:.2f} to {coming.latest:.2f} s")
        require(coming.cause in result.cause, f"{what} does not name {coming.cause}")
        counts = result.attempts, result.restarts
        require(counts == (self._attempt, self._restarts), f"{what} says {counts}, not {self._attempt, self._restarts}")
        self._next, self._is_finished = None, True
