"""How an allocation ends that the scheduler ends, or that has too few nodes: what is said before, written, and left.

Each scenario of `draw_limits` has one end, and the rules say which, from what the scheduler did: the workers hear of it
in time and are stopped in time, and then the run has a result, or the job starts again and the reason is on record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from hpc_elastic.membership.messages import GiveNotice, Message
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import AttemptClaim, RunState
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import require
from tests.simulation.rules.returns import FORGETS_AFTER
from tests.simulation.scenario import GRACE_S, Fault
from tests.simulation.scheduler import KILLS_AFTER_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

LEAST_RESERVE_S, MOST_RESERVE_S = 1.0, 10.0  # for the last records, before the scheduler kills
WITHIN_S = 1.5  # of a moment that is known
ASKS_S = 11.0  # for the answer of a scheduler that gives none
LATE_S = 1.0  # what is counted in whole seconds, and by agents that have started a moment later
FRESH_S = 5.0  # of an answer, on which something is done
SCRIPT_S = 10.0  # before the KILL, in which the batch script asks for the next start of the job
NEAR_S = 15.0  # a TERM so soon before the time limit is that of the time limit
REQUEUE, NODE_LOST, STOPPED = 75, 7, 10
CUTS = {"partition", "one_way"}
ON = {"time_limit": "time_limit", "preempted": "preempted", "node_lost": "node_loss"}


class Limits:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        scenario = run.scenario
        self.is_played = scenario.time_left_s is not None
        reserve_s = max(LEAST_RESERVE_S, min(MOST_RESERVE_S, scenario.lead_s - scenario.grace_s))
        self._lead_s, self.stop_s = scenario.lead_s, scenario.grace_s + reserve_s  # before the end of the job
        self._fast_s = 0.0
        self._noticed: dict[str, tuple[float, GiveNotice]] = {}  # by node
        self._reason: str | None = None  # that the end must have, once it is known; empty: nobody could say
        self._since = self._latest = 0.0  # when it was to end

    @property
    def acts_before_s(self) -> float:
        """How long before the end of the job heads begin to act: with the notice, or at once with the stop."""
        return max(self._lead_s, self.stop_s)

    def begin(self) -> None:
        """The job has started."""
        if self.is_played:
            self._run.witness.see("limit")
            self._run.witness.is_requeued = True
            if self._knows and not self._run.scenario.is_term:
                self._foresee("time_limit", self._run.scheduler.ends_at)

    @property
    def _knows(self) -> bool:
        """Whether the agents can know when the job ends."""
        scenario = self._run.scenario
        return scenario.knows_time or scenario.plans_time or not scenario.is_scheduler_silent

    def _foresee(self, reason: str, ends_at: float) -> None:
        """The job is to end then, by its clock; unless that changes."""
        clock, scheduler = self._run.clock, self._run.scheduler

        def at(moment: float, check: str) -> None:
            def look() -> None:
                if ends_at == scheduler.ends_at and self._reason is None and not self._run.disk.results:
                    getattr(self, check)(reason)

            clock.at(moment, look)

        now = clock.now
        # An agent's clock may be fast by so much, where the scheduler never answers.
        fast_s = self._fast_s = DRIFT * (ends_at - now) if self._run.scenario.is_scheduler_silent else 0.0
        if ends_at - self._lead_s > now + fast_s + 1.0:
            at(ends_at - self._lead_s - fast_s - 0.5, "_is_not_noticed")
        at(max(now + WITHIN_S, ends_at - self._lead_s + WITHIN_S), "_is_noticed")
        if ends_at - self.stop_s > now + WITHIN_S:
            at(max(now, ends_at - self.stop_s - fast_s - 0.2), "_stops")
        else:
            self._ends(reason, now)
            clock.after(2 * WITHIN_S, self._are_stopped)

    # What the scheduler does.

    def happens(self, fault: Fault) -> None:
        """It does something with the job."""
        # A head that awaits lost nodes has not ended the run yet, nor does it so where all are told to end.
        is_ended = self._reason is not None and not (self._reason == "node_lost" and self._awaits_quorum())
        if is_ended or not self.is_played or self._run.scenario.is_term:
            return
        scheduler, now = self._run.scheduler, self._run.clock.now
        if fault.what == "limit_moves" and not self._run.scenario.is_scheduler_silent:
            self._noticed.clear()  # of the end that does not come
            self._foresee("time_limit", scheduler.ends_at)
        elif fault.what == "preempt_warned":
            if self._can_ask:
                self._foresee("preempted", scheduler.ends_at)
        elif fault.what == "preempt":
            self._ends("preempted" if self._can_ask else self._at_term(now), now)
        elif fault.what == "scancel":
            self._ends("terminated" if self._can_ask else self._at_term(now), now)
        elif fault.what == "scheduler_requeues":
            self._ends("requeued" if self._can_ask else self._at_term(now), now)

    def dies(self, agent: Agent) -> None:
        """An agent is dead, and that is known."""
        left = sum(each.is_running for each in self._run.agents)
        if self.is_played and self._reason is None and left < self._run.scenario.min_nodes:
            self._ends("node_lost", self._run.clock.now)

    def _awaits_quorum(self) -> bool:
        return self._run.head_phase is HeadPhase.AWAITING_QUORUM and not self._run.disk.results

    @property
    def _can_ask(self) -> bool:
        return not self._run.scenario.is_scheduler_silent

    def _at_term(self, now: float) -> str:
        """What a TERM is taken for that nobody explains."""
        return ""

    def _ends(self, reason: str, now: float) -> None:
        self._reason, self._since = reason, now
        self._latest = now + GRACE_S + ASKS_S + WITHIN_S

    # What is seen.

    def flushes(self, within_s: float | None) -> None:
        """A head says how long agents may write states that leave without a result; None: as long as it takes.

        They may until the scheduler kills them, but for the time that the script needs after them to ask for the next
        start; if the scheduler starts the job again by itself, or nobody knows of an end, there is nothing to ask for.
        """
        scheduler, now = self._run.scheduler, self._run.clock.now
        if not self.is_played:
            is_so = within_s is None or self._run.scenario.is_requeued is None
            require(is_so, f"states are to be written within {within_s} s, and the job starts again by itself")
            return
        if within_s is None:
            is_unknown = scheduler.terminated_at > now and not self._knows
            is_free = scheduler.restarts > 0 or is_unknown
            require(is_free, f"states may be written for ever at {now:.1f} s, and the job has to be started again")
            return
        what = f"states are to be written within {within_s:.1f} s at {now:.1f} s"
        require(self._reason != "requeued", f"{what}, and the job starts again by itself")
        latest = min(scheduler.kills_at, scheduler.ends_at + KILLS_AFTER_S) - SCRIPT_S
        require(now + within_s <= latest + LATE_S, f"{what}, and the script has to ask for the start at {latest:.1f} s")
        least_s = min(self._flush_end() - now, KILLS_AFTER_S - SCRIPT_S)
        require(within_s >= least_s - LATE_S, f"{what}, and there are {least_s:.1f} s")

    def _flush_end(self) -> float:
        """Until when states may be written at least, as far as the agents know of the end."""
        scheduler, scenario = self._run.scheduler, self._run.scenario
        if scenario.is_term:
            return self._run.terms.stops_at + KILLS_AFTER_S - SCRIPT_S
        end = scheduler.ends_at if scheduler.is_running else scheduler.terminated_at
        if scenario.is_scheduler_silent:
            end = min(scheduler.terminated_at, scenario.time_left_s or 0.0)
        return end + KILLS_AFTER_S - SCRIPT_S

    def hears(self, agent: Agent, message: Message) -> None:
        """A member hears of a notice."""
        if self.is_played and isinstance(message, GiveNotice):
            self._noticed[agent.name] = self._run.clock.now, message

    def _members(self) -> list[str]:
        world = self._run.disk.latest
        here = {agent.name for agent in self._run.agents if agent.is_running}
        return [] if world is None else [node.node for node in world.nodes if node.node in here]

    def _is_not_noticed(self, reason: str) -> None:
        early = {node: at for node, (at, _) in self._noticed.items()}
        require(not early, f"{early} hear of an end that comes later")

    def _is_noticed(self, reason: str) -> None:
        scheduler, now = self._run.scheduler, self._run.clock.now
        word = {"preempted": "preemption"}.get(reason, reason)
        for node in self._members():
            require(
                node in self._noticed, f"{node} has heard of no notice {scheduler.ends_at - now:.1f} s before the end"
            )
            at, message = self._noticed[node]
            notice, left_s = message.notice, scheduler.ends_at - self.stop_s - at
            require(notice.reason == word, f"{node} hears of {notice.reason}, not of {word}")
            told_s = notice.seconds_left
            is_true = told_s is not None and abs(max(0.0, left_s) - told_s) < WITHIN_S
            require(is_true, f"{node} hears that {told_s} s are left, not {left_s:.1f} s")

    def _stops(self, reason: str) -> None:
        """It is time: the workers run, unless they have gone by themselves, and will be stopped at once."""
        now = self._run.clock.now
        if self._run.scenario.heeds_notice and self._lead_s - self.stop_s > 2 * WITHIN_S:
            require(not self._alive(), f"workers that heed a notice run at {now:.1f} s")
        elif not self._run.scenario.heeds_notice:
            require(self._alive(), f"no workers run at {now:.1f} s, and their time is not over")
        self._ends(reason, now)
        self._run.clock.after(WITHIN_S + self._fast_s, self._are_stopped)
        self._run.clock.after(WITHIN_S + self._fast_s, self._has_asked)

    def _alive(self) -> bool:
        return any(agent.workers.alive for agent in self._run.agents)

    def _are_stopped(self) -> None:
        if not any(role.patience_s for role in self._run.scenario.roles):
            require(not self._alive(), f"workers run {self._run.clock.now - self._since:.1f} s after they were to stop")

    def _has_asked(self) -> None:
        """Nothing is done on an old answer; and while the end is far, the scheduler is asked rarely."""
        scheduler, now = self._run.scheduler, self._run.clock.now
        if now < scheduler.silent_until or self._run.scenario.heeds_notice:
            return
        latest = max(scheduler.asked, default=0.0)
        require(
            latest > now - FRESH_S - 2 * WITHIN_S, f"workers are stopped at {now:.1f} s by an answer of {latest:.1f} s"
        )
        most = 8 + now / 30
        require(len(scheduler.asked) <= most, f"the scheduler is asked {len(scheduler.asked)} times in {now:.0f} s")

    def check_end(self) -> None:
        """When nobody runs any more."""
        run, reason = self._run, self._reason
        if not self.is_played or run.witness.kinds - {"limit", "term", "loss"}:
            return
        if reason is None and run.scenario.heeds_notice and self._noticed:
            word: str = next(iter(self._noticed.values()))[1].notice.reason
            reason = {"preemption": "preempted"}.get(word, word)
        if reason is None:
            return
        self._check_events(reason)
        self.ends_for(reason)

    def ends_for(self, reason: str) -> None:
        """The allocation has ended for this reason, or nobody could say why: the run is over, or goes on."""
        run, results = self._run, self._run.disk.results
        lines = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines() if line]
        told = [line for line in lines if line.get("kind") == "requeue"]
        goes_on = reason in ("requeued", "") or (
            run.scenario.requeue_max > 0 and ON.get(reason) in run.scenario.requeue_on
        )
        if goes_on:
            self._goes_on(reason, told)
            return
        require(bool(results), f"the run has ended by {reason}, and has no result")
        word = {"operator": "notice_taken"}.get(reason, reason)
        require(results[0].reason == word, f"the run has ended by {word}, and its result says {results[0].reason}")
        state, code = (RunState.FAILED, NODE_LOST) if reason in ON else (RunState.CANCELLED, STOPPED)
        is_so = results[0].state is state and results[0].exit_code == code
        require(is_so, f"the run has ended by {reason}, and is {results[0].state.value}, {results[0].exit_code}")
        require(not told, f"the job does not start again, and the records say {told}")

    def _check_events(self, reason: str) -> None:
        """That the scheduler stops the job is noted, once for each head, and why as far as it is known then."""
        run = self._run
        if reason in ("node_lost", "operator") or run.scenario.heeds_notice:
            return
        noted, known = run.noted.endings, {reason, "unknown", "terminated", "time_limit"}
        require(bool(noted), f"the job is stopped by {reason or 'a TERM'}, and no event says so")
        require(len(noted) <= 1 + len(run.disk.claims), f"the job is stopped once, and events say {noted}")
        require(not reason or set(noted) <= known, f"the job is stopped by {reason}, and events say {noted}")

    def _goes_on(self, reason: str, told: list[dict[str, object]]) -> None:
        """There is no result, but the reason on record, and each agent leaves with the code for that."""
        run = self._run
        require(not run.disk.results, f"the run goes on after {reason}, and has a result: {run.disk.results}")
        codes = {agent.name: agent.exit_code for agent in run.agents if agent.exit_code is not None}
        require(set(codes.values()) <= {REQUEUE}, f"the run goes on after {reason}, and agents leave with {codes}")
        require(bool(codes), f"the run goes on after {reason}, and all agents were killed")
        if not reason:
            require(not told, f"nobody knows why the job was stopped, and the records say {told}")
            return
        reasons, by = [line.get("reason") for line in told], {line.get("by") for line in told}
        cut = {fault.what for fault in run.scenario.faults} & CUTS  # a node without its head is told, too, and says so
        is_so = set(reasons) == {reason} and len(reasons) == len(by) and (bool(cut) or len(by) == 1)
        require(is_so, f"the records say {reasons}, and the job was stopped for {reason}")
        claim = run.disk.latest_claim
        charged = told[0].get("charged")
        if claim is not None and isinstance(charged, dict) and reason != "node_lost":
            spend = charged.get("spend", {})
            require(spend.get("restarts") == claim.spend.restarts, f"the records charge {spend}, not {claim.spend}")
        if claim is not None and isinstance(charged, dict):  # who has only left before the others is not lost
            dead = sum(agent.exit_code is None for agent in run.agents)
            lost = claim.spend.node_losses + (dead if reason == "node_lost" else 0)
            losses = charged.get("spend", {}).get("node_losses")
            require(losses == lost, f"the records charge {losses} node losses, not {lost}")
        allocation, nodes = (
            told[0].get("allocation"),
            [str(node) for node in cast("list[object]", told[0].get("nodes"))],
        )
        require(allocation == len(run.disk.allocations), f"the records say why allocation {allocation} ended")
        if claim is not None:
            self._check_avoided(claim, len(run.disk.allocations), nodes)
        latest = max(agent.left_at for agent in run.agents if agent.exit_code is not None)
        require(
            latest <= self._latest or not self._latest,
            f"the agents leave at {latest:.1f} s, not by {self._latest:.1f} s",
        )

    def _check_avoided(self, claim: AttemptClaim, allocation: int, nodes: list[str]) -> None:
        """The next start is to do without the nodes that are blamed, as long as they are, and that are gone or sick.

        Who was blamed last comes last, for that one is avoided where the scheduler can spare but one node.
        """
        run = self._run
        blamed = [each.node for each in claim.set_aside if allocation - each.allocation <= FORGETS_AFTER]
        what = f"the next start is to avoid {nodes}"
        require(set(blamed) <= set(nodes), f"{what}, and {blamed} are blamed")
        bad = {agent.name for agent in run.agents if agent.exit_code is None or agent.found_at is not None}
        failed = {each.node for each in run.witness.incidents}
        drained = {f"node{fault.node}" for fault in run.scenario.faults if fault.what == "ask_drain"}
        cut = {f"node{node}" for fault in run.scenario.faults if fault.what in CUTS for node in fault.side}
        good = sorted(set(nodes) - set(blamed) - bad - failed - drained - cut)
        require(not good, f"{what}, and nothing is wrong with {good}")
        news = failed - set(blamed)  # who is blamed since that claim comes after those
        known = [node for node in nodes if node not in news]
        require(known[len(known) - len(blamed) :] == blamed, f"{what}, and {blamed} are blamed in this order")
