"""The decision points of a simulated run: where something else could have happened, and the state there.

Theory of operation. What happens in a run is a row of events, and what a fault does depends much more on the events
that it comes between than on the second. A decision point stands before each event by which agents, the network, the
run directory or workers get on. Events without consequences (a timer that was cancelled, a guard's look before its
deadline) have none, nor has a turn of a process: it follows on what made it ready. A fault with the phase `POINT`
strikes at the decision point of its number, in the moment of the event and before it. A scenario has the same points
each time it is played.

`state` says where a run stands, without its seconds. Two points with the same state have the same future, for all that
the state shows; what it leaves out is in decision 0033.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from tests.simulation.clock import Event
from tests.simulation.faults import strike
from tests.simulation.scenario import POINT, Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

Visit = Callable[[int, str], None]
TIMER, MESSAGE = "Timer.rings", "Socket._arrive"
WITHOUT_POINT = ("Process._begin_turn", "Process._thaw", "Guard._look", "SimulatedRun._watch", "DiskThread._next")


def kind_of(event: Event) -> str | None:
    """What an event is, or None if nothing can be decided by what comes before it."""
    name: str = getattr(event, "__qualname__", "event")
    if name.startswith(WITHOUT_POINT):
        return None
    if name == TIMER:
        timer: Any = event.__self__  # type: ignore[attr-defined]
        return None if timer.cancelled() else f"timer {getattr(timer.callback, '__qualname__', '')}"
    if name == MESSAGE:
        socket: Any = event.__self__  # type: ignore[attr-defined]
        under_way = socket.under_way
        return f"{under_way[0]} for {socket.other.agent.name}" if under_way else None
    return name


class Points:
    """Counts the points of one run, and lets the faults that are placed at points strike.

    Args:
        run: the run.
        visit: told of each point, its number and its event, after the faults that are placed there.
    """

    def __init__(self, run: SimulatedRun, visit: Visit | None = None) -> None:
        self._run = run
        self._visit = visit
        self._placed: dict[int, list[Fault]] = {}
        for fault in run.scenario.faults:
            if fault.phase == POINT:
                self._placed.setdefault(fault.nth, []).append(fault)
        self.passed = 0

    def pass_by(self) -> None:
        """An event is about to happen."""
        event = self._run.clock.next_event
        kind = kind_of(event) if event is not None else None
        if kind is None:
            return
        self.passed += 1
        if self.passed in self._placed:
            self._run.clock.go_to_next()
            for fault in self._placed[self.passed]:
                strike(self._run, fault)
        if self._visit is not None:
            self._visit(self.passed, kind)


def state(run: SimulatedRun, grain_s: float) -> Hashable:
    """Where a run stands.

    Args:
        run: the run.
        grain_s: times from now on are told apart by so many seconds.
    """
    disk, now = run.disk, run.clock.now
    return (
        tuple(_of_agent(agent, grain_s) for agent in run.everybody),
        tuple((claim.head, claim.members, claim.allocation, claim.spend) for claim in disk.claims.values()),
        len(disk.allocations),
        tuple(sorted((*key, result.state) for key, result in disk.node_results.items())),
        tuple(result.reason for result in disk.results),
        tuple(sorted((way, _away(until - now, grain_s)) for way, until in run.network.closed.items())),
        run.is_stop_requested,
    )


def outline(run: SimulatedRun) -> Hashable:
    """Where a run stands in fewer words: phases, claims, results, who works, who is cut off; no times, no messages."""
    disk = run.disk
    return (
        tuple(_outline_of(agent) for agent in run.everybody),
        tuple((claim.head, claim.members) for claim in disk.claims.values()),
        len(disk.allocations),
        tuple(result.reason for result in disk.results),
        tuple(sorted(run.network.closed)),
        run.is_stop_requested,
    )


def _outline_of(agent: Agent) -> Hashable:
    if not agent.is_running or not hasattr(agent, "part"):
        return agent.is_running, agent.is_powered, bool(agent.workers.alive)
    member, heads = agent.member, agent.part.heads
    return (
        member.phase,
        member.attempt,
        _workers_of(agent),
        agent.process.is_to_freeze,
        agent.disk.is_well,
        None if agent.link is None else agent.link.other.agent.name,
        None if heads._successor is None else heads._successor._discovery.phase,
        None if agent.headquarters is None else agent.headquarters._head.phase,
    )


def _away(seconds: float, grain_s: float) -> int | None:
    """How far away a moment is; None: it never comes, or is long over."""
    return round(seconds / grain_s) if abs(seconds) < 1000 * grain_s else None


def _of_agent(agent: Agent, grain_s: float) -> Hashable:
    if not agent.is_running or not hasattr(agent, "part"):
        return agent.is_running, agent.is_powered, agent.exit_code, _workers_of(agent)
    member, heads, disk = agent.member, agent.part.heads, agent.disk
    now, really = agent.now, agent.run.clock.now
    lease = member._lease
    link = agent.link
    return (
        member.phase,
        member.attempt,
        member._leave is not None,
        _workers_of(agent),
        agent.workers._sent,
        agent.process.is_to_freeze,
        _away(max(0.0, agent.process.frozen_until - really), grain_s),
        agent.exit_code,
        None if link is None else (link.other.agent.name, link.other.agent.start_number),
        _away(lease.fence_deadline - now, grain_s),
        _away(agent.guard.deadline - now, grain_s),
        None if heads._successor is None else heads._successor._discovery.phase,
        None if agent.headquarters is None else _of_head(agent.headquarters._head, now, grain_s),
        (disk.stage, disk.waiting, _away(max(0.0, disk.stalled_until - really), grain_s)),
        (_away(max(0.0, disk.fails_until - really), grain_s), disk.is_done_before_trouble),
        tuple((socket.other.agent.number, socket.under_way) for socket in agent.sockets),
    )


def _workers_of(agent: Agent) -> Hashable:
    return tuple((worker.attempt, worker.has_term) for worker in agent.workers.alive.values())


def _of_head(head: Any, now: float, grain_s: float) -> Hashable:
    roster = head._roster
    return (
        head.phase,
        tuple(
            (
                member.node,
                member.attempt,
                member.has_started,
                _away(member.lease.acked - now, grain_s),
            )
            for member in roster._entries.values()
        ),
        tuple(member.node for member in roster.unstopped.of()),
        head._members.losses.count,
        _away(head.next_tick() - now, grain_s),
    )
