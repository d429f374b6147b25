"""What must hold when the run is over: one result, a true one, and exit codes that say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES
from hpc_elastic.membership.gathering import can_relieve
from hpc_elastic.membership.messages import Welcome
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import require
from tests.simulation.rules.progress import DISK_OPERATIONS, TALKS_S, is_relieved_in_time
from tests.simulation.scenario import GRACE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.witness import Incident
    from tests.simulation.world import SimulatedRun

LOOKS_EVERY_S = SEARCH_TIMES.read_claim_every_s + SEARCH_TIMES.longest_pause_s
SEARCH_OPERATIONS = 4  # one after the other, from the end of a search to a claim that others find
FOR_GOOD_S = 1000.0  # a cut of the network
PERSON = "ada@login"
CANCELLED_MEANWHILE = "cancelled while the run was stopped because"  # a request that is found as the run has ended
SETUP, RUN_DIRECTORY, NODES_MISSING, NODE_LOST, STALLED, STOPPED, REQUEUE = 3, 5, 6, 7, 9, 10, 75


class Verdicts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._decided_on: list[Incident] = []  # a successor's claim may be on disk before the result is written

    def decides(self) -> None:
        """A head wants to end the run."""
        self._decided_on += self._run.witness.unanswered()

    def check_end(self) -> None:
        """When nobody runs any more."""
        run = self._run
        for agent in run.everybody:
            run.rules.leaves(agent, -1)
        run.absences.check_end()
        require(len(run.disk.results) == 1 or self._may_have_no_result(), "the run ended without a result")
        for agent in run.agents:
            if agent.exit_code is not None:
                self._check_exit_code(agent, agent.exit_code)
        self._check_leaving()
        run.job_ends.check_end()
        run.limits.check_end()
        run.terms.check_end()
        run.refused_disks.check_end()
        run.asked_saves.check_end()
        run.stacks.check_end()
        run.kept.check_end()
        run.unkept.check_end()
        run.headships.check_end()
        run.endings.check_end()
        run.resumed.check_end()
        for result in run.disk.results:
            require(bool(result.cause), "the result names no cause")
            is_true = self._is_true(result) or self._ends_anyway(result.reason, result.cause)
            require(is_true, f"the run is {result.state.value} for {result.reason} ({result.cause}), which is not so")
            self._check_cause(result.reason, result.cause)
            self._check_who(result.reason, result.cause)
            self._check_want(result.reason)
            self._check_relief(result.reason)

    def _check_leaving(self) -> None:
        """Where nothing but workers went wrong, everybody leaves at once when the run is over."""
        run = self._run
        if run.witness.kinds or run.witness.unkillable or run.is_disturbed or not run.disk.results:
            return
        grace_s = GRACE_S * any(
            role.restart == "ignore" or run.disk.results[0].exit_code for role in run.scenario.roles
        )
        allowed_s = grace_s + run.progress.slack_s
        for agent in run.agents:
            took_s = agent.gone_at - max(run.disk.ended_at, agent.started_at)
            # Who looks for the first head reads the run directory, which all share, every two seconds.
            looks_s = LOOKS_EVERY_S * (agent.name not in run.witness.joined)
            what = f"{agent.name} is gone {took_s:.1f} s after the end of the run and its own start"
            require(took_s <= allowed_s + looks_s, what)

    def _may_have_no_result(self) -> bool:
        """Whether everybody who could have written one was gone, or told that the scheduler will go on.

        Members of the latest world may, and they need not have learned of it; spares may where its head was killed, so
        that its kernel told them.
        """
        run, witness = self._run, self._run.witness
        if witness.is_requeued or "disk" in witness.kinds or run.resumed.is_held_up:
            return True
        world = run.disk.latest
        members = {node.node for node in world.nodes} if world is not None else witness.joined
        able = [
            agent
            for agent in run.agents
            if agent.name in members or self._is_told_of_deaths(agent)
            if agent.exit_code is not None and agent.name not in witness.terminated
            if agent.exit_code != STALLED and not agent.is_refused
            if agent.left_at - agent.troubled_until > run.progress.bound_s
        ]
        return not able

    def _is_told_of_deaths(self, agent: Agent) -> bool:
        """Whether nothing but deaths of agents went wrong, and the latest head had this agent when it died."""
        run, claim = self._run, self._run.disk.latest_claim
        if claim is None or any(fault.what != "kill_agent" for fault in run.scenario.faults):
            return False
        had_s = run.peer(agent, claim.head).died_at - run.disk.asked_at[claim.attempt]
        return agent.name in run.witness.joined and had_s > run.scenario.lease_s + TALKS_S

    def _check_exit_code(self, agent: Agent, exit_code: int) -> None:
        witness, results = self._run.witness, self._run.disk.results
        if "disk" in witness.kinds or (witness.is_requeued and exit_code == REQUEUE):
            return
        expected = {results[0].exit_code} if results else set()
        if agent.is_refused:  # before the result is there, by what the head has decided
            is_unfit = agent.problem is not None
            expected |= self._run.decided_codes | ({SETUP} if is_unfit else set())
        if self._run.earlier:
            expected |= {REQUEUE, NODE_LOST, NODES_MISSING, RUN_DIRECTORY}
        if not agent.is_told and agent.name not in witness.joined | self._run.untold.searched:
            expected |= {NODES_MISSING, STOPPED, RUN_DIRECTORY}
        elif not agent.is_told:
            is_lost = bool(witness.kinds & {"loss", "term"}) or self._is_first_head_late()
            expected |= {NODE_LOST} if is_lost else set()
            expected |= {STOPPED} if agent.name in witness.terminated else set()
            expected |= {STALLED} if agent.name in witness.unkillable else set()
        if agent.has_other_version or (agent.is_refused and self._is_refused_by_another_version(agent)):
            expected.add(NODES_MISSING)
        heads = {each.node for each in self._run.disk.allocations}
        if agent.is_refused and any(self._run.absences.is_relieved(head, agent.name) for head in heads):
            expected.add(NODES_MISSING)  # by the head that is in its place
        require(exit_code in expected, f"{agent.name} left with {exit_code}, and should have with {expected}")

    def _is_refused_by_another_version(self, agent: Agent) -> bool:
        """Whether the latest head has another version than this agent: then all agents but its own may be refused."""
        head = self._run.disk.head  # before the first attempt, who has claimed the allocation
        return head is not None and not self._run.peer(agent, head).has_versions_of(agent)

    def _is_true(self, result: RunResultRecord) -> bool:
        witness, scenario = self._run.witness, self._run.scenario
        claim = self._run.disk.latest_claim
        counted = claim.spend.node_losses if claim is not None else 0
        return {
            "succeeded": witness.had_all_ended_well,
            "restarts_used_up": len(witness.keys()) > scenario.max_restarts,
            "no_progress": self._run.silent_ends.are_too_many
            or (
                bool({"stuck", "gaps"} & {scenario.progress, scenario.steps})
                and len(witness.keys()) >= scenario.no_progress_limit
            ),
            "start_failed": "start_failed" in witness.kinds,
            # Another head may have claimed the next attempt while the result was on its way to a slow disk.
            "exit_timeout": witness.is_exit_overdue(result.attempts),
            "unkillable": bool(witness.unkillable),
            "stop_requested": witness.told_to_stop_at is not None or self._run.requested.stop_at is not None,
            "time_limit": "limit" in witness.kinds or self._run.taken.is_of("time_limit"),
            "preempted": self._run.scheduler.is_preempted or self._run.taken.is_of("preemption"),
            "notice_taken": scenario.heeds_notice,
            "terminated": "term" in witness.kinds,
            "node_lost": bool(witness.kinds & {"loss", "term", "disk"}),
            "node_losses_used_up": counted + scenario.nodes > scenario.max_node_losses,
            "setup_failed": "unfit" in witness.kinds,
            "nodes_missing": bool(witness.kinds & {"missing", "loss", "term", "disk", "unfit", "unhealthy"})
            or self._is_first_head_late(),
        }.get(result.reason, False)

    def _ends_anyway(self, reason: str, cause: str) -> bool:
        """Whether a person's request was found only as the run was stopped for something else, on a slow disk."""
        is_found = cause.startswith("cancelled while the run was stopped because")
        is_asked = self._run.is_stop_requested and self._run.stop_requested_at < self._run.disk.ended_at
        return reason == "stop_requested" and is_found and is_asked

    def _check_want(self, reason: str) -> None:
        """A run does not end for want of nodes that are there: who gives up a head that is gone joins the next one.

        That needs a `join_timeout` in which a head can be lost, and the file server asked. Where a machine is silent, a
        node that has never heard of its agent cannot tell whether its own network is cut, and gives up.
        """
        run, scenario = self._run, self._run.scenario
        if scenario.join_timeout_s < scenario.lease_s + SEARCH_OPERATIONS * max(scenario.disk_s):
            return
        are_gone = {fault.what for fault in scenario.faults} <= {"never_starts", "kill_agent", "power_off"}
        if reason != "nodes_missing" or run.disk.claims or run.earlier or not are_gone or len(scenario.roles) > 1:
            return
        able = [each.name for each in run.agents if each.started_at < NEVER and each.died_at == NEVER]
        if any(fault.what == "power_off" for fault in scenario.faults):
            able = [name for name in able if name in run.witness.joined]
        require(len(able) < scenario.min_nodes, f"the run ends for want of nodes, and {able} have been there")

    def _check_relief(self, reason: str) -> None:
        """Where nothing is wrong but that nobody reaches the first node, the others go on without it if they may."""
        scenario, faults = self._run.scenario, self._run.scenario.faults
        is_cut = len(faults) == 1 and (faults[0].what, faults[0].side, faults[0].at) == ("partition", (0,), 0.0)
        if not is_cut or faults[0].phase or faults[0].lasts_s < FOR_GOOD_S or len(scenario.roles) > 1:
            return
        others, placed = scenario.nodes - 1, [role for role, _ in scenario.placed()[1:]]
        can_be = can_relieve(placed, scenario.role_nodes, scenario.min_nodes, scenario.nodes)
        if can_be and is_relieved_in_time(scenario):
            require(reason != "nodes_missing", f"the run ends for want of nodes, and {others} reach each other")

    def _is_first_head_late(self) -> bool:
        """Whether the first head needed so long for its claim, on a slow disk, that others may have given up by then.

        They look for it for `join_timeout`, which is meant for machines that boot: a disk that takes seconds for each
        answer leaves them little of one that is short.
        """
        welcomes = (moment for moment, _, what in self._run.events if isinstance(what, Welcome))
        is_slow = DISK_OPERATIONS * max(self._run.scenario.disk_s) > self._run.scenario.join_timeout_s
        return is_slow and next(welcomes, float("inf")) > self._run.scenario.join_timeout_s / 2

    def _check_who(self, reason: str, cause: str) -> None:
        """An end from outside is said to be one: a person's request names the person, and a TERM who got it."""
        if reason == "stop_requested":
            is_so = PERSON in cause or cause.startswith(CANCELLED_MEANWHILE)
            require(is_so, f"a person has ended the run, and the cause says: {cause}")
        elif reason == "terminated":
            got = [name for name in self._run.witness.terminated if name in cause]
            require(bool(got) and PERSON not in cause, f"a TERM has ended the run, and the cause says: {cause}")

    def _check_cause(self, reason: str, cause: str) -> None:
        """A failure that is named is one that happened in an attempt that it could end."""
        if not self._run.silent_ends.is_of_failure(reason):
            return
        has_budget = self._run.scenario.max_restarts > 0 and reason == "restarts_used_up"
        require(("used up" in cause) == has_budget, f"the cause says of the restarts that there were, or not: {cause}")
        named = [
            incident
            for incident in (*self._run.witness.unanswered(), *self._decided_on)
            if incident.node in cause and (incident.rank is None or f"rank {incident.rank} " in cause)
        ]
        require(bool(named), f"the cause is no failure of the last attempt: {cause}")
