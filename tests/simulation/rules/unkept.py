"""Whoever loses what ranks had in memory is told so: states that the next allocation was to have, and does not get.

An allocation ends, and the job wants its states written for the next one. Where members hold some and none is written,
because a node that had a part of them is lost or the parts are of different steps, a line of the log says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, KeepStates, Log, SendToMember
from hpc_elastic.membership.messages import End
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.head import Head
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

SAID = "is kept for the next allocation"


class Unkept:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        scenario = run.scenario
        is_alike = len({role.restart == "restart_all" or role.name for role in scenario.roles}) == 1
        # What is damaged is no state, and of several groups each has its own line.
        self._is_played = scenario.keeps_every_s is not None and not scenario.damage_chance and is_alike
        self._served: set[Head] = set()  # heads that have said it, or that have states from before to keep
        self._ends: dict[Head, tuple[Agent, str, bool]] = {}  # by head: itself, who holds some, and whether one writes

    def acts(self, agent: Agent, head: Head, action: Action) -> None:
        """A head does something."""
        if not self._is_played:
            return
        if isinstance(action, KeepStates) or (isinstance(action, Log) and SAID in action.text):
            self._served.add(head)
        elif isinstance(action, SendToMember) and isinstance(action.message, End):
            self._tells(agent, head, action.node, action.message)

    def _tells(self, agent: Agent, head: Head, node: str, end: End) -> None:
        world = self._run.disk.latest
        if end.exit_code == ExitCode.SUCCESS or not end.is_settled or world is None or world.head != agent.name:
            return
        _, holder, does_write = self._ends.get(head, (agent, "", False))
        if node in {each.node for each in world.nodes} and self._run.peer(agent, node).workers.states.complete():
            holder = node
        self._ends[head] = agent, holder, does_write or end.flush is not None

    def check_end(self) -> None:
        """Nobody runs any more."""
        for head, (agent, holder, does_write) in self._ends.items():
            is_told = not holder or does_write or head in self._served
            require(
                is_told, f"{agent.name} ends the allocation, no state of {holder} is written, and nobody is told why"
            )
