"""The installed torch's elastic agent, as far as it can be asked without a rendezvous and without workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.metrics import api as metrics


class Agent(api.SimpleElasticAgent):  # type: ignore[misc]
    """torch's agent with the parts left out that its subclasses add."""

    def _start_workers(self, worker_group: Any) -> dict[int, Any]:
        raise NotImplementedError

    def _stop_workers(self, worker_group: Any) -> None:
        raise NotImplementedError

    def _monitor_workers(self, worker_group: Any) -> Any:
        raise NotImplementedError

    def _shutdown(self, death_sig: Any = None, timeout: int = 30) -> None:
        raise NotImplementedError


def make_agent(role: str, workers: int = 1, *, max_restarts: int = 3) -> Agent:
    """An agent for these workers; it has no rendezvous handler."""
    spec = api.WorkerSpec(
        role=role, local_world_size=workers, rdzv_handler=None, entrypoint="train.py", max_restarts=max_restarts
    )
    return Agent(spec)


def assign_worker_ranks(agents: list[tuple[str, int]]) -> list[list[Any]]:
    """The workers of each agent, by `_assign_worker_ranks` over one HashStore.

    torch's agent of rank 0 waits for the others' records, and they wait for its answer. So that no
    threads are needed, the records are in the store before the first one is asked, as each agent writes it.

    Args:
        agents: role and number of workers by group rank.
    """
    store = dist.HashStore()
    for rank, (role, workers) in enumerate(agents):
        store.set(f"torchelastic/role_info/{rank}", api._RoleInstanceInfo(role, rank, workers).serialize())
    assigned = []
    for rank, (role, workers) in enumerate(agents):
        agent = make_agent(role, workers)
        assigned.append(agent._assign_worker_ranks(store, rank, len(agents), agent._worker_group.spec))
    return assigned


class Captured(metrics.MetricHandler):  # type: ignore[misc]
    """The values that were put, by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def emit(self, metric_data: Any) -> None:
        """Takes one."""
        self.values[metric_data.name] = metric_data.value


@contextmanager
def captured_metrics() -> Iterator[dict[str, float]]:
    """What torch's `put_metric` is called with meanwhile, by name."""
    handler = Captured()
    before = metrics._default_metrics_handler
    metrics.configure(handler)
    try:
        yield handler.values
    finally:
        metrics.configure(before)
