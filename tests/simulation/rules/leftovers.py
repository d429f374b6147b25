"""An attempt begins as if it were the first: nothing of the one before is left in the machines of head and member.

Theory of operation. What a machine keeps of an attempt it puts back when the next one begins. What it forgets to put
back acts later, and seldom: a member that was fenced once is not fenced again, a notice of long ago counts as given.
So the places that have one value whenever an attempt begins, whatever came before, are listed here and looked at then.
They were found by playing every kind of schedule and asking which values never differ.

Besides, what the roster, the losses and the job's end say of a node agrees with who is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from hpc_elastic.membership.head import Head
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.phases import HeadPhase
from tests.simulation.rules.invariants import BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

NEVER = float("inf")
NOTHING: Collection[object] = ()  # an empty collection of any kind
OF_HEAD: Mapping[str, object] = {
    "_closing._ender": None,
    "_closing._is_script_unsure": False,
    "_closing.exit_code": 0,
    "_closing.next_tick": NEVER,
    "_held._by_role": NOTHING,
    "_held.until": NEVER,
    "_judge._standing": None,
    "_judge.root_cause": None,
    "_judge.states._distrusted": NOTHING,
    "_judge.states._world_to_succeed": None,
    "_judge.states.lines_at_end": NOTHING,
    "_judge.verdict._roles": NOTHING,
    "_judge.verdict.decision": None,
    "_members._has_fenced": False,
    "_members._has_gathered": False,
    "_members.losses._counted": NOTHING,
    "_members.losses._goodbyes": NOTHING,
    "_members.losses._is_successors": False,
    "_opening._news._told": NOTHING,
    "_own_node._fenced_by": NEVER,
    "_tally._answered": NOTHING,
    "_tally.again": NOTHING,
    "_tally.paused": NOTHING,
    "_tally.succeeded": NOTHING,
    "_tally.waiting": NOTHING,
    "_unfit._problems": NOTHING,
    "_unfit._until": NEVER,
}
OF_MEMBER: Mapping[str, object] = {
    "_have_workers_term": False,
    "_is_finished": False,
    "_leave": None,
    "_pids": NOTHING,
    "_unkillable": None,
    "_allegiance.is_headless": False,
    "_allegiance.lost": None,
    "_exits._again": NOTHING,
    "_exits._ended": NOTHING,
    "_exits._ended_well": NOTHING,
    "_exits._held": NOTHING,
    "_exits._recording": NOTHING,
    "_exits.failures": NOTHING,
    "_exits.judge_held_at": NEVER,
}
OF_CONNECTED_MEMBER: Mapping[str, object] = {  # that has heard nothing of its new head yet
    "_allegiance.head": None,
    "_allegiance.is_headless": False,
    "_lease._sent": NOTHING,
    "_lease._heard": 0,
}


class Leftovers:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}  # the latest attempt of each head

    def stepped(self, agent: Agent, head: Head) -> None:
        """A head has handled something."""
        check_roster(agent.name, head)
        if head.phase is HeadPhase.RUNNING and self._begun.get(id(head)) != head.attempt:
            self._begun[id(head)] = head.attempt
            what = f"attempt {head.attempt} begins on its head, {agent.name}, with"
            world = head._members.world
            runs_on = world is not None and any(role.attempt < head.attempt for role in world.roles)
            # Of a role that runs on ranks may have ended before, to go on later.
            kept = {"_tally.again"} if runs_on else set()
            require_values(what, head, {place: value for place, value in OF_HEAD.items() if place not in kept})
            require(head._opens_at <= agent.now, f"{what} _opens_at = {head._opens_at}, and it is {agent.now}")

    def starts(self, agent: Agent, member: Member) -> None:
        """A member is to start the workers of an attempt."""
        require_values(f"attempt {member.attempt} begins on {agent.name} with", member, OF_MEMBER)

    def connects(self, agent: Agent, member: Member) -> None:
        """A member begins with a head."""
        require_values(f"{agent.name} begins with a head, and has", member, OF_CONNECTED_MEMBER)


def require_values(what: str, machine: object, expected: Mapping[str, object]) -> None:
    left = [f"{place} = {found!r}, not {value!r}" for place, found, value in _others(machine, expected)]
    require(not left, f"{what} {', '.join(left)}")


def _others(machine: object, expected: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    for place, value in expected.items():
        found = attrgetter(place)(machine)
        if found if value is NOTHING else found != value:
            yield place, found, value


def check_roster(name: str, head: Head) -> None:
    """Who is here is not missing, dead or lost, and nobody else counts as unhealthy."""
    roster, losses = head._members.roster, head._members.losses
    here = roster._entries.keys()
    for what, nodes in (
        ("missing", roster._missing.keys()),
        ("dead", roster._dead),
        ("lost", losses._lost),
        ("rivals", losses._rivals),
        ("gone with a goodbye", losses._goodbyes.keys()),
    ):
        if not here.isdisjoint(nodes):
            raise BrokenRuleError(f"the head of {name} has {sorted(here & nodes)} here, and counts them as {what}")
    others = roster._unhealthy.keys() - here
    if others:
        raise BrokenRuleError(f"the head of {name} counts {sorted(others)} as unhealthy, and they are not here")
