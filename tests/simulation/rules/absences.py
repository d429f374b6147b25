"""How long a first head waits for the nodes that are not there, and what it says of them when they are too few.

A node is waited for until it has joined, was refused, has written that it gives up, or srun has said that it starts no
agent; no longer than `join_timeout`; and in a full world no spare is waited for longer than a moment. Whoever reads why
a run could not begin has to find each node that was missing, with the reason that this node's own agent has written, if
it has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.gathering import can_relieve
from hpc_elastic.membership.timing import DRIFT, SPARES_COME_WITHIN_S
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.actions import Note
    from hpc_elastic.membership.messages import Join
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

REMINDS_EVERY_S = 30.0
LOOKS_EVERY_S = 5.0  # a head, at what missing nodes have written
FIRST_LOOK_S = 3.0
NEVER_STARTED, OTHER_VERSION, UNHEALTHY = "never_started", "other_version", "unhealthy"
CAUSES = {"refused": ("refused", "blocked_port")}  # what a head makes of an agent's word, where it may differ
NODES_NAMED = 8  # in one line
LEAVES_WITHIN_S = 6.0  # two looks for the claim, each two seconds and a pause after the one before
HOPELESS = "at most"  # so begins what a head says that does not wait for nodes that cannot come


class Absences:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._began: dict[object, float] = {}  # by head
        self._reminded: dict[object, float] = {}  # when a head has said last whom it waits for
        self._asked: defaultdict[object, dict[str, tuple[float, bool]]] = defaultdict(
            dict
        )  # when, and if it was let in
        self._given_up: set[tuple[str, str]] = set()  # the heads that agents have given up, which a head may remember
        self._written: dict[str, float] = {}  # by node, when its agent has written why it has not joined

    def leads(self, head: object) -> None:
        """An agent has a head."""
        self._began[head] = self._run.clock.now

    def asks(self, head: object, join: Join, *, is_refused: bool) -> None:
        """A node has asked to join, and has its answer."""
        self._asked[head][join.node] = self._run.clock.now, not is_refused and join.problem is None

    def writes(self, node: str) -> None:
        """An agent has written why it has not joined."""
        self._written[node] = self._run.clock.now
        if (finding := self._finding(node)) is not None and finding["gave_up"]:
            self._given_up.add((finding["head"], node))
            self._run.joins.gives_up(self._run.agent(node))

    def says(self, agent: Agent, head: object, text: str) -> None:
        """A head says something to people: whom it waits for, every half a minute."""
        if not (text.startswith("waiting for ") and " to join; " in text):
            return
        now, before = self._run.clock.now, self._reminded.get(head, self._began[head])
        self._reminded[head] = now
        is_rare = (now - before) * (1 + DRIFT) >= REMINDS_EVERY_S
        require(is_rare, f"{agent.name} says again after {now - before:.1f} s: {text}")

    def _check_reminded(self, agent: Agent, head: object, waited_s: float) -> None:
        """Who waits for nodes so long has said so."""
        is_due = waited_s > REMINDS_EVERY_S + 1.0 + self._slack_s
        what = f"{agent.name} has waited for nodes for {waited_s:.1f} s"
        require(head in self._reminded or not is_due, f"{what}, and has told nobody for whom")

    @property
    def _slack_s(self) -> float:
        scenario = self._run.scenario
        return 1.0 + 8 * max(scenario.disk_s) + 8 * max(scenario.delays_s)

    def _finding(self, node: str) -> Mapping[str, Any] | None:
        """What a node's agent has written, as long as it stands."""
        content = self._run.files.content.get(LAYOUT.rendezvous(node))
        return None if content is None else json.loads(content[0])

    def _has_given_up(self, agent: Agent, node: str) -> bool:
        """Whether no agent of a node can come to this head: it is not there, has given it up, or was relieved by it."""
        if node in self._run.scenario.known_to_be_without_agent or self.is_relieved(agent.name, node):
            return True
        if (agent.name, node) in self._given_up:
            return True
        finding = self._finding(node)
        is_for_it = finding is not None and (finding["head"] == agent.name or not finding["awaits_other"])
        return finding is not None and is_for_it and bool(finding["gave_up"])

    def is_relieved(self, by: str, node: str) -> bool:
        """Whether the head on one node is in the place of that on another one, which most could not reach."""
        return any((each.node, each.relieves) == (by, node) for each in self._run.disk.allocations)

    def _may_be_relieved(self, agent: Agent) -> bool:
        """Whether others may do without this first head, so that it waits for one of them to take its place."""
        names, scenario = self._run.scenario.names, self._run.scenario
        findings = [finding for node in names if (finding := self._finding(node)) is not None]
        placed = dict(zip(names, (role for role, _ in scenario.placed()), strict=True))
        unreached = [
            placed[each["node"]] for each in findings if (each["cause"], each["head"]) == ("cannot_route", agent.name)
        ]
        has_relieved = any(each.node == agent.name and each.relieves for each in self._run.disk.allocations)
        return not has_relieved and can_relieve(unreached, scenario.role_nodes, scenario.min_nodes, len(names))

    @property
    def _is_usual(self) -> bool:
        """Whether nodes do not come, or cannot take part, and nothing else is wrong."""
        run = self._run
        return not run.earlier and all(
            fault.what in ("never_starts", "starts_late", "other_version", "unfit", "unhealthy", "partition")
            and not fault.at
            and not fault.phase
            for fault in run.scenario.faults
        )

    # The first attempt.

    def claims(self, agent: Agent, head: object, claim: AttemptClaim, here: set[str], unhealthy: set[str]) -> None:
        """A head is about to claim an attempt; `here` are the nodes that are with it."""
        if claim.attempt != 1 or not self._is_usual or self._run.disk.claims:
            return
        scenario, waited_s = self._run.scenario, self._run.clock.now - self._began[head]
        awaited = [node for node in scenario.names if node not in here and self._may_come(agent, head, node)]
        is_full = len(here - unhealthy) >= scenario.max_nodes
        spares = set(scenario.names[scenario.max_nodes :])
        least_s = 0.0 if not awaited else scenario.join_timeout_s
        if is_full and spares.issuperset(awaited):
            least_s = min(least_s, SPARES_COME_WITHIN_S)
        what = f"{agent.name} claims the first attempt after {waited_s:.2f} s, and {awaited} may still come"
        require(waited_s * (1 + DRIFT) >= least_s, f"{what}, for which it waits {least_s:g} s")
        self._check_reminded(agent, head, waited_s if awaited else 0.0)
        self._check_prompt(agent, head, awaited, least_s)

    def _may_come(self, agent: Agent, head: object, node: str) -> bool:
        asked = self._asked[head].get(node)
        return (asked is None or asked[1]) and not self._has_given_up(agent, node)

    def _check_prompt(self, agent: Agent, head: object, awaited: list[str], least_s: float) -> None:
        """It does not wait longer: all have joined, or it is known why not."""
        run, began = self._run, self._began[head]
        taken_back = {node for other, node in self._given_up if other == agent.name and self._finding(node) is None}
        if taken_back - set(self._asked[head]):
            return  # they have joined the head that relieves this one, which may never have read that they gave it up
        known = [began, *(moment for moment, _ in self._asked[head].values())]
        gave_up = [node for node in run.scenario.names if self._has_given_up(agent, node)]
        known += [self._is_to_be_read_at(head, node) for node in gave_up]
        since = max(known) if not awaited or least_s < run.scenario.join_timeout_s else began
        latest = since + least_s * (1 + DRIFT) + self._slack_s
        now = run.clock.now
        what = f"{agent.name} claims the first attempt at {now:.2f} s, not by {latest:.2f} s"
        require(now <= latest or agent.name not in self._asked[head], f"{what}, and waits for {awaited}")

    # Another start of the job.

    def check_end(self) -> None:
        """The job starts again without nodes that are at fault: whoever comes when the head has left leaves soon."""
        run = self._run
        lines = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines() if line]
        told = [line for line in lines if line.get("kind") == "requeue"]
        if not told or not self._is_usual or run.disk.claims:
            return
        run.witness.is_requeued = True
        whats = ("unfit", "unhealthy", "never_starts")
        at_fault = {run.agents[fault.node].name for fault in run.scenario.faults if fault.what in whats}
        avoided = set(told[0]["nodes"])
        require(
            bool(avoided) and avoided <= at_fault, f"the next start avoids {sorted(avoided)}, not {sorted(at_fault)}"
        )
        refused = {node for asked in self._asked.values() for node, (_, is_let_in) in asked.items() if not is_let_in}
        head = run.agent(told[0]["by"])
        has_looked = head.left_at > max(self._began.values()) + FIRST_LOOK_S + self._slack_s
        known = at_fault & (refused | (run.scenario.known_to_be_without_agent if has_looked else set()))
        require(known <= avoided, f"the next start avoids {sorted(avoided)}, and {sorted(known)} cannot take part")
        for agent in run.agents:
            late_s = agent.gone_at - max(head.left_at, agent.started_at)
            is_soon = agent.exit_code is None or late_s <= LEAVES_WITHIN_S + self._slack_s
            require(
                is_soon, f"{agent.name} leaves {late_s:.1f} s after the head has left for another start, or it began"
            )

    # Too few.

    def notes(self, agent: Agent, head: object, note: Note, here: set[str], unhealthy: set[str]) -> None:
        """A head notes that its round is over and the nodes are too few."""
        if note.name != "rendezvous.timeout" or not self._is_usual:
            return
        missing = {str(each["node"]): each for each in note.metadata["missing"]}
        what = f"{agent.name} says that {sorted(missing)} are missing"
        with_it = sorted(set(missing) & (here - unhealthy))
        require(not with_it, f"{what}, and {with_it} are with it")
        unnamed = [node for node in sorted(missing)[:NODES_NAMED] if node not in note.message]
        is_short = len(missing) <= NODES_NAMED
        require(not (unnamed and is_short), f"{what}, and the line for people does not name {unnamed}: {note.message}")
        is_first = not self._run.disk.claims
        for each in missing.values():
            self._check_cause(agent, head, each, is_first=is_first)
        if not is_first:
            return
        names, is_hopeless = self._run.scenario.names, note.message.startswith(HOPELESS)
        out = {
            node for node in names if node in unhealthy or (node not in here and not self._may_come(agent, head, node))
        }
        out = {node for node in out if node in self._asked[head] or self._is_read(head, node)}
        if is_hopeless:
            due = out
        else:
            due = set(names) - (here - unhealthy)
            waited_s = self._run.clock.now - self._began[head]
            # Who has joined may be enough nodes, and too few for a role: that is known once nobody can come any more.
            least_s = self._run.scenario.join_timeout_s if due - out else 0.0
            require(waited_s * (1 + DRIFT) >= least_s, f"{what} after {waited_s:.2f} s, not {least_s:g} s")
            is_open = len(names) - len(out) >= self._run.scenario.min_nodes
            is_open = is_open or self._may_be_relieved(agent)
            require(is_open, f"{what}, and has waited for nothing: {sorted(out)} cannot come")
        told = note.message.partition("; lost: ")[2]
        lost = {node for node in due if node in told or " more" in told}
        left_out = sorted(due - set(missing) - lost)
        require(not left_out, f"{what}, and does not name {left_out}")

    def _is_read(self, head: object, node: str) -> bool:
        """Whether a head must have read what a node's agent has written."""
        is_there = self._finding(node) is not None or node in self._run.scenario.known_to_be_without_agent
        return is_there and self._run.clock.now > self._is_to_be_read_at(head, node) + self._slack_s

    def _is_to_be_read_at(self, head: object, node: str) -> float:
        """When a head reads what is written of a node, at the latest."""
        return max(self._written.get(node, -LOOKS_EVERY_S) + LOOKS_EVERY_S, self._began[head] + FIRST_LOOK_S)

    def _check_cause(self, agent: Agent, head: object, told: Mapping[str, Any], *, is_first: bool) -> None:
        """What a head says of a missing node is what that node's agent has written, or the head has seen itself."""
        node, cause = str(told["node"]), str(told["cause"])
        what = f"{agent.name} says that {node} is missing ({cause})"
        finding, other = self._finding(node), self._run.peer(agent, node)
        if cause == OTHER_VERSION:
            require(not other.has_versions_of(agent), f"{what}, and it has the same versions")
        elif cause == UNHEALTHY:
            is_so = other.found_at is not None or other.problem is not None
            require(is_so, f"{what}, and its checks have found nothing")
        elif cause == NEVER_STARTED:
            is_known = self._is_read(head, node) and is_first
            is_srun = node in self._run.scenario.known_to_be_without_agent
            require(is_srun or not is_known, f"{what}, and its agent has written: {finding}")
            require(not is_srun or not is_known or "srun: " in str(told["detail"]), f"{what}, and srun has said why")
            has_looked = self._run.clock.now > self._began[head] + FIRST_LOOK_S + self._slack_s
            is_of_look = str(told["detail"]).startswith("has never started its agent")
            require(is_of_look or not (has_looked and is_first), f"{what}, and has not looked for a sign of it")
        elif finding is not None:
            causes = CAUSES.get(str(finding["cause"]), (finding["cause"],))
            is_news = not self._is_read(head, node)
            require(cause in causes or is_news, f"{what}, and its agent has written {finding['cause']}")
