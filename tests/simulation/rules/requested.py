"""What a person asks for is done, and soon: another attempt, one without a node, or the end after some seconds.

The rules are of runs in which nothing else goes wrong but workers. A drain is passed over if too few other nodes would
be left, and a restart that is asked for while no workers run may be, as their texts say. A stop after which the job
is to start again does nothing where it cannot.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import AttemptClaim, Request, RunResultRecord, World, utc_text
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import GRACE_S, Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

REFUSED = re.compile(r"\S+ asked to drain (\S+), but too few other nodes are here")
REQUESTS = ("ask_restart", "ask_drain", "ask_stop", "ask_requeue")
LOOKS_WITHIN_S = 1.0  # a head, into the run directory
READS, READS_S = 20, 0.1  # of files, before a head begins, and what else it takes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, and when it was made; `attempt`: whose workers ran then, 0 if none did.

    `is_vain`: a drain that leaves too few nodes.
    """

    request: Request
    moment: float
    attempt: int
    is_vain: bool = False


class Requested:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._asked: list[Asked] = []
        self._refused: set[str] = set()  # the ids of drains
        self._in_vain = 0  # attempts for a damaged state, whose successors cost nothing

    @property
    def stop_at(self) -> float | None:
        """When the first announced stop was asked for."""
        return next((each.moment for each in self._asked if each.request.kind == "stop"), None)

    @property
    def drained(self) -> set[str]:
        """The nodes that were asked to be drained."""
        return {str(each.request.node) for each in self._asked if each.request.kind == "drain"}

    def says(self, agent: Agent, text: str) -> None:
        """A head says something to people: what it refuses for want of nodes it would have had too few for just then.

        A moment later a spare may have the place of a blamed node of another role, and the drain would be possible.
        """
        if (found := REFUSED.match(text)) is None:
            return
        node = found[1]
        is_usual = self._run.witness.kinds == {"asked"}
        is_so = not is_usual or self._leaves_too_few(node)
        require(is_so, f"{agent.name} refuses to drain {node}, and enough other nodes are there")
        drains = [each.request for each in self._asked if each.request.kind == "drain"]
        self._refused.update(str(request.id) for request in drains if request.node == node)

    def ask(self, fault: Fault) -> None:
        """A person asks now."""
        run, kind = self._run, fault.what.removeprefix("ask_")
        node = f"node{fault.node}" if kind == "drain" else None
        if kind == "requeue":
            require(run.scenario.requeue_max == 0, "a stop for another start is asked for in vain")
            name, time = f"requeue-{run.clock.now}", utc_text(run.clock.now)
            run.requests.append(
                Request(kind="stop", by="ada@login", time=time, id=name, requeue=True, seconds_left=fault.lasts_s)
            )
            return
        left_s = fault.lasts_s if kind == "stop" else None
        name, time = f"{kind}-{len(self._asked)}", ""
        if left_s is not None:
            time = run.polls.gives("operator", left_s)
        request = Request(kind=kind, by="ada@login", time=time, id=name, node=node, seconds_left=left_s)
        at_work = [worker.attempt for agent in run.agents for worker in agent.workers.alive.values()]
        attempt = max(at_work, default=0) if run.head_phase == "running" else 0
        is_vain = node is not None and self._leaves_too_few(node)
        self._asked.append(Asked(request=request, moment=run.clock.now, attempt=attempt, is_vain=is_vain))
        run.requests.append(request)
        run.witness.see("asked")

    def _leaves_too_few(self, node: str) -> bool:
        """Whether too few nodes are left without this one and those that were drained before, or are blamed.

        A node beyond the number of its role's places may take a place of another role.
        """
        done = (each for each in self._asked if not each.is_vain and each.request.id not in self._refused)
        scenario, drained = self._run.scenario, {node, *(each.request.node for each in done)}
        drained |= self._run.causes.blamed
        left = Counter(agent.role for agent in self._run.agents if agent.is_running and agent.name not in drained)
        lacking = sum(max(0, role.nodes_min - left[role.name]) for role in scenario.roles)
        spares = sum(max(0, left[role.name] - role.nodes_max) for role in scenario.roles)
        return left.total() < scenario.min_nodes or lacking > spares

    def _is_vain(self, asked: Asked) -> bool:
        """Whether a request need not have done anything; other nodes may have been blamed since a drain was asked."""
        node = asked.request.node
        is_short = asked.request.kind == "drain" and node is not None and bool(self._run.causes.blamed)
        is_refused = asked.is_vain or asked.request.id in self._refused
        return is_refused or (is_short and self._leaves_too_few(str(node)))

    @property
    def _within_s(self) -> float:
        patience_s = max(role.patience_s for role in self._run.scenario.roles)
        return LOOKS_WITHIN_S + min(GRACE_S, patience_s) + 1.0 + self._run.progress.slack_s

    def _is_overdue(self, asked: Asked) -> bool:
        left_s = (asked.request.seconds_left or 0.0) * (1 + DRIFT)
        is_usual = self._run.witness.kinds == {"asked"} and not self._run.witness.unkillable
        return is_usual and self._run.clock.now > asked.moment + left_s + self._within_s

    def watch(self) -> None:
        """After every event that changed something on a node, and from time to time."""
        run = self._run
        if run.disk.results:
            return
        for asked in self._asked:
            if not self._is_overdue(asked) or self._is_vain(asked):
                continue
            kind, node = asked.request.kind, asked.request.node
            at_work = {
                (agent.name, worker.attempt)
                for agent in run.agents
                for worker in agent.workers.alive.values()
                if not worker.is_unkillable
            }
            what = f"{run.clock.now - asked.moment:.1f} s after a person asked for a {kind}"
            if kind == "restart":
                is_same = any(attempt == asked.attempt for _, attempt in at_work)
                require(not is_same, f"attempt {asked.attempt} runs {what}")
            elif kind == "drain":
                require(node not in {name for name, _ in at_work}, f"{node} has workers {what}")
            else:
                require(not at_work, f"workers run {what}")

    def claimed(self, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk: it leaves out who was drained, and there was a reason for it."""
        run = self._run
        self._check_drained(claim, world)
        if run.witness.kinds != {"asked"}:
            return
        for asked in self._asked:
            kind, node = asked.request.kind, asked.request.node
            decided_at = run.disk.asked_at[claim.attempt]
            if kind == "drain" and not self._is_vain(asked) and decided_at > asked.moment + self._within_s:
                used = node in {each.node for each in world.nodes}
                require(not used, f"attempt {claim.attempt} uses {node}, which a person has drained")
        if before is None:
            return
        paid, failures = claim.spend.restarts - before.spend.restarts, len(run.witness.keys())
        require(paid <= failures, f"attempt {claim.attempt} costs {paid} restarts")
        self._in_vain += bool(before.states and claim.states != before.states)  # for a damaged state
        causes = failures + sum(each.request.kind != "stop" for each in self._asked) + self._in_vain
        require(claim.attempt - 1 <= causes, f"attempt {claim.attempt} comes, and {causes} things have happened")

    def _check_drained(self, claim: AttemptClaim, world: World) -> None:
        """Who was drained has no workers where enough others are, under whichever head, whatever else goes wrong."""
        run, decided_at = self._run, self._run.disk.asked_at[claim.attempt]
        if run.earlier or len(claim.roles) < len(world.roles) or len(world.roles) > 1:
            return
        drains = [each for each in self._asked if each.request.kind == "drain" and not each.is_vain]
        # A head has read before it begins what earlier ones were asked.
        began_at = run.carried_out.began_at[claim.head] - READS_S - READS * max(run.scenario.disk_s)
        is_known = {each.moment: began_at > each.moment or decided_at > each.moment + self._within_s for each in drains}
        known = {each.request.node for each in drains if is_known[each.moment]}
        working = {node.node for node in world.nodes}
        used = working & known
        others = (working | {spare.node for spare in world.spares}) - {each.request.node for each in drains}
        is_needed = len(others) < run.scenario.min_nodes
        require(not used or is_needed, f"attempt {claim.attempt} uses {sorted(used)}, drained, beside {sorted(others)}")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        run = self._run
        stops = [asked for asked in self._asked if asked.request.kind == "stop"]
        named = max((result.cause.count(each.request.by) for each in stops), default=0)
        require(named <= 1, f"the result names who has asked for the end again and again: {result.cause!r}")
        if run.witness.kinds != {"asked"} or result.reason != "stop_requested":
            return
        due = min(asked.moment + (asked.request.seconds_left or 0.0) / (1 + DRIFT) for asked in stops)
        is_waited_for = all(asked.attempt for asked in stops) and not run.witness.have_all_ended_well()
        is_early = is_waited_for and run.clock.now < due
        require(not is_early, f"the run is stopped {due - run.clock.now:.1f} s before the time that was announced")
