"""Events of a worker group's life have torch's names and keys, and say how each worker ended."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.codec import from_json, to_json
from hpc_elastic.elastic import Event, EventSource, WorkerState, construct_event
from hpc_elastic.elastic.events import (
    GROUP_KEYS,
    METADATA_KEYS,
    RENDEZVOUS,
    START,
    TERMINATED,
    WORKER_KEYS,
    worker_events,
)
from tests.elastic.builders import MOMENT, make_failure, make_group, node_record


def test_event_of_a_worker_says_who_it_is_about() -> None:
    group = make_group()
    event = construct_event(
        group, MOMENT, state=START, source=EventSource.WORKER, worker=group.workers[1], worker_pid=101
    )
    assert (event.name, event.source) == ("torchelastic.worker.status.START", "WORKER")
    assert (event.time_ns, event.run, event.node, event.allocation, event.attempt) == (
        *(7_000_000_000, "digits", "node1"),
        *(1, 3),
    )
    assert event.metadata == {
        "run_id": "digits",
        "global_rank": 5,
        "group_rank": 1,
        "worker_id": "101",
        "role": "trainer",
        "hostname": "node1.cluster",
        "state": "START",
        "total_run_time": 12,
        "rdzv_backend": "hpc-elastic",
        "raw_error": None,
        "metadata": event.metadata["metadata"],
        "agent_restarts": 2,
        "duration_ms": None,
    }
    assert json.loads(event.metadata["metadata"]) == {
        "group_world_size": 3,
        "entry_point": "train.py",
        "local_rank": [1],
        "role_rank": [3],
        "role_world_size": [4],
        "exit_code": [None],
        "worker_pid": [101],
    }


def test_event_of_the_agent_is_about_no_worker() -> None:
    event = construct_event(make_group(), MOMENT, state=RENDEZVOUS, source=EventSource.AGENT, duration_ms=41.5)
    assert (event.name, event.source) == ("torchelastic.worker.status.RENDEZVOUS", "AGENT")
    assert (event.metadata["global_rank"], event.metadata["worker_id"]) == (None, None)
    assert event.metadata["duration_ms"] == 41.5
    assert tuple(json.loads(event.metadata["metadata"])) == GROUP_KEYS
    assert event.message == "trainer: RENDEZVOUS took 42 ms"


def test_keys_are_those_that_are_promised() -> None:
    group = make_group()
    event = construct_event(group, MOMENT, state=START, source=EventSource.WORKER, worker=group.workers[0])
    assert tuple(event.metadata) == METADATA_KEYS
    assert tuple(json.loads(event.metadata["metadata"])) == GROUP_KEYS + WORKER_KEYS


def ended(state: WorkerState, *, failed: tuple[int, ...] = (), exitcode: int = 1) -> list[tuple[str, object, object]]:
    """Of each worker: the event's state, and the exit code and raw error in it."""
    failures = {str(rank): make_failure(rank, exitcode=exitcode) for rank in failed}
    errors = {str(rank): f'{{"rank": {rank}}}' for rank in (4, 5)}
    events = worker_events(make_group(), MOMENT, node_record(state, failures=failures), errors=errors)
    assert all(event.source is EventSource.WORKER for event in events)
    assert [event.metadata["global_rank"] for event in events] == [4, 5]
    assert all(event.name.endswith(str(event.metadata["state"])) for event in events)
    details = [json.loads(event.metadata["metadata"]) for event in events]
    return [
        (str(event.metadata["state"]), detail["exit_code"][0], event.metadata["raw_error"])
        for event, detail in zip(events, details, strict=True)
    ]


def test_workers_succeed_together() -> None:
    assert ended(WorkerState.SUCCEEDED) == [("SUCCEEDED", None, None), ("SUCCEEDED", None, None)]


@pytest.mark.parametrize("exitcode", [1, -9])
def test_a_worker_that_failed_is_told_from_one_that_the_agent_stopped(exitcode: int) -> None:
    assert ended(WorkerState.FAILED, failed=(5,), exitcode=exitcode) == [
        (TERMINATED, None, None),
        ("FAILED", exitcode, '{"rank": 5}'),
    ]


def test_workers_of_a_group_that_was_stopped_were_terminated() -> None:
    assert ended(WorkerState.STOPPED) == [(TERMINATED, None, None), (TERMINATED, None, None)]


def test_event_comes_back_from_its_record() -> None:
    event = construct_event(make_group(), MOMENT, state="SUCCEEDED", source=EventSource.AGENT)
    assert from_json(Event, json.loads(json.dumps(to_json(event)))) == event


def test_an_event_without_a_source_is_still_one() -> None:
    """Events of ours have none, and files of before have no such field."""
    old = {"format_version": 1, "time_ns": 1, "run": "r", "node": "n", "allocation": 1, "attempt": 1}
    event = from_json(Event, {**old, "name": "node.joined", "message": "", "metadata": {}})
    assert event.source is None
    assert to_json(event)["source"] is None
