"""Runs that are played in children say there what they say in this process; a child that dies is no end of a run."""

from __future__ import annotations

import gc
import os
import signal
import weakref

import pytest

from tests.simulation.draws.kinds import DRAWN_ANYHOW, KINDS
from tests.simulation.garbage import Held, in_children, resident_mb
from tests.simulation.world import SimulatedRun

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def test_each_seed_is_played_once_and_in_order() -> None:
    assert list(in_children(range(5), lambda seed: (seed, seed * seed))) == [(seed, seed * seed) for seed in range(5)]


def test_another_child_goes_on_if_one_has_grown() -> None:
    played = list(in_children(range(3), lambda seed: (seed, os.getpid()), grows_by_mb=-1e6))
    assert [seed for seed, _ in played] == [0, 1, 2]
    assert len({pid for _, pid in played} - {os.getpid()}) == 3


def test_a_seed_whose_child_dies_is_named() -> None:
    def play(seed: int) -> int:
        if seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return seed

    with pytest.raises(RuntimeError, match="seed 2"):
        list(in_children(range(4), play))


def test_an_error_in_a_child_is_told_and_names_its_seed(capfd: pytest.CaptureFixture[str]) -> None:
    def play(seed: int) -> int:
        raise ValueError(f"of seed {seed}")

    with pytest.raises(RuntimeError, match="seed 0"):
        list(in_children(range(4), play))
    assert "ValueError: of seed 0" in capfd.readouterr().err


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
    gc.collect()
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
