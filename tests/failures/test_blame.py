"""Whose problem a failure is: the node's, or the user's program."""

from __future__ import annotations

from hpc_elastic.failures.blame import Incident, WhoseProblem, blame_nodes
from hpc_elastic.failures.classes import FailureClass


def an_incident(
    node: str, failure_class: FailureClass, *, run: str = "run-1", attempt: int = 1, time: float = 100.0
) -> Incident:
    line = f"{failure_class.value} on {node}"
    return Incident(node=node, run=run, attempt=attempt, failure_class=failure_class.value, line=line, time=time)


def problem_of(*incidents: Incident) -> WhoseProblem:
    (blamed,) = blame_nodes(incidents)
    return blamed.problem


def test_what_a_healthy_node_does_not_do_is_the_nodes_problem_at_once() -> None:
    for failure_class in (FailureClass.NODE_LOST, FailureClass.CUDA_HARDWARE, FailureClass.UNKILLABLE):
        assert problem_of(an_incident("node1", failure_class)) is WhoseProblem.NODE


def test_an_exception_is_the_users_problem_however_often_it_comes() -> None:
    often = [an_incident("node1", FailureClass.EXCEPTION, run=f"run-{number}") for number in range(9)]
    assert problem_of(*often) is WhoseProblem.USER


def test_a_failure_that_may_be_either_is_the_nodes_problem_in_a_second_run() -> None:
    first = an_incident("node1", FailureClass.SIGNAL)
    again = an_incident("node1", FailureClass.SIGNAL, attempt=2)
    assert problem_of(first, again) is WhoseProblem.USER  # the same run, so perhaps the same program's fault
    assert problem_of(first, an_incident("node1", FailureClass.STALLED, run="run-2")) is WhoseProblem.NODE


def test_a_class_of_a_newer_version_is_no_reason_to_drain() -> None:
    newer = Incident(node="node1", run="run-1", attempt=1, failure_class="gremlins", line="gremlins", time=0.0)
    assert problem_of(newer) is WhoseProblem.USER


def test_the_nodes_to_drain_come_first_and_the_latest_incident_of_each() -> None:
    found = blame_nodes(
        [
            an_incident("node1", FailureClass.EXCEPTION, time=900),
            an_incident("node1", FailureClass.EXCEPTION, time=901),
            an_incident("node2", FailureClass.NODE_LOST, time=100),
            an_incident("node2", FailureClass.NODE_LOST, time=300),
            an_incident("node3", FailureClass.NODE_LOST, time=200),
        ]
    )
    assert [each.node for each in found] == ["node2", "node3", "node1"]
    assert [incident.time for incident in found[0].incidents] == [300, 100]
