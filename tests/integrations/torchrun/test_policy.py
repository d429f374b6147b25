"""What is decided about failures: the budget is torchrun's."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.integrations.torchrun.policy import TorchrunPolicy
from hpc_elastic.integrations.torchrun.settings import UNBOUNDED
from hpc_elastic.membership.decisions import Finish, History, Observation, RestartWorkers, Trigger
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.observe.narrate import NO_LIMIT
from hpc_elastic.rundir.records import FailureRecord, RunState, Spend

POLICY = TorchrunPolicy(restart=UNBOUNDED)
FAILURE = FailureRecord(
    rank=5,
    local_rank=1,
    role="default",
    node="node2",
    attempt=3,
    pid=4711,
    exitcode=1,
    signal_name=None,
    error_file="/run/error.json",
    message="ValueError: no data",
    timestamp=1.0,
    failure_class="exception",
)


def test_a_torchrun_that_restarts_makes_all_restart_without_a_pause_however_often() -> None:
    seen = Observation(trigger=Trigger.NODE_BROKEN, attempt=3, nodes=("node2",), detail="a worker failed")
    decision = POLICY.decide(History(attempts=3, spend=Spend(restarts=NO_LIMIT)), seen, 7.0)
    assert isinstance(decision, RestartWorkers)
    assert (decision.at, decision.manner, decision.roles) == (7.0, StopManner.RESTART, None)
    assert decision.history.spend.restarts == NO_LIMIT + 1
    assert decision.reason == "node2: a worker failed"


def test_a_failure_without_a_restart_left_ends_the_run_with_its_cause() -> None:
    seen = Observation(trigger=Trigger.WORKER_FAILED, attempt=3, failure=FAILURE)
    decision = POLICY.decide(History(attempts=3), seen, 7.0)
    assert isinstance(decision, Finish)
    assert (decision.state, int(decision.exit_code), decision.reason) == (RunState.FAILED, 1, "restarts_used_up")
    assert decision.cause.startswith("rank 5 on node2 failed with exit code 1: ValueError: no data")


def test_workers_that_cannot_be_started_are_said_to_be_that() -> None:
    failure = replace(FAILURE, pid=0, failure_class="start_failed", message="FileNotFoundError: trian.py")
    seen = Observation(trigger=Trigger.WORKER_FAILED, attempt=1, failure=failure)
    decision = POLICY.decide(History(attempts=1), seen, 7.0)
    assert isinstance(decision, Finish)
    assert decision.reason == "start_failed"
    assert decision.cause == "rank 5 on node2 could not be started: FileNotFoundError: trian.py"


def test_a_lost_node_spends_nothing_while_enough_are_left() -> None:
    lost = Observation(trigger=Trigger.NODE_LOST, attempt=3, nodes=("node2",), detail="no answer", is_enough=True)
    decision = POLICY.decide(History(attempts=3), lost, 7.0)
    assert isinstance(decision, RestartWorkers)
    assert (decision.manner, decision.history.spend.restarts) == (StopManner.FENCE, 0)
