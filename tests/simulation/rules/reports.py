"""What a member tells its head is true, and all that it owes the head is told: each message, as `messages` defines it.

The exits that a member has taken in are known here as they happen: those that come while it works on their attempt
count, and what comes during a stop is the stop's. From them follows what its reports must say.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import StopWorkers
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Message, StopManner
from hpc_elastic.membership.notices import TAKEN_EXIT_CODE
from hpc_elastic.membership.timing import TERM_SETTLES_S
from hpc_elastic.rank_set import parse_ranks
from tests.simulation.rules.invariants import BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

ENDED_BY_TERM = (-15, -1, -3, 143, 129, 131)  # by a signal that stops agents, too, or as a shell says it
EXACT_S = 0.001  # numbers are rounded
HELD_S = 0.2  # a little less than what an agent waits for a TERM of its own
SUSPECT = frozenset({-6, -7})  # exit codes: a GPU is broken; a bus error is of a disk or of memory that is full
Part = tuple["Agent", int]  # an agent's part in an attempt


def _ranks(text: str) -> set[int]:
    return {*parse_ranks(text)} if text else set()


class Reports:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._well: defaultdict[Part, set[int]] = defaultdict(set)  # global ranks whose exit 0 was taken in
        self._well_at: defaultdict[Part, dict[int, float]] = defaultdict(dict)  # and when
        self._doubted: defaultdict[Part, set[int]] = defaultdict(set)  # by a TERM that came during another stop
        self._again: defaultdict[Part, set[int]] = defaultdict(set)  # the same of exit 75 after a notice
        self._failed: defaultdict[Part, set[int]] = defaultdict(set)  # of a failure that must be reported
        self._held: defaultdict[Part, dict[int, float]] = defaultdict(dict)  # when a TERM has ended each
        self._ends: defaultdict[Part, dict[int, int]] = defaultdict(dict)  # exit codes of all that failed
        self._terminated_ranks: defaultdict[Part, set[int]] = defaultdict(set)  # by a TERM to the whole node
        self._told: set[tuple[Part, str]] = set()
        self._beats: dict[Agent, int] = {}
        self._echoes: dict[Agent, int] = {}
        self._joins: dict[Agent, int] = {}
        self._problem_told: dict[Agent, str | None] = {}  # of its health, at last
        self._broken: set[Part] = set()
        self._starts: dict[Agent, float] = {}  # when each has been told to start workers last
        self._stopping: dict[Part, StopManner] = {}
        self._told_to_stop: dict[Part, messages.Stop] = {}  # by the head, at last
        self._told_to_leave: dict[Agent, bool] = {}  # and whether that is settled
        self._manner: dict[Agent, StopManner] = {}  # how each stops them

    # What happens on a node.

    def ends(self, agent: Agent, worker: Worker, exitcode: int) -> bool:
        """The agent is about to take in that a worker has ended; returns whether it works on that attempt."""
        if exitcode:
            self._ends[agent, worker.attempt][worker.rank] = exitcode
        if exitcode in ENDED_BY_TERM and worker.has_term and agent.has_term:
            self._terminated_ranks[agent, worker.attempt].add(worker.rank)
        return self._is_at_work(agent, worker.attempt)

    def has_ended(self, agent: Agent, worker: Worker, exitcode: int, *, was_at_work: bool) -> None:
        """The agent has taken that in."""
        part = agent, worker.attempt
        if not (was_at_work and self._is_at_work(agent, worker.attempt)):
            return
        is_again = exitcode == TAKEN_EXIT_CODE and self._run.scenario.heeds_notice
        if exitcode == 0 or is_again:
            is_first = not (self._well[part] or self._again[part] or self._ends[part].keys() - self._again[part])
            (self._again if is_again else self._well)[part].add(worker.rank)
            self._well_at[part][worker.rank] = agent.now
            is_told = (part, "ended") in self._told
            what = f"rank {worker.rank} is the first that has ended on {agent.name} in attempt {worker.attempt}"
            # One whose end others have preceded, if only by a failure that is ignored, begins no wait.
            require(
                is_told or len(self._ends[part].keys() - self._again[part]) > 0, f"{what}, and the head is not told"
            )
            require(not (is_first and not is_told), f"{what}, and the head is not told")
        elif exitcode in ENDED_BY_TERM:
            self._held[part][worker.rank] = self._run.clock.now
        elif exitcode != -9:  # that one may be the work of the guard
            self._failed[part].add(worker.rank)
            self._run.bookkeeping.fails(agent, worker)

    def breaks(self, agent: Agent) -> None:
        """The store host of a node has ended, or the agent takes that in: one host serves all attempts, one by one."""
        self._broken |= {(agent, agent.workers.attempt), (agent, agent.member.attempt)}

    def _is_at_work(self, agent: Agent, attempt: int) -> bool:
        return agent.member.attempt == attempt and agent.member.phase is MemberPhase.WORKING

    def starts(self, agent: Agent) -> None:
        """A member is told to start workers."""
        self._starts[agent] = self._run.clock.now

    def stops(self, agent: Agent, action: StopWorkers) -> None:
        """A member stops its workers, as the head says, or because it is lost, or for a TERM from outside.

        While a stop is under way only a harder one begins: a softer one would give workers time that they do not have.
        """
        manner, part = action.manner, (agent, action.attempt)
        what, told = f"{agent.name} stops attempt {action.attempt} ({manner.value})", self._told_to_stop.get(part)
        end = self._told_to_leave.get(agent)
        is_of_head = told is not None and (told.manner, told.takes_stacks) == (manner, action.takes_stacks)
        is_of_end = end is not None and manner is (StopManner.GRACE if end else StopManner.FENCE)
        is_term = manner is StopManner.GRACE and agent.name in self._run.witness.terminated
        is_term = is_term or (manner is StopManner.GRACE and self._run.scheduler.is_played)
        is_headless = manner is StopManner.FENCE and agent.member._allegiance.is_headless
        is_so = is_of_head or is_of_end or is_term or is_headless
        require(is_so, f"{what}, and was told {told.manner.value if told else end}")
        require(end is None or is_of_end or is_headless, f"{what}, and was to leave: {end}")
        self._check_terms(agent, action)
        self._judge_held(agent, part, manner)
        before = self._stopping.get(part)
        if before is None:
            self._doubt_latest(agent, part, has_term=action.is_terminated or action.is_term_coming)
        is_harder = before is None or manner is StopManner.FENCE or manner.hardness > before.hardness
        require(is_harder, f"{what}, and was stopping it ({before.value if before else ''})")
        self._manner[agent] = self._stopping[part] = manner

    def _check_terms(self, agent: Agent, action: StopWorkers) -> None:
        """Workers that got a TERM with their agent, from outside, get no other one: to many programs two mean haste."""
        have_term = [worker.has_term for worker in agent.workers.alive.values()]
        is_first = (agent, action.attempt) not in self._stopping and agent.member._is_terminated
        is_again = is_first and bool(have_term) and all(have_term) and not action.is_terminated
        require(not is_again, f"{agent.name} stops workers that have a TERM from outside by another one")

    def _doubt_latest(self, agent: Agent, part: Part, *, has_term: bool) -> None:
        """Who exits 0 just before a TERM comes from outside may have handled it: such a rank has not succeeded."""
        ages = {rank: agent.now - at for rank, at in self._well_at[part].items()}
        self._doubted[part] = {rank for rank, age in ages.items() if age < TERM_SETTLES_S + EXACT_S}
        if has_term:
            self._well[part] -= {rank for rank, age in ages.items() if age < TERM_SETTLES_S - EXACT_S}
            self._doubted[part] &= self._well[part]

    def _judge_held(self, agent: Agent, part: Part, manner: StopManner) -> None:
        """What a TERM has ended a moment ago has failed if others failed too; another stop explains it by itself."""
        now = self._run.clock.now
        held = {rank for rank, at in self._held[part].items() if now - at < HELD_S}
        if held and manner is StopManner.RESTART and not agent.member._is_terminated:
            self._failed[part] |= held

    def hurries(self, agent: Agent) -> None:
        """An agent gives its workers no more time: something harder than the stop with its grace has come meanwhile."""
        manner = self._manner.get(agent)
        is_hard = (manner is not None and bool(manner.hardness)) or self._run.interrupts.is_asked_again
        require(is_hard, f"{agent.name} hurries with workers that have their time: {manner}")

    # What is said.

    def hears(self, agent: Agent, message: Message) -> None:
        """A member hears its head."""
        if isinstance(message, messages.Stop):
            self._told_to_stop[agent, message.attempt] = message
        elif isinstance(message, (messages.End, messages.Refused)):
            self._told_to_leave.setdefault(agent, isinstance(message, messages.Refused) or message.is_settled)

    def has_heard(self, agent: Agent, echo: messages.Echo) -> None:
        """A member has taken in the answer to a beat, after what was due: a beat that was does not name this answer."""
        # An answer of the head on its own node, from before it was given up, may come when that is joined again.
        if echo.number <= self._beats.get(agent, 0):
            self._echoes[agent] = max(echo.number, self._echoes.get(agent, 0))

    def connects(self, agent: Agent) -> None:
        """A member begins with a head."""
        self._beats[agent] = self._echoes[agent] = 0

    def says(self, agent: Agent, message: Message) -> None:
        """A member tells its head something else than a beat."""
        if isinstance(message, messages.Ended):
            self._ended(agent, message)
        elif isinstance(message, messages.Started):
            self._started(agent, message)
        elif isinstance(message, messages.Failed):
            self._fails(agent, message)
        elif isinstance(message, messages.Stopped):
            self._stopped(agent, message)
        elif isinstance(message, messages.Broken):
            is_so = message.state is not None or (agent, message.attempt) in self._broken
            require(is_so, f"{agent.name} says that it cannot go on with attempt {message.attempt}: {message.reason}")
        elif isinstance(message, messages.Terminated):
            self._terminated(agent)
        elif isinstance(message, messages.Health):
            self._health(agent, message.problem)
            is_news = agent not in self._problem_told or message.problem != self._problem_told[agent]
            require(is_news, f"{agent.name} tells of its health again: {message.problem}")
            self._problem_told[agent] = message.problem
        elif isinstance(message, messages.Join):
            self.joins(agent, message)

    def joins(self, agent: Agent, join: messages.Join) -> None:
        """An agent asks to join."""
        who = f"{agent.name} asks to join"
        require(join.number >= self._joins.get(agent, 0), f"{who} by number {join.number}, and a later one came before")
        self._joins[agent] = join.number
        if not hasattr(agent, "part"):
            return
        mine = agent.name, agent.number, agent.workers.store_port
        theirs = join.node, join.node_id, join.store_port
        require(mine == theirs, f"{who} as {theirs}, and it is {mine}")
        self._health(agent, join.unhealthy)
        self._problem_told[agent] = join.unhealthy

    def beats(self, agent: Agent, beat: messages.Beat) -> None:
        """A member sends a beat.

        They are numbered without a gap, and say which answer came last: the head's own lease rests on that.
        """
        number, heard = self._beats.get(agent, 0) + 1, self._echoes.get(agent, 0)
        if (beat.number, beat.heard) != (number, heard):
            sent = f"beat {beat.number} and says that it has heard {beat.heard}"
            raise BrokenRuleError(f"{agent.name} sends {sent}, not {number} and {heard}")
        self._beats[agent] = number

    def _ended(self, agent: Agent, message: messages.Ended) -> None:
        part = agent, message.attempt
        self._told.add((part, "ended"))
        is_first = not self._well[part] and not self._again[part]
        require(is_first, f"{agent.name} says that its first rank has ended, after {self._well[part]}")
        well = self._run.witness.ended_well.get((agent.role, message.attempt), set())
        again = self._run.witness.took_notice.get((agent.role, message.attempt), set())
        ended = self._own(agent, message.attempt) & (well | again)
        require(bool(ended), f"{agent.name} says that a rank has ended in attempt {message.attempt}, and all run")

    def _started(self, agent: Agent, message: messages.Started) -> None:
        part = agent.name, message.attempt
        require(part in self._run.witness.started_in, f"{agent.name} says that its workers run, and there are none")
        is_written = (message.attempt, agent.name) in self._run.disk.node_results
        is_lost = is_written or "disk" in self._run.witness.kinds or not agent.disk.is_well or self._has_disk_faults
        require(is_lost, f"{agent.name} says that its workers run, and its record does not")

    @property
    def _has_disk_faults(self) -> bool:
        return any("disk" in fault.what for fault in self._run.scenario.faults)

    def _fails(self, agent: Agent, message: messages.Failed) -> None:
        failure, attempt = message.failure, message.attempt
        what = f"{agent.name} says that rank {failure.rank} has failed in attempt {attempt} by {failure.exitcode}"
        require((failure.node, failure.attempt) == (agent.name, attempt), f"{what} on {failure.node}")
        require(failure.rank in self._own(agent, attempt), f"{what}, which is not its own")
        code = self._ends[agent, attempt].get(failure.rank)
        has_no_process = (agent.name, attempt) not in self._run.witness.started_in
        require(code == failure.exitcode or has_no_process, f"{what}, and it has ended by {code}")
        is_nodes = failure.rank in self._terminated_ranks[agent, attempt] and not agent.process.has_ever_frozen
        require(not is_nodes, f"{what}, and the TERM was for the whole node")
        self._failed[agent, attempt].add(failure.rank)

    def _stopped(self, agent: Agent, message: messages.Stopped) -> None:
        """No worker is left: what each of them did before the stop is in this message."""
        attempt, part = message.attempt, (agent, message.attempt)
        self._check_examined(agent, attempt)
        what = f"{agent.name} has stopped attempt {attempt}, and says"
        well = _ranks(message.succeeded)
        expected = self._well[part]
        is_so = expected - self._doubted[part] <= well <= expected
        require(is_so, f"{what} that {sorted(well)} had exited 0, not {sorted(expected)}")
        named = {failure.rank for failure in message.failures}
        require(
            self._failed[part] <= named, f"{what} that {sorted(named)} have failed, not {sorted(self._failed[part])}"
        )
        has_no_process = (agent.name, attempt) not in self._run.witness.started_in
        inside = {rank for rank in named if self._run.wrapped.is_inside(attempt, rank)}
        require(has_no_process or named - inside <= self._ends[part].keys(), f"{what} that {sorted(named)} have failed")
        waiting = sorted(agent.workers.waiting)
        told = sorted(_ranks(message.waiting))
        require(told == waiting, f"{what} that {told} waited for others, not {waiting}, as their stacks say")
        paused, told = sorted(agent.workers.paused), sorted(_ranks(message.paused))
        require(told == paused, f"{what} that {told} stood still, not {paused}")
        left = {100 + worker.rank for worker in agent.workers.alive.values() if worker.is_unkillable}
        require(set(message.unkillable) == left, f"{what} that {message.unkillable} survive, not {left}")
        port = agent.workers.store_port
        require(message.store_port == port, f"{what} that its next store is at {message.store_port}, not {port}")
        step = self._run.workers_step(agent.workers.attempt)
        require(message.step == step, f"{what} that it came to step {message.step}, not {step}")

    def _check_examined(self, agent: Agent, attempt: int) -> None:
        """A node on which something failed that may be its own fault is examined before its workers start again."""
        if not agent.is_examined or self._manner.get(agent) is not StopManner.RESTART:
            return
        since = self._starts.get(agent, 0.0)
        times = [at for at in agent.examined_at if at >= since]
        part = agent, attempt
        is_suspect = part in self._broken or bool(SUSPECT & {*self._ends[part].values()})
        what = f"{agent.name} may be at fault for {self._ends[part]}"
        require(bool(times) or not is_suspect, f"{what}, and is not examined")
        is_usual = agent.parted_at < since and agent.found_at is None and not agent.unhealthy
        has_failed = is_suspect or (agent.name, attempt) not in self._run.witness.started_in
        require(not times or has_failed or not is_usual, f"{agent.name} is examined at {times}, and has no fault")

    def _terminated(self, agent: Agent) -> None:
        is_so = agent.name in self._run.witness.terminated or self._run.scheduler.is_played
        require(is_so, f"{agent.name} says that it got a TERM from outside, which nobody has sent")

    def _health(self, agent: Agent, problem: str | None) -> None:
        """What its checks have found at last."""
        is_well = agent.found_at is None
        require(is_well == (problem is None), f"{agent.name} says of its health: {problem}, and it is well: {is_well}")

    def _own(self, agent: Agent, attempt: int) -> set[int]:
        world = self._run.disk.worlds.get(attempt)
        return set() if world is None else {rank.rank for rank in world.ranks if rank.node == agent.name}
