"""What is around a simulated head: connections, disk and clock, as `agent.coordinator` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.errors import MissingNode, RendezvousCause
from hpc_elastic.membership import actions as do
from hpc_elastic.membership.decisions import History, Trigger
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.messages import Beat, Broken, Dropped, Echo, Failed, Finished, Join, Message
from hpc_elastic.membership.rounds import HeadSettings, history_after
from hpc_elastic.membership.succession import Records, Succession
from hpc_elastic.plan.launch_plan import BackoffPlan, RestartPlan
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.clock import Timer
from tests.simulation.network import End
from tests.simulation.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

LOOK_FOR_REQUESTS_EVERY_S = 1.0
LOOK_FOR_CLAIMS_EVERY_S = 1.0
HEAD_CLOSES_WITHIN_S = 10.0
DIAGNOSE_EVERY_S = 5.0
REQUEUE = 75
VERSIONS = {"torch": "2.13.0"}


class Headquarters:
    """The head, on its agent.

    Args:
        agent: that one.
        allocation: which it is the head of.
        claim: the latest one of an attempt, which it goes on from.
        succession: the head whose place it takes, if it does.
    """

    def __init__(
        self, agent: Agent, *, allocation: int, claim: AttemptClaim | None, succession: Succession | None = None
    ) -> None:
        run = agent.run
        self._agent = agent
        self._run = run
        self._links: dict[str, End] = {}
        self._names: dict[End, str] = {}
        self._joins: dict[str, int] = {}
        self._judging: dict[str, int] = {}
        self._finished: dict[str, Finished] = {}
        self.head = run.plant.make_head(
            head_settings(run.scenario, agent.name, allocation),
            history=history_after(claim) if claim is not None else History(),
            decide=run.plant.make_decide(restart_plan(run.scenario), restarts(run.scenario)),
            now=agent.now,
            succession=succession,
        )
        self._timer = Timer(run.clock, self._ring, agent.clock)
        self._is_tick_due = False
        self.is_closed = False
        self._timer.set(self.head.next_tick())
        if run.is_stop_requested:
            self.look_for_requests()
        self.look_for_claims()

    # Messages.

    def hears(self, end: End, message: Message) -> None:
        if self.is_closed:
            return
        name = self._names.get(end)
        if name is not None:
            if self._links.get(name) is end:
                self._deliver(name, message)
        elif isinstance(message, Join):
            self._join(end, message)

    def _join(self, end: End, join: Join) -> None:
        self._run.trace("head", join)
        self._replace(join)
        refusal = self.head.refusal(join)
        if refusal is not None:
            end.send(refusal)
            end.close()
            self._ring()  # there may be nobody left to wait for
            return
        self._names[end] = join.node
        self._joins[join.node] = join.number
        self._links[join.node] = end
        if self._run.disk.claims and self._run.scenario.rejoin == "immediately":
            self._run.witness.see("joined")
        self._do(lambda now: self.head.joined(join, now))

    def _replace(self, join: Join) -> None:
        """An agent that joins again has lost its old connection and has no workers: it is lost there first."""
        if join.node in self._links and join.number >= self._joins[join.node]:
            self._links[join.node].send(Dropped(reason="its agent has joined again"))
            self._drop(join.node)
            why = "its agent lost the connection, and joins again"
            self._do(lambda now: self.head.lost(join.node, why, now, is_gone=True, may_return=True))

    def hears_own(self, message: Message) -> None:
        if self.is_closed:
            return
        if isinstance(message, Join):
            self._run.trace("head", message)
            self._do(lambda now: self.head.joined(message, now))
        else:
            self._deliver(self._agent.name, message)

    def _deliver(self, name: str, message: Message) -> None:
        if not isinstance(message, Beat):
            self._run.trace("head", f"{name}: {message}")
        if isinstance(message, (Failed, Broken)):
            self._judging[name] = self._judging.get(name, 0) + 1
            self._agent.disk.call(
                self._run.progress_now, lambda progress: self._judge(name, message, progress), failed=self._crash
            )
        elif isinstance(message, Finished) and self._judging.get(name):
            self._finished[name] = message  # else the run could succeed before it knows of the failure
        else:
            self._do(lambda now: self.head.received(name, message, now))

    def _judge(self, name: str, message: Failed | Broken, progress: str | None) -> None:
        """With the progress that the run had made when the failure came; others may have told more since."""
        if self.is_closed:
            return
        self.head.progress_seen(progress)
        self._do(lambda now: self.head.received(name, message, now))
        self._judging[name] -= 1
        if not self._judging[name] and (finished := self._finished.pop(name, None)) is not None:
            self._deliver(name, finished)

    def loses(self, end: End, why: str, is_by_peer: bool) -> None:
        name = self._names.pop(end, None)
        if name is not None and self._links.get(name) is end and not self.is_closed:
            del self._links[name]
            self._run.agent(name).parted_at = self._run.clock.now  # the other side may have closed it long before
            self._run.trace("head", f"lost {name}: {why}")
            self._do(lambda now: self.head.lost(name, why, now, is_gone=is_by_peer))

    # People, time, the end.

    def look_for_requests(self) -> None:
        """Somebody has asked for the end; the head looks once a second."""
        self._agent.later(self._agent.dice.uniform(0, LOOK_FOR_REQUESTS_EVERY_S), self._read_request)

    def _read_request(self) -> None:
        def stop(_: None) -> None:
            if not self.is_closed:
                self._run.witness.told_to_stop_at = self._run.clock.now
                self._do(lambda now: self.head.stop_requested("ada@login", now))

        self._agent.disk.call(lambda: None, stop, failed=self.look_for_requests)

    def look_for_claims(self) -> None:
        """Somebody has claimed an attempt; every head looks once a second."""
        self._agent.later(self._agent.dice.uniform(0, LOOK_FOR_CLAIMS_EVERY_S), self._read_claims)

    def _read_claims(self) -> None:
        def found(records: Records) -> None:
            claim = records.claim
            if self.head.phase.value in ("closing", "over"):
                return  # whoever writes a result looks at the claims itself
            if records.result is not None:
                self.supersede(f"the run is over: {records.result.cause}")
            elif claim is not None and claim.attempt > self.head.attempt and not self._is_own(claim):
                self.supersede(f"{claim.head} has opened attempt {claim.attempt}")

        if not self.is_closed:
            self._agent.disk.call(self._run.disk.read_records, found, failed=self.look_for_claims)

    def _is_own(self, claim: AttemptClaim) -> bool:
        """It is the one that is just being made here, and the answer is on its way."""
        return claim.head == self._agent.name

    def supersede(self, reason: str) -> None:
        if not self.is_closed:
            self._do(lambda _: self.head.superseded(reason))

    def find_gone(self, name: str) -> None:
        """An agent has given up: the head reads that in the run directory, some time."""

        def found(_: None) -> None:
            missing = MissingNode(node=name, cause=RendezvousCause.SILENT, detail="gave up")
            if self.head.phase.value == "gathering" and not self.is_closed:
                self._do(lambda _: self.head.gathering.diagnosed([Diagnosis(missing=missing, gave_up=True)]))
                self._ring()

        def read() -> None:
            self._agent.disk.call(lambda: None, found, failed=self._crash)

        self._agent.later(self._agent.dice.uniform(0, DIAGNOSE_EVERY_S), read)

    def own_member_parted(self, why: str) -> None:
        self._do(lambda now: self.head.lost(self._agent.name, why, now, is_gone=True))

    def own_member_left(self) -> None:
        self._do(lambda now: self.head.lost(self._agent.name, "left", now, is_gone=True))
        self._agent.later(HEAD_CLOSES_WITHIN_S, self._end)

    def catch_up(self) -> None:
        """The process goes on after a pause."""
        if self._is_tick_due:
            self._is_tick_due = False
            self._ring()

    def _ring(self) -> None:
        if self._agent.is_paused:
            self._is_tick_due = True
        elif self._agent.is_running and not self.is_closed:
            self._do(self.head.tick)

    def _end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._agent.gone()

    def _crash(self) -> None:
        self._agent.crash()

    # What the head asks for.

    def _do(self, step: Callable[[float], list[do.Action]]) -> None:
        if self.is_closed:
            return
        now = self._agent.now
        if now >= self.head.next_tick():
            self._act_all(self.head.tick(now))
        self._act_all(step(now))
        if not self.is_closed:
            self._timer.set(self.head.next_tick())
            self._agent.local.set_guard()
            self._run.head_moved(self._agent, self.head.phase.value)

    def _act_all(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: do.Action) -> None:
        if isinstance(action, do.Send):
            if not isinstance(action.message, Echo):
                self._run.trace("head", action)
            self._send(action.node, action.message)
            return
        self._run.trace("head", action)
        if isinstance(action, do.Drop):
            self._drop(action.node)
        elif isinstance(action, do.ClaimAttempt):
            self._claim(action)
        elif isinstance(action, do.WriteResult):
            self._write_result(action)
        elif isinstance(action, do.Note):
            self._run.rules.noted(action)
        elif isinstance(action, do.Superseded):
            self.is_closed = True
            self._agent.superseded(action.reason)
        elif isinstance(action, do.HeadOver) and self._agent.exit_code is not None:
            self._agent.later(0.0, self._end)

    def _send(self, name: str, message: Message) -> None:
        if name == self._agent.name:
            self._agent.later(0.0, lambda: self._agent.hears_own_head(self, message))
        elif name in self._links:
            self._links[name].send(message)

    def _drop(self, name: str) -> None:
        end = self._links.pop(name, None)
        if end is not None:
            self._run.agent(name).parted_at = self._run.clock.now
            end.hang_up()

    def _claim(self, action: do.ClaimAttempt) -> None:
        agent, run = self._agent, self._run
        if agent.seeking is not None:
            agent.seeking.claiming()
        run.rules.asks_for(action.claim)
        asked_at = run.clock.now

        def claim() -> bool:
            is_new = action.claim.attempt not in run.disk.claims
            before, results = run.disk.latest_claim, len(run.disk.results)
            is_ours = run.disk.claim(action.claim, action.world, asked_at)
            if is_new:
                run.rules.claimed(agent, action.claim, action.world, before, is_over=results > 0)
                run.written(agent.name)
            return is_ours

        def claimed(is_ours: bool) -> None:
            if self.is_closed:
                return
            if is_ours and agent.seeking is not None:
                agent.seeking.end()
                agent.seeking = None
            self._do(lambda now: self.head.claimed(action.claim.attempt, is_ours, "digest", now))

        agent.disk.call(claim, claimed, failed=self._disk_failed)

    def _write_result(self, action: do.WriteResult) -> None:
        run = self._run
        if self._agent.seeking is not None:
            self._agent.seeking.claiming()
        run.decided_codes.add(action.result.exit_code)
        if action.result.reason == Trigger.TERMINATED.value and run.scenario.is_requeued:
            run.witness.is_requeued = True
            self._agent.later(0.0, lambda: self._written((REQUEUE, "the scheduler has requeued the job")))
            return

        def write() -> tuple[int, str] | AttemptClaim:
            is_first = not run.disk.results
            answer = run.disk.write_result(action.result, run.clock.now, is_asked=run.plant.asks_for_claims)
            if is_first and run.disk.results:
                run.rules.ended(self._agent, action.result)
                run.written(self._agent.name)
            return answer

        self._agent.disk.call(write, self._written, failed=self._disk_failed)

    def _written(self, answer: tuple[int, str] | AttemptClaim) -> None:
        if self.is_closed:
            return
        if isinstance(answer, AttemptClaim):
            self.supersede(f"{answer.head} has opened attempt {answer.attempt}")
        else:
            self._do(lambda now: self.head.result_written(*answer, now))

    def _disk_failed(self) -> None:
        self._run.witness.see("disk")
        if not self.is_closed:
            self._do(lambda now: self.head.disk_failed("the run directory: Input/output error", now))


def head_settings(scenario: Scenario, node: str, allocation: int) -> HeadSettings:
    """As the launch plan says it."""
    placed = [role for role, _ in scenario.placed()]
    return HeadSettings(
        run="run",
        node=node,
        allocation=allocation,
        expected=scenario.names,
        min_nodes=min(scenario.min_nodes, scenario.nodes),
        max_nodes=scenario.max_nodes,
        join_timeout_s=scenario.join_timeout_s,
        lease_s=scenario.lease_s,
        started="",
        exit_timeout_s=scenario.exit_timeout_s,
        rejoin=scenario.rejoin,
        restarts=restarts(scenario),
        versions=VERSIONS,
        role_nodes={role.name: min(role.nodes_min, placed.count(role.name)) for role in scenario.roles},
    )


def restarts(scenario: Scenario) -> dict[str, str]:
    """The restart policy of each role by its name."""
    return {role.name: role.restart for role in scenario.roles}


def restart_plan(scenario: Scenario) -> RestartPlan:
    """The limits of the run."""
    backoff = BackoffPlan(first_s=scenario.backoff_first_s, factor=2, max_s=60)
    return RestartPlan(
        max_restarts=scenario.max_restarts,
        backoff=backoff,
        no_progress_limit=scenario.no_progress_limit,
        max_node_losses=scenario.max_node_losses,
    )
