"""Results are all or nothing, and failed in torch's sense only if a worker failed."""

from __future__ import annotations

import pytest

from hpc_elastic.rundir.records import RunResultRecord, RunState, WorkerState
from tests.elastic.builders import node_record


def run_record(state: RunState) -> RunResultRecord:
    return RunResultRecord(
        run="digits",
        state=state,
        exit_code=0,
        reason="succeeded",
        cause="",
        attempts=1,
        restarts=0,
        failures={},
        return_values={},
        nodes=(),
        started=None,
        ended="",
        written_by="login",
    )


@pytest.mark.parametrize("state", list(WorkerState))
def test_node_has_failed_if_its_state_is_failed(state: WorkerState) -> None:
    assert node_record(state).is_failed() == (state.name == "FAILED")


@pytest.mark.parametrize("state", list(RunState))
def test_run_has_failed_if_its_state_is_failed(state: RunState) -> None:
    assert run_record(state).is_failed() == (state.name == "FAILED")
