"""What comes too late to a head changes nothing: reports of an attempt whose workers are gone, and claims of others.

And a head gives way to another one of its start only where it could not open an attempt itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.messages import Broken, Failed, Report
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.rounds import starting_roles
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

ENDING = HeadPhase.CLOSING, HeadPhase.OVER
ALL_GONE = frozenset(HeadPhase) - {HeadPhase.RUNNING, HeadPhase.STOPPING}


class LateWords:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run

    def leads(self, agent: Agent, head: Any) -> None:
        """An agent has a head: from now on it is seen what it counts, and to whom it gives way."""
        reported, yields = head._reported, head.yields

        def counts(member: Any, message: Report, now: float) -> Any:
            is_late, before = self._check_report(agent, head, member, message), head.phase
            actions = reported(member, message, now)
            what = f"{agent.name} acts on a {message.KIND} of {member.node}, whose workers are all gone"
            require(not is_late or (not actions and head.phase is before), f"{what}, in phase {before.value}")
            return actions

        def gives_way(to: str, allocation: int, now: float, *, relieves: str = "", is_reached: bool = False) -> Any:
            before, has_enough = head.phase, self._is_enough(agent, head) and not is_reached
            done = yields(to, allocation, now, relieves=relieves, is_reached=is_reached)
            is_over = head.phase is HeadPhase.OVER
            what = f"{agent.name} gives way to {to} in phase {before.value}, with enough nodes: {has_enough}"
            require(not is_over or (before is HeadPhase.GATHERING and not has_enough), what)
            return done

        head._reported, head.yields = counts, gives_way

    def _check_report(self, agent: Agent, head: Any, member: Any, message: Report) -> bool:
        """Only what a member says of workers counts that are at work, or are being stopped.

        A failure may come late, for the run's progress is read first, and what its member said next overtakes it. So
        may anything once the run is over: an agent that gets a TERM stops workers that have ended.

        Returns:
            Whether it comes so late, and has to change nothing.
        """
        world = self._run.disk.latest
        if world is None or world.head != agent.name:
            return False
        attempt = next((role.attempt for role in world.roles if role.role == member.role), 0)
        are_gone = head.phase in ALL_GONE and head._judge.verdict.roles is None
        if head.phase is HeadPhase.CLAIMING:  # whatever is decided meanwhile, the other roles are still at work
            are_gone = member.role in starting_roles(head._members.world)
        what = f"{agent.name} counts that {member.node} reports {message.KIND} of attempt {message.attempt}"
        is_late = are_gone and (isinstance(message, (Failed, Broken)) or head.phase in ENDING)
        require(not are_gone or is_late, f"{what}, whose workers are all gone, in phase {head.phase.value}")
        require(message.attempt == attempt, f"{what}, and its role is in attempt {attempt}")
        return is_late

    def _is_enough(self, agent: Agent, head: Any) -> bool:
        """Whether a head that has opened no attempt has enough nodes for one, and of each role."""
        here, unhealthy = self._run.noted.members(head)
        return are_enough(self._run, agent, here - unhealthy, has_world=False)


def are_enough(run: SimulatedRun, agent: Agent, nodes: Collection[str], *, has_world: bool) -> bool:
    """Whether these nodes are enough for an attempt: once there was one, spares take places of any role.

    A spare that has done so goes back to the role that it came with, where that lacks nodes and the other does not.
    """
    scenario, peers = run.scenario, [run.peer(agent, node) for node in nodes]
    here, least = Counter(peer.role for peer in peers), {role.name: role.nodes_min for role in scenario.roles}
    for peer in peers if has_world else ():
        if here[peer.first_role] < least[peer.first_role] and here[peer.role] > least[peer.role]:
            here.subtract([peer.role])
            here.update([peer.first_role])
    lacking = sum(max(0, role.nodes_min - here[role.name]) for role in scenario.roles)
    spares = sum(max(0, here[role.name] - role.nodes_max) for role in scenario.roles) if has_world else 0
    return len(nodes) >= scenario.min_nodes and lacking <= spares
