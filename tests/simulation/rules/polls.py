"""What the ranks of a simulated run hear when they ask for a notice, and their agents before, and the rules for it.

A person writes a notice with the clock of the login node, which in some runs is wrong: a head that is asked at once
does not read that clock, nor does a later one whose own member has heard of the only notice there is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.membership.messages import Assign, GiveNotice, Message
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import utc_text
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

WAITS_S = 5.0  # a call that waits for the agents, where nothing goes wrong
LOOKS_WITHIN_S = 1.0  # a head, into the run directory
SOONER_S = 1.0  # a notice that leaves more time than that less is none
EXACT_S = 0.05
NEVER = float("inf")
WHOLE_S = 2.0  # what the script was told of the job's time, and when its agents have started
DELAYING = ("stall_disk", "stall_disks", "disk_fails", "late", "pause", "freeze", "stall_link")


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A notice: when it was given, and when its time is over."""

    reason: str
    at: float
    due_at: float


class Polls:
    """The answers so far: no two ranks of an attempt that share a store differ in the answer of the n-th poll."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        is_given = any(fault.what == "notice" for fault in run.scenario.faults)
        self.are_played = is_given or run.scenario.time_left_s is not None
        self._unheard: dict[tuple[str, int], int] = {}  # by group and attempt: the last poll that heard of nothing
        self._heard: dict[tuple[str, int], int] = {}  # the first one that heard of the notice

        skews = [0.0, 0.0, 1000.0, -1000.0] if is_given else [0.0]
        self._skew_s = random.Random(f"{run.scenario.seed}/login-clock").choice(skews)
        self._given: list[_Given] = []  # by people
        self._told_at: dict[Agent, float] = {}  # when each agent's member has heard of a notice first, as it is
        self._leads_since: dict[Agent, float] = {}
        delays_s = sum(fault.lasts_s for fault in run.scenario.faults if fault.what in DELAYING)
        self._late_s = LOOKS_WITHIN_S + WHOLE_S + 8 * max(run.scenario.disk_s) + 8 * max(run.scenario.delays_s)
        self._late_s += delays_s
        self._latest: dict[Agent, tuple[Agent | None, _Given]] = {}  # which head has told a member what at last
        self.retold = 0  # notices that members were told of by a later head

    def gives(self, reason: str, left_s: float | None) -> str:
        """A person gives a notice, perhaps without a time; returns the time by that person's clock."""
        now = self._run.clock.now
        given = _Given(reason=reason, at=now, due_at=NEVER if left_s is None else now + left_s)
        self._given.append(given)
        self._run.clock.after(self._late_s, lambda: self._is_heard(given))
        return utc_text(now + self._skew_s)

    def leads(self, agent: Agent) -> None:
        """An agent has a head."""
        self._leads_since[agent] = self._run.clock.now

    def hears(self, agent: Agent, message: Message) -> None:
        """A member hears of a notice: of the seconds that are left, and of why, as it is."""
        if not isinstance(message, (GiveNotice, Assign)) or message.notice is None:
            return
        run, now, reason, told_s = self._run, self._run.clock.now, message.notice.reason, message.notice.seconds_left
        head = self._head_of(agent)
        since = self._leads_since.get(head, 0.0) if head is not None else 0.0
        dues = [each.due_at for each in self._given if each.reason == reason]
        if run.scheduler.is_played:
            word = "preemption" if run.scheduler.is_preempted else "time_limit"
            dues += [ends_at - run.limits.stop_s for ends_at in run.scheduler.ends if reason == word]
        told = _Given(reason=reason, at=now, due_at=NEVER if told_s is None else now + told_s)
        if isinstance(message, GiveNotice):
            self._check_news(agent, head, told)
        self._latest[agent] = head, told
        left_s = [max(0.0, due_at - now) for due_at in dues if due_at < NEVER]
        what = f"{agent.name} hears at {now:.1f} s of {reason}, with {told_s} s left"
        is_known = head is not None and (self._skew_s == 0.0 or self._is_told_by_own_clock(head, since))
        if is_known and told_s is None:
            require(NEVER in dues, f"{what}, not {left_s}")
        elif is_known:
            is_true = told_s is not None and any(
                each - DRIFT * each - WHOLE_S <= told_s <= each + self._late_s for each in left_s
            )
            require(is_true, f"{what}, not {left_s}")
        self.retold += is_known and any(each.at < since for each in self._given)
        require(bool(dues), f"{what}, of which nobody has given notice")
        if is_known:  # else the head has read a clock that is wrong, and a member that is head later tells the same
            self._told_at.setdefault(agent, now)

    def _check_news(self, agent: Agent, head: Agent | None, told: _Given) -> None:
        """A head tells its members of a notice once, and of another one if that leaves less time, or says why first."""
        before_head, before = self._latest.get(agent, (None, told))
        if head is None or head is not before_head or before is told or self._run.scheduler.is_played:
            return
        is_over = before.due_at <= told.at + EXACT_S
        is_sooner = told.due_at < before.due_at - SOONER_S + EXACT_S + max(self._run.scenario.delays_s)
        is_other = before.due_at == told.due_at == NEVER and told.reason != before.reason
        what = f"{agent.name} is told of {told.reason} in {told.due_at - told.at:.1f} s"
        require(is_over or is_sooner or is_other, f"{what}, and knows of {before.reason} at {before.due_at:.1f} s")

    def _is_heard(self, given: _Given) -> None:
        """A head has looked since a notice was given: its members know of it, or of an end that is no later."""
        run, claim = self._run, self._run.disk.latest_claim
        is_usual = not run.witness.kinds and not run.is_disturbed and not run.disk.results
        if not is_usual or claim is None or run.head_phase != "running":
            return
        for agent in run.agents:
            if agent.name not in claim.members or not agent.is_running:
                continue
            _, told = self._latest.get(agent, (None, None))
            what = f"{agent.name} knows of {told} at {run.clock.now:.1f} s"
            is_known = told is not None and told.due_at <= given.due_at + SOONER_S + self._late_s
            require(is_known, f"{what}, and {given} was given")
            is_latest = given is self._given[-1] and all(each.due_at == NEVER for each in self._given)
            is_of_it = not is_latest or (told is not None and told.reason == given.reason)
            require(is_of_it, f"{what}, and not why: {given}")

    def _head_of(self, agent: Agent) -> Agent | None:
        """Whose head a member has."""
        if agent.headquarters is not None:
            return agent
        return agent.link.other.agent if agent.link is not None else None

    def _is_told_by_own_clock(self, head: Agent, since: float) -> bool:
        """Whether a head need not read a person's clock: it was one before, or its member has heard of the only one."""
        is_new = all(each.at > since + self._late_s for each in self._given)
        has_heard = len(self._given) == 1 and self._told_at.get(head, since) < since
        return is_new or has_heard

    @property
    def have_heard(self) -> bool:
        """Whether any rank has heard of a notice."""
        return bool(self._heard)

    def answered(self, worker: Worker, *, is_heard: bool) -> None:
        """A rank gets an answer."""
        key, number = (self._run.witness.group(worker.role), worker.attempt), worker.polls
        if is_heard:
            self._heard[key] = min(number, self._heard.get(key, number))
        else:
            self._unheard[key] = max(number, self._unheard.get(key, number))
        if key in self._heard and key in self._unheard:
            both = f"poll {self._heard[key]} hears of a notice, poll {self._unheard[key]} of none"
            what = f"rank {worker.rank} of attempt {worker.attempt} asks for a notice: {both}"
            require(self._unheard[key] < self._heard[key], what)

    def waits(self, worker: Worker) -> None:
        """A call of a rank waits for the agents to agree."""
        if worker.waits_since is None or self._run.is_disturbed:
            return
        waited = self._run.clock.now - worker.waits_since
        slow = 4 * max(self._run.scenario.delays_s)
        require(waited <= WAITS_S + slow, f"rank {worker.rank} waits {waited:.1f} s for the answer of a poll")
