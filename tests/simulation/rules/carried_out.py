"""What the drivers owe to their machines and to others: questions are asked and answers heeded, connections are closed.

An agent has one head at a time, and answers others only as a head. A person's request reaches a head once. What the
agents of missing nodes have written is read when it can be there, and not more often than that; a fence has its guard.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.actions import AskScheduler, Note
from hpc_elastic.membership.head import ENDING
from hpc_elastic.membership.timing import DRIFT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.world import SimulatedRun

ANSWERS_S = 0.5  # for a question to the scheduler, and what follows from its answer
DIAGNOSES_AFTER_S, DIAGNOSES_EVERY_S = 3.0, 5.0  # an agent has written by then; a head that looks again
EXACT_S = 1e-6


@dataclass
class _Question:
    agent: Agent
    head: Any
    asked_at: float
    nodes: tuple[str, ...]
    dead: Collection[str] | None = None  # as the scheduler has said


class CarriedOut:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._questions: list[_Question] = []
        self._stops: set[object] = set()  # heads that have heard that a person asks for the end
        self._led_at: dict[Agent, float] = {}
        self.began_at: dict[str, float] = {}  # by node, the head that it has now
        self._diagnosed_at: dict[Agent, float] = {}  # by the head that it has now
        self._to_write: list[tuple[Agent, Note]] = []  # events that no disk has yet

    def leads(self, agent: Agent) -> None:
        """An agent has a head."""
        self._led_at[agent] = agent.now
        self.began_at[agent.name] = self._run.clock.now
        self._diagnosed_at.pop(agent, None)

    # The scheduler.

    def asks(self, agent: Agent, head: object, action: AskScheduler) -> None:
        """A head has the scheduler asked about members that are silent."""
        self._questions.append(_Question(agent, head, self._run.clock.now, action.nodes))

    def says(self, agent: Agent, nodes: Collection[str], dead: Collection[str]) -> None:
        """The scheduler has been asked, and says which of these nodes it has given up."""
        for question in self._questions:
            if question.agent is agent and set(question.nodes) == set(nodes):
                question.dead = dead

    def watch(self) -> None:
        """From time to time: the scheduler was asked, and a node that it has given up is lost at once."""
        now = self._run.clock.now
        due = [each for each in self._questions if each.asked_at < now - ANSWERS_S]
        self._questions = [each for each in self._questions if each not in due]
        for each in due:
            agent = each.agent
            is_head = agent.headquarters is not None and agent.headquarters._head is each.head
            if not is_head or not agent.is_running or agent.process.has_ever_frozen:
                continue
            require(each.dead is not None, f"{agent.name} is to ask the scheduler about {each.nodes}, and has not")
            if each.head.phase in ENDING:  # which says nothing any more of who is lost
                continue
            here, _ = self._run.noted.members(each.head)
            kept = here & set(each.dead or ())
            require(not kept, f"the scheduler has given {sorted(kept)} up, and {agent.name} has not lost them")
        self._to_write = [(agent, note) for agent, note in self._to_write if agent.is_running]
        for agent, note in self._to_write:
            what = f"{agent.name} notes {note.name} of attempt {note.attempt}, and nobody can read it"
            require(not agent.disk.is_idle, what)

    # The disk.

    def is_to_write(self, agent: Agent, note: Note) -> None:
        """A machine of an agent has noted something."""
        self._to_write.append((agent, note))

    def writes(self, agent: Agent, note: Note) -> None:
        """The thread of an agent writes what was noted."""
        self._to_write = [each for each in self._to_write if each[0] is not agent or each[1] is not note]

    # People, and other agents' findings.

    def hears_stop(self, agent: Agent, head: object) -> None:
        """A head is told that a person asks for the end."""
        require(head not in self._stops, f"{agent.name} tells its head again that a person asks for the end")
        self._stops.add(head)

    def diagnoses(self, agent: Agent) -> None:
        """A head reads why nodes have not come: not before that can be there, which could hide it on NFS for long."""
        now, led_at, before = agent.now, self._led_at[agent], self._diagnosed_at.get(agent)
        self._diagnosed_at[agent] = now
        what = f"{agent.name} reads what missing nodes have written {now - led_at:.2f} s after it began"
        require((now - led_at) * (1 + DRIFT) >= DIAGNOSES_AFTER_S, what)
        if before is not None and not agent.process.has_ever_frozen:
            again = f"{agent.name} reads what missing nodes have written again after {now - before:.2f} s"
            require((now - before) * (1 + DRIFT) >= DIAGNOSES_EVERY_S, again)

    # Connections.

    def finds_head(self, agent: Agent, connection: SimulatedConnection) -> None:
        """An agent has had the answer to a join: that is its head from now on, or hears at once that it is not."""
        is_head = agent.link is not None and agent.link is connection.socket
        require(is_head or connection.is_closed_here, f"{agent.name} has another head, and keeps a connection to one")
        is_told = is_head or "dropped" in connection.said
        require(is_told, f"{agent.name} has another head, and one that has taken it in takes it for dead")

    def turns_away(self, agent: Agent, connection: SimulatedConnection) -> None:
        """An agent that is no head has heard from another one, which looks for its head: it looks on at once."""
        require(connection.is_closed_here, f"{agent.name} is no head, and keeps the connection of who looks for one")

    def names_head(self, agent: Agent, connection: SimulatedConnection, own: SimulatedConnection | None) -> None:
        """An agent that is no head has been asked, and names its head only as long as it has one."""
        has_lost = own is None or own.is_lost
        require(not (has_lost and "elsewhere" in connection.said), f"{agent.name} names a head that it has lost")

    # Fences.

    def fences(self, agent: Agent) -> None:
        """An agent has begun to kill its workers: its guard does so soon, should the agent not get on."""
        if agent.process.has_ever_frozen:
            return
        left_s = agent.guard.deadline - agent.now - self._run.scenario.profile.guard_s
        require(left_s <= EXACT_S, f"{agent.name} fences, and its guard leaves its workers {left_s:.3f} s more")
