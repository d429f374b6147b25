"""Some trials of the guard, and one that must fail: `make soak-guard` does a thousand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.guard_trials import Fault, Trial, count_steps, play

A_TRIAL = Trial(seed=0, fault=Fault.FROZEN, step=1, deadline_s=1.5, kills_guard_s=0.1, is_blocked=True)


@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.FROZEN, Fault.GUARD_KILLED])
def test_no_worker_outlives_its_deadline(tmp_path: Path, fault: Fault) -> None:
    steps = count_steps(tmp_path)
    outcome = play(replace(A_TRIAL, fault=fault, step=steps), tmp_path)
    assert outcome.late_s is not None, "no worker ran"
    assert not outcome.is_broken, outcome


@pytest.mark.long
def test_a_trial_notices_workers_that_nobody_ends(tmp_path: Path) -> None:
    """The agent is frozen when they have started, and then its guard is killed.

    A worker that has not begun by its deadline ends by itself: on a busy machine it takes seconds to begin.
    """
    outcome = play(replace(A_TRIAL, fault=Fault.UNGUARDED, step=2 * count_steps(tmp_path), deadline_s=12.0), tmp_path)
    assert outcome.left
    assert outcome.is_broken
