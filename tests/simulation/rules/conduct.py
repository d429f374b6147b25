"""How an agent goes about things: what it says once, how often it asks, what it writes down, and what it leaves behind.

The numbers are what the package promises to who shares its machines: a file server and agents that others dial.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.agent.drivers.coordinator import HANGS_UP_WITHIN_S
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, HeadOver, Level, Note, SendToHead, SendToMember, StartWorkers
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Message
from hpc_elastic.membership.timing import DIAL_PAUSES_S, DRIFT, TURNS_AHEAD, Timing
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import NodeResult, RunResultRecord, RunState, WorkerState
from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.world import SimulatedRun

WINDOW_S = 5.0
DIALS = 25  # of an agent by another in that time, at most
AT_ONCE = 2  # dials of an agent; one of each search that is over may still be under way, for 4 s
DIALS_A_LOSS = 10  # of an agent, until it has a head
ROUNDS_A_LOSS = 3  # of all that it may ask at first, where these are many
READS = 25  # of the latest records, by an agent without a head: one a second, and those that news make
DIAL = ("Successor._dial", "Successor._ask", "Searching._ask", "create_connection")  # it ends by itself
FIRST_LOOK_S = 2.0  # by then node 0 has claimed, and its agent answers
LOOKS = 4  # at the claims of allocations, by an agent that has had no head yet
LINES = 40
ASK_AT_START = 4  # agents, the scheduler
STOPS = 2  # of one manner, that a head sends to a member: for a loss meanwhile, for the end, and for one of each role
CLOSES_S, CLOSES_LATE_S = 5.0, 5.0  # for members to leave, from a moment after an agent's own part has ended
GOES_WITHIN_S, LAST_RECORDS = 1.0, 16  # to close what is open, and to write what is not written yet
TRIES_AGAIN_S = 2.0  # the longest pause after a refusal of the file server, which may be over in the middle of it
LATE_S = 0.01  # of a beat, besides what the clock and a pause do
ONCE = (messages.Started, messages.Finished, messages.Ended, messages.Stopped)  # of an attempt


class Conduct:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        scenario = run.scenario
        self._patience_s = Timing(lease_s=scenario.lease_s, profile=scenario.profile).patience_s
        self._guard_s = scenario.profile.guard_s
        self._late_s = LATE_S + sum(fault.lasts_s for fault in scenario.faults if fault.what == "late")
        self._said: set[tuple[object, ...]] = set()
        self._recent: defaultdict[tuple[str, int, str], deque[float]] = defaultdict(deque)
        self._dialling: Counter[Agent] = Counter()
        self._dials: Counter[Agent] = Counter()
        self._beats: dict[Agent, float] = {}
        self._asked_at: dict[Agent, float] = {}  # to join its own head; when it asks others it has none
        self._finished: set[tuple[str, int]] = set()  # nodes that have told their head so, and in which attempt
        self._stops: Counter[tuple[object, ...]] = Counter()
        self._told_ends: defaultdict[object, dict[str, bool]] = defaultdict(dict)  # by head: who ends the job
        self.noted: set[tuple[str, int]] = set()  # events of a head, and their attempts
        self._heads: dict[Agent, object] = {}  # whose members have not left
        self._over_at: dict[Agent, float] = {}  # when the latest head of each agent was over
        self._have_led: set[Agent] = set()
        self._have_lost: set[Agent] = set()  # a head, and searched for another one
        self._have_term: set[Agent] = set()  # from outside, and they have told a head
        self._knows_size: set[Agent] = set()  # of its head's world
        self._knows_loss: dict[Agent, bool] = {}  # whether its records have the loss that it searches for

    def begins(self) -> None:
        """The agents of a start of the job are there: few ask the scheduler, which would answer thousands nothing."""
        asking = [agent.name for agent in self._run.agents if agent.asks_at_start]
        require(len(asking) <= ASK_AT_START, f"{asking} ask the scheduler at their start")

    # Of a member.

    def acts(self, agent: Agent, action: Action) -> None:
        """A member does something else than to send a beat."""
        if isinstance(action, SendToHead):
            self._reports(agent, action.message)
        elif isinstance(action, StartWorkers):
            self._knows_loss[agent] = False
        elif isinstance(action, Note) and action.name == "head.lost":
            is_known = self._knows_loss.get(agent, False)
            require(not is_known, f"{agent.name} notes the loss of a head again, though none has taken its place")
            self._knows_loss[agent] = True

    def has_heard(self, agent: Agent, message: Message) -> None:
        """A member has taken in what its head says, unless it gave that head up just before."""
        is_taken_in = agent.member.phase is MemberPhase.PARKED
        if isinstance(message, messages.Welcome) and not message.gathers and is_taken_in:
            self._knows_loss[agent] = False

    def searches(self, agent: Agent) -> None:
        """A member searches for a head."""
        self._beats.pop(agent, None)
        self._have_lost.add(agent)
        self._lately(agent, "searches")
        require(agent not in self._have_term, f"{agent.name} has got a TERM, and searches for another head")
        require(self._knows_loss.get(agent, False), f"{agent.name} searches for a head, and notes no loss of one")

    def has_lost(self, agent: Agent) -> bool:
        """Whether it has ever searched for a head because its own was lost."""
        return agent in self._have_lost

    def _reports(self, agent: Agent, message: Message) -> None:
        if isinstance(message, ONCE):
            if isinstance(message, messages.Finished):
                self._finished.add((agent.name, message.attempt))
                self._finishes(agent, message)
            self._once(f"{agent.name} reports {message.KIND}", agent, message.KIND, message.attempt)
        elif isinstance(message, messages.Terminated):
            self._have_term.add(agent)
            self._once(f"{agent.name} reports {message.KIND}", agent, message.KIND, agent.member.attempt)
        elif isinstance(message, messages.Failed):
            failure = message.failure
            what = f"{agent.name} reports the failure of rank {failure.rank}"
            self._once(what, agent, message.KIND, message.attempt, failure.rank)
        elif isinstance(message, messages.NoticePolls):
            is_so = message.attempt == agent.member.attempt
            require(is_so, f"{agent.name} names calls of attempt {message.attempt}, whose workers are not its own")
        elif isinstance(message, (messages.Join, messages.Dropped)):
            self._beats.pop(agent, None)
            self._asked_at.pop(agent, None)
            if isinstance(message, messages.Join):
                self._asked_at[agent] = agent.now

    def _finishes(self, agent: Agent, message: messages.Finished) -> None:
        """A node is finished when all its workers have exited 0, or have ended where failures are ignored."""
        attempt = message.attempt
        world, role = self._run.disk.worlds[attempt], self._run.scenario.role(agent.role)
        ranks = {rank.rank for rank in world.ranks if rank.node == agent.name}
        well = self._run.witness.ended_well.get((role.name, attempt), set())
        again = self._run.witness.took_notice.get((role.name, attempt), set()) & ranks
        told = {*parse_ranks(message.again)} if message.again else set()
        require(told == again, f"{agent.name} says that {told} are to go on later, not {again}")
        require(bool(again) or not message.held, f"{agent.name} says which states it holds, and nobody is to go on")
        is_finished = role.restart == "ignore" or ranks <= well | again
        require(is_finished, f"{agent.name} says that it has finished attempt {attempt}, and {ranks - well} have not")

    def beats(self, agent: Agent) -> None:
        """A member sends a beat, four in the time that a member waits for an answer: fewer lose a head, more cost it.

        As long as it does not know how many members there are, it sends two.
        """
        now, patience_s = agent.now, self._patience_s
        before, is_first_known = self._beats.get(agent), agent not in self._knows_size
        self._beats[agent] = now
        if agent.member.attempt:
            self._knows_size.add(agent)
        if before is None:  # the question to join counts as one
            waited_s = now - self._asked_at.get(agent, now - patience_s)
            is_due = waited_s >= patience_s / 4 - self._late_s or agent.process.has_ever_frozen
            require(is_due, f"{agent.name} asks to join and sends a beat at once")
            return
        longest_s, late_s = patience_s / (2 if is_first_known else 4), self._late_s
        is_due = patience_s / 4 - late_s <= now - before <= longest_s + late_s
        if not is_due and not agent.process.has_ever_frozen:
            raise BrokenRuleError(f"{agent.name} sends beats {now - before:.3f} s apart")

    # Of a head.

    def head_acts(self, agent: Agent, head: object, action: Action) -> None:
        """A head does something."""
        if isinstance(action, SendToMember) and isinstance(action.message, (messages.Assign, messages.End)):
            message = action.message
            number = message.attempt if isinstance(message, messages.Assign) else 0
            self._once(f"{agent.name} sends {message.KIND} to {action.node}", head, message.KIND, number, action.node)
            if isinstance(message, messages.End):
                self._ends(agent, head, action.node, message)
            else:
                self._run.headships.gives_part(head, action.node)
        elif isinstance(action, SendToMember) and isinstance(action.message, messages.Welcome):
            self._run.headships.takes_in(head, action.node)
        elif isinstance(action, SendToMember) and isinstance(action.message, messages.Stop):
            stop = action.message
            what = f"{agent.name} sends {stop.KIND} ({stop.manner.value}) to {action.node}"
            key = (head, stop.attempt, stop.manner, action.node)
            self._stops[key] += 1
            most = STOPS + len(self._run.scenario.roles)
            require(self._stops[key] <= most, f"{what} for the {self._stops[key]}th time")
        elif isinstance(action, HeadOver):
            self._once(f"{agent.name} ends as head", head, "over")
            self._heads.pop(agent, None)
            self._over_at[agent] = self._run.clock.now
        elif isinstance(action, Note) and action.name in ("attempt.started", "rendezvous.timeout"):
            self._once(f"{agent.name} notes {action.name}", head, action.name, action.attempt)
            self.noted.add((action.name, action.attempt))

    def _ends(self, agent: Agent, head: object, node: str, end: messages.End) -> None:
        """A head tells a member to leave: one ends the job if the node of the batch script is not with this head."""
        self._run.job_ends.is_told(head, agent.name, node, end)
        is_vain = end.exit_code == ExitCode.SUCCESS and end.flush is not None
        require(not is_vain, f"{agent.name} has {node} write a state after a success, which nobody loads")
        self._run.headships.tells_to_leave(head, node)
        told = self._told_ends[head]
        told[node] = end.ends_job
        enders, host = [node for node, is_it in told.items() if is_it], self._run.agents[0].name
        is_so = not enders or (len(enders) == 1 and host not in told)
        require(is_so, f"{agent.name} has {enders} end the job, and the members {sorted(told)}")

    def leads(self, agent: Agent, head: object) -> None:
        """An agent has a head."""
        self._heads[agent] = head
        self._have_led.add(agent)

    def steps_down(self, agent: Agent, *, is_head: bool) -> None:
        """An agent's head is superseded: others speak for the run from now on."""
        self._heads.pop(agent, None)
        self._over_at[agent] = self._run.clock.now
        require(not is_head, f"{agent.name} steps down, and takes itself for the one that speaks for the run")

    def closes(self, agent: Agent, members: Mapping[str, SimulatedConnection]) -> None:
        """A head is over, and its driver has closed all; a member that is still there hears so by its connection."""
        left = [node for node, connection in members.items() if not connection.is_closed_here]
        require(not left, f"{agent.name} is head no more, and keeps the connections of {left}")

    def has_dropped(self, agent: Agent, node: str, connection: SimulatedConnection | None) -> None:
        """A head has dropped a member: the connection closes, and the member finds out."""
        is_closed = connection is None or connection.is_closed_here
        require(is_closed, f"{agent.name} drops {node}, and keeps its connection")

    def prints(self, agent: Agent, *, is_head: bool) -> None:
        """An agent prints a line of its head's: those of the head of the latest attempt go where people look."""
        run, claim = self._run, self._run.disk.latest_claim
        is_latest = claim is not None and claim.head == agent.name and not run.earlier and not run.disk.results
        is_latest = is_latest and agent.headquarters is not None and run.head_phase == "running"
        is_latest = is_latest or (claim is None and len(run.disk.allocations) == 1 and agent in self._heads)
        is_latest = is_latest or agent not in self._have_led  # it says why there will be no head
        require(is_head or not is_latest, f"{agent.name} is head, and its lines go to its own log alone")

    def _once(self, what: str, *key: object) -> None:
        require(key not in self._said, f"{what} again")
        self._said.add(key)

    # Of what others have to bear.

    def dials(self, agent: Agent, target: Agent) -> None:
        """An agent begins to connect to another one."""
        self._dialling[agent] += 1
        searched = self._lately(agent, "searches", is_new=False)
        require(
            self._dialling[agent] <= max(AT_ONCE, searched),
            f"{agent.name} dials {self._dialling[agent]} agents at a time",
        )
        self._often(agent, f"dials {target.name}", DIALS)
        self._dials[agent] += 1
        # That one agent is gone, the first of all among them, is no reason to ask around.
        faults = self._run.scenario.faults
        is_simple = not faults or (len(faults) == 1 and faults[0].what in ("kill_agent", "power_off"))
        claim = self._run.disk.latest_claim
        others = len(claim.members) - 1 if claim is not None else 0
        a_loss = max(DIALS_A_LOSS, ROUNDS_A_LOSS * min(others, TURNS_AHEAD + 1))
        # Workers that are being started keep their agents from the search, and the others ask all that they may.
        asked = min(others, TURNS_AHEAD + 1) if max(self._run.scenario.spawn_s) > DIAL_PAUSES_S[-1] else 1
        most = DIALS_A_LOSS + sum(a_loss + 2 * asked * max(0.0, self._run.clock.now - fault.at) for fault in faults)
        is_simple = is_simple and claim is not None and agent.name in claim.members
        is_simple = is_simple and max(self._run.scenario.disk_s) < 0.1  # else the next head takes long to claim
        require(not is_simple or self._dials[agent] <= most, f"{agent.name} dials {self._dials[agent]} times in a run")

    def reads(self, agent: Agent, *, needs_world: bool) -> None:
        """An agent without a head reads the latest records: the whole roster only where it may have to carry it on."""
        self._often(agent, "reads the records", READS)
        require(
            agent in self._have_lost or not needs_world, f"{agent.name} reads the whole roster, and has lost no head"
        )

    def looks(self, agent: Agent) -> None:
        """An agent that looks for the first head reads the claims, which it does every two seconds."""
        waited_s = (self._run.clock.now - agent.started_at) * (1 + DRIFT)
        require(
            waited_s >= FIRST_LOOK_S, f"{agent.name} reads the claims of allocations {waited_s:.2f} s after it began"
        )
        self._often(agent, "reads the claims of allocations", LOOKS)

    def has_dialled(self, agent: Agent) -> None:
        """It has a connection, or gave up."""
        self._dialling[agent] -= 1

    def says(self, agent: Agent, level: Level) -> None:
        """An agent prints a line, which people see unless it is for `log_level: debug`."""
        if level != "debug":
            self._often(agent, "prints lines", LINES)

    def _often(self, agent: Agent, what: str, most: int) -> None:
        if (times := self._lately(agent, what)) > most:
            raise BrokenRuleError(f"{agent.name} {what} {times} times in {WINDOW_S:g} s")

    def _lately(self, agent: Agent, what: str, *, is_new: bool = True) -> int:
        """How often an agent has done something in the last seconds, now among them if it is new."""
        recent, now = self._recent[agent.name, agent.start_number, what], self._run.clock.now
        if is_new:
            recent.append(now)
        while recent and recent[0] < now - WINDOW_S:
            recent.popleft()
        return len(recent)

    def sets_deadline(self, agent: Agent, deadline: float) -> None:
        """The guard is told when to kill what the agent has not killed: it leaves the agent its time."""
        if deadline == NEVER:  # it leaves any time
            return
        own = min(agent.part.member.fence_deadline(), agent.part.heads.fence_deadline())
        if deadline < own + self._guard_s - LATE_S:
            raise BrokenRuleError(f"the guard of {agent.name} kills {own - deadline:.3f} s before the agent")

    def starts_workers(self, agent: Agent) -> None:
        """Workers begin here: the guard knows by when to kill them, or is told once it has heard all news."""
        self.sets_deadline(agent, agent.guard.deadline)  # also where it has not changed since it was set
        if self._is_told_late_s(agent):
            self._run.clock.after(LATE_S, lambda: self._relies_on_guard(agent))

    def _relies_on_guard(self, agent: Agent) -> None:
        """Workers that are at work here are killed by the guard in time, should the agent be frozen from now on."""
        if agent.is_running and agent.guard.is_alive and agent.workers.alive and agent.process.is_at_rest:
            self.sets_deadline(agent, agent.guard.deadline)
            late_s = self._is_told_late_s(agent)
            require(not late_s, f"the guard of {agent.name} would kill {late_s:.3f} s too late, at {agent.now:.3f} s")

    def _is_told_late_s(self, agent: Agent) -> float:
        own = min(agent.part.member.fence_deadline(), agent.part.heads.fence_deadline())
        late_s = agent.guard.deadline - own - self._run.scenario.profile.guard_s
        return 0.0 if own == agent.guard.deadline or late_s <= LATE_S else late_s  # equal: for ever, both

    def watch(self) -> None:
        """From time to time."""
        for agent in self._run.everybody:
            self._relies_on_guard(agent)

    # Of records.

    def records(self, record: NodeResult) -> None:
        """A node's part in an attempt is on disk."""
        run, what = self._run, f"the record of {record.node} in attempt {record.attempt}"
        world = run.disk.worlds.get(record.attempt)
        require(world is not None, f"{what} is of an attempt that nobody claimed")
        assert world is not None
        ranks = tuple(rank.rank for rank in world.ranks if rank.node == record.node)
        require(record.ranks == ranks, f"{what} has the ranks {record.ranks}, not {ranks}")
        has_ended = not record.state.is_running
        require((record.ended is not None) == has_ended, f"{what} ends at {record.ended}, and is {record.state.value}")
        well = run.witness.ended_well.get((record.role, record.attempt), set())
        has_finished = (record.node, record.attempt) in self._finished and record.state is not WorkerState.FAILED
        is_success = record.state is WorkerState.SUCCEEDED
        require(is_success or not has_finished, f"{what} was of a success, and is {record.state.value} now")
        if record.state is WorkerState.SUCCEEDED:
            require(set(ranks) <= well, f"{what} is of a success, and not all of {ranks} have exited 0")
        if record.state.is_running:
            is_there = (record.node, record.attempt) in run.witness.started_in
            require(is_there, f"{what} says that its workers run, and they were never started")
        has_failed = record.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)
        require(bool(record.failures) == has_failed, f"{what} names failures falsely")
        require({*map(int, record.failures)} <= set(ranks), f"{what} names failures of other nodes")
        false = [rank for rank in record.failures if int(rank) in well]
        require(not false, f"{what} names failures of {false}, which have exited 0")

    def ended(self, agent: Agent, result: RunResultRecord) -> None:
        """The result is on disk."""
        claim, world = self._run.disk.latest_claim, self._run.disk.latest
        require(result.written_by == agent.name, f"{agent.name} writes the result of {result.written_by}")
        began, is_readable = self._run.disk.allocations[0].time, not self._run.scenario.stale_s
        if is_readable and not self._run.is_disturbed:
            require(result.started == began, f"the result says that the run began at {result.started}, not {began}")
        require((result.state is RunState.SUCCEEDED) == (result.exit_code == 0), "the result contradicts itself")
        require(not (result.failures and result.state is RunState.SUCCEEDED), "a success names failures")
        is_simple = not self._run.is_disturbed and len(self._run.scenario.roles) == 1
        if is_simple and result.state is RunState.SUCCEEDED and self._run.scenario.roles[0].restart != "ignore":
            is_noted = ("attempt.started", result.attempts) in self.noted
            require(is_noted, f"attempt {result.attempts} has succeeded, and no event says that it was started")
        failed = [incident for incident in self._run.witness.unanswered() if incident.rank is not None]
        is_of_failure = self._run.silent_ends.is_of_failure(result.reason)
        if is_of_failure and len(failed) == len(self._run.witness.unanswered()):
            require(bool(result.failures), f"{failed} have ended the run, and its result names none of them")
        is_of_this_start = not self._run.earlier  # a start that opens no attempt knows of no world, but of its nodes
        if claim is not None and world is not None and result.attempts == claim.attempt and is_of_this_start:
            # A restart counts from its decision, which may come after the latest claim.
            spent = result.restarts - claim.spend.restarts
            require(0 <= spent <= len(self._run.witness.unanswered()), f"the result says {result.restarts} restarts")
            require(result.nodes == tuple(node.node for node in world.nodes), f"the result names {result.nodes}")
            ranks = {str(rank.rank) for rank in world.ranks}
            require(set(result.failures) <= ranks, "the result has failures of ranks that there are not")

    # Of its end.

    def goes(self, agent: Agent) -> None:
        """An agent has closed all that it has, and its process ends."""
        left = [name for name in agent.process.tasks_left() if not name.endswith(DIAL)]
        waits_for_disk = agent.disk.stalled_until > self._run.clock.now  # what waits for it ends with the process
        require(not left or waits_for_disk, f"{agent.name} ends, and leaves {left}")
        waited_s = self._run.clock.now - agent.left_at
        closes_within_s = max(CLOSES_S, self._patience_s / 2) + CLOSES_LATE_S
        is_over = agent not in self._heads or waited_s * (1 + DRIFT) >= closes_within_s
        require(is_over, f"{agent.name} ends {waited_s:.1f} s after its own part, and members of its have not left")
        if agent not in self._heads and agent.disk.is_well:
            self._goes_soon(agent)
        require(
            agent.listener is None, f"{agent.name} ends, and listens for others, which take it for one that answers"
        )
        ticks = [name for name in agent.process.timers_left() if name.endswith("._tick")]
        require(not ticks, f"{agent.name} ends, and leaves the timers of {ticks}")
        if self._run.earlier:  # an agent of an old start is cut short where the new one begins
            return
        # Who has hung up on this agent while the network was cut waits for nothing more of it.
        known = [each for each in agent.sockets if each.connection is not None and each.other.is_open]
        # Nor does who has dialled and stands still, or is cut off, before its first message comes
        known = [each for each in known if each.other.agent.is_powered and each.connection.is_in_use]  # type: ignore[union-attr]
        open_ = [each.other.agent.name for each in known if each.connection.opened_at < agent.now - HANGS_UP_WITHIN_S]  # type: ignore[union-attr]
        require(not open_, f"{agent.name} ends with connections to {open_}")

    def _goes_soon(self, agent: Agent) -> None:
        """An agent whose own part and whose head are over waits for nothing but its last records.

        One of these may have been refused before, and its next try may come `TRIES_AGAIN_S` after the last moment in
        which it could be refused once more, whatever else has ended in between.
        """
        run, tries_again_at = self._run, agent.disk.fails_until + TRIES_AGAIN_S * bool(agent.disk.fails_until)
        since = max(agent.left_at, self._over_at.get(agent, 0.0), agent.troubled_until, tries_again_at)
        waited_s, allowed_s = run.clock.now - since, GOES_WITHIN_S + LAST_RECORDS * max(run.scenario.disk_s)
        # One that is to stand still at a point of its code may come to it only now.
        allowed_s += sum(
            each.lasts_s
            for each in run.scenario.faults
            if each.what == "freeze" and (each.node == agent.number or each.node < 0)  # who that is shows as it comes
        )
        what = f"{agent.name} has no part in the run any more, and is there {waited_s:.1f} s longer"
        require(waited_s <= allowed_s, f"{what}, not {allowed_s:.1f} s")
