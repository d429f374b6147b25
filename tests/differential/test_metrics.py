"""Metrics of a run are torch's: random histories against its `_record_metrics`, and the steps it marks with @prof."""

from __future__ import annotations

import inspect
import random
import re

import pytest

pytest.importorskip("torch", reason="there is no torch")

from torch.distributed.elastic.agent.server import api, local_elastic_agent
from torch.distributed.elastic.metrics import api as torch_metrics

from hpc_elastic.elastic.metrics import METRIC_GROUP, STEPS, run_metrics, step_metrics
from hpc_elastic.integrations.torch_types import to_torch_metric
from hpc_elastic.rundir.records import MetricData
from tests.differential.torch_elastic import captured_metrics, make_agent


def torchs_metrics(role: str, *, max_restarts: int, restarts: int, is_failed: bool) -> dict[str, float]:
    agent = make_agent(role, max_restarts=max_restarts)
    agent._remaining_restarts = max_restarts - restarts
    state = api.WorkerState.FAILED if is_failed else api.WorkerState.SUCCEEDED
    with captured_metrics() as values:
        agent._record_metrics(api.RunResult(state=state))
    return values


@pytest.mark.parametrize("seed", range(10))
def test_run_metrics_are_torchs(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        max_restarts = chance.choice([0, 1, 2, 3, 10, chance.randint(0, 1000)])
        restarts = chance.randint(0, max_restarts)
        is_failed = chance.random() < 0.5
        role = chance.choice(["default", "trainer", "reader"])
        ours = run_metrics(role, max_restarts=max_restarts, restarts=restarts, is_failed=is_failed)
        theirs = torchs_metrics(role, max_restarts=max_restarts, restarts=restarts, is_failed=is_failed)
        assert ours == theirs, (role, max_restarts, restarts, is_failed)


def test_run_metrics_are_torchs_for_every_history_of_up_to_forty_restarts() -> None:
    for max_restarts in range(41):
        for restarts in range(max_restarts + 1):
            ours = run_metrics("default", max_restarts=max_restarts, restarts=restarts, is_failed=False)
            assert ours == torchs_metrics("default", max_restarts=max_restarts, restarts=restarts, is_failed=False)


def marked_with_prof(cls: type) -> set[str]:
    """The functions of a class that torch measures, by their qualified names."""
    names = re.findall(r"^    @prof\n    def (\w+)\(", inspect.getsource(cls), re.M)
    return {f"{cls.__name__}.{name}" for name in names}


def test_the_steps_are_those_that_torch_marks_with_prof() -> None:
    simple = marked_with_prof(api.SimpleElasticAgent)
    local = marked_with_prof(local_elastic_agent.LocalElasticAgent)
    assert set(STEPS.values()) == simple | local
    assert all(theirs.rpartition(".")[2].lstrip("_") == ours for ours, theirs in STEPS.items())


@pytest.mark.parametrize("is_success", [True, False])
def test_a_step_has_the_metrics_of_prof(is_success: bool) -> None:
    def rendezvous() -> None:
        if not is_success:
            raise RuntimeError("no")

    with captured_metrics() as theirs:
        try:
            torch_metrics.prof(rendezvous)()
        except RuntimeError:
            assert not is_success
    ends = {name.partition("rendezvous")[2] for name in theirs}
    ours = step_metrics("rendezvous", duration_ms=1.0, is_success=is_success)
    assert {name.partition("rendezvous")[2] for name in ours} == ends


def test_metric_data_has_torchs_fields_and_group() -> None:
    metric = MetricData(
        timestamp=1.5,
        group_name=METRIC_GROUP,
        name="run.success",
        value=1,
        run="digits",
        node="node1",
        attempt=1,
        role="default",
    )
    assert to_torch_metric(metric) == (1.5, "torchelastic", "run.success", 1)
    assert inspect.signature(torch_metrics.put_metric).parameters["metric_group"].default == METRIC_GROUP
