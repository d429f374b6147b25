"""Machines with a bug each in what they tell, note or ask, which `reports`, `orders`, `limits` and others must find."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from hpc_elastic.agent.drivers import head_start
from hpc_elastic.agent.drivers.job_clock import JobClock
from hpc_elastic.agent.drivers.local_member import EXAMINES_AGAIN_S, LocalMember
from hpc_elastic.agent.drivers.requeue import AllocationEnd
from hpc_elastic.agent.records.chain import ClaimChain
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.membership import run_states
from hpc_elastic.membership.actions import Action, SendToHead
from hpc_elastic.membership.exits import Exits
from hpc_elastic.membership.gathering import Gathering
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.held_timeouts import HeldTimeouts
from hpc_elastic.membership.lease import Lease
from hpc_elastic.membership.leases import Leases
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import Beat, Health, Stop, Welcome
from hpc_elastic.membership.opening import Opening
from hpc_elastic.membership.roster import Roster, RosterEntry
from tests.simulation.file_system import DiskThread
from tests.simulation.plant import Plant


@dataclass(frozen=True)
class ReportBug:
    """What does another thing, the kind of scenario that shows it, and words of the rule that it breaks."""

    owner: Any  # a class, or a module
    name: str
    make: Callable[[Any], Any]  # from the shipped method
    kind: str
    words: str


def _returning(value: Any) -> Callable[[Any], Any]:
    """Does the same, and returns this."""

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        def returning(*arguments: Any, **more: Any) -> Any:
            method(*arguments, **more)
            return copy(value)  # whoever gets a list may extend it

        return returning

    return make


def _doubting_nobody(_: Callable[[Exits, float], None]) -> Callable[[Exits, float], None]:
    return lambda exits, now: None


def _heard_nothing(beat: Callable[[Lease, float], list[Beat]]) -> Callable[[Lease, float], list[Beat]]:
    return lambda lease, now: [replace(each, heard=0) for each in beat(lease, now)]


def _with_the_port_before(stopped: Callable[..., list[Action]]) -> Callable[..., list[Action]]:
    def workers_stopped(member: Member, attempt: int, unkillable: tuple[int, ...], port: int, *rest: Any) -> Any:
        return stopped(member, attempt, unkillable, port - 1, *rest)

    return workers_stopped


def _softly(told: Callable[[Member, Stop, float], list[Action]]) -> Callable[[Member, Stop, float], list[Action]]:
    return lambda member, stop, now: told(member, replace(stop, takes_stacks=False), now)


def _often(look: Callable[[Leases, float], None]) -> Callable[[Leases, float], None]:
    def look_soon(leases: Leases, now: float) -> None:
        look(leases, now)
        leases.next_tick = now + (leases.next_tick - now) / 4

    return look_soon


def _until_the_kill(within: Callable[[AllocationEnd], float | None]) -> Callable[[AllocationEnd], float | None]:
    def later(end: AllocationEnd) -> float | None:
        within_s = within(end)
        return None if within_s is None else within_s + 10

    return later


def _without_a_look(_: Callable[[LocalMember], Awaitable[None]]) -> Callable[[LocalMember], Awaitable[None]]:
    async def find(member: LocalMember) -> None:
        """Nobody reads what the programs of wrappers have written."""

    return find


def _in_turn(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda thread, function, *, is_urgent=False: call(thread, function)


def _still_sick(remove: Callable[..., Any]) -> Callable[..., Any]:
    def removing(roster: Roster, node: str) -> RosterEntry | None:
        problem = roster.unhealthy.get(node)
        entry: RosterEntry | None = remove(roster, node)
        if problem is not None:
            roster._unhealthy[node] = problem
        return entry

    return removing


def _forgotten(terminated: Callable[[AllocationEnd], Awaitable[None]]) -> Callable[[AllocationEnd], Awaitable[None]]:
    async def forget(end: AllocationEnd) -> None:
        await terminated(end)
        end._seen = None

    return forget


def _whatever_came_before(_: Callable[[AllocationEnd, str, str], None]) -> Callable[[AllocationEnd, str, str], None]:
    def stopping(end: AllocationEnd, reason: str, reservation: str = "") -> None:
        end._reservation = reservation
        end._say_stopping(reason)

    return stopping


def _not_asked(_: Callable[[AllocationEnd], Awaitable[bool]]) -> Callable[[AllocationEnd], Awaitable[bool]]:
    async def has_started_again(end: AllocationEnd) -> bool:
        """Nobody asks the scheduler."""
        return False

    return has_started_again


def _twice(received: Callable[..., list[Action]]) -> Callable[..., list[Action]]:
    def telling(member: Member, message: Any, now: float) -> list[Action]:
        actions = received(member, message, now)
        is_ill = isinstance(message, Welcome) and member.join.unhealthy is not None
        return [*actions, SendToHead(message=Health(problem=member.join.unhealthy))] if is_ill else actions

    return telling


def _each_half_minute(_: Callable[[JobClock], float]) -> Callable[[JobClock], float]:
    return lambda clock: clock._asked_at + 30


def _although_well(_: Callable[[LocalMember], Awaitable[None]]) -> Callable[[LocalMember], Awaitable[None]]:
    async def examine(member: LocalMember) -> None:
        while True:
            await asyncio.sleep(EXAMINES_AGAIN_S)
            await member._examine_now()

    return examine


def _swallowed(hold: Callable[..., bool]) -> Callable[..., bool]:
    """Any consequence is taken for one that is held back."""

    def holds(self: HeldTimeouts, seen: Any, now: float) -> bool:
        is_held = hold(self, seen, now)
        return is_held or (not self._by_role and seen.failure is not None)

    return holds


def _each_time_anew(latest_attempt: Callable[..., Any]) -> Callable[..., Any]:
    def latest(self: ClaimChain, **more: Any) -> Any:
        self._claim = None
        return latest_attempt(self, **more)

    return latest


REPORT_BUGS = {
    "the first end is not told": ReportBug(Exits, "ended_well", _returning(False), "failures", "head is not told"),
    "the first end after a notice is not told": ReportBug(
        Exits, "took_notice", _returning(False), "taken", "head is not told"
    ),
    "who has exited 0 is not told": ReportBug(Member, "_global_ranks", _returning(""), "failures", "had exited 0"),
    "what was heard is not told": ReportBug(Lease, "beat", _heard_nothing, "foretold", "says that it has heard"),
    "a health problem is told again": ReportBug(Member, "received", _twice, "health", "tells of its health again"),
    "a store is offered again": ReportBug(
        Member, "workers_stopped", _with_the_port_before, "failures", "next store is at"
    ),
    "no stacks are taken": ReportBug(Member, "_told_to_stop", _softly, "timeouts", "and was told"),
    "who exits 0 as a TERM comes has succeeded": ReportBug(
        Exits, "doubt_latest", _doubting_nobody, "relayed", "had exited 0, not"
    ),
    "a return is not noted": ReportBug(Losses, "returned", _returning(False), "foretold", "does not note"),
    "spares do not know their head": ReportBug(Members, "welcome_spares", _returning([]), "spares", "tell the spares"),
    "a time-out is not held back": ReportBug(Head, "_is_held_back", _returning(False), "timeouts", "names"),
    "states are written until the KILL": ReportBug(
        AllocationEnd, "flushes_within_s", _until_the_kill, "limits", "has to ask for the start"
    ),
    "what failed inside of a wrapper was stopped": ReportBug(
        LocalMember, "_find_failed_inside", _without_a_look, "wrapped", "have failed, not"
    ),
    "who has said goodbye and is not back is not lost": ReportBug(
        Opening, "_settle_losses", _returning(None), "goodbyes", "node losses are counted"
    ),
    "a goodbye is awaited by the looks at the leases": ReportBug(
        Gathering, "next_tick", _returning(float("inf")), "goodbyes", "after a goodbye, comes at"
    ),
    "what is urgent waits for all that came before": ReportBug(
        DiskThread, "call", _in_turn, "busy", "busy with what can wait"
    ),
    "an unhealthy node that is lost counts on": ReportBug(Roster, "remove", _still_sick, "sick", "as unhealthy"),
    "what a TERM means is forgotten": ReportBug(AllocationEnd, "terminated", _forgotten, "terms", "the records say"),
    "an old start ends the run for want of nodes": ReportBug(
        AllocationEnd, "_has_started_again", _not_asked, "starts", "has started the job again"
    ),
    "a TERM near the end is any other": ReportBug(
        AllocationEnd, "_came_near_end", _returning(False), "terms", "is stopped by terminated"
    ),
    "a job's own clock explains a TERM": ReportBug(
        AllocationEnd, "stopping", _whatever_came_before, "terms", "and a head notes"
    ),
    "the scheduler is asked often": ReportBug(
        JobClock, "_next_question", _each_half_minute, "limits", "asks for the end of the job"
    ),
    "the scheduler is not asked about silent members": ReportBug(
        Leases, "questions", _returning([]), "alone", "has not asked the scheduler"
    ),
    "ends without a word are not counted": ReportBug(
        head_start, "charge_silent_ends", lambda _: lambda history, _: history, "starts", "without a word"
    ),
    "well nodes are examined": ReportBug(
        LocalMember, "_examine_again_and_again", _although_well, "health", "for no cause"
    ),
    "srun's word is not read": ReportBug(Findings, "_ended_agents", _returning({}), "absent", "srun has said why"),
    "a node that srun says has no agent is awaited": ReportBug(
        Gathering, "_leave_out", lambda _: lambda *_: None, "absent", "claims the first attempt"
    ),
    "a connection that breaks between ranks is passed over": ReportBug(
        HeldTimeouts, "hold", _swallowed, "timeouts", "nobody works"
    ),
    "a claim is read again and again": ReportBug(
        ClaimChain, "latest_attempt", _each_time_anew, "deaf", "which does not change"
    ),
    "nobody is told that states are lost": ReportBug(
        run_states, "why_not_flushed", _returning(()), "relayed", "nobody is told why"
    ),
    "leases are looked at too often": ReportBug(Leases, "_look", _often, "foretold", "wakes up"),
}


class PlantedReports(Plant):
    """A machine that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = REPORT_BUGS[bug]

    def places(self) -> list[tuple[Any, str, Any]]:
        owner, name = self._bug.owner, self._bug.name
        return [(owner, name, self._bug.make(getattr(owner, name)))]
