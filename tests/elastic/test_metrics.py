"""Metrics of runs and steps: torch's own examples, and what must hold of every history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.elastic import WorkerState
from hpc_elastic.elastic.metrics import STEPS, flakiness, run_metrics, state_metrics, step_metrics

KINDS = ("run_success_with_retries", "run_success_no_retries", "run_failed_with_retries", "run_failed_no_retries")


@pytest.mark.parametrize(
    ("max_restarts", "restarts", "is_failed", "percent"),
    [(1, 0, False, 0), (10, 7, False, 63), (0, 0, False, 0), (1, 0, True, 100), (3, 3, False, 75)],
)
def test_flakiness_of_torchs_examples(max_restarts: int, restarts: int, is_failed: bool, percent: int) -> None:
    assert flakiness(max_restarts=max_restarts, restarts=restarts, is_failed=is_failed) == percent


@pytest.mark.parametrize(
    ("restarts", "is_failed", "kind"),
    [(8, False, KINDS[0]), (0, False, KINDS[1]), (8, True, KINDS[2]), (0, True, KINDS[3])],
)
def test_run_is_of_one_kind(restarts: int, is_failed: bool, kind: str) -> None:
    values = run_metrics("trainer", max_restarts=10, restarts=restarts, is_failed=is_failed)
    assert {name for name in KINDS if values[f"workers.trainer.{name}"]} == {kind}
    assert values["workers.trainer.run_total"] == 1


@given(st.integers(0, 50).flatmap(lambda limit: st.tuples(st.just(limit), st.integers(0, limit))), st.booleans())
def test_flakiness_is_a_percentage_that_grows_with_restarts(history: tuple[int, int], is_failed: bool) -> None:
    max_restarts, restarts = history
    values = [flakiness(max_restarts=max_restarts, restarts=used, is_failed=is_failed) for used in range(restarts + 1)]
    assert values == sorted(values)
    assert all(0 <= value <= 100 for value in values)


def test_state_of_a_group_is_a_metric_of_its_own() -> None:
    assert state_metrics("trainer", WorkerState.HEALTHY, max_restarts=3, restarts=1) == {
        "workers.trainer.remaining_restarts": 2,
        "workers.trainer.healthy": 1,
    }


def test_step_says_how_long_it_took_and_how_it_went() -> None:
    assert step_metrics("rendezvous", duration_ms=12.34567, is_success=True) == {
        "rendezvous.success": 1,
        "rendezvous.duration.ms": 12.346,
    }
    assert "stop_workers.failure" in step_metrics("stop_workers", duration_ms=1, is_success=False)


def test_step_rejects_what_is_not_measured() -> None:
    with pytest.raises(KeyError):
        step_metrics("rendezvouz", duration_ms=1, is_success=True)


def test_eight_steps_are_measured() -> None:
    assert set(STEPS) == {
        *("run", "rendezvous", "assign_worker_ranks", "initialize_workers", "restart_workers"),
        *("start_workers", "stop_workers", "monitor_workers"),
    }
