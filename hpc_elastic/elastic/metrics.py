"""The metrics of torch's agent as values: how a run went, what state a group is in, how long each step took."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpc_elastic.rundir.records import WorkerState

METRIC_GROUP = "torchelastic"

# The steps that are measured, and the functions of torch's agent that are marked with @prof.
STEPS: Mapping[str, str] = MappingProxyType(
    {
        "run": "SimpleElasticAgent.run",
        "rendezvous": "SimpleElasticAgent._rendezvous",
        "assign_worker_ranks": "SimpleElasticAgent._assign_worker_ranks",
        "initialize_workers": "SimpleElasticAgent._initialize_workers",
        "restart_workers": "SimpleElasticAgent._restart_workers",
        "start_workers": "LocalElasticAgent._start_workers",
        "stop_workers": "LocalElasticAgent._stop_workers",
        "monitor_workers": "LocalElasticAgent._monitor_workers",
    }
)


def run_metrics(role: str, *, max_restarts: int, restarts: int, is_failed: bool) -> dict[str, float]:
    """Return the metrics of a run's end, as torch's `_record_metrics`: exactly one of its four outcomes is 1.

    Args:
        role: the role's name.
        max_restarts: how many restarts the run may use.
        restarts: how many it used.
        is_failed: whether its workers failed.
    """
    has_retries = restarts > 0
    values = {
        "flakiness": flakiness(max_restarts=max_restarts, restarts=restarts, is_failed=is_failed),
        "run_total": 1,
        "run_success_with_retries": int(not is_failed and has_retries),
        "run_success_no_retries": int(not is_failed and not has_retries),
        "run_failed_with_retries": int(is_failed and has_retries),
        "run_failed_no_retries": int(is_failed and not has_retries),
    }
    return {metric_name(role, name): value for name, value in values.items()}


def flakiness(*, max_restarts: int, restarts: int, is_failed: bool) -> int:
    """Return the share of its restarts that a run has spent, in percent: 100 if it failed."""
    if is_failed:
        return 100
    remaining = max_restarts - restarts
    # torch's own order of operations, so that it is rounded alike
    return int(100.0 - 100.0 * (remaining + 1) / (max_restarts + 1))


def state_metrics(role: str, state: WorkerState, *, max_restarts: int, restarts: int) -> dict[str, float]:
    """Return the metrics that torch records at each look at a group, and this package at each change of its state."""
    return {
        metric_name(role, "remaining_restarts"): max(0, max_restarts - restarts),
        metric_name(role, state.name.lower()): 1,
    }


def step_metrics(step: str, *, duration_ms: float, is_success: bool) -> dict[str, float]:
    """Return the metrics of one of `STEPS`: how long it took, and whether it did what it should, as torch's @prof.

    Raises:
        KeyError: there is no such step.
    """
    if step not in STEPS:
        raise KeyError(step)
    return {f"{step}.{'success' if is_success else 'failure'}": 1, f"{step}.duration.ms": round(duration_ms, 3)}


def metric_name(role: str, name: str) -> str:
    """Return the metric's name: `workers.<role>.<name>`."""
    return f"workers.{role}.{name}"
