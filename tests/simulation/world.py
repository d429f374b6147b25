"""One simulated run, from the first agent's start to the last one's exit.

Theory of operation. Every node has an agent with the part in membership that ships (`wiring`), on an event loop
of its own; around them a network, a file server, guards and workers in simulated time. What is not
in the scenario is drawn from its seed, for each thing by itself, so that a scenario with one
fault less plays as much as possible of the same run. The rules are checked after every event.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import NOTICE_REASONS, Request
from hpc_elastic.scheduler.allocation import LOCAL_NETWORK, Allocation
from tests.simulation.agent import Agent
from tests.simulation.clock import Clock
from tests.simulation.disk import LAYOUT, Disk
from tests.simulation.draws.general import draw
from tests.simulation.faults import strike
from tests.simulation.file_system import Files
from tests.simulation.network import Network
from tests.simulation.plant import Plant
from tests.simulation.points import Points, Visit
from tests.simulation.rules.absences import Absences
from tests.simulation.rules.asked_saves import SAVES, AskedSaves
from tests.simulation.rules.bookkeeping import Bookkeeping
from tests.simulation.rules.busy import Busy
from tests.simulation.rules.carried_out import CarriedOut
from tests.simulation.rules.causes import Causes
from tests.simulation.rules.conduct import Conduct
from tests.simulation.rules.contracts import Contracts
from tests.simulation.rules.end_questions import EndQuestions
from tests.simulation.rules.endings import Endings
from tests.simulation.rules.examined import Examined
from tests.simulation.rules.fences import Fences
from tests.simulation.rules.foretold import Foretold
from tests.simulation.rules.forgiven import Forgiven
from tests.simulation.rules.goodbyes import Goodbyes
from tests.simulation.rules.headships import Headships
from tests.simulation.rules.heeded import Heeded
from tests.simulation.rules.interrupts import Interrupts
from tests.simulation.rules.invariants import BrokenRuleError, Rules
from tests.simulation.rules.job_ends import JobEnds
from tests.simulation.rules.joins import Joins
from tests.simulation.rules.kept import Kept
from tests.simulation.rules.large import Large
from tests.simulation.rules.late_ranks import LateRanks
from tests.simulation.rules.late_words import LateWords
from tests.simulation.rules.leftovers import Leftovers
from tests.simulation.rules.limits import Limits
from tests.simulation.rules.named_spares import NamedSpares
from tests.simulation.rules.noted import Noted
from tests.simulation.rules.orders import Orders
from tests.simulation.rules.partings import Partings
from tests.simulation.rules.polls import Polls
from tests.simulation.rules.progress import Progress
from tests.simulation.rules.promptness import Promptness
from tests.simulation.rules.quorums import Quorums
from tests.simulation.rules.reads import Reads
from tests.simulation.rules.refused_disks import RefusedDisks
from tests.simulation.rules.reminders import Reminders
from tests.simulation.rules.reports import Reports
from tests.simulation.rules.requested import REQUESTS, Requested
from tests.simulation.rules.resumed import Resumed
from tests.simulation.rules.returns import Returns
from tests.simulation.rules.saves import Saves
from tests.simulation.rules.searches import Searches
from tests.simulation.rules.silent_ends import SilentEnds
from tests.simulation.rules.stacks import STACKS, Stacks
from tests.simulation.rules.starts import Starts
from tests.simulation.rules.states import StatesSeen
from tests.simulation.rules.taken import Taken
from tests.simulation.rules.terms import Terms
from tests.simulation.rules.timeouts import TimeOuts
from tests.simulation.rules.unfit_nodes import UnfitNodes
from tests.simulation.rules.unheard import Unheard
from tests.simulation.rules.unkept import Unkept
from tests.simulation.rules.untold import Untold
from tests.simulation.rules.verdicts import Verdicts
from tests.simulation.rules.wording import Wording
from tests.simulation.rules.wrapped import Wrapped
from tests.simulation.rules.written import Written
from tests.simulation.scenario import JOINS, POINT, Fault, Scenario
from tests.simulation.scheduler import ENDS, JobScheduler
from tests.simulation.wiring import JOB, launch_plan, wired
from tests.simulation.witness import Witness
from tests.simulation.workers import Worker

BOUND_S = 3000.0
BOUND_STEPS = 500_000
FIRST_LOCAL = 2  # of the addresses of a machine's own network, the one of the first node
STARTS_WITHIN_S = 2.0
STEPS_IN = 3  # of so many attempts one names steps, where some do


class SimulatedRun:
    """A run of a scenario, by sound machines or by those of another plant."""

    def __init__(self, scenario: Scenario, plant: Plant | None = None, visit: Visit | None = None) -> None:
        self.scenario = scenario
        self.plant = plant or Plant()
        self.plan = launch_plan(scenario)
        self.clock = Clock()
        self.files = Files()
        self.disk = Disk(self)
        self.network = Network(self)
        self.witness = Witness(self)
        self.rules = Rules(self)
        self.returns = Returns(self)
        self.saves = Saves(self)
        self.reads = Reads()
        self.wording = Wording(self)
        self.progress = Progress(self)
        self.points = Points(self, visit) if visit or any(each.phase == POINT for each in scenario.faults) else None
        self.conduct = Conduct(self)
        self.contracts = Contracts(self)
        self.reports = Reports(self)
        self.written = Written(self)
        self.bookkeeping = Bookkeeping(self)
        self.endings = Endings(self)
        self.late_ranks = LateRanks(self)
        self.late_words = LateWords(self)
        self.leftovers = Leftovers()
        self.named_spares = NamedSpares()
        self.fences = Fences(self)
        self.forgiven = Forgiven(self)
        self.examined = Examined(self)
        self.orders = Orders(self)
        self.noted = Noted(self)
        self.taken = Taken(self)
        self.timeouts = TimeOuts(self)
        self.wrapped = Wrapped(self)
        self.foretold = Foretold(self)
        self.scheduler = JobScheduler(self)
        self.limits = Limits(self)
        self.terms = Terms(self)
        self.job_ends = JobEnds(self)
        self.end_questions = EndQuestions(self)
        self.causes = Causes(self)
        self.large = Large(self)
        self.joins = Joins(self)
        self.interrupts = Interrupts(self)
        self.stacks = Stacks(self)
        self.absences = Absences(self)
        self.headships = Headships(self)
        self.reminders = Reminders(self)
        self.starts = Starts(self)
        self.resumed = Resumed(self)
        self.unfit_nodes = UnfitNodes(self)
        self.unheard = Unheard(self)
        self.untold = Untold(self)
        self.goodbyes = Goodbyes(self)
        self.partings = Partings(self)
        self.quorums = Quorums(self)
        self.busy = Busy(self)
        self.refused_disks = RefusedDisks(self)
        self.promptness = Promptness(self)
        self.silent_ends = SilentEnds(self)
        self.polls = Polls(self)
        self.searches = Searches(self)
        self.carried_out = CarriedOut(self)
        self.states = StatesSeen(self)
        self.kept = Kept(self)
        self.unkept = Unkept(self)
        self.requested = Requested(self)
        self.heeded = Heeded(self)
        self.asked_saves = AskedSaves(self)
        self.verdicts = Verdicts(self)
        self.dice = random.Random(f"{scenario.seed}/world")
        self.agents = [Agent(self, number, *place) for number, place in enumerate(scenario.placed())]
        self.earlier: list[Agent] = []  # of the job's start before
        self.requeued_at: list[float] = []  # when the scheduler has begun each start after the first one
        self.is_start_coming = False  # whether it has sent a TERM in order to start the job again
        self.everybody = list(self.agents)
        self._of_start = {(agent.name, 0): agent for agent in self.agents}  # of the job, by its number
        self.files.content[LAYOUT.requests] = [b""]
        self.is_stop_requested = False
        self.notices: list[Request] = []
        self.requests: list[Request] = []  # of other things
        self.stop_requested_at = 0.0
        self.is_dirty = False
        self.decided_codes: set[int] = set()  # of the head, as it asks for a result
        self.events: list[tuple[float, str, object]] = []
        self.spent: Counter[str] = Counter()  # for `recorded`
        self.heard_at: dict[
            tuple[str, str], tuple[float, bool]
        ] = {}  # by head and node: when, and whether it said goodbye
        self._phases: dict[str, HeadPhase] = {}  # by agent
        self._failures_seen = 0
        self._entered: dict[str, int] = {}
        self._to_start = len(self.agents)
        self.crash: BaseException | None = None  # of a machine or a driver

    def agent_at(self, name: str, port: int) -> Agent:
        """Who would listen there: on a machine without a scheduler each node has an address of its own."""
        if self.scenario.is_local and name.startswith(LOCAL_NETWORK):
            name = self.scenario.names[int(name.removeprefix(LOCAL_NETWORK)) - FIRST_LOCAL]
        return self._of_start[name, port - 1]

    def peer(self, agent: Agent, name: str) -> Agent:
        """The agent of a node in the same start of the job."""
        return self._of_start[name, agent.start_number]

    def parted(self, name: str, start_number: int) -> None:
        """This node has no head for a moment."""
        self._of_start[name, start_number].parted_at = self.clock.now

    def requeue(self, survivors: frozenset[int]) -> None:
        """The scheduler takes the job for lost and starts it again; what it cannot reach of the old start lives on."""
        self.witness.see("loss")
        self.earlier, self.is_start_coming = self.agents, False
        self.requeued_at.append(self.clock.now)
        places = self.scenario.placed()
        start = self.earlier[0].start_number + 1
        self.agents = [Agent(self, number, *place, start_number=start) for number, place in enumerate(places)]
        self.everybody += self.agents
        self._of_start |= {(agent.name, start): agent for agent in self.agents}
        for old, new in zip(self.earlier, self.agents, strict=True):
            new.is_powered = old.is_powered
            if old.number not in survivors:
                old.die()
            self._to_start += 1
            self.clock.after(self.dice.uniform(0.1, 1.0), lambda new=new: self._start(new, True))  # type: ignore[misc]

    def restarts(self) -> int | None:
        """How often the scheduler says that it has started the job again, a start that is to come included.

        Nothing if it says nothing. To a job that a person has followed up by another one it has done nothing.
        """
        if self.scenario.is_requeued is None:
            return None
        return self.is_start_coming + (0 if self.scenario.is_resumed else len(self.requeued_at))

    def job_of(self, agent: Agent) -> str:
        """The job that an agent belongs to: the same in each start, unless a person has submitted the run again."""
        return str(int(JOB) + agent.start_number) if self.scenario.is_resumed else JOB

    def place(self, agent: Agent) -> Allocation:
        """What the scheduler says to this agent."""
        return Allocation(
            job_id=self.job_of(agent),
            restart_count=agent.start_number,
            time_left=self._time_left(),
            array_task=None,
            node_id=agent.number,
            nodes=self.scenario.names,
            is_local=self.scenario.is_local,
        )

    def _time_left(self) -> str | None:
        """What the script was told of the job's time, as squeue says it."""
        left_s = self.scenario.time_left_s
        if left_s is None or not self.scenario.knows_time:
            return None
        minutes, seconds = divmod(int(left_s), 60)
        return f"{minutes}:{seconds:02d}"

    @property
    def is_disturbed(self) -> bool:
        """Whether something else than a worker's failure has happened on purpose."""
        usual = (
            *REQUESTS,
            *SAVES,
            *STACKS,
            *ENDS,
            "kill_worker",
            "exit_worker",
            "term_worker",
            "fail_together",
            "break_store",
            "break_gpu",
            "notice",
        )
        return any(fault.what not in usual for fault in self.scenario.faults)

    @property
    def head_phase(self) -> HeadPhase | None:
        """Where the latest head is."""
        return self._phases.get(self.disk.head or "")

    @property
    def phases(self) -> tuple[str, ...]:
        """Where the head has been, between events."""
        return tuple(self._entered)

    def agent(self, name: str) -> Agent:
        return self.agents[int(name.removeprefix("node"))]

    def trace(self, who: Agent | str, what: object) -> None:
        """Notes an event, for people and for the hash."""
        self.events.append((self.clock.now, who if isinstance(who, str) else who.name, what))

    @property
    def trace_hash(self) -> str:
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(f"{event}\n".encode())
        return digest.hexdigest()

    def play(self, bound_s: float = BOUND_S) -> None:
        """Runs to the end.

        Raises:
            BrokenRuleError: a rule is broken, or there is no end within the bounds.
        """
        with wired(self, self.plant):
            try:
                self._play(bound_s)
            finally:
                BrokenRuleError.first = BrokenRuleError.clock = None  # its traceback holds all of the run
                for agent in self.everybody:  # of a run that broke a rule: nothing of it goes on
                    agent.process.kill()

    def _play(self, bound_s: float) -> None:
        BrokenRuleError.first, BrokenRuleError.clock = None, self.clock
        self._begin()
        some, points = self.everybody[0], self.points
        if points is not None:
            points.pass_by()
        for _ in self.clock.happens(bound_s, BOUND_STEPS, each=points is not None):
            if self.crash is not None:
                raise self.crash
            if BrokenRuleError.first is not None:
                raise BrokenRuleError.first
            if self.is_dirty:
                self._check()
            if not (self._to_start or some.is_running or (some := self._any_running(some)).is_running):
                self._play_end()
                return
            if points is not None:
                points.pass_by()
        raise BrokenRuleError(f"no end after {self.clock.now:.1f} s: {self._who_waits()}")

    def changes(self) -> None:
        """Something changes on a node: the rules are checked when all has happened that happens with it."""
        self.is_dirty = self.clock.has_news = True

    def crashes(self, error: BaseException) -> None:
        """A machine or a driver has failed."""
        self.crash = self.crash or error
        self.clock.has_news = True

    def _check(self) -> None:
        """Something has changed on a node."""
        self.is_dirty = False
        self.rules.check()
        self.requested.watch()
        self.taken.watch()

    def _play_end(self) -> None:
        """Nobody runs any more."""
        last = self.clock.now + 1  # killed workers take a moment to be gone
        while self.clock.now < last and self.clock.step():
            pass
        self.verdicts.check_end()

    def _any_running(self, other: Agent) -> Agent:
        """An agent that runs, if one does."""
        return next((agent for agent in self.everybody if agent.is_running), other)

    def _begin(self) -> None:
        starts = [0.0, *(self.dice.uniform(0, STARTS_WITHIN_S) for _ in self.agents[1:])]
        never = set()
        for fault in self.scenario.faults:
            if fault.what == "never_starts":
                self.witness.see("missing")
                never.add(fault.node)
            elif fault.what == "starts_late":
                starts[fault.node] += fault.lasts_s
                if fault.lasts_s > 0.3 * self.scenario.join_timeout_s or starts[fault.node] > STARTS_WITHIN_S:
                    self.witness.see("missing")
            elif fault.what == "unfit":
                self.witness.see("unfit")
                self.agents[fault.node].problem = "/home is not mounted"
            elif fault.what == "unhealthy":
                self.witness.see("unhealthy")
                self.agents[fault.node].unhealthy.append((fault.at, fault.at + fault.lasts_s))
            elif fault.what == "wrong_secret":
                self.witness.see("missing")
                self.agents[fault.node].has_wrong_secret = True
            elif fault.what == "other_version":
                self.witness.see("unfit")
                agent, what = self.agents[fault.node], ("torch", "python")[self.scenario.seed % 2]
                agent.has_other_version, agent.versions[what] = True, {"torch": "2.12.1", "python": "3.12.7"}[what]
            elif not fault.phase:
                self._to_start += fault.what == "requeue"
                self.clock.at(fault.at, lambda fault=fault: self._strike_at_time(fault))  # type: ignore[misc]
        self._tell_of_nodes_without_agent()
        self.clock.after(self.scenario.lease_s, self._watch)
        self.scheduler.begin()
        self.conduct.begins()
        self.limits.begin()
        for agent in self.agents:
            is_there = agent.number not in never
            self.clock.at(starts[agent.number], lambda agent=agent, is_there=is_there: self._start(agent, is_there))  # type: ignore[misc]

    def _tell_of_nodes_without_agent(self) -> None:
        if ended := sorted(self.scenario.known_to_be_without_agent):
            lines = [
                f"srun: error: {node}: task {node.removeprefix('node')}: Exited with exit code 2" for node in ended
            ]
            text = "\n".join(
                [f"hpc_elastic: starting an agent on each of {len(self.agents)} nodes (start 0)", *lines, ""]
            )
            self.files.content[LAYOUT.script_output(self.job_of(self.agents[0]))] = [text.encode()]

    def _strike_at_time(self, fault: Fault) -> None:
        self._to_start -= fault.what == "requeue"
        self.clock.has_news = True
        strike(self, fault)

    def strikes(self, fault: Fault) -> None:
        """A fault happens now that another one has brought about."""
        strike(self, fault)

    @property
    def are_all_started(self) -> bool:
        """Whether no agent of any start is still to come."""
        return not self._to_start

    def _start(self, agent: Agent, is_there: bool) -> None:
        self._to_start -= 1
        self.clock.has_news = True
        if is_there and agent.is_powered:
            self.trace(agent, "starts")
            agent.start()

    def _watch(self) -> None:
        self.progress.watch()
        self.foretold.watch()
        self.requested.watch()
        self.asked_saves.watch()
        self.noted.watch()
        self.examined.watch()
        self.conduct.watch()
        self.bookkeeping.watch()
        self.reminders.watch()
        self.endings.watch()
        self.carried_out.watch()
        self.clock.after(self.scenario.lease_s, self._watch)

    def give_notice(self, fault: Fault) -> None:
        """A person says that the workers will be stopped soon, and each later one that it is sooner.

        A notice that lasts so long says that; one that lasts less than nothing does not say when the end comes.
        """
        number = len(self.notices)
        reason = NOTICE_REASONS[number % len(NOTICE_REASONS)]
        left_s: float | None = fault.lasts_s or 600.0 / (1 + number)
        if fault.lasts_s < 0:
            left_s = None
        name, by, time = f"notice-{number}", "ada@login", self.polls.gives(reason, left_s)
        self.notices.append(Request(kind="notice", by=by, time=time, id=name, reason=reason, seconds_left=left_s))

    def trouble(self, agent: Agent, seconds: float) -> None:
        """Until then this node does not count as one that must get on."""
        agent.troubled_until = max(agent.troubled_until, self.clock.now + seconds)

    def progress_now(self) -> str | None:
        """What the files say that show progress."""
        self._failures_seen += 1
        return {"unknown": None, "moves": str(self._failures_seen), "stuck": "0"}[self.scenario.progress]

    def workers_step(self, attempt: int) -> int | None:
        """The furthest step that a heartbeat has named by the end of an attempt."""
        gaps = 10 * attempt if attempt % STEPS_IN == 2 else None
        return {"none": None, "moves": 10 * attempt, "stuck": 10, "gaps": gaps}[self.scenario.steps]

    def head_moved(self, agent: Agent, entered: HeadPhase) -> None:
        """A head is in this phase: faults that wait for that come."""
        if entered is self._phases.get(agent.name):
            return
        self._phases[agent.name] = entered
        phase = entered.value
        self._entered[phase] = self._entered.get(phase, 0) + 1
        for fault in self.scenario.faults:
            if (fault.phase, fault.nth) == (phase, self._entered[phase]) and fault.what not in JOINS:
                self.clock.after(fault.at, lambda fault=fault: strike(self, fault))  # type: ignore[misc]

    def spread(self, worker: Worker) -> None:
        """A failed worker takes others of its role with it, as a broken collective does."""
        dice = random.Random(f"{self.scenario.seed}/spread/{worker.attempt}/{worker.rank}")
        for agent in self.agents:
            for other in agent.workers.alive.values():
                if other.role == worker.role and dice.random() < self.scenario.collateral_chance:
                    self.clock.after(dice.uniform(0, 1), lambda agent=agent, other=other: agent.workers.end(other, 1))  # type: ignore[misc]

    def _who_waits(self) -> str:
        waiting = {agent.name: agent.member.phase.value for agent in self.agents if agent.is_running}
        heads = {name: phase.value for name, phase in self._phases.items()}
        return f"heads {heads}, members {waiting}"


def play(seed: int, plant: Plant | None = None) -> SimulatedRun:
    """Plays one seed to its end."""
    run = SimulatedRun(draw(seed), plant)
    run.play()
    return run
