"""Polls the run directory for a head: requests of people, another head's claims, reports of missing nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.requests import aged
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Action
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, Endpoint, HeadPresence, Request, RunResultRecord

Diagnose = Callable[[Sequence[str]], Sequence[Diagnosis]]
Do = Callable[[Callable[[float], list[Action]]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """How often a head looks into the run directory, in seconds.

    `look_every_s`: between two looks. `diagnose_every_s`: between two readings of what the missing nodes report.
    `diagnose_after_s`: before the first of these; an agent writes its finding after 2 s, and a look before that could
    hide the file on NFS. `probe_every_s`: between two questions whether the head of a later claim answers.
    """

    look_every_s: float = 1.0
    diagnose_after_s: float = 3.0
    diagnose_every_s: float = 5.0
    probe_every_s: float = 5.0


WATCH_TIMES = WatchTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look into the run directory found.

    `stop_by`: who asked for the end. `started`: the allocation of a later start of the job.
    `later`: a later attempt's claim. `rival`: another node's claim of a later allocation in this start.
    `result`: how the run ended. `asked`: other requests of people that are not passed on yet. `present`: the latest
    word of the head that has opened the latest attempt.
    """

    stop_by: str | None = None
    started: int | None = None
    later: AttemptClaim | None = None
    rival: AllocationClaim | None = None
    result: RunResultRecord | None = None
    asked: tuple[Request, ...] = ()
    present: HeadPresence | None = None


NOTHING = Look()


class HeadWatch:
    """Tells a head what it cannot learn from its members, but only from the run directory.

    Theory of operation. A thread of its own looks into the run directory once a second, and wakes the event
    loop only if it finds something: a head that waits then costs one wake-up and not three. The disk's thread
    then looks again, in order after any claim or result that this head itself is writing. The exception is a new
    start of the job: it is acted on at once, because that start waits for one lease only, whatever the disk does.

    Args:
        head: the machine.
        node: this node's name.
        do: calls the machine with the time, and carries out the actions that it returns.
        step_down: ends the head, for this reason.
        journal: the run directory.
        disk: the thread for access to the run directory.
        diagnose: finds out why nodes have not joined; blocks.
        ask: is called with each other request of people (`journal.ASKED`) that comes while this head is one.
        heard: returns the notice that this node's member has from an earlier head, with the seconds that are left.
        may_yield: whether the head, if it has too few nodes, may step down before the first attempt for another one of
            this start that it may not reach; for one that answers it does in any case.
        reaches: finds out whether the agent at an address answers.
        times: how often it looks.
    """

    def __init__(
        self,
        head: Head,
        *,
        node: str,
        do: Do,
        step_down: Callable[[str], None],
        journal: Journal,
        disk: BackgroundThread,
        diagnose: Diagnose,
        ask: Callable[[Request], None] = lambda _: None,
        heard: Callable[[], NoticeGiven | None] = lambda: None,
        may_yield: bool = True,
        reaches: Callable[[Endpoint], Coroutine[Any, Any, bool]] | None = None,
        times: WatchTimes = WATCH_TIMES,
    ) -> None:
        self._head = head
        self._may_yield = may_yield
        self._reaches = reaches
        self._probe_at = -float("inf")
        self._node = node
        self._do = do
        self._step_down = step_down
        self._journal = journal
        self._disk = disk
        self._diagnose = diagnose
        self._ask = ask
        self._heard = heard
        self._times = times
        self._told: set[str | None] | None = None  # the ids of requests that were passed on; None: not known yet
        self._old_notices: set[str | None] = set()  # the ids of `journal.notices` that an earlier head may have heard
        self._is_stop_told = False
        self.is_stop_requested = False  # set as soon as the thread has seen the request, whatever the head is doing
        self._started: int | None = None  # likewise, the allocation of a later start of the job
        self._present: HeadPresence | None = None  # the latest word of another head
        self._presences = 0  # of this one
        self._has_found = asyncio.Event()
        disk.best_effort(self._pass_over_old_requests)  # before any worker of this head runs
        self._stop_watching = disk.watch(self._has_something, self._has_found.set, every_s=times.look_every_s)

    def close(self) -> None:
        """Stops watching."""
        self._stop_watching()

    async def watch_run(self) -> None:
        """Tells the head about requests of people, and about another head that has taken the run over."""
        while True:
            await self._has_found.wait()
            self._has_found.clear()
            if self._started is not None:
                self._judge(Look(started=self._started))
            attempt = self._head.attempt
            look = await self._disk.call(lambda attempt=attempt: self._look(attempt))  # type: ignore[misc]
            if not self._is_superseded_in(look):  # else the other head answers
                self._pass_on(look.asked)
            self._judge(look)
            self._hear_of_head(look)
            await self._give_way(look)

    async def watch_missing(self) -> None:
        """Tells the head, while nodes are missing, what their agents have found out."""
        await asyncio.sleep(self._times.diagnose_after_s)
        while True:
            missing = self._head.gathering.waits_for()
            if missing and self._head.phase is HeadPhase.GATHERING:
                diagnoses = await self._disk.call(partial(self._diagnose, missing))
                self._do(lambda _, found=diagnoses: self._head.gathering.diagnosed(found, self._head.attempt))  # type: ignore[misc]
                self._do(self._head.tick)  # there may be no node left to wait for
            await asyncio.sleep(self._times.diagnose_every_s)

    def _pass_on(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if self._told is not None and request.id not in self._told:
                self._told.add(request.id)
                self._ask(self._aged(request) if request.id in self._old_notices else request)

    def _aged(self, request: Request) -> Request:
        is_alone = len(self._old_notices) == 1  # of several nobody knows which one the member was told of
        return aged(request, time.time(), self._heard() if is_alone else None)

    def _pass_over_old_requests(self) -> None:
        """Note which requests there are already, to earlier heads; blocks.

        A notice and an announced stop of this allocation still stand, and a node that was drained stays so.
        """
        with suppress(RunDirectoryError):
            self._journal.requests()
        self._old_notices = {request.id for request in self._journal.notices}
        drains = {request.id for request in self._journal.asked if request.kind == "drain"}
        self._told = {request.id for request in self._journal.asked} - self._old_notices - drains

    def _has_something(self) -> bool:
        """Returns whether a look found anything; blocks."""
        look = self._look(self._head.attempt)
        if self._head.is_awaited:
            self._presences += 1
            with suppress(RunDirectoryError):
                self._journal.tell_presence(self._head.attempt, self._presences)
        self.is_stop_requested |= self._journal.is_end_wanted
        self._started = look.started
        return look != NOTHING

    def _look(self, attempt: int) -> Look:
        """Looks into the run directory once; blocks. After an error (ESTALE, EIO) the next look tries again."""
        journal = self._journal
        try:
            stop_by, started = journal.requests()
            told = self._told
            asked = () if told is None else tuple(each for each in journal.asked if each.id not in told)
            return Look(
                asked=asked,
                stop_by=None if self._is_stop_told else stop_by,
                started=started,
                later=journal.latest_attempt(above=attempt),
                rival=journal.find_rival() if self._head.is_at_first else None,
                result=journal.find_result(),
                present=journal.presence(attempt) if self._head.awaits_quorum_for_another else None,
            )
        except RunDirectoryError:
            return NOTHING

    def _is_superseded_in(self, look: Look) -> bool:
        """Returns whether a look shows that the run is over, or that it goes on under another head."""
        return look.result is not None or look.started is not None or self._later_in(look) is not None

    def _later_in(self, look: Look) -> AttemptClaim | None:
        """Returns the claim of a later attempt that another head has opened, None if there is none."""
        later = look.later
        is_later = later is not None and later.attempt > self._head.attempt and not self._may_be_own(later)
        return later if is_later else None

    def _judge(self, look: Look) -> None:
        head, by, result = self._head, look.stop_by, look.result
        if head.phase in (HeadPhase.CLOSING, HeadPhase.OVER):
            return  # the code that writes a result checks the claims itself
        if result is not None:
            self._step_down(f"the run is over: {result.cause}")
        elif look.started is not None:
            self._step_down(f"the job has started again: allocation {look.started}")
        elif (later := self._later_in(look)) is not None:
            self._step_down(f"{later.head} has opened attempt {later.attempt}")
        elif by is not None:
            self._is_stop_told = True
            self._do(lambda now: head.stop_requested(by, now))
        elif (rival := look.rival) is not None and self._may_yield:
            self._do(lambda now: head.yields(rival.node, rival.allocation, now, relieves=rival.relieves))

    async def _give_way(self, look: Look) -> None:
        """Has the head step down for one with a later claim that answers: each would wait for the other's nodes."""
        head, rival, loop = self._head, look.rival, asyncio.get_running_loop()
        if rival is None or self._reaches is None or not head.is_at_first or loop.time() < self._probe_at:
            return
        self._probe_at = loop.time() + self._times.probe_every_s
        if await self._reaches(rival.head):
            self._do(
                lambda now: head.yields(rival.node, rival.allocation, now, relieves=rival.relieves, is_reached=True)
            )

    def _hear_of_head(self, look: Look) -> None:
        if look.present is not None and look.present != self._present:
            self._do(self._head.other_is_present)
        self._present = look.present

    def _may_be_own(self, claim: AttemptClaim) -> bool:
        """Returns whether this head is making a claim like this one, to which the file system's answer may be lost.

        Then the next try to make it finds out whose claim it is.
        """
        head = self._head
        return head.phase is HeadPhase.CLAIMING and (claim.head, claim.attempt) == (self._node, head.attempt + 1)
