"""What is over is over: who has left says nothing more, a search that has ended asks nobody, and no connection is kept.

A head counts each connection, and a file server each look: what an agent forgets to end costs others, for as long as
the run lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpc_elastic.agent.rendezvous.refusal import OTHERS_COME_WITHIN_S
from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES
from hpc_elastic.membership.authentication import Side
from hpc_elastic.membership.discovery import DiscoveryPhase
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Message
from hpc_elastic.membership.timing import LONGEST_ANSWER_S
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.world import SimulatedRun

OPERATIONS = 4  # on the disk, between a look for a result and a claim
HANGS_UP_S = LONGEST_ANSWER_S + 1.0  # who has dialled: with the time for an answer
LOOKS_S = SEARCH_TIMES.read_claim_every_s + SEARCH_TIMES.longest_pause_s  # who has no head, at the run directory
HINDERING = ("disk", "pause", "freeze", "late", "link", "partition", "one_way", "unreachable", "unhealthy")


class Endings:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._over: dict[int, Any] = {}  # searches, by their number
        self._are_hindered = any(word in fault.what for fault in run.scenario.faults for word in HINDERING)

    def says(self, agent: Agent, message: Message) -> None:
        """A member tells its head something."""
        if agent.exit_code is not None:
            raise BrokenRuleError(f"{agent.name} has left, and says {message.KIND}")

    def is_idle(self, agent: Agent) -> bool:
        """Whether an agent has no head, and no worker that it would have to stop or whose failure is recorded now."""
        has_head = agent.link is not None or agent.headquarters is not None
        is_stopping = agent.part.member._stopping is not None or not agent.member._exits.is_settled
        return not (has_head or is_stopping or agent.workers.alive) and agent.member.attempt == agent.workers.attempt

    def got_signal(self, agent: Agent) -> None:
        """It has got a TERM: who sends that kills it in half a minute, and nobody waits for it."""
        require(agent.exit_code is not None, f"{agent.name} has got a TERM without a head or workers, and stays")

    def search_is_over(self, search: Any) -> None:
        """An agent has a head, or is one."""
        self._over[id(search)] = search

    def searches(self, agent: Agent, search: Any, action: object) -> None:
        """A search does something."""
        is_over = id(search) in self._over
        require(not is_over, f"{agent.name} searches no more, and its search does {action}")

    def decides(self, agent: Agent) -> None:
        """The head of an agent claims an attempt, or ends the run: its agent searches for no other one any more."""
        search = agent.part.heads._successor
        is_over = search is None or search._discovery.phase in (DiscoveryPhase.CLAIMING, DiscoveryPhase.OVER)
        require(is_over, f"the head of {agent.name} decides for all, and {agent.name} searches for another one")

    def connects(self, agent: Agent, *, is_joined: bool) -> None:
        """A member begins with a head: the one on its node, or one elsewhere."""
        is_head = agent.headquarters is not None and not agent.headquarters.is_closed
        require(not (is_joined and is_head), f"{agent.name} is head, and has its member join another one")

    def allocated(self, agent: Agent) -> None:
        """The claim of an allocation is on disk: not where the run was over when its maker looked, as it has to."""
        run, disk, looks_s = self._run, agent.disk, OPERATIONS * max(self._run.scenario.disk_s)
        looked_s = run.clock.now - disk.looked_at
        what = f"{agent.name} claims an allocation, and has looked for {disk.looked_for} at last, {looked_s:.2f} s ago"
        require(disk.looked_for == LAYOUT.result and (self._are_hindered or looked_s <= looks_s), what)
        if self._are_hindered or not run.disk.results:
            return
        since_s = run.clock.now - run.disk.ended_at
        what = f"{agent.name} claims another allocation {since_s:.2f} s after the end of the run"
        require(since_s <= looks_s, what)

    def watch(self) -> None:
        """From time to time."""
        for agent in self._run.everybody:
            if agent.is_running and not agent.process.has_ever_frozen and hasattr(agent, "part"):
                self._check_connections(agent)

    def _check_connections(self, agent: Agent) -> None:
        """Of those that an agent has made none is left but the one to its head, and the one that it makes just now."""
        link = agent.link
        if agent.headquarters is None:
            self._check_no_members(agent)
        if agent.member.phase is MemberPhase.JOINING:  # the first head may take long to claim, and answers then
            return
        for socket in agent.sockets:
            made: SimulatedConnection | None = socket.connection
            if made is None or socket is link or made._side is not Side.DIALLING or made.is_closed_here:
                continue
            open_s = agent.now - made.opened_at
            what = f"{agent.name} has a connection to {made.peer} for {open_s:.1f} s, which is not its head"
            require(open_s <= HANGS_UP_S, what)

    def _check_no_members(self, agent: Agent) -> None:
        """Who asks an agent that is no head to join is not kept waiting, and dials another one."""
        for socket in agent.sockets:
            made: SimulatedConnection | None = socket.connection
            if made is None or made._side is Side.DIALLING or made.is_closed_here or "join" not in made.heard:
                continue
            open_s = agent.now - made.opened_at
            require(open_s <= 1.0, f"{agent.name} is no head, and {made.peer} waits for its answer for {open_s:.1f} s")

    def check_end(self) -> None:
        """Nobody runs any more: who came when the run was over has read that, and did not wait for anybody."""
        run = self._run
        if self._are_hindered or not run.disk.results:
            return
        for agent in run.agents:
            if agent.started_at > run.disk.ended_at and agent.exit_code is not None:
                took_s = agent.left_at - agent.started_at
                allowed_s = self._looks_within_s(agent) + run.progress.slack_s
                what = f"{agent.name} has come when the run was over, and leaves after {took_s:.1f} s"
                require(took_s <= allowed_s, f"{what}, not {allowed_s:.1f} s")

    def _looks_within_s(self, agent: Agent) -> float:
        """How long an agent stays that finds the run over: on the first node it waits for the others, to tell them."""
        is_first = agent is self._run.agents[0]
        has_dead = any(other.exit_code is None for other in self._run.agents)
        return OTHERS_COME_WITHIN_S + LOOKS_S if is_first and has_dead else LOOKS_S
