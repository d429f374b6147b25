"""Knows when the scheduler will end the job, and tells the head in time: first the notice, then the stop.

Theory of operation. The batch script asks Slurm once, before it starts the agents, how much time the job has left.
Times left are counted by this machine's monotonic clock, and no times of two machines are compared. The head asks
again, because administrators change limits and a preemption moves the end: rarely while the end is far, and before it
acts. In a reservation, whose end may be before that of the time limit, it asks at once. Where Slurm does not answer,
what is known stands; where nobody has ever said anything, the plan's `time` counts from this agent's start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.membership.actions import Action, Level
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.requeue import EndTimes, end_times
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import NoticeReason
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import JobOutlook, JobState
from hpc_elastic.scheduler.slurm.output import parse_seconds_left

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTimes:
    """How often a head asks for the end of the job, in seconds.

    `asks_every_s`: while the end is far. `asks_at_least_after_s`: however near it is. `is_fresh_for_s`: an answer that
    is older is asked for again before anything is done because of it.
    """

    asks_every_s: float = 600.0
    asks_at_least_after_s: float = 30.0
    is_fresh_for_s: float = 5.0


class TimeLeft:
    """What one agent knows about the end of its job, whichever agent is head.

    Args:
        plan: the launch plan.
        place: this node's place.
        now: monotonic seconds.
    """

    def __init__(self, plan: LaunchPlan, place: Allocation, now: float) -> None:
        self.times: EndTimes = end_times(plan.signals.lead_s, plan.signals.grace_s)
        self.can_ask = not place.is_local
        self.at: float | None = None  # monotonic; never, if there is no limit
        self.is_preempted = False
        self.reservation = ""  # the one with which the job ends; empty if it does not end with one
        self.may_end_before = place.is_reserved  # the time left that the script was told is not that of a reservation
        left = _parse(place.time_left)
        if left is not None:
            self.at = now + left
        self._fallback = now + plan.time_s if plan.time_s is not None else None

    def told(self, outlook: JobOutlook | None, now: float) -> None:
        """Take in an answer of the scheduler, None if it gave none."""
        if outlook is not None and outlook.state is JobState.RUNNING and outlook.seconds_left is not None:
            self.at = now + outlook.seconds_left
            self.is_preempted = outlook.is_preempted
            self.reservation = outlook.reservation if outlook.ends_with_reservation else ""
        elif self.at is None:
            self.at = self._fallback

    def left(self, now: float) -> float:
        """Return the seconds until the end; infinite if there is none, or if it is not known."""
        return NEVER if self.at is None else self.at - now


def _parse(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds_left(text.strip())
    except (ValueError, HpcElasticError):
        return None


class JobClock:
    """Tells one head of the end that comes, until that head is closed.

    Args:
        end: what this agent knows.
        head: the machine.
        do: calls the machine with the time, and carries out the actions that it returns.
        journal: asks the scheduler.
        say: logs a line for people.
        stopping: is called when the clock stops the run: the reason, and the reservation that ends, empty for none.
        times: how often it asks.
    """

    def __init__(
        self,
        end: TimeLeft,
        head: Head,
        *,
        do: Callable[[Callable[[float], list[Action]]], None],
        journal: Journal,
        say: Callable[[str, Level], None],
        stopping: Callable[[str, str], None],
        times: ClockTimes | None = None,
    ) -> None:
        self._end = end
        self._head = head
        self._do = do
        self._journal = journal
        self._say = say
        self._stopping = stopping
        self._times = times or ClockTimes()
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time() if end.at is not None and not end.may_end_before else -NEVER
        self._is_noticed = False
        self._is_wanted = asyncio.Event()  # set when somebody knows that the end may have moved

    def look_again(self) -> None:
        """Ask the scheduler at once: a signal said that the end is near."""
        self._asked_at = -NEVER
        self._is_wanted.set()

    async def watch(self) -> None:
        """Waits for the times of the notice and of the stop, and asks the scheduler in between."""
        while True:
            now = self._loop.time()
            if self._end.can_ask and now >= self._next_question():
                await self._ask()
            left = self._end.left(self._loop.time())
            if left <= self._end.times.stop_s:
                if await self._is_confirmed(self._end.times.stop_s):
                    self._stop()
                    return
            elif not self._is_noticed and left <= self._end.times.notice_s:
                await self._notice_if_confirmed()
            await self._rest()

    async def _notice_if_confirmed(self) -> None:
        if await self._is_confirmed(self._end.times.notice_s):
            self._notice()

    async def _is_confirmed(self, before_s: float) -> bool:
        """Returns whether the end is still so near, by an answer of now if there is one."""
        if self._end.can_ask and self._loop.time() > self._asked_at + self._times.is_fresh_for_s:
            await self._ask()
        return self._end.left(self._loop.time()) <= before_s

    async def _ask(self) -> None:
        self._asked_at = self._loop.time()
        before = self._end.at
        outlook = await self._loop.run_in_executor(None, self._journal.next_start.outlook)
        self._end.told(outlook, self._asked_at)
        after, now = self._end.at, self._loop.time()
        if self._end.left(now) > self._end.times.notice_s:
            self._is_noticed = False  # the end has moved away, and the workers are to hear of the new one in time
        if before is not None and after is not None and abs(after - before) > 30 and math.isfinite(after):
            self._say(f"the job now ends in {after - now:.0f} s", "info")

    def _next_question(self) -> float:
        until_notice = self._end.left(self._asked_at) - self._end.times.notice_s
        pause = min(self._times.asks_every_s, max(self._times.asks_at_least_after_s, until_notice / 2))
        return self._asked_at + pause

    async def _rest(self) -> None:
        """Sleeps until the next question, the notice or the stop is due, or somebody calls `look_again`."""
        end, now = self._end, self._loop.time()
        moments = [end.left(now) - end.times.stop_s]
        if not self._is_noticed:
            moments.append(end.left(now) - end.times.notice_s)
        if end.can_ask:
            moments.append(self._next_question() - now)
        pause = max(0.05, min(moments))
        self._is_wanted.clear()
        try:
            await asyncio.wait_for(self._is_wanted.wait(), None if math.isinf(pause) else pause)
        except asyncio.TimeoutError:
            return

    def _notice(self) -> None:
        self._is_noticed = True
        left = self._end.left(self._loop.time()) - self._end.times.stop_s
        reason: NoticeReason = "preemption" if self._end.is_preempted else "time_limit"
        given = NoticeGiven(reason=reason, seconds_left=max(0.0, left), by="Slurm")
        self._do(lambda now: self._head.notice_given(given, now))

    def _stop(self) -> None:
        left = max(0.0, self._end.left(self._loop.time()))
        if self._end.is_preempted:
            trigger, why = Trigger.PREEMPTED, f"Slurm takes the job's nodes for another job in {left:.0f} s"
        elif self._end.reservation:
            trigger, why = Trigger.TIME_LIMIT, f"the job's reservation {self._end.reservation} ends in {left:.0f} s"
        else:
            trigger, why = Trigger.TIME_LIMIT, f"the job's time limit is reached in {left:.0f} s"
        if self._head.phase not in (HeadPhase.CLOSING, HeadPhase.OVER):
            self._stopping(trigger.value, "" if self._end.is_preempted else self._end.reservation)
        self._do(lambda now: self._head.job_ends(trigger, why, now))
