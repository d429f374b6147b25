"""Some trials of the guard, and one that must fail: `make soak-guard` does a thousand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.clock import now
from tests.soak.guard_trials import (
    TURN_S,
    Fault,
    Outcome,
    Trial,
    measure_start,
    play,
    play_soundly,
    waits_for_processors_s,
)

A_TRIAL = Trial(seed=0, fault=Fault.FROZEN, step=1, deadline_s=1.5, kills_guard_s=0.1, is_blocked=True)


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.FROZEN, Fault.GUARD_KILLED])
def test_no_worker_outlives_its_deadline(tmp_path: Path, fault: Fault) -> None:
    """On a busy machine a worker takes seconds to begin: its deadline is after that."""
    steps, beat_s = measure_start(tmp_path)
    outcome = play_soundly(replace(A_TRIAL, fault=fault, step=steps, deadline_s=1 + 3 * beat_s), tmp_path)
    assert outcome.late_s is not None, "no worker ran"
    assert not outcome.is_broken, outcome


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
@pytest.mark.long
def test_a_trial_notices_workers_that_nobody_ends(tmp_path: Path) -> None:
    """The agent is frozen when they have started, and then its guard is killed.

    A worker that has not begun by its deadline ends by itself: on a busy machine it takes seconds to begin.
    """
    steps, beat_s = measure_start(tmp_path)
    trial = replace(A_TRIAL, fault=Fault.UNGUARDED, step=2 * steps, deadline_s=1 + 3 * beat_s)
    outcome = play(trial, tmp_path)
    assert outcome.left
    assert outcome.is_broken


@pytest.mark.skipif(waits_for_processors_s() == 0, reason="the kernel does not account for it (psi=1)")
def test_a_machine_without_a_processor_for_the_guard_is_told_from_a_late_guard() -> None:
    """So many processes that work as that one of them has to wait, which one that sleeps would not notice."""
    before, since = waits_for_processors_s(), now()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1) + 1)]
    try:
        while (waited_s := waits_for_processors_s() - before) <= TURN_S:
            assert now() < since + 30, f"{waited_s} s in 30 s of too much work"
            time.sleep(0.05)
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("late_s", "waited_s", "is_sound"), [(0.3, 0.01, True), (0.3, 0.1, False), (0.7, 0.1, True)])
def test_a_guard_that_is_later_than_processes_waited_is_not_excused(
    late_s: float, waited_s: float, is_sound: bool
) -> None:
    outcome = Outcome(trial=A_TRIAL, late_s=late_s, left=(), words=(), waited_s=waited_s)
    assert outcome.is_broken
    assert outcome.is_sound is is_sound
