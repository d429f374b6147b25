"""What machines promise their drivers, and what these owe them: nothing is due before `next_tick`, and all is then.

A tick before that time does nothing, so it may be called at any time; a driver calls it then, and not later, unless its
process is frozen; and after a tick the next one is later, or the driver would never rest.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tests.simulation.rules import BrokenRuleError

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


class _Kept:
    """What a machine has promised, and has done."""

    __slots__ = ("called_at", "calls", "in_vain", "machine", "said", "tick")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine  # which keeps its number from being another's
        self.tick = machine.tick  # its own, that nobody watches
        self.said = float("inf")  # when it is to be called, as it has said at last
        self.called_at, self.calls = -1.0, 0  # when it was called at last, and how often in that moment
        self.in_vain: deque[float] = deque()  # when ticks did nothing that were due


class Contracts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._clock = run.clock
        self._kept: dict[int, _Kept] = {}
        self._turns: defaultdict[Agent, deque[float]] = defaultdict(deque)
        self._are_late = any(fault.what == "late" for fault in run.scenario.faults)

    def calls(self, agent: Agent, machine: Machine) -> None:
        """A driver is about to call a machine because something has happened."""
        now, due = agent.now, machine.next_tick()
        kept = self._kept.get(id(machine)) or self._begin(machine)
        if now < due and (early := kept.tick(now)):
            self._broken(agent, machine, f"does {early} at {now:.3f}, and nothing is due before {due:.3f}")
        if now > kept.said + LATE_S and not (self._are_late or agent.process.has_ever_frozen):
            self._broken(agent, machine, f"is called at {now:.3f}, and was to be at {kept.said:.3f}")

    def called(self, agent: Agent, machine: Machine) -> None:
        """The driver has carried out what the machine wanted."""
        now, due = agent.now, machine.next_tick()
        kept = self._kept.get(id(machine)) or self._begin(machine)
        if due > now:
            kept.said, kept.calls = due, 0
        else:
            kept.said = now
            kept.calls = kept.calls + 1 if now == kept.called_at else 0
            if kept.calls >= TICKS_AT_ONCE:
                self._broken(agent, machine, f"wants to be called at {due:.3f}, and it is {now:.3f}")
        kept.called_at = now

    def is_over(self, machine: Machine) -> None:
        """Its driver calls it no more."""
        if (kept := self._kept.get(id(machine))) is not None:
            kept.said = float("inf")

    def watch_ticks(self, agent: Agent, machine: Machine, looks: int = 0) -> None:
        """Its ticks are to do something when they are due, but for so many looks in a lease."""
        kept, lease_s = self._begin(machine), self._run.scenario.lease_s
        tick, recent = kept.tick, kept.in_vain

        def watched(now: float) -> Any:
            due = machine.next_tick()
            done = tick(now)
            if now < due or done:
                return done
            recent.append(now)
            while recent[0] < now - lease_s:
                recent.popleft()
            if len(recent) > looks + MORE_IN_VAIN:
                self._broken(agent, machine, f"wakes up {len(recent)} times in a lease, at {now:.3f}, for nothing")
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
        recent, now = self._turns[agent], self._clock.now
        recent.append(now)
        while recent[0] < now - 1.0:
            recent.popleft()
        if len(recent) > TURNS_PER_S and len(recent) > TURNS_PER_S * (4 + len(self._run.agents)) / 4:
            raise BrokenRuleError(f"{agent.name} takes {len(recent)} turns in a second, at {now:.3f}")

    def _begin(self, machine: Machine) -> _Kept:
        kept = self._kept[id(machine)] = _Kept(machine)
        return kept

    def _broken(self, agent: Agent, machine: Machine, what: str) -> NoReturn:
        raise BrokenRuleError(f"the {type(machine).__name__} of {agent.name} {what}")
