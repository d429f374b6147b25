"""Enum members, fields and texts are those of the installed torch; what we leave out is left out by name."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="there is no torch")

from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.events import api as events
from torch.distributed.elastic.multiprocessing.api import Std as TorchStd
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from hpc_elastic.elastic import Std, Worker, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.elastic.events import construct_event, worker_state
from hpc_elastic.integrations import torch_types
from hpc_elastic.rundir.error_file import FailedWorker, build_error
from hpc_elastic.rundir.records import Event, EventSource, FailureRecord, NodeResult, RunResultRecord, RunState
from tests.differential.torch_elastic import make_agent
from tests.elastic.builders import MOMENT, make_failure, make_group, node_record

# Fields of torch's WorkerSpec that ours has not, and what there is instead.
NOT_IN_OUR_SPEC = {
    "rdzv_handler": "the agents' membership, which needs no handler",
    "fn": "entrypoint; deprecated in torch too",
    "event_log_handler": "events.jsonl, always",
    "numa_options": "the key binding of job.yaml",
    "virtual_local_rank": "nothing yet",
}
# Fields of ours that torch has in another place.
MOVED_IN_TORCH = {"redirects", "tee"}  # to LogsSpecs


def names_of(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(WorkerState, api.WorkerState), (EventSource, events.EventSource), (Std, TorchStd)]
)
def test_enum_has_torchs_members_and_values(ours: type[Enum], theirs: type[Enum]) -> None:
    assert {name: member.value for name, member in ours.__members__.items()} == {
        name: member.value for name, member in theirs.__members__.items()
    }


@pytest.mark.parametrize("state", list(WorkerState))
def test_states_that_are_running_are_torchs(state: WorkerState) -> None:
    theirs = torch_types.to_torch_state(state)
    assert state.is_running == WorkerState.is_running(state) == api.WorkerState.is_running(theirs)
    assert torch_types.from_torch_state(theirs) is state


def test_spec_has_torchs_fields_but_for_those_named() -> None:
    assert names_of(WorkerSpec) - MOVED_IN_TORCH == names_of(api.WorkerSpec) - set(NOT_IN_OUR_SPEC)
    assert set(NOT_IN_OUR_SPEC) < names_of(api.WorkerSpec)


def test_spec_has_torchs_defaults() -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(api.WorkerSpec)}
    empty = {"duplicate_stdout_filters": (), "duplicate_stderr_filters": ()}  # None there
    for field in dataclasses.fields(WorkerSpec):
        if field.default is not dataclasses.MISSING and field.name not in MOVED_IN_TORCH:
            assert field.default == empty.get(field.name, theirs[field.name]), field.name


@pytest.mark.parametrize("entrypoint", [make_agent, "/opt/bin/train.py", "echo", json.JSONDecoder.decode])
def test_entrypoint_name_is_torchs(entrypoint: Any) -> None:
    theirs = api.WorkerSpec(role="r", local_world_size=1, rdzv_handler=None, entrypoint=entrypoint)
    ours = WorkerSpec(role="r", local_world_size=1, entrypoint=entrypoint)
    assert ours.get_entrypoint_name() == theirs.get_entrypoint_name()


def test_worker_has_torchs_fields_and_text() -> None:
    assert names_of(Worker) == set(api.Worker.__slots__)
    worker = Worker(1, global_rank=5, role_rank=3, world_size=8, role_world_size=4, id=77)
    theirs = torch_types.to_torch_worker(worker)
    assert (str(worker), repr(worker)) == (str(theirs), repr(theirs))
    assert torch_types.from_torch_worker(theirs) == worker
    assert str(Worker(0)) == str(api.Worker(0))


def test_group_has_torchs_fields_and_first_values() -> None:
    assert names_of(WorkerGroup) == set(api.WorkerGroup.__slots__)
    ours = WorkerGroup(WorkerSpec(role="r", local_world_size=2, entrypoint="train.py"))
    theirs = make_agent("r", 2).get_worker_group()
    for name in names_of(WorkerGroup) - {"spec", "workers", "state"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert torch_types.to_torch_state(ours.state) == theirs.state
    assert list(map(str, ours.workers)) == list(map(str, theirs.workers))


@pytest.mark.parametrize("cls", [NodeResult, RunResultRecord])
def test_results_have_torchs_fields(cls: type) -> None:
    assert names_of(api.RunResult) <= names_of(cls)


@pytest.mark.parametrize("state", list(WorkerState))
def test_result_has_failed_if_torchs_has(state: WorkerState) -> None:
    record = node_record(state)
    assert record.is_failed() == torch_types.to_torch_result(record).is_failed()


def run_record(state: RunState) -> RunResultRecord:
    return RunResultRecord(
        run="digits",
        state=state,
        exit_code=1,
        reason="restarts_used_up",
        cause="",
        attempts=1,
        restarts=0,
        failures={"5": make_failure(5)} if state is RunState.FAILED else {},
        return_values={"0": "attempts/0001/ranks/00000/return_value.pkl"} if state is RunState.SUCCEEDED else {},
        nodes=("node1",),
        started=None,
        ended="",
        written_by="node1",
    )


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (RunState.SUCCEEDED, "SUCCEEDED"),
        (RunState.FAILED, "FAILED"),
        (RunState.CANCELLED, "STOPPED"),
        (RunState.UNKNOWN, "UNKNOWN"),
    ],
)
def test_runs_result_becomes_torchs(state: RunState, name: str) -> None:
    record = run_record(state)
    theirs = torch_types.to_torch_result(record, {0: 7} if name == "SUCCEEDED" else None)
    assert theirs.state == api.WorkerState[name]
    assert theirs.is_failed() == record.is_failed()
    assert theirs.return_values == ({0: 7} if name == "SUCCEEDED" else {})
    assert list(theirs.failures) == ([5] if name == "FAILED" else [])


def test_a_node_that_succeeded_has_a_value_for_each_rank_as_in_torch() -> None:
    theirs = torch_types.to_torch_result(node_record(WorkerState.SUCCEEDED))
    assert theirs == api.RunResult(state=api.WorkerState.SUCCEEDED, return_values={4: None, 5: None})


# Failures.


def test_failure_has_torchs_fields() -> None:
    read_from_the_file = {"error_file_data"}
    assert names_of(ProcessFailure) - read_from_the_file <= names_of(FailureRecord)
    assert callable(ProcessFailure.signal_name)
    assert "signal_name" in names_of(FailureRecord)


@pytest.mark.parametrize(("exitcode", "signal_name"), [(1, None), (-9, "SIGKILL")])
def test_failure_without_an_error_file_keeps_its_message_and_time(exitcode: int, signal_name: str | None) -> None:
    record = make_failure(5, exitcode=exitcode)
    theirs = torch_types.to_torch_failure(record)
    assert (theirs.local_rank, theirs.pid, theirs.exitcode) == (record.local_rank, record.pid, exitcode)
    assert (theirs.message, theirs.timestamp) == ("it broke", 1795177528)
    assert theirs.signal_name() == (signal_name or "<N/A>")
    back = torch_types.from_torch_failure(theirs, rank=5, role="trainer", node="node1", attempt=3)
    assert (back.signal_name, back.exitcode, back.message) == (signal_name, exitcode, "it broke")
    assert back.timestamp == int(record.timestamp)


def test_failure_with_our_error_file_is_read_by_torch(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    who = FailedWorker(rank=5, local_rank=1, pid=101, node="node1", attempt=3)
    error = build_error(
        who,
        failure_class="exception",
        message="ValueError: a cosmic ray",
        time_ns=1_795_177_528_000_000_000,
        exit_code=1,
        signal_name=None,
        stderr_tail="",
        callstack="Traceback (most recent call last):\nValueError: a cosmic ray",
    )
    path.write_text(json.dumps(error))
    theirs = torch_types.to_torch_failure(make_failure(5, error_file=str(path)))
    assert theirs.error_file_data == error
    assert theirs.timestamp == 1795177528
    assert "a cosmic ray" in str(ChildFailedError("train.py", {5: theirs}))
    back = torch_types.from_torch_failure(theirs, rank=5, role="trainer", node="node1", attempt=3)
    assert (back.message, back.error_file, back.failure_class) == ("ValueError: a cosmic ray", str(path), "exception")


# Events.


class Handler:
    """As much of a rendezvous handler as an event asks for."""

    def get_run_id(self) -> str:
        return MOMENT.run

    def get_backend(self) -> str:
        return "hpc-elastic"


def torchs_agent() -> Any:
    """torch's agent with the group of `make_group`, so far as its events go."""
    ours = make_group()
    agent = make_agent("trainer", 2)
    agent._remaining_restarts = 3 - MOMENT.restarts
    agent._total_execution_time = int(MOMENT.run_time_s)
    group = agent._worker_group
    group.spec.rdzv_handler = Handler()
    group.workers = [torch_types.to_torch_worker(worker) for worker in ours.workers]
    group.group_rank, group.group_world_size = ours.group_rank, ours.group_world_size
    return agent


@pytest.mark.parametrize("source", list(EventSource))
@pytest.mark.parametrize("state", ["START", "SUCCEEDED", "FAILED", "TERMINATED", "RENDEZVOUS", "ASSIGN_WORKER_RANKS"])
def test_event_is_torchs_but_for_the_host(state: str, source: EventSource) -> None:
    group, agent = make_group(), torchs_agent()
    given: dict[str, Any] = {"state": state, "raw_error": "{}", "duration_ms": 1.5, "exit_code": -9, "worker_pid": 100}
    is_of_worker = source is EventSource.WORKER
    ours = construct_event(group, MOMENT, source=source, worker=group.workers[0] if is_of_worker else None, **given)
    worker = agent._worker_group.workers[0] if is_of_worker else None
    theirs = agent._construct_event(source=events.EventSource[source.name], worker=worker, **given)
    made = torch_types.to_torch_event(ours)
    assert (made.name, made.source) == (theirs.name, theirs.source)
    assert {**made.metadata, "hostname": ""} == {**theirs.metadata, "hostname": ""}
    assert list(made.metadata) == list(theirs.metadata)
    assert events.Event.deserialize(made.serialize()) == made


def test_event_comes_back_from_torch() -> None:
    ours = construct_event(make_group(), MOMENT, state="SUCCEEDED", source=EventSource.AGENT)
    back = torch_types.from_torch_event(
        torch_types.to_torch_event(ours), run=ours.run, node=ours.node, allocation=1, attempt=3
    )
    assert dataclasses.replace(back, message=ours.message) == ours


def test_an_event_that_torch_has_not_is_refused() -> None:
    event = Event(time_ns=1, run="r", node="n", allocation=1, attempt=1, name="node.joined", message="")
    with pytest.raises(ValueError, match=r"node\.joined: expected an event of a worker group's life"):
        torch_types.to_torch_event(event)


@pytest.mark.parametrize("failed", [(), (4,), (5,), (4, 5)])
def test_workers_end_as_in_torch(failed: tuple[int, ...]) -> None:
    state = WorkerState.FAILED if failed else WorkerState.SUCCEEDED
    record = node_record(state, failures={str(rank): make_failure(rank) for rank in failed})
    theirs = torch_types.to_torch_result(record)
    agent = torchs_agent()
    for ours, worker in zip(make_group().workers, agent._worker_group.workers, strict=True):
        assert worker_state(ours, record) == agent._get_worker_state(worker, theirs)
