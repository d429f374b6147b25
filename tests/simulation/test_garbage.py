"""A run that is over is garbage, and what many runs have left is collected."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.simulation.draws.kinds import DRAWN_ANYHOW, KINDS
from tests.simulation.garbage import Held, collect, resident_mb
from tests.simulation.world import SimulatedRun


@pytest.mark.long
@pytest.mark.parametrize("kind", [DRAWN_ANYHOW, "starts", "cut-saves"])
def test_a_run_that_is_over_is_garbage_as_a_whole(kind: str) -> None:
    """Also where some of its agents' threads wait for the file server when it ends."""
    left = []
    for seed in range(6):
        run = SimulatedRun(KINDS[kind](seed))
        run.play()
        left.append(weakref.ref(run))
    del run
    collect()
    assert [each() for each in left] == [None] * len(left)


@pytest.mark.long
def test_what_tests_have_left_is_collected_once_it_is_much() -> None:
    held = Held(grows_by_mb=40)
    assert not held.collect_if_grown()
    before, was_on = resident_mb(), gc.isenabled()
    gc.disable()
    try:
        for _ in range(1000):
            if resident_mb() > before + 80:  # the first of it may take room that the process had left
                break
            garbage: list[object] = [bytes(1 << 20)]
            garbage[0] = (bytearray(b"1") * (1 << 20), garbage)
        del garbage
        assert resident_mb() > before + 80
        assert held.collect_if_grown()
        assert resident_mb() < before + 40
    finally:
        if was_on:
            gc.enable()
    assert not held.collect_if_grown()
