"""A clock that is set is told from time that passes."""

from __future__ import annotations

import asyncio
import time

import pytest

from hpc_elastic.agent.records.clock_steps import ClockSteps, watch_clock
from hpc_elastic.membership.actions import Note


@pytest.mark.parametrize(
    ("wall", "steady", "step"),
    [
        (1010.0, 60.0, 0.0),
        (1009.0, 60.0, 0.0),  # NTP lets it go slower
        (109_010.0, 60.0, 108_000.0),
        (410.0, 60.0, -600.0),
        (87_400.0, 86_450.0, 0.0),  # the machine was suspended
    ],
    ids=["nothing", "slewed", "forward", "back", "suspended"],
)
def test_a_clock_that_is_set_moves_against_the_one_that_nobody_sets(wall: float, steady: float, step: float) -> None:
    steps = ClockSteps()
    assert steps.look(1000.0, 50.0) == 0.0
    assert steps.look(wall, steady) == pytest.approx(step)
    assert steps.look(wall + 1, steady + 1) == 0.0


def test_each_step_is_noted_once_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real, ahead, looks = time.time, 0.0, 0

    def fake() -> float:
        nonlocal looks
        looks += 1
        return real() + ahead

    noted: list[Note] = []
    said: list[str] = []

    async def watch() -> None:
        nonlocal ahead
        task = asyncio.ensure_future(watch_clock("node1", noted.append, said.append, every_s=0.001))
        while looks < 3:
            await asyncio.sleep(0.001)
        ahead = 108_000.0
        until = looks + 5
        while looks < until:
            await asyncio.sleep(0.001)
        task.cancel()

    monkeypatch.setattr(time, "time", fake)
    asyncio.run(asyncio.wait_for(watch(), 60))
    (note,) = noted
    assert (note.name, note.message) == ("node.clock_set", "the clock of node1 was set forward by 1d6h")
    assert note.metadata["step_s"] == pytest.approx(108_000, abs=1)
    assert said == [f"{note.message}; times in its logs and records before that are by the clock as it was"]
