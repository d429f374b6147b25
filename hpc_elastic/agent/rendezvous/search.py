"""Finds the head of this allocation, or becomes it by claiming the allocation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpc_elastic.agent.net.reach import Explainer, Place, not_answered, not_resolved
from hpc_elastic.agent.net.transport import ConnectionFactory, NoHandshakeError
from hpc_elastic.agent.node.network import Lookup, resolve_node
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.candidacy import Candidacy, HeadLeftError
from hpc_elastic.agent.rendezvous.head_link import HeadLink, HeadListener, ask_to_join
from hpc_elastic.agent.rendezvous.relief import HeadRelief, Relief
from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES, SearchTimes
from hpc_elastic.agent.rendezvous.trouble import Trouble
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import HpcElasticError, MissingNode, RendezvousTimeoutError, RunDirectoryError
from hpc_elastic.membership.actions import Level
from hpc_elastic.membership.authentication import ProtocolError
from hpc_elastic.membership.messages import Join
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, Candidate, Endpoint
from hpc_elastic.scheduler.allocation import Allocation


class HeadLostError(HpcElasticError):
    """The head has opened an attempt with this agent's node, and does not answer: another one may take its place.

    Args:
        claim: the latest claim of the allocation, with that head.
        why: how it does not answer, for people.
    """

    def __init__(self, claim: AllocationClaim, why: str) -> None:
        super().__init__(f"{claim.node} has opened an attempt with this node, and does not answer: {why}")
        self.allocation = claim.allocation


class HeadSearch:
    """The search of one agent for its head.

    Theory of operation. Node 0 claims the allocation at once, with its address. The others dial
    node 0 by its name along the port sequence that all nodes derive, and look for the claim
    meanwhile, which has the certain address. A wrong guess is harmless: the agent that answers must know
    the run's secret, and be head. If no head is found, node k claims the allocation after
    20 + 5k seconds; exactly one of these claims succeeds, and it tells the other agents where the head is.

    Probes find out why the head cannot be reached; the reason is logged, and written where the head reads it.
    A try to join ends when a head that has claimed does not answer. Further tries follow after growing
    pauses, each with names resolved anew, as often as `join_retries` and as long as `join_timeout`. If all tries failed
    because nothing listens or answers there, and no attempt was opened, the first agent that notices becomes head. If
    an attempt was opened with this node, whose head did not live to tell it, the search is over as for a member. A
    head whose agent has recorded that it failed itself, for want of open files say, is succeeded at once.

    A node that cannot route to the head may be broken itself, or the head is: `relief` says who takes its place then.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        ports: list[int],
        own: Endpoint,
        journal: Journal,
        disk: BackgroundThread,
        make: ConnectionFactory,
        times: SearchTimes = SEARCH_TIMES,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._ports = ports
        self._disk = disk
        self._candidacy = Candidacy(allocation, own, journal, disk, times)
        self._make = make
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._known: AllocationClaim | None = None
        self._others: list[Candidate] = []  # that may be head instead: the network of the known one may be cut
        self.relieved: MissingNode | None = None  # the head in whose place this one is, for most nodes cannot reach it
        self._explainer = Explainer(plan.network.port_range)

    async def find(self, join: Join, listener: HeadListener, say: Callable[[str, Level], None]) -> bool:
        """Joins the head of this allocation, or claims the allocation.

        Returns:
            True if another agent is the head and was joined; False if this agent has claimed and is the head.

        Raises:
            HeadLeftError: the head has left already.
            HeadLostError: the head has opened an attempt with this node, and does not answer.
            RunDirectoryError: the run is over or busy.
            RendezvousTimeoutError: `join_timeout` has passed or every try failed.
        """
        if self._allocation.node_id == 0 and (known := await self._candidacy.claim(say)) is None:
            return False
        self._known = known if self._allocation.node_id == 0 else None
        began, timeout_s = self._loop.time(), self._plan.elastic.join_timeout_s
        self._deadline = began + timeout_s
        self._claim_at = began + self._claim_after_s()
        trouble = Trouble(
            self._plan,
            self._allocation,
            disk=self._disk,
            say=say,
            versions=join.versions,
            began=began,
            times=self._times.reports,
        )
        while True:
            is_found, number = await self._try(join, listener, say, trouble)
            if is_found is not None:
                trouble.is_over()
                return is_found
            if trouble.is_normal_at_first and await self._candidacy.succeed(self._known, say):
                return False
            if not await self._has_successor(say):
                missing = await trouble.give_up(number, awaits_other=trouble.is_out_of_reach)
                if not trouble.is_out_of_reach:
                    break
                relief = HeadRelief(self._plan, self._allocation, self._known, self._candidacy, self._disk, self._times)
                outcome = await relief.seek(say)
                if outcome is Relief.OWN:
                    self.relieved = relief.describe(trouble.detail)
                    trouble.is_over()
                    return False
                if outcome is Relief.NONE:
                    missing = await trouble.give_up(number)
                    break
                self._knows(relief.successor)
            self._deadline = self._loop.time() + timeout_s
        took = f"{number} {'try' if number == 1 else 'tries'} in {self._loop.time() - began:.0f} s"
        raise RendezvousTimeoutError(f"no head was joined, after {took}: {missing}", [missing])

    async def _try(
        self, join: Join, listener: HeadListener, say: Callable[[str, Level], None], trouble: Trouble
    ) -> tuple[bool | None, int]:
        """Makes `join_retries` tries after the first one, as far as the time allows.

        Returns:
            The answer of `find`, None if every try failed; and how many there were.
        """
        tries = self._plan.elastic.join_retries + 1
        for number in range(1, tries + 1):
            is_found = await self._look(join, listener, say, trouble, number)
            if is_found is not None:
                return is_found, number
            pause = min(self._times.longest_retry_s, self._times.first_retry_s * 2 ** (number - 1))
            if number == tries or self._loop.time() + pause >= self._deadline:
                break
            say(f"{trouble.detail}; trying again in {pause:g} s (try {number + 1} of {tries})", "warning")
            await asyncio.sleep(pause)
        return None, number

    async def _has_successor(self, say: Callable[[str, Level], None]) -> bool:
        """Returns whether another agent has claimed the allocation after the head that was asked; it is the one now."""
        successor = await self._candidacy.find_successor(self._known, say)
        if successor is not None:
            self._knows(successor)
        return successor is not None

    async def _look(
        self, join: Join, listener: HeadListener, say: Callable[[str, Level], None], trouble: Trouble, number: int
    ) -> bool | None:
        """Makes one try to join; returns the answer of `find`, or None if the try failed."""
        self._asked_since = self._loop.time()
        self._lookup = await self._resolve()
        read_at, pause, rounds = self._loop.time() + self._times.read_claim_every_s, self._times.first_pause_s, 0
        while not await self._dial_all(join, listener, trouble, rounds, number, say):
            rounds += 1
            now = self._loop.time()
            trouble.tell(now, number)
            if self._is_in_vain(trouble, now):
                return None
            if now >= self._claim_at:
                self._knows(await self._candidacy.claim(say))
                if self._known is None:
                    say("no head showed, so this node is the head now", "info")
                    return False
                self._claim_at = float("inf")
            elif now >= read_at:
                if self._known is not None:  # it should have answered by now
                    records = await self._candidacy.read_records(say)
                    self._check_attempt(records.claim, trouble, now - self._asked_since)
                    if records.has_head_failed and await self._candidacy.succeed_failed(self._known, say):
                        return False  # where another agent was first, the next look finds its claim
                    if now - self._asked_since >= self._times.others_after_s:
                        self._others = await self._candidacy.find_others(self._known, records.claim, say)
                self._knows(await self._candidacy.find_latest(say) or self._known)
                if self._known is None and not self._lookup.addresses:
                    self._lookup = await self._resolve()
                read_at = self._loop.time() + self._times.read_claim_every_s
            await asyncio.sleep(pause)
            pause = min(self._times.longest_pause_s, pause * 1.5)
        return True

    async def _check_silent_head(
        self, link: HeadLink, trouble: Trouble, silent_s: float, say: Callable[[str, Level], None]
    ) -> None:
        """Raises HeadLostError if the head that lets a join go unanswered has opened an attempt with this node."""
        if silent_s < self._plan.elastic.lease_s:
            return
        try:
            self._knows(await self._candidacy.find_latest(say) or self._known)
            records = await self._candidacy.read_records(say)
        except (RunDirectoryError, HeadLeftError):
            if link.answered.done():  # this agent is a member since, which finds the same out, and leaves as it says
                return
            raise
        if link.answered.done():
            return
        try:
            self._check_attempt(records.claim, trouble, silent_s)
        except HeadLostError:
            link.give_up()
            raise

    def _check_attempt(self, claim: AttemptClaim | None, trouble: Trouble, silent_s: float) -> None:
        """Raises HeadLostError if the head has opened an attempt with this node, and has been silent for a lease."""
        known = self._known
        if known is None or claim is None or self._allocation.node not in claim.members:
            return
        if claim.head == known.node and silent_s >= self._plan.elastic.lease_s:
            trouble.is_over()
            raise HeadLostError(known, trouble.detail)

    def _claim_after_s(self) -> float:
        """Returns after how many seconds without a head this node claims; early enough for all to join it in time."""
        number, count = self._allocation.node_id, len(self._allocation.nodes)
        latest = self._plan.elastic.join_timeout_s * (0.5 + 0.25 * number / count)
        return min(self._times.claim_after_s + self._times.claim_step_s * number, latest)

    def _knows(self, claim: AllocationClaim | None) -> None:
        """Stores the latest known claim; if it names another head, the time to wait for an answer starts again."""
        if claim is not None and (self._known is None or self._known.head != claim.head):
            self._asked_since = self._loop.time()
        self._known = claim

    def _is_in_vain(self, trouble: Trouble, now: float) -> bool:
        if now >= self._deadline:
            return True
        if self._known is None:
            return False  # a head may still claim
        asked_for_s, lasts_for_s = now - self._asked_since, now - max(self._asked_since, trouble.since)
        return asked_for_s >= self._times.head_answers_within_s or (
            not trouble.is_normal_at_first and lasts_for_s >= self._times.persists_s
        )

    async def _resolve(self) -> Lookup:
        allocation = self._allocation
        if allocation.is_local:
            return Lookup(addresses=(allocation.local_address(0),))
        return await self._loop.run_in_executor(None, lambda: resolve_node(allocation.nodes[0], self._plan.network))

    def _candidates(self, rounds: int) -> list[Place]:
        """Returns the places to dial now: the claimed one if it is known, else node 0's likely port and one more.

        Where that one does not answer, one of those that may be head in its place is dialled as well.
        """
        known, head = self._known, self._allocation.nodes[0]
        if known is not None:
            asked = [Candidate(node=known.node, agent=known.head)]
            asked += [self._others[rounds % len(self._others)]] if self._others else []
            agents = [(each.node, each.agent) for each in asked]
            return [Place(head=node, address=at.address, port=at.port, is_certain=True) for node, at in agents]
        others = self._ports[1:]
        ports = [self._ports[0], *([others[rounds % len(others)]] if others and rounds else [])]
        addresses = self._lookup.addresses
        return [
            Place(head=head, address=address, port=port, is_certain=False) for port in ports for address in addresses
        ]

    async def _dial_all(
        self,
        join: Join,
        listener: HeadListener,
        trouble: Trouble,
        rounds: int,
        number: int,
        say: Callable[[str, Level], None],
    ) -> bool:
        """Dials all candidate places; returns whether the head answered. A failure at the likeliest one is recorded."""
        places = self._candidates(rounds)
        if not places:
            trouble.met(not_resolved(self._allocation.nodes[0], self._lookup.error), self._loop.time())
        for place in places:
            try:
                why = await self._ask(place, join, listener, trouble, number, say)
            except (OSError, ProtocolError, NoHandshakeError) as error:
                if place is places[0]:
                    finding = await self._explainer.explain(error, place, self._loop.time())
                    trouble.met(finding, self._loop.time())
            else:
                if why is None:
                    return True
                if place is places[0] or not place.is_certain:
                    trouble.met(not_answered(place, why), self._loop.time())
        return False

    async def _ask(
        self,
        place: Place,
        join: Join,
        listener: HeadListener,
        trouble: Trouble,
        number: int,
        say: Callable[[str, Level], None],
    ) -> str | None:
        """Sends a join to the agent at a place; returns None if a head answered, else why there was no answer.

        An agent that keeps an authenticated connection open is the head, for any other agent closes it. The head may
        be slow to answer: an agent that closed the connection meanwhile would be taken for lost, and its earlier join
        would still be there when it dialled again.
        """
        link = HeadLink(listener)
        connection = await ask_to_join(
            self._make, link, join, address=place.address, port=place.port, timeout_s=self._times.connect_bound_s
        )
        connection.set_dead_after(self._times.dead_after_s)
        asked_at = self._loop.time()
        while not link.answered.done():
            await asyncio.wait([link.answered], timeout=self._times.silent_after_s)
            now = self._loop.time()
            if now >= self._deadline:
                link.give_up()
            elif not link.answered.done():
                trouble.met(not_answered(place, "no answer to the join"), now)
                trouble.tell(now, number)
                await self._check_silent_head(link, trouble, now - asked_at, say)
        if not link.answered.result():
            return link.why
        connection.set_dead_after(None)  # from now on the lease decides whether the head is lost
        return None
