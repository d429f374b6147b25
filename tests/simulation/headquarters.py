"""What is around a simulated head: connections, disk and clock, as `agent.coordinator` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import MissingNode, RendezvousCause
from hpc_elastic.membership import actions as do
from hpc_elastic.membership.decisions import History, Trigger
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.messages import Beat, Echo, Failed, Join, Message
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.plan.launch_plan import BackoffPlan, RestartPlan
from tests.simulation.clock import Timer
from tests.simulation.network import Link
from tests.simulation.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

LOOK_FOR_REQUESTS_EVERY_S = 1.0
HEAD_CLOSES_WITHIN_S = 10.0
DIAGNOSE_EVERY_S = 5.0
REQUEUE = 75
VERSIONS = {"torch": "2.13.0"}


class Headquarters:
    """The head, on its agent."""

    def __init__(self, agent: Agent) -> None:
        run = agent.run
        self._agent = agent
        self._run = run
        self._links: dict[str, Link] = {}
        self._failures_seen = 0
        decide = run.plant.make_decide(restart_plan(run.scenario), restarts(run.scenario))
        settings = HeadSettings(
            run="run",
            node=agent.name,
            allocation=1,
            expected=tuple(each.name for each in run.agents),
            min_nodes=min(run.scenario.min_nodes, run.scenario.nodes),
            max_nodes=run.scenario.max_nodes,
            join_timeout_s=run.scenario.join_timeout_s,
            lease_s=run.scenario.lease_s,
            started="",
            exit_timeout_s=run.scenario.exit_timeout_s,
            restarts=restarts(run.scenario),
            versions=VERSIONS,
            role_nodes={role.name: role.nodes_min for role in run.scenario.roles},
        )
        self.head = run.plant.make_head(settings, history=History(), decide=decide, now=run.clock.now)
        self._timer = Timer(run.clock, self._ring)
        self._is_tick_due = False
        self._is_closed = False
        self._timer.set(self.head.next_tick())
        if run.is_stop_requested:
            self.look_for_requests()

    # Messages.

    def hears(self, link: Link, message: Message) -> None:
        name = link.member.name
        if self._is_closed:
            return
        if isinstance(message, Join):
            refusal = self.head.refusal(message)
            self._run.trace("head", message)
            if refusal is not None:
                link.down(refusal)
                link.close("up", "refused")
                self._ring()  # there may be nobody left to wait for
                return
            self._links[name] = link
            self._apply(self.head.joined(message, self._run.clock.now))
        elif self._links.get(name) is link:
            self._deliver(name, message)

    def hears_own(self, message: Message) -> None:
        if isinstance(message, Join):
            self._run.trace("head", message)
            self._apply(self.head.joined(message, self._run.clock.now))
        else:
            self._deliver(self._agent.name, message)

    def _deliver(self, name: str, message: Message) -> None:
        if not isinstance(message, Beat):
            self._run.trace("head", f"{name}: {message}")
        if not isinstance(message, Failed):
            self._apply(self.head.received(name, message, self._run.clock.now))
            return

        def judge(progress: str | None) -> None:
            """With the progress that the run had made when the failure came; others may have told more since."""
            self.head.progress_seen(progress)
            self._apply(self.head.received(name, message, self._run.clock.now))

        self._agent.disk.call(self._progress, judge, failed=self._crash)

    def _progress(self) -> str | None:
        self._failures_seen += 1
        return {"unknown": None, "moves": str(self._failures_seen), "stuck": "0"}[self._run.scenario.progress]

    def loses(self, link: Link, why: str) -> None:
        if self._links.get(link.member.name) is link:
            del self._links[link.member.name]
            self._run.trace("head", f"lost {link.member.name}: {why}")
            self._apply(self.head.lost(link.member.name, why, self._run.clock.now, is_gone=True))

    # People, time, the end.

    def look_for_requests(self) -> None:
        """Somebody has asked for the end; the head looks once a second."""
        self._agent.later(self._agent.dice.uniform(0, LOOK_FOR_REQUESTS_EVERY_S), self._read_request)

    def _read_request(self) -> None:
        def stop(_: None) -> None:
            if not self._is_closed:
                self._run.witness.told_to_stop_at = self._run.clock.now
                self._apply(self.head.stop_requested("ada@login", self._run.clock.now))

        self._agent.disk.call(lambda: None, stop, failed=self.look_for_requests)

    def find_gone(self, name: str) -> None:
        """An agent has given up: the head reads that in the run directory, some time."""

        def found(_: None) -> None:
            missing = MissingNode(node=name, cause=RendezvousCause.SILENT, detail="gave up")
            if self.head.phase.value == "gathering":
                self._apply(self.head.gathering.diagnosed([Diagnosis(missing=missing, gave_up=True)]))
                self._ring()

        def read() -> None:
            self._agent.disk.call(lambda: None, found, failed=self._crash)

        self._agent.later(self._agent.dice.uniform(0, DIAGNOSE_EVERY_S), read)

    def own_member_left(self) -> None:
        self._apply(self.head.lost(self._agent.name, "left", self._run.clock.now, is_gone=True))
        self._agent.later(HEAD_CLOSES_WITHIN_S, self._end)

    def close(self, why: str) -> None:
        """The process is going, or gone."""
        self._is_closed = True
        for link in self._links.values():
            link.close("up", why)

    def catch_up(self) -> None:
        """The process goes on after a pause."""
        if self._is_tick_due:
            self._is_tick_due = False
            self._ring()

    def _ring(self) -> None:
        if self._agent.is_paused:
            self._is_tick_due = True
        elif self._agent.is_running and not self._is_closed:
            self._apply(self.head.tick(self._run.clock.now))

    def _end(self) -> None:
        if not self._is_closed:
            self._agent.gone()

    def _crash(self) -> None:
        self._agent.crash()

    # What the head asks for.

    def _apply(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._act(action)
        self._timer.set(self.head.next_tick())
        self._run.head_moved(self.head.phase.value)

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
        elif isinstance(action, do.HeadOver) and self._agent.exit_code is not None:
            self._agent.later(0.0, self._end)

    def _send(self, name: str, message: Message) -> None:
        if name == self._agent.name:
            self._agent.later(0.0, lambda: self._agent.hears(None, message))
        elif name in self._links:
            self._links[name].down(message)

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            link.close("up", "the head dropped the connection")

    def _claim(self, action: do.ClaimAttempt) -> None:
        self._run.rules.asks_for(action.claim)

        def claim() -> bool:
            is_ours = self._run.disk.claim(action.claim, action.world, self._run.clock.now)
            self._run.rules.claimed(action.claim, action.world)
            return is_ours

        def claimed(is_ours: bool) -> None:
            self._apply(self.head.claimed(action.claim.attempt, is_ours, "digest", self._run.clock.now))

        self._agent.disk.call(claim, claimed, failed=self._disk_failed)

    def _write_result(self, action: do.WriteResult) -> None:
        self._run.decided_codes.add(action.result.exit_code)
        if action.result.reason == Trigger.TERMINATED.value and self._run.scenario.is_requeued:
            self._run.witness.is_requeued = True
            self._agent.later(0.0, lambda: self._written((REQUEUE, "the scheduler has requeued the job")))
            return
        self._agent.disk.call(
            lambda: self._run.disk.write_result(action.result), self._written, failed=self._disk_failed
        )

    def _written(self, result: tuple[int, str]) -> None:
        self._apply(self.head.result_written(*result, self._run.clock.now))

    def _disk_failed(self) -> None:
        self._run.witness.see("disk")
        self._apply(self.head.disk_failed("the run directory: Input/output error", self._run.clock.now))


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
        max_node_losses=64,
    )
