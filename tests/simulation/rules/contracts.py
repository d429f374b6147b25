"""What machines promise their drivers, and what these owe them: nothing is due before `next_tick`, and all is then.

A tick before that time does nothing, so it may be called at any time; a driver calls it then, and not later, unless its
process is frozen; and after a tick the next one is later, or the driver would never rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import BrokenRuleError

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


class Contract:
    """Of one machine of an agent and its driver: what the machine has promised, and has done."""

    __slots__ = (
        "_agent",
        "_are_late",
        "_called_at",
        "_calls",
        "_clock",
        "_in_vain",
        "_machine",
        "_own",
        "_said",
        "_tick",
    )

    def __init__(self, agent: Agent, machine: Machine, *, are_late: bool) -> None:
        self._agent = agent
        self._clock, self._own = agent.run.clock, agent.clock  # the simulation's, and the machine's
        self._machine = machine  # which keeps its number from being another's
        self._tick = machine.tick  # its own, that nobody watches
        self._are_late = are_late
        self._said = NEVER  # when it is to be called, as it has said at last
        self._called_at, self._calls = -1.0, 0  # when it was called at last, and how often in that moment
        self._in_vain: deque[float] = deque()  # when ticks did nothing that were due

    def calls(self) -> None:
        """The driver is about to call the machine because something has happened."""
        agent, said, own = self._agent, self._said, self._own
        now = self._clock.now * own.rate + own.ahead_s  # `agent.now`, for what is asked most
        due = said if said < NEVER else self._machine.next_tick()  # `due`, which most calls ask
        if now < due and (early := self._tick(now)):
            self._broken(f"does {early} at {now:.3f}, and nothing is due before {due:.3f}")
        if now > said + LATE_S and not (self._are_late or agent.process.has_ever_frozen):
            self._broken(f"is called at {now:.3f}, and was to be at {self._said:.3f}")

    def called(self) -> None:
        """The driver has carried out what the machine wanted."""
        own, due = self._own, self._machine.next_tick()
        now = self._clock.now * own.rate + own.ahead_s
        if due > now:
            self._said, self._calls = due, 0
        else:
            self._said = now
            self._calls = self._calls + 1 if now == self._called_at else 0
            if self._calls >= TICKS_AT_ONCE:
                self._broken(f"wants to be called at {due:.3f}, and it is {now:.3f}")
        self._called_at = now

    def due(self) -> float:
        """When the machine is to be called: between two calls of its driver, as it has said after the first of them."""
        return self._said if self._said < NEVER else self._machine.next_tick()

    def is_over(self) -> None:
        """Its driver calls it no more."""
        self._said = NEVER

    def watch_ticks(self, lease_s: float, looks: int) -> None:
        """Its ticks are to do something when they are due, but for so many looks in a lease."""
        machine, tick, recent = self._machine, self._tick, self._in_vain

        def watched(now: float) -> Any:
            due = self.due()
            done = tick(now)
            if now < due or done:
                return done
            recent.append(now)
            while recent[0] < now - lease_s:
                recent.popleft()
            if len(recent) > looks + MORE_IN_VAIN:
                self._broken(f"wakes up {len(recent)} times in a lease, at {now:.3f}, for nothing")
            return done

        setattr(machine, "tick", watched)  # noqa: B010

    def _broken(self, what: str) -> NoReturn:
        raise BrokenRuleError(f"the {type(self._machine).__name__} of {self._agent.name} {what}")


class Contracts:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._clock = run.clock
        self._contracts: dict[int, Contract] = {}
        self._most_turns = TURNS_PER_S * (4 + len(run.scenario.placed())) // 4  # in a second
        self._are_late = any(fault.what == "late" for fault in run.scenario.faults)

    def of(self, agent: Agent, machine: Machine) -> Contract:
        """The contract of a machine with its driver."""
        made = self._contracts.get(id(machine))
        if made is None:
            made = self._contracts[id(machine)] = Contract(agent, machine, are_late=self._are_late)
        return made

    def watch_ticks(self, agent: Agent, machine: Machine, looks: int = 0) -> Contract:
        """The contract of a machine whose ticks are to do something when they are due, but for so many in a lease."""
        made = self.of(agent, machine)
        made.watch_ticks(self._run.scenario.lease_s, looks)
        return made

    def watch(self, agent: Agent, machine: Machine, methods: tuple[str, ...]) -> None:
        """The driver calls it by these methods."""
        contract = self.of(agent, machine)

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                contract.calls()
                return method(*arguments, **more)

            return call

        for name in methods:
            setattr(machine, name, watched(getattr(machine, name)))

    def no_turns(self) -> deque[float]:
        """When an agent's event loop has taken turns: so many as are too many in a second, all long ago."""
        return deque([-NEVER] * (self._most_turns + 1), self._most_turns + 1)

    def takes_many_turns(self, agent: Agent) -> None:
        """It has taken all of these in a second: one that waits takes few."""
        turns = self._most_turns + 1
        raise BrokenRuleError(f"{agent.name} takes {turns} turns in a second, at {self._clock.now:.3f}")
