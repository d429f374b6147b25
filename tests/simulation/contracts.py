"""What machines promise their drivers, and what these owe them: nothing is due before `next_tick`, and all is then.

A tick before that time does nothing, so it may be called at any time; a driver calls it then, and not later, unless its
process is frozen; and after a tick the next one is later, or the driver would never rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.rules import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

LATE_S = 0.01  # of a driver's timer
LOOKS_PER_LEASE = 12  # of a head, after its members' leases: then nothing may be to do
MORE_IN_VAIN = 12  # ticks of a machine in the same time that were due, and did nothing
TICKS_AT_ONCE = 20  # of a machine, in one moment
TURNS_PER_S = 400  # of an agent's event loop, and so many more for each of the others


class Machine(Protocol):
    """As `membership` has them."""

    def next_tick(self) -> float: ...

    def tick(self, now: float, /) -> Any: ...


class Contracts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._due: dict[int, tuple[Machine, float]] = {}  # what each machine said at last
        self._same: dict[int, tuple[float, int]] = {}  # when it was called at last, and how often in that moment
        self._in_vain: dict[int, tuple[Machine, deque[float]]] = {}  # when ticks did nothing that were due
        self._turns: dict[Agent, deque[float]] = {}
        self._are_late = any(fault.what == "late" for fault in run.scenario.faults)

    def calls(self, agent: Agent, machine: Machine) -> None:
        """A driver is about to call a machine because something has happened."""
        now, who = agent.now, f"the {type(machine).__name__} of {agent.name}"
        due = machine.next_tick()
        if now < due:
            early = machine.tick(now)
            require(not early, f"{who} does {early} at {now:.3f}, and nothing is due before {due:.3f}")
        _, said = self._due.get(id(machine), (machine, float("inf")))
        is_excused = self._are_late or agent.process.has_ever_frozen
        require(is_excused or now <= said + LATE_S, f"{who} is called at {now:.3f}, and was to be at {said:.3f}")

    def called(self, agent: Agent, machine: Machine) -> None:
        """The driver has carried out what the machine wanted."""
        now, due = agent.now, machine.next_tick()
        self._due[id(machine)] = machine, max(due, now)
        last, count = self._same.get(id(machine), (-1.0, 0))
        count = count + 1 if now == last and due <= now else 0
        self._same[id(machine)] = now, count
        who = f"the {type(machine).__name__} of {agent.name}"
        require(count < TICKS_AT_ONCE, f"{who} wants to be called at {due:.3f}, and it is {now:.3f}")

    def is_over(self, machine: Machine) -> None:
        """Its driver calls it no more."""
        self._due.pop(id(machine), None)

    def watch_ticks(self, agent: Agent, machine: Machine, looks: int = 0) -> None:
        """Its ticks are to do something when they are due, but for so many looks in a lease."""
        tick, lease_s = machine.tick, self._run.scenario.lease_s
        _, recent = self._in_vain[id(machine)] = machine, deque()

        def watched(now: float) -> Any:
            due = machine.next_tick()
            done = tick(now)
            if now < due or done:
                return done
            recent.append(now)
            while recent[0] < now - lease_s:
                recent.popleft()
            who = f"the {type(machine).__name__} of {agent.name}"
            most = looks + MORE_IN_VAIN
            require(len(recent) <= most, f"{who} wakes up {len(recent)} times in a lease, at {now:.3f}, for nothing")
            return done

        setattr(machine, "tick", watched)  # noqa: B010

    def watch(self, agent: Agent, machine: Machine, methods: tuple[str, ...]) -> None:
        """The driver calls it by these methods."""

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                self.calls(agent, machine)
                return method(*arguments, **more)

            return call

        for name in methods:
            setattr(machine, name, watched(getattr(machine, name)))

    def turns(self, agent: Agent) -> None:
        """An agent's event loop takes a turn: one that waits takes few."""
        recent, now = self._turns.setdefault(agent, deque()), self._run.clock.now
        recent.append(now)
        while recent[0] < now - 1.0:
            recent.popleft()
        most = TURNS_PER_S * (4 + len(self._run.agents)) / 4
        require(len(recent) <= most, f"{agent.name} takes {len(recent)} turns in a second, at {now:.3f}")
