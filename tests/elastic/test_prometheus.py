"""The Prometheus text file is read by Prometheus's own parser, whatever the names in it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from hpc_elastic.elastic import WorkerState
from hpc_elastic.elastic.metrics import run_metrics, state_metrics
from hpc_elastic.elastic.prometheus import RoleSample, TimeSample, render_textfile


def sample(*, role: str = "trainer", run: str = "digits", node: str = "node1") -> RoleSample:
    return RoleSample(
        run=run,
        role=role,
        node=node,
        values={
            **run_metrics(role, max_restarts=3, restarts=1, is_failed=False),
            **state_metrics(role, WorkerState.SUCCEEDED, max_restarts=3, restarts=1),
        },
        state=WorkerState.SUCCEEDED,
        durations_ms={"run": 12345.678, "rendezvous": 0.5},
        counts={"run": (1, 0), "rendezvous": (2, 0), "start_workers": (1, 1)},
    )


def parse(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family: Metric, **labels: str) -> float:
    """The value of the one sample with these labels."""
    (found,) = [sample for sample in family.samples if labels.items() <= sample.labels.items()]
    return float(found.value)


def test_file_has_every_family_with_type_and_help() -> None:
    families = parse(render_textfile([sample()]))
    assert {name: family.type for name, family in families.items()} == {
        "hpc_elastic_workers_run": "counter",  # the parser takes `_total` off
        "hpc_elastic_workers_run_success_with_retries": "gauge",
        "hpc_elastic_workers_run_success_no_retries": "gauge",
        "hpc_elastic_workers_run_failed_with_retries": "gauge",
        "hpc_elastic_workers_run_failed_no_retries": "gauge",
        "hpc_elastic_workers_flakiness": "gauge",
        "hpc_elastic_workers_remaining_restarts": "gauge",
        "hpc_elastic_workers_state": "gauge",
        "hpc_elastic_step_duration_seconds": "gauge",
        "hpc_elastic_steps": "counter",
    }
    assert all(family.documentation for family in families.values())


def test_file_has_the_values_with_run_role_and_node() -> None:
    families = parse(render_textfile([sample()]))
    labels = {"run": "digits", "role": "trainer", "node": "node1"}
    assert value(families["hpc_elastic_workers_flakiness"], **labels) == 25
    assert value(families["hpc_elastic_workers_remaining_restarts"], **labels) == 2
    assert value(families["hpc_elastic_workers_run_success_with_retries"], **labels) == 1
    assert value(families["hpc_elastic_step_duration_seconds"], step="run") == 12.345678
    assert value(families["hpc_elastic_steps"], step="start_workers", outcome="failure") == 1


def test_exactly_the_state_of_the_group_is_one() -> None:
    family = parse(render_textfile([sample()]))["hpc_elastic_workers_state"]
    assert {found.labels["state"]: found.value for found in family.samples} == {
        **{state.name.lower(): 0.0 for state in WorkerState},
        "succeeded": 1.0,
    }


def test_roles_share_each_family() -> None:
    """A family that stands twice in a file is refused by Prometheus."""
    text = render_textfile([sample(role="trainer"), sample(role="reader")])
    heads = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(heads) == len(set(heads))
    family = parse(text)["hpc_elastic_workers_flakiness"]
    assert [found.labels["role"] for found in family.samples] == ["trainer", "reader"]


def test_what_is_not_known_yet_has_no_family() -> None:
    assert render_textfile([RoleSample(run="digits", role="trainer", node="node1")]) == ""


def test_the_time_of_the_run_has_a_line_for_each_use_and_no_role() -> None:
    spent = TimeSample(run="digits", node="node1", seconds={"training": 12.5, "stalled": 0.0}, share=0.75)
    families = parse(render_textfile([], spent))
    uses = families["hpc_elastic_time_use_seconds"]
    assert uses.type == "gauge"
    assert [(each.labels, each.value) for each in uses.samples] == [
        ({"run": "digits", "node": "node1", "use": "training"}, 12.5),
        ({"run": "digits", "node": "node1", "use": "stalled"}, 0.0),
    ]
    assert value(families["hpc_elastic_useful_time_ratio"], run="digits") == 0.75


any_text = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters='\n\r\t"\\'), min_size=1)


@given(run=any_text, role=any_text, node=any_text)
def test_labels_come_back_whatever_is_in_them(run: str, role: str, node: str) -> None:
    family = parse(render_textfile([sample(run=run, role=role, node=node)]))["hpc_elastic_workers_flakiness"]
    assert family.samples[0].labels == {"run": run, "role": role, "node": node}
