"""Where the shipped modules meet the simulation: what they take from outside, and what they show the rules."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hpc_elastic.agent.drivers import (
    coordinator,
    head_side,
    head_start,
    head_watch,
    local_member,
    participation,
    state_saves,
)
from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.drivers.job_clock import JobClock
from hpc_elastic.agent.drivers.local_member import LocalMember
from hpc_elastic.agent.net import reach
from hpc_elastic.agent.net.transport import Connection
from hpc_elastic.agent.node.network import Lookup
from hpc_elastic.agent.records import allocation_claims, journal, next_start, retries
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous import findings, head_link, search
from hpc_elastic.agent.rendezvous.candidacy import Candidacy
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.rendezvous.head_link import HeadLink
from hpc_elastic.agent.rendezvous.search import HeadSearch
from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.agent.workers import requested_saves
from hpc_elastic.membership import actions as do
from hpc_elastic.membership.actions import Action, Level, Note
from hpc_elastic.membership.discovery import ClaimAllocation, Dial, DiscoveryAction, Gather, ReadRecords
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Beat, Dropped, Echo, Join, Message, Stop, StopManner
from hpc_elastic.membership.succession import Records
from hpc_elastic.plan.launch_plan import BackoffPlan, ElasticPlan, LaunchPlan, RequeuePlan, RestartPlan, SignalsPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.rundir import complaint, store
from hpc_elastic.rundir.records import AllocationClaim, NodeResult, Request
from hpc_elastic.rundir.state_records import KeptState, SaveManifest
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook, JobState
from tests.plans import make_run_plan
from tests.simulation.disk import LAYOUT
from tests.simulation.file_system import DiskThread, SharedOs, _thread, end_threads
from tests.simulation.rules import asked_saves
from tests.simulation.rules.contracts import LOOKS_PER_LEASE
from tests.simulation.rules.first_searches import FirstSearch
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import LONGEST_PAUSE_S, RESTART_GRACE_S, Scenario

if TYPE_CHECKING:
    from hpc_elastic.agent.workers.spawn import WorkerOrder
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.plant import Plant

VERSIONS = {"torch": "2.13.0"}
PYTHONS = "3.11.7", "3.11.14"  # which are the same for all that nodes share
JOB = "1"
SLOW_S = 0.1  # of a message: a conversation begins with several, and who joins waits half a second at first


def launch_plan(scenario: Scenario) -> LaunchPlan:
    """The plan of a run like this."""
    return replace(
        make_run_plan(LAYOUT.root),
        run="run",
        nodes=NodesPlan(min=scenario.min_nodes, max=scenario.max_nodes),
        roles=tuple(role.plan() for role in scenario.roles),
        restart=RestartPlan(
            max_restarts=scenario.max_restarts,
            backoff=BackoffPlan(
                first_s=scenario.backoff_first_s, factor=scenario.backoff_factor, max_s=LONGEST_PAUSE_S
            ),
            no_progress_limit=scenario.no_progress_limit,
            max_node_losses=scenario.max_node_losses,
        ),
        progress_file=None,
        time_s=scenario.time_left_s if scenario.plans_time else None,
        elastic=ElasticPlan(
            join_timeout_s=scenario.join_timeout_s,
            join_retries=scenario.join_retries,
            lease_s=scenario.lease_s,
            exit_timeout_s=scenario.exit_timeout_s,
            after_exit_timeout=scenario.after_exit_timeout,
            rejoin=cast(Any, scenario.rejoin),
        ),
        requeue=RequeuePlan(max=scenario.requeue_max, on=scenario.requeue_on),
        signals=SignalsPlan(
            notice="", lead_s=scenario.lead_s, grace_s=scenario.grace_s, restart_grace_s=RESTART_GRACE_S
        ),
    )


class Questions:
    """What the scheduler says about the run's jobs: `scheduler.protocol.NodeQuestions`."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._run = agent, agent.run

    def is_over(self, job_id: str) -> bool | None:
        return self._run.resumed.is_over(self._agent, job_id)

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        run = self._run
        if run.scheduler.is_played:
            outlook = self.outlook(job_id)
            return None if outlook is None else outlook.restarts > restart_count
        restarts = run.restarts()
        is_requeued = None if restarts is None else restarts > restart_count
        # Of an agent of an earlier start that says nothing about how the latest one ends.
        run.witness.is_requeued |= bool(is_requeued) and self._agent.start_number == run.agents[0].start_number
        return is_requeued

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        return None

    def outlook(self, job_id: str) -> JobOutlook | None:
        if self._run.scheduler.is_played:
            return self._run.scheduler.outlook()
        is_requeued = self.is_requeued(job_id, self._agent.start_number)
        self._run.witness.is_requeued |= is_requeued is None  # who leaves at a TERM that nobody explains writes nothing
        restarts = self._run.restarts()
        return None if restarts is None else JobOutlook(state=JobState.RUNNING, restarts=restarts)

    def submit_after(self, job_id: str, without: Exclusion) -> tuple[str, str]:
        return "", f"job {job_id} is simulated"

    def start_again(self, job_id: str, without: Exclusion) -> str:
        return f"job {job_id} is simulated"

    def forbids_requeue(self) -> bool:
        return False

    def may_be_accepted_later(self) -> bool:
        return False

    def may_answer_later(self) -> bool:
        return False

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        """It knows of a machine without power, in half of the runs."""
        run = self._run
        dead = frozenset(node for node in nodes if run.scenario.seed % 2 and not run.agent(node).is_powered)
        run.carried_out.says(self._agent, nodes, dead)
        return dead


class SimulatedJournal(Journal):
    """The shipped one, but for what people read and for the files that show progress."""

    def __init__(self, agent: Agent, plan: LaunchPlan, place: Allocation) -> None:
        super().__init__(LAYOUT, plan, place, questions=Questions(agent))
        self._agent = agent

    @property
    def agent(self) -> Agent:
        return self._agent

    def say(self, text: str, level: Level = "info") -> None:
        """For people."""
        self._agent.run.wording.says(self._agent.name, text)
        self._agent.run.conduct.says(self._agent, level)
        self._agent.run.conduct.prints(self._agent, is_head=self.is_head)

    def note(self, note: Note, time_ns: int) -> None:
        """For people."""
        self._agent.run.carried_out.writes(self._agent, note)
        self._agent.run.wording.notes(self._agent, note)

    @property
    def shows_progress(self) -> bool:
        return True

    def progress(self) -> str | None:
        return self._agent.run.progress_now()

    def read_records(self, *, needs_world: bool) -> Records:
        self._agent.run.conduct.reads(self._agent, needs_world=needs_world)
        self._agent.run.partings.reads(self._agent)
        return super().read_records(needs_world=needs_world)

    def find_allocation(self) -> AllocationClaim | None:
        found = super().find_allocation()
        self._agent.run.conduct.looks(self._agent)
        return found

    def find_rival(self) -> AllocationClaim | None:
        self._agent.run.headships.looks_for_rival(self._agent)
        return super().find_rival()

    def _announce(self, mine: AllocationClaim) -> None:
        self._agent.run.starts.announces(self._agent, mine)
        super()._announce(mine)

    def answer(self, note: Note, time_ns: int) -> None:
        """For people, who read it when it is there."""
        with store.file_system_errors(LAYOUT.root):
            _thread().ask(lambda: self._agent.run.asked_saves.answered(note), is_write=True)

    def complete_save(self, folder: str, manifest: SaveManifest) -> str | None:
        saves = self._agent.run.asked_saves
        with store.file_system_errors(LAYOUT.root):
            return _thread().ask(lambda: saves.complete(self._agent, folder, manifest), is_write=True)

    def remove_incomplete_saves(self, request: str | None = None) -> None:
        with contextlib.suppress(OSError):
            _thread().ask(lambda: self._agent.run.asked_saves.remove(request), is_write=True)

    def kept_states(self, ended: int, *, is_over: bool = True) -> tuple[KeptState, ...]:
        self._agent.run.asked_saves.remove(None)
        return self._agent.run.kept.read(self._kept_before(ended, is_over=is_over))

    def keep_states(self, ended: int, latest: int) -> None:
        self._agent.run.kept.rename(ended, latest)

    def _requests(self) -> Iterator[Request]:
        if self._agent.run.is_stop_requested:
            yield Request(kind="stop", by="ada@login", time="")
        yield from super()._requests()
        yield from self._agent.run.notices
        # Each is there twice: who does not see his line at once writes it again (`shared_lines`), and NFS may hide it.
        for request in self._agent.run.requests:
            yield from (request, request)


@dataclass(frozen=True)
class Gets:
    """A head has got a message: as an event, which few runs have to spell out."""

    name: str
    message: Message

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        return f"{self.name} gets {self.message}"


class Headquarters(Coordinator):
    """The shipped one, which shows the rules what its head does."""

    agent: Agent
    _joining: frozenset[str] = frozenset()  # the node whose join is just being heard: it may be no member yet
    _is_beat = False  # what happens is a beat and nothing else: it leaves what rules look at after a step as it was

    def __init__(self, *arguments: Any, journal: SimulatedJournal, **more: Any) -> None:
        self.agent = journal.agent
        self._hear_stop(arguments[0])
        self._hear_joins(arguments[0])
        self._watch_ticks(arguments[0])
        super().__init__(*arguments, journal=journal, **more)
        self._hear_flushes()
        self.agent.headquarters = self
        self.agent.run.conduct.leads(self.agent, self._head)
        self.agent.run.carried_out.leads(self.agent)
        self.agent.run.polls.leads(self.agent)
        self.agent.run.reads.leads(self.agent)
        self.agent.run.absences.leads(self._head)
        self.agent.run.heeded.leads(self.agent, self._head)
        self.agent.run.late_words.leads(self.agent, self._head)
        self.agent.run.fences.leads(self.agent, self._head)

    def _watch_ticks(self, head: Any) -> None:
        self._contract = self.agent.run.contracts.watch_ticks(self.agent, head, LOOKS_PER_LEASE)

    def _hear_stop(self, head: Any) -> None:
        """When a head learns that a person asks for the end, the rules do too."""
        run, stop_requested = self.agent.run, head.stop_requested

        def stop(by: str, now: float) -> list[Action]:
            run.carried_out.hears_stop(self.agent, head)
            if run.witness.told_to_stop_at is None:
                run.witness.told_to_stop_at = run.clock.now
                run.promptness.stop_told()
            return stop_requested(by, now)  # type: ignore[no-any-return]

        head.stop_requested = stop

    def _hear_joins(self, head: Any) -> None:
        """Who is taken in when a claim was asked for joins late, also while the first one is on its way to the disk.

        A round may close in the moment in which a join is heard, and before it, where the head stood still until then.
        """
        agent, run, joined = self.agent, self.agent.run, head.joined

        def join(message: Join, now: float) -> list[Action]:
            if message.node != agent.name and run.disk.asks and run.scenario.rejoin == "immediately":
                run.witness.see("joined")
            return joined(message, now)  # type: ignore[no-any-return]

        head.joined = join

    def _hear_flushes(self) -> None:
        """When a head says how long states may be written at its end, or asks why that comes, the rules hear it."""
        run, flushes_within_s, terminated = self.agent.run, self._end.flushes_within_s, self._end.terminated

        def within() -> float | None:
            within_s = flushes_within_s()
            run.limits.flushes(within_s)
            return within_s

        async def find_out() -> None:
            run.headships.asks_why(self.agent, self._head)
            await terminated()

        self._end.flushes_within_s = within  # type: ignore[method-assign]
        self._end.terminated = find_out  # type: ignore[method-assign]

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        members = {join.node: connection for connection, join in self._joins.items()}
        await super().close()
        self.agent.run.conduct.closes(self.agent, cast("dict[str, SimulatedConnection]", members))

    def _settle(self) -> None:
        self.agent.run.headships.settles(self.agent, self._head, self._contract.due())
        super()._settle()

    def _say(self, text: str, level: Level = "info") -> None:
        self.agent.run.headships.warns(self.agent, self._head, text)
        self.agent.run.absences.says(self.agent, self._head, text)
        self.agent.run.reminders.says(self.agent, self._head, text)
        self.agent.run.requested.says(self.agent, text)
        super()._say(text, level)

    def _do(self, step: Callable[[float], list[Action]]) -> None:
        contract, agent, head = self._contract, self.agent, self._head
        if not self._is_closed and step != head.tick:
            contract.calls()
        super()._do(step)
        if not self._is_closed:
            contract.called()
            run = agent.run
            run.head_moved(agent, head.phase)
            if not self._is_beat:
                run.orders.stepped(agent, head)
                run.noted.stepped(agent, head)
                run.leftovers.stepped(agent, head)
                run.named_spares.stepped(agent, head)
            return
        contract.is_over()
        if agent.headquarters is self:
            agent.headquarters = None

    def received(self, connection: Any, message: Message) -> None:
        run = self.agent.run
        join = self._joins.get(connection)
        if message.KIND == "beat":
            if join is not None:
                run.heard_at[self.agent.name, join.node] = run.clock.now, False
            super().received(connection, message)
            return
        run.trace("head", Gets(self.agent.name, message))
        is_parting = isinstance(message, Dropped)
        if join is not None and is_parting:  # a lease counts from beats alone
            run.heard_at[self.agent.name, join.node] = run.clock.now, is_parting
        if is_parting and max(run.scenario.delays_s) >= SLOW_S:  # the answer to its join came too late for it
            run.witness.see("loss")
        if isinstance(message, Join) and join is None:
            run.orders.gets_join(self._head, message.node)
            run.unfit_nodes.joins(run.peer(self.agent, message.node))
            run.noted.hears_clock(self.agent, self._head, message)
            is_refused = self._head.refusal(message) is not None
            run.absences.asks(self._head, message, is_refused=is_refused)
            self._joining = frozenset(() if is_refused else (message.node,))
        super().received(connection, message)
        self._joining = frozenset()
        if isinstance(message, Join) and join is None and connection not in self._joins:
            run.headships.turns_away(self.agent, message.node, connection)

    def received_from_own(self, message: Message) -> None:
        if isinstance(message, Join):
            self.agent.run.orders.gets_join(self._head, message.node)
            self.agent.run.absences.asks(self._head, message, is_refused=False)
            self.agent.run.unfit_nodes.joins(self.agent)
        super().received_from_own(message)

    def _deliver(self, node: str, message: Message) -> None:
        if not isinstance(message, Beat):
            super()._deliver(node, message)
            return
        orders = self.agent.run.orders
        orders.gets_beat(self._head, node, message.number)
        self._is_beat = True
        super()._deliver(node, message)
        self._is_beat = False
        orders.has_got_beat(self._head, node)

    def _act(self, action: Action) -> None:
        run, agent = self.agent.run, self.agent
        if isinstance(action, do.SendToMember) and action.message.KIND == "echo":
            run.orders.answers_beat(agent, self._head, action.node, action.message)
            super()._act(action)
            return
        self._is_beat = False
        run.trace("head", action)
        run.conduct.head_acts(agent, self._head, action)
        run.noted.acts(agent, self._head, action)
        run.orders.acts(agent, self._head, action)
        run.named_spares.acts(self._head, action)
        run.unkept.acts(agent, self._head, action)
        if isinstance(action, do.ClaimAttempt):
            run.rules.asks_for(agent, action.claim)
            run.heeded.claims(agent, self._head, action.claim)
            run.fences.claims(agent, self._head, action.claim)
            run.forgiven.claims(agent, self._head, action.claim)
            run.absences.claims(agent, self._head, action.claim, *run.noted.members(self._head))
        elif isinstance(action, do.WriteResult):
            run.decided_codes.add(action.result.exit_code)
            run.rules.decides(agent)
            run.verdicts.decides()
            run.heeded.decides(agent, self._head, action.result)
            run.fences.decides(agent, self._head, action.result)
            run.terms.decides()
        elif isinstance(action, do.Note):
            run.carried_out.is_to_write(agent, action)
            run.rules.noted(action)
            run.forgiven.notes(agent, self._head, action)
            run.causes.notes(agent, action)
            run.absences.notes(agent, self._head, action, *run.noted.members(self._head))
        elif isinstance(action, do.Drop):
            run.parted(action.node, agent.start_number)
        elif isinstance(action, do.SendToMember) and isinstance(action.message, Stop):
            run.fences.tells(agent, self._head, action.node, action.message)
        dropped = self._connections.get(action.node) if isinstance(action, do.Drop) else None
        super()._act(action)
        if isinstance(action, (do.ClaimAttempt, do.WriteResult)):
            run.endings.decides(agent)
        if isinstance(action, do.ClaimAttempt):
            here = run.noted.members(self._head)[0] | self._joining
            run.headships.claims(agent, self._head, action.claim, here)
        if isinstance(action, do.Drop):
            run.conduct.has_dropped(agent, action.node, cast("SimulatedConnection | None", dropped))
        elif isinstance(action, do.HeadOver):
            run.job_ends.is_over(agent, self._head, action)
            run.headships.is_over(agent, self._head, self._journal.allocation, have_all_left=action.have_all_left)
        elif isinstance(action, do.Superseded):
            run.conduct.steps_down(agent, is_head=self._journal.is_head)
            run.headships.steps_down(agent, self._head)

    def _note(self, note: Note) -> None:
        if note.name == "run.stopping":
            self.agent.run.noted.stopping(note)
            self.agent.run.terms.notes(self, note)
        super()._note(note)

    def _disk_failed(self, error: Any) -> None:
        self.agent.run.witness.see("disk")
        super()._disk_failed(error)


class Timekeeper(JobClock):
    """The shipped one, which shows the rules when it asks the scheduler, and when it acts."""

    def __init__(self, *arguments: Any, journal: SimulatedJournal, **more: Any) -> None:
        super().__init__(*arguments, journal=journal, **more)
        self._agent = journal.agent
        self._agent.run.end_questions.begins(self._agent, self)

    def look_again(self) -> None:
        self._agent.run.end_questions.may_ask(self)
        super().look_again()

    async def _ask(self) -> None:
        self._agent.run.end_questions.asks(self._agent, self)
        await super()._ask()
        self._agent.run.end_questions.answered(self._agent, self)

    def _notice(self) -> None:
        self._agent.run.end_questions.acts(self._agent, self)
        self._agent.run.end_questions.gives_notice(self._agent, self)
        super()._notice()

    def _stop(self) -> None:
        self._agent.run.end_questions.acts(self._agent, self)
        super()._stop()


class Here(LocalMember):
    """The shipped one, which shows the rules what it hears."""

    _agent: Agent

    def __init__(self, member: Member, *, journal: Journal, **more: Any) -> None:
        super().__init__(member, journal=journal, **more)
        self._agent = cast(SimulatedJournal, journal).agent
        self._contract = self._agent.run.contracts.watch_ticks(self._agent, member)
        self._begins_fence = self._has_fence = False  # in this turn, and since the stop under way began

    def _do(self, step: Callable[[float], list[Action]]) -> None:
        self._contract.calls()
        super()._do(step)
        self._contract.called()
        if self._begins_fence:
            self._begins_fence = False
            self._agent.run.carried_out.fences(self._agent)

    def _stop_workers(self, action: do.StopWorkers) -> None:
        is_first, is_fence = self._stopping is None, action.manner is StopManner.FENCE
        super()._stop_workers(action)
        self._begins_fence |= is_fence
        self._has_fence = is_fence or (self._has_fence and not is_first)

    def _write_result_of_node(self, result: NodeResult, started: float, orders: Sequence[WorkerOrder]) -> None:
        super()._write_result_of_node(result, started, orders)
        self._agent.run.written.keeps_flight_records(self._agent, result)

    async def _unless_fenced(self, work: asyncio.Future[Any], *, within_s: float | None = None) -> None:
        await super()._unless_fenced(work, within_s=within_s)
        is_waited_for = work.done() or self._has_fence or within_s is not None
        require(is_waited_for, f"{self._agent.name} does not wait for what its stop needs, and nothing fences")

    def received(self, message: Message) -> None:
        agent = self._agent
        agent.heard(message)
        super().received(message)
        if isinstance(message, Echo):
            agent.run.reports.has_heard(agent, message)
            return
        agent.has_heard(message)
        agent.run.conduct.has_heard(agent, message)

    def connected(self, *, is_joined: bool, asked: float | None = None) -> None:
        self._agent.run.reports.connects(self._agent)
        self._agent.run.endings.connects(self._agent, is_joined=is_joined)
        super().connected(is_joined=is_joined, asked=asked)
        self._agent.run.leftovers.connects(self._agent, self._member)

    def disconnected(self, why: str, *, is_dead: bool) -> None:
        self._agent.run.examined.is_cut_off(self._agent, is_dead=is_dead)
        super().disconnected(why, is_dead=is_dead)

    def asks(self) -> Join:
        join = super().asks()
        self._agent.run.reports.joins(self._agent, join)
        return join

    def got_signal(self, name: str, have_workers: bool) -> None:
        is_idle = self._agent.run.endings.is_idle(self._agent)
        super().got_signal(name, have_workers)
        if is_idle:
            self._agent.run.endings.got_signal(self._agent)

    def _note(self, note: Note) -> None:
        self._agent.run.carried_out.is_to_write(self._agent, note)
        self._agent.run.noted.notes(self._agent, note)
        super()._note(note)

    def leaves(self, exit_code: int, cause: str, *, ends_job: bool = False) -> None:
        self._agent.hears_result(cause)
        super().leaves(exit_code, cause, ends_job=ends_job)


class Sides(HeadSide):
    """The shipped one, which shows the rules the connections of others."""

    _journal: SimulatedJournal

    def opened(self, connection: Connection) -> None:
        super().opened(connection)
        self._turns_away(connection)
        if self._answering is None:
            agent, own = self._journal.agent, cast("SimulatedConnection | None", self._connection)
            agent.run.carried_out.names_head(agent, cast("SimulatedConnection", connection), own)

    def received(self, connection: Connection, message: Message) -> None:
        super().received(connection, message)
        self._turns_away(connection)

    def _turns_away(self, connection: Connection) -> None:
        if self._answering is None:
            agent = self._journal.agent
            agent.run.carried_out.turns_away(agent, cast("SimulatedConnection", connection))


class Claiming(Candidacy):
    """The shipped one, which shows the rules of a search when it works on the disk."""

    def __init__(self, rounds: FirstSearch, shipped: Candidacy) -> None:
        vars(self).update(vars(shipped))
        self._rounds = rounds

    async def _retry(self, *arguments: Any) -> Any:
        self._rounds.works()
        return await super()._retry(*arguments)


class FindingFirst(HeadSearch):
    """The shipped one, which shows the rules when it dials."""

    def __init__(self, *arguments: Any, journal: SimulatedJournal, **more: Any) -> None:
        super().__init__(*arguments, journal=journal, **more)
        self._rounds = FirstSearch(journal.agent.run, journal.agent)
        self._candidacy = Claiming(self._rounds, self._candidacy)

    async def _dial_all(self, *arguments: Any) -> bool:
        self._rounds.begins_round(arguments[3])
        is_found = await super()._dial_all(*arguments)
        self._rounds.ends_round()
        return is_found


class Diagnosing(Findings):
    """The shipped ones, which show the rules when they are read."""

    def read(self, *arguments: Any) -> Any:
        agent = _thread().agent
        agent.run.carried_out.diagnoses(agent)
        return super().read(*arguments)


class Searching(Successor):
    """The shipped one, which shows the rules how it drives its machine."""

    def __init__(self, *arguments: Any, journal: SimulatedJournal, **more: Any) -> None:
        super().__init__(*arguments, journal=journal, **more)
        self._agent = journal.agent
        steps = ("read", "read_failed", "answered", "not_answered")
        self._agent.run.contracts.watch(self._agent, self._discovery, steps)
        looks = 12 + 2 * int(self._agent.run.scenario.lease_s)  # into the run directory each second, and at its turns
        self._contract = self._agent.run.contracts.watch_ticks(self._agent, self._discovery, looks)
        self._agent.run.searches.begins(self._agent, self._discovery)
        self._agent.run.untold.begins(self._agent)

    def _act(self, action: DiscoveryAction) -> None:
        self._agent.run.trace(self._agent, action)
        self._agent.run.endings.searches(self._agent, self, action)
        if isinstance(action, Dial):
            self._agent.run.searches.dials(self._agent, self._discovery, action)
        elif isinstance(action, ReadRecords):
            self._agent.run.searches.looks(self._agent, self._discovery, needs_world=action.needs_world)
        elif isinstance(action, Gather):
            self._agent.run.searches.gathers(self._agent, self._discovery, action.succession)
        elif isinstance(action, ClaimAllocation):
            self._agent.run.searches.claims(self._agent, self._discovery)
        elif isinstance(action, do.Leave):
            self._agent.run.searches.leaves(self._agent, self._discovery, action)
        super()._act(action)

    def _set_timer(self) -> None:
        super()._set_timer()
        self._contract.called()

    async def _ask(self, link: HeadLink, dial: Dial) -> bool:
        is_asked = await super()._ask(link, dial)
        if is_asked:
            self._agent.run.searches.is_asked(self._discovery)
        return is_asked

    def head_found(self, connection: Connection) -> None:
        super().head_found(connection)
        self._agent.run.carried_out.finds_head(self._agent, cast("SimulatedConnection", connection))

    def stop(self) -> None:
        super().stop()
        self._contract.is_over()
        self._agent.run.endings.search_is_over(self)

    async def close(self) -> None:
        await super().close()
        goes_on = any(not task.done() for task in self._tasks._tasks)
        require(not goes_on, f"{self._agent.name} has closed its search, which goes on")


ABSENT = object()  # of a name of `builtins`, which a module does not have itself
CURRENT = SimpleNamespace(run=cast(Any, None))  # the run that is being played


def _sleep(seconds: float) -> None:
    """Of a thread of an agent."""
    thread = _thread()
    thread.sleep(seconds)


def _monotonic() -> float:
    return _thread().agent.now


def _time_of_day_ns() -> int:
    agent = cast("Agent", cast(Any, asyncio.get_running_loop()).agent)
    return int(1e9 * (agent.run.clock.now + agent.wall_ahead_s))


def _remove_kept(layout: object, *, before: int | None = None) -> None:
    """Of a run that has succeeded: nobody loads its states any more."""
    CURRENT.run.kept.remove()


def _keep_flight_records(layout: object, orders: Sequence[WorkerOrder], started: float) -> None:
    """NCCL's, of what its ranks did last; nothing else is played of them."""
    CURRENT.run.written.kept_flight_records.update((order.attempt, order.rank) for order in orders)


def _saves_thread(name: str, loop: Any) -> DiskThread:
    """Of a head, for the files of saves."""
    run = loop.agent.run
    thread = DiskThread(loop.agent, run.scenario.disk_s, run.asked_saves.dice)
    thread.stalled_until, thread.fails_until = loop.agent.disk.stalled_until, loop.agent.disk.fails_until
    return thread


def _resolve_node(name: str, network: object) -> Lookup:
    """By the cluster's resolver, which knows nothing of the nodes that one machine plays by itself."""
    require(not CURRENT.run.scenario.is_local, f"the address of {name}, which is this machine, is asked for")
    return Lookup(addresses=(name,))


async def _find_answering_port(address: str, ports: object, **_: object) -> int | None:
    """None where the network between the two is cut; what a firewall lets through is not played."""
    loop: Any = asyncio.get_running_loop()
    network, target = CURRENT.run.network, CURRENT.run.agent(address)
    return 22 if network.is_open(loop.agent, target) and network.is_open(target, loop.agent) else None


TIMED = allocation_claims, findings, head_watch, journal, local_member, next_start, state_saves  # on this run's clock


@contextlib.contextmanager
def wired(run: Any, plant: Plant) -> Iterator[None]:
    """The shipped modules work on this simulated run meanwhile."""
    shared = SharedOs()
    wall = SimpleNamespace(time=lambda: run.clock.now, time_ns=lambda: int(1e9 * run.clock.now))
    time_of_day = SimpleNamespace(time_ns=_time_of_day_ns)
    clock = SimpleNamespace(monotonic=_monotonic, sleep=_sleep)
    planted = plant.places()
    places: list[tuple[Any, str, Any]] = [
        (store, "os", shared),
        *((module, "open", shared.open_file) for module in (store, complaint)),
        (journal, "os", shared),
        (journal, "remove_kept", _remove_kept),
        (allocation_claims, "os", shared),
        (local_member, "keep_flight_records", _keep_flight_records),
        (retries, "time", clock),
        *((module, "time", wall) for module in TIMED),
        *((module, "time", time_of_day) for module in (coordinator, head_link)),
        (state_saves, "BackgroundThread", _saves_thread),
        (requested_saves, "threading", SimpleNamespace(Thread=asked_saves.WriterThread, Event=threading.Event)),
        (requested_saves, "os", asked_saves.FAKE_OS),
        (requested_saves, "write_parts", asked_saves.write_parts),
        (requested_saves, "remove_parts", asked_saves.remove_parts),
        (next_start, "furthest_step", lambda _layout, attempt, _nodes: run.workers_step(attempt)),
        (search, "resolve_node", _resolve_node),
        (reach, "find_answering_port", _find_answering_port),
        (head_start, "Coordinator", Headquarters),
        (head_start, "Findings", Diagnosing),
        (participation, "HeadSide", Sides),
        (head_side, "HeadSearch", FindingFirst),
        (coordinator, "JobClock", Timekeeper),
        (participation, "LocalMember", Here),
        (head_side, "Successor", Searching),
        *planted,
    ]
    moved = [f"{module.__name__}.{name}" for module, name, _ in planted if not hasattr(module, name)]
    assert not moved, f"nothing of this name is shipped, so nothing is replaced: {moved}"
    shipped = [(module, name, vars(module).get(name, ABSENT)) for module, name, _ in places]
    before, CURRENT.run = CURRENT.run, run
    try:  # as mock.patch, which takes longer for all of these places than the start of a run
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        end_threads()  # and whoever traces the next run sees all of it
        CURRENT.run = before
        for module, name, value in reversed(shipped):
            if value is ABSENT:
                delattr(module, name)
            else:
                setattr(module, name, value)
