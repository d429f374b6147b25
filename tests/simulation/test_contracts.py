"""What machines and drivers owe each other: one that does something too early, or is called too late, is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.draws.general import draw
from tests.simulation.rules.contracts import TICKS_AT_ONCE, Contracts
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun


class Timer:
    """A machine that is to be called at some time."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.does: list[str] = []

    def next_tick(self) -> float:
        return self.due

    def tick(self, now: float) -> list[str]:
        return self.does


@pytest.fixture
def run() -> SimulatedRun:
    return SimulatedRun(draw(0))


def contracts_of(run: SimulatedRun) -> tuple[Contracts, Any]:
    agent: Any = run.agents[0]
    return Contracts(run), agent


def test_a_machine_that_does_something_before_it_is_due_is_found(run: SimulatedRun) -> None:
    contracts, agent = contracts_of(run)
    timer = Timer(agent.now + 5)
    contracts.of(agent, timer).calls()
    timer.does = ["something"]
    with pytest.raises(BrokenRuleError, match="nothing is due before"):
        contracts.of(agent, timer).calls()


def test_a_driver_that_calls_too_late_is_found(run: SimulatedRun) -> None:
    contracts, agent = contracts_of(run)
    timer = Timer(agent.now + 1)
    contracts.of(agent, timer).called()
    run.clock.now += 2
    with pytest.raises(BrokenRuleError, match="and was to be at"):
        contracts.of(agent, timer).calls()


def test_a_machine_that_wants_to_be_called_for_ever_is_found(run: SimulatedRun) -> None:
    contracts, agent = contracts_of(run)
    timer = Timer(agent.now)

    def spin() -> None:
        for _ in range(TICKS_AT_ONCE + 2):
            contracts.of(agent, timer).called()

    with pytest.raises(BrokenRuleError, match="wants to be called"):
        spin()


def test_an_agent_that_never_rests_is_found(run: SimulatedRun) -> None:
    agent = run.agents[0]

    def take_turns() -> None:
        for _ in range(10_000):
            agent.process.takes_turn()

    with pytest.raises(BrokenRuleError, match="turns in a second"):
        take_turns()
