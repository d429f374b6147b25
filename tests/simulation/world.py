"""The simulated run: a shared disk, a network, nodes with workers, and the rules that must hold.

Theory of operation. Every node has a Member, node 0 a Head too, as the agent wires them: messages
between nodes take a random time and keep their order on a connection, as TCP does; the disk takes a
random time; a worker exits or fails when its scenario says. After every event the rules are checked
on what the nodes do, never on what the machines believe.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hpc_elastic.agent.policy import Policy
from hpc_elastic.membership import actions as do
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import Join, Message, decode_message, encode_message
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.plan.launch_plan import BackoffPlan, RestartPlan
from tests.simulation.clock import Clock, Timer
from tests.simulation.disk import Disk
from tests.simulation.node import Node
from tests.simulation.rules import BrokenRuleError, check, check_end
from tests.simulation.scenario import JOIN_TIMEOUT_S, LEASE_S, Scenario

BOUND_S = 1500.0


class SimulatedRun:
    """All nodes of one run, from the first join to the last exit."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.dice = random.Random(scenario.seed * 7919 + 1)
        self.clock = Clock()
        self.disk = Disk()
        self.nodes = [Node(self, number) for number in range(scenario.nodes)]
        self.is_head_over = False
        self._arrival: dict[tuple[str, str], float] = {}
        self._attached: set[str] = set()
        backoff = BackoffPlan(first_s=0, factor=2, max_s=60)
        restart = RestartPlan(max_restarts=scenario.max_restarts, backoff=backoff, no_progress_limit=3)
        settings = HeadSettings(
            run="run",
            node="node0",
            allocation=1,
            expected=tuple(node.name for node in self.nodes),
            min_nodes=scenario.min_nodes,
            max_nodes=scenario.nodes,
            join_timeout_s=JOIN_TIMEOUT_S,
            lease_s=LEASE_S,
            started="",
        )
        self.head = Head(settings, history=History(), decide=Policy(restart=restart).decide, now=0.0)
        self.head_timer = Timer(self.clock, self._head_ticks)
        self.head_timer.set(self.head.next_tick())

    @property
    def is_over(self) -> bool:
        return not any(node.is_here for node in self.nodes)

    def disk_s(self) -> float:
        """How long the file system takes this time."""
        return self.dice.choice([0.001, 0.01, 0.01, 0.5])

    def play(self, bound_s: float) -> None:
        """Runs to the end.

        Raises:
            BrokenRuleError: a rule is broken, or there is no end within the bound.
        """
        never = {node for _, what, node in self.scenario.faults if what == "never_starts" and node}
        for node in self.nodes:
            if node.number in never:
                node.is_up = False
            else:  # the head's own member is there before anybody can ask for anything
                self.clock.after(self.dice.uniform(0, 2) if node.number else 0, node.connect)
        for moment, what, number in self.scenario.faults:
            self.clock.after(moment, self._fault(what, self.nodes[number]))
        while not self.is_over:
            if not self.clock.step() or self.clock.now > bound_s:
                waiting = {node.name: node.member.phase.value for node in self.nodes if node.is_here}
                raise BrokenRuleError(f"no end after {self.clock.now:.1f} s; head {self.head.phase.value}, {waiting}")
            check(self)
        while self.clock.now < bound_s and self.clock.step():
            check(self)

    def dial(self, node: Node) -> None:
        """A member asks to join; it asks again while nobody answers."""

        def arrive() -> None:
            if not self.nodes[0].is_here or self.is_head_over:
                node.exit_code = 7  # nobody answers, and the search gives up
                return
            refusal = self.head.refusal(node.join)
            if refusal is not None:
                self._deliver("head", node.name, lambda: node.hear(refusal))
                return
            self._attached.add(node.name)
            self._apply(self.head.joined(node.join, self.clock.now))

        if not self.nodes[0].is_here or self.is_head_over:
            node.exit_code = 7  # the search gives up
            return
        self._deliver(node.name, "head", arrive)

    def to_head(self, node: Node, message: Message) -> None:
        wire = encode_message(message)

        def arrive() -> None:
            if not self._is_head_up:
                return
            heard = decode_message(wire)
            if isinstance(heard, Join):
                self._attached.add(node.name)
                self._apply(self.head.joined(heard, self.clock.now))
            elif node.name in self._attached:
                self._apply(self.head.received(node.name, heard, self.clock.now))

        self._deliver(node.name, "head", arrive)

    def gone(self, node: Node) -> None:
        """A node's connection closes; without node 0 there is no head."""

        def notice() -> None:
            if node.name in self._attached and self._is_head_up:
                self._attached.discard(node.name)
                self._apply(self.head.lost(node.name, "the connection closed", self.clock.now))

        self._deliver(node.name, "head", notice)
        if node.number == 0 and not node.is_up:
            self._end_head()

    @property
    def _is_head_up(self) -> bool:
        return self.nodes[0].is_up and not self.is_head_over

    def _end_head(self) -> None:
        self.is_head_over = True
        self.head_timer.stop()
        for node in self.nodes[1:]:
            self._deliver("head", node.name, lambda node=node: node.lose_head("the connection closed"))  # type: ignore[misc]

    def _deliver(self, sender: str, receiver: str, event: Callable[[], None]) -> None:
        """Takes a while, and keeps the order of one connection."""
        latest = self._arrival.get((sender, receiver), 0.0)
        delay = 0.0 if "node0" in (sender, receiver) else self.dice.choice([0.0, 0.001, 0.001, 0.2])
        at = max(latest, self.clock.now + delay)
        self._arrival[sender, receiver] = at
        self.clock.after(at - self.clock.now, event)

    def _fault(self, what: str, node: Node) -> Callable[[], None]:
        def all_terminate() -> None:
            for each in self.nodes:
                each.terminate()

        def ask_to_stop() -> None:
            if self._is_head_up:
                self._apply(self.head.stop_requested("ada", self.clock.now))

        def break_node() -> None:
            if node.is_here:
                node.apply(node.member.node_broke("the store host ended"))

        return {
            "stop": ask_to_stop,
            "term": node.terminate,
            "term_all": all_terminate,
            "kill_worker": lambda: node.kill_worker(-9),
            "term_worker": lambda: node.kill_worker(-15),
            "lose_node": lambda: node.vanish() if node.is_here else None,
            "break_node": break_node,
            "never_starts": lambda: None,
        }[what]

    def _head_ticks(self) -> None:
        if self._is_head_up:
            self._apply(self.head.tick(self.clock.now))

    def _apply(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._act(action)
        if self._is_head_up:
            self.head_timer.set(self.head.next_tick())

    def _act(self, action: do.Action) -> None:
        if isinstance(action, do.Send):
            wire, node = encode_message(action.message), self.nodes[int(action.node.removeprefix("node"))]
            if action.node in self._attached:
                self._deliver("head", node.name, lambda: node.hear(decode_message(wire)))
        elif isinstance(action, do.Drop):
            if action.node in self._attached:
                self._attached.discard(action.node)
                node = self.nodes[int(action.node.removeprefix("node"))]
                self._deliver("head", node.name, lambda: node.lose_head("dropped"))
        elif isinstance(action, do.ClaimAttempt):
            self.clock.after(self.disk_s(), lambda: self._claim(action))
        elif isinstance(action, do.WriteResult):
            self.clock.after(self.disk_s(), lambda: self._write_result(action))
        elif isinstance(action, do.HeadOver):
            self._end_head()

    def _claim(self, action: do.ClaimAttempt) -> None:
        if self._is_head_up:
            is_ours = self.disk.claim(action.claim)
            self._apply(self.head.claimed(action.claim.attempt, is_ours, "digest", self.clock.now))

    def _write_result(self, action: do.WriteResult) -> None:
        if self._is_head_up:
            self._apply(self.head.result_written(*self.disk.write_result(action.result), self.clock.now))


def play(seed: int) -> SimulatedRun:
    """Plays one seed to its end, and checks how it ended."""
    run = SimulatedRun(Scenario.draw(seed))
    run.play(BOUND_S)
    check_end(run)
    return run
