"""Some trials of the guard, and one that must fail: `make soak-guard` does a thousand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.guard_trials import Fault, Trial, measure_start, play, play_soundly

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
