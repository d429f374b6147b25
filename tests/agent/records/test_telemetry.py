"""A node's agent tells of its workers as torch's does: what a real Member asks for, played through its life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry, record_crash
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.elastic import WorkerState
from hpc_elastic.membership.actions import Action, Leave, WriteNodeResult
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import End, Stop, StopManner, Welcome
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import RunResultRecord, RunState
from hpc_elastic.rundir.store import read_lines, write_json
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_failure, a_join, an_assign
from tests.plans import make_role, make_run_plan

PLACE = Allocation(job_id="42", restart_count=0, array_task=None, node_id=0, nodes=("node0", "node1"), is_local=False)


class Node:
    """One node with two workers: its member, and what its agent tells; the clock is the test's."""

    def __init__(self, root: Path, **plan: Any) -> None:
        roles = (make_role("default", 2, 2),)
        self.plan = make_run_plan(root, **{"workers_per_node": 2, "nodes": None, "roles": roles, **plan})
        self.layout = RunLayout(root)
        self.loop = asyncio.new_event_loop()
        self.disk = BackgroundThread("disk", self.loop)
        self.journal = Journal(self.layout, self.plan, PLACE, questions=Answers())
        self.journal.allocation = 1
        self.said: list[str] = []
        self.now = 0.0
        self.telemetry = Telemetry(
            self.plan, PLACE, journal=self.journal, disk=self.disk, say=self.said.append, now=lambda: self.now
        )
        self.member = Member(a_join(0), run=self.plan.run, timing=Timing(lease_s=1000))
        self.member.connected(0, is_joined=True)
        self.member.received(Welcome(allocation=1, head="node0"), 0)

    def show(self, actions: Sequence[Action], *, after_s: float = 0) -> None:
        self.now += after_s
        for action in actions:
            self.telemetry.saw(action)
            if isinstance(action, WriteNodeResult):
                self.show(self.member.node_result_written(action.result))

    def start(self, attempt: int = 1, *, restarts: int = 0) -> None:
        """A rendezvous of 2 s, and a start of half a second."""
        assign = replace(an_assign(attempt=attempt, group_rank=0), restarts=restarts)
        self.show(self.member.received(assign, 0), after_s=2)
        self.show(self.member.workers_started(attempt, {"0": 100, "1": 101}), after_s=0.5)

    def fail(self, attempt: int = 1, *, exitcode: int = 1, message: str = "ValueError: no") -> None:
        """Worker 1 fails after 10 s, and the head stops everybody within 1 s."""
        self.show(self.member.worker_exited(attempt, 1, exitcode, 0), after_s=10)
        path = self.layout.error(attempt, 1)
        write_json(path, {"message": message})
        self.show(
            self.member.failure_recorded(replace(a_failure(1, exitcode=exitcode, attempt=attempt), error_file=path))
        )
        self.show(self.member.received(Stop(attempt=attempt, manner=StopManner.RESTART, reason="rank 1 failed"), 0))
        self.show(self.member.workers_stopped(attempt, (), 25001), after_s=1)

    def succeed(self, attempt: int = 1) -> None:
        self.show(self.member.worker_exited(attempt, 0, 0, 0), after_s=10)
        self.show(self.member.worker_exited(attempt, 1, 0, 0))
        self.show(self.member.received(End(exit_code=0, cause="every rank exited 0"), 0))
        self.show(self.member.workers_stopped(attempt, (), 25001))

    def close(self) -> None:
        """Waits until all is written."""
        self.loop.run_until_complete(self.disk.close(10))
        self.loop.close()

    def events(self) -> list[dict[str, Any]]:
        return list(read_lines(self.layout.events("node0")))

    def told(self) -> list[tuple[str, str, int | None]]:
        """Of each event: its state, its source and its rank."""
        return [
            (event["metadata"]["state"], event["source"], event["metadata"]["global_rank"]) for event in self.events()
        ]

    def metrics(self, name: str) -> list[float]:
        return [line["value"] for line in read_lines(self.layout.metrics("node0")) if line["name"] == name]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_run_that_succeeds_at_once(node: Node) -> None:
    node.start()
    node.succeed()
    node.close()
    assert node.told() == [
        ("RENDEZVOUS", "AGENT", None),
        ("START", "WORKER", 0),
        ("START", "WORKER", 1),
        ("SUCCEEDED", "WORKER", 0),
        ("SUCCEEDED", "WORKER", 1),
        ("SUCCEEDED", "AGENT", None),
    ]
    assert {(event["allocation"], event["attempt"]) for event in node.events()} == {(1, 1)}
    assert [event["metadata"]["worker_id"] for event in node.events()[1:5]] == ["100", "101"] * 2
    assert node.telemetry.group.state is WorkerState.SUCCEEDED


def test_an_error_without_end_has_its_message_clipped_in_the_event(node: Node) -> None:
    node.start()
    node.fail(message=f"ValueError: {'x' * 3_000_000}")
    node.close()
    (failed,) = (event for event in node.events() if event["metadata"]["state"] == "FAILED")
    raw_error = json.loads(failed["metadata"]["raw_error"])
    assert raw_error["message"]["message"].startswith("ValueError: xxx")
    assert len(failed["metadata"]["raw_error"]) < 20_000


def test_run_that_fails_once_tells_how_each_worker_of_each_attempt_ended(node: Node) -> None:
    node.start()
    node.fail()
    node.start(2, restarts=1)
    node.succeed(2)
    node.close()
    ends = [line for line in node.told() if line[0] in ("SUCCEEDED", "FAILED", "TERMINATED")]
    assert ends == [
        ("TERMINATED", "WORKER", 0),
        ("FAILED", "WORKER", 1),
        ("SUCCEEDED", "WORKER", 0),
        ("SUCCEEDED", "WORKER", 1),
        ("SUCCEEDED", "AGENT", None),
    ]
    (failed,) = [event for event in node.events() if event["metadata"]["state"] == "FAILED"]
    assert json.loads(failed["metadata"]["raw_error"]) == {"message": "ValueError: no"}
    assert json.loads(failed["metadata"]["metadata"])["exit_code"] == [1]
    assert [event["metadata"]["agent_restarts"] for event in node.events() if event["attempt"] == 2] == [1] * 6


def test_steps_are_timed_from_what_begins_them_to_what_ends_them(node: Node) -> None:
    node.start()
    node.fail()
    node.start(2, restarts=1)
    node.succeed(2)
    node.close()
    assert node.metrics("rendezvous.duration.ms") == [2000, 2000]
    assert node.metrics("start_workers.duration.ms") == [500, 500]
    assert node.metrics("initialize_workers.duration.ms") == [2500, 2500]
    assert node.metrics("monitor_workers.duration.ms") == [10000, 10000]
    assert node.metrics("stop_workers.duration.ms") == [1000, 0]
    assert node.metrics("restart_workers.duration.ms") == [3500]
    assert node.metrics("run.duration.ms") == [26000]
    assert node.metrics("run.success") == [1]
    durations = [event["metadata"]["duration_ms"] for event in node.events() if "RENDEZVOUS" in event["name"]]
    assert durations == [2000, 2000]


def test_states_are_told_with_the_restarts_that_are_left(node: Node) -> None:
    node.start()
    node.fail()
    node.start(2, restarts=1)
    node.succeed(2)
    node.close()
    assert node.metrics("workers.default.healthy") == [1, 1]
    assert node.metrics("workers.default.failed") == [1]
    assert node.metrics("workers.default.succeeded") == [1]
    assert node.metrics("workers.default.unhealthy") == [1]
    assert node.metrics("workers.default.remaining_restarts") == [3, 3, 3, 2, 2]


def test_a_group_is_unhealthy_from_its_first_failure_until_its_workers_have_stopped(node: Node) -> None:
    node.start()
    states = []
    for rank in (1, 0):
        node.show(node.member.worker_exited(1, rank, 1, 0))
        node.show(node.member.failure_recorded(a_failure(rank)))
        states.append(node.telemetry.group.state.value)
    node.show(node.member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="rank 1 failed"), 0))
    states.append(node.telemetry.group.state.value)
    node.show(node.member.workers_stopped(1, (), 25001))
    states.append(node.telemetry.group.state.value)
    node.close()
    assert states == ["UNHEALTHY", "UNHEALTHY", "UNHEALTHY", "FAILED"]
    assert node.told()[3:] == [("UNHEALTHY", "AGENT", None), ("FAILED", "WORKER", 0), ("FAILED", "WORKER", 1)]


def test_a_group_whose_failures_are_ignored_stays_unhealthy_to_its_end(node: Node) -> None:
    node.show(node.member.received(replace(an_assign(group_rank=0), is_failure_ignored=True), 0))
    node.show(node.member.workers_started(1, {"0": 100, "1": 101}))
    states = []
    node.show(node.member.worker_exited(1, 1, 1, 0))
    node.show(node.member.failure_recorded(a_failure(1)))
    states.append(node.telemetry.group.state.value)
    node.show(node.member.worker_exited(1, 0, 0, 0))
    states.append(node.telemetry.group.state.value)
    node.close()
    assert states == ["UNHEALTHY", "FAILED"]
    of_workers = [told for told in node.told()[3:] if told[1] == "WORKER"]
    assert of_workers == [("TERMINATED", "WORKER", 0), ("FAILED", "WORKER", 1)]  # told once, at the end


def test_workers_that_a_stop_from_outside_ended_were_terminated(node: Node) -> None:
    node.start()
    node.show(node.member.terminated("SIGTERM", 9, have_workers=True))
    node.show(node.member.received(End(exit_code=10, cause="node0 got SIGTERM from outside"), 0))
    node.show(node.member.workers_stopped(1, (), 25001), after_s=1)
    node.close()
    assert node.told()[3:] == [
        ("TERMINATED", "WORKER", 0),
        ("TERMINATED", "WORKER", 1),
        ("SUCCEEDED", "AGENT", None),
    ]
    assert node.metrics("workers.default.stopped") == [1]
    assert node.metrics("stop_workers.duration.ms") == [1000]


def test_workers_that_could_not_be_started_are_no_success_of_the_start(node: Node) -> None:
    node.show(node.member.received(an_assign(group_rank=0), 0))
    node.show(node.member.failure_recorded(a_failure(0, failure_class="start_failed")))
    node.show(node.member.failure_recorded(a_failure(1, failure_class="start_failed")))
    node.close()
    assert node.metrics("start_workers.failure") == [1]
    assert node.metrics("initialize_workers.failure") == [1]
    assert node.metrics("start_workers.success") == []


def test_a_stop_that_leaves_a_process_is_a_failure_of_the_stop(node: Node) -> None:
    node.start()
    node.show(node.member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="a peer failed"), 0))
    node.show(node.member.workers_stopped(1, (4711,), 25001))
    node.close()
    assert node.metrics("stop_workers.failure") == [1]


@pytest.mark.parametrize("exit_code", [3, 6, 7])
def test_agent_that_could_not_go_on_says_why(node: Node, exit_code: int) -> None:
    node.show([Leave(exit_code=exit_code, cause="node9 was lost: no answer")])
    node.close()
    (event,) = node.events()
    assert (event["name"], event["source"]) == ("torchelastic.worker.status.FAILED", "AGENT")
    assert event["metadata"]["raw_error"] == "node9 was lost: no answer"
    assert (event["metadata"]["group_rank"], event["attempt"]) == (None, 0)


def test_agent_that_failed_itself_leaves_its_traceback(node: Node) -> None:
    record_crash(node.plan, PLACE, node.journal, attempt=2, detail="Traceback: KeyError")
    node.close()
    (event,) = node.events()
    assert (event["name"], event["attempt"]) == ("torchelastic.worker.status.FAILED", 2)
    assert event["metadata"]["raw_error"] == "Traceback: KeyError"


# The head's node.


def a_result(state: RunState, *, restarts: int = 1) -> RunResultRecord:
    return RunResultRecord(
        run="run",
        state=state,
        exit_code=0,
        reason="succeeded",
        cause="",
        attempts=2,
        restarts=restarts,
        failures={},
        return_values={},
        nodes=(),
        started=None,
        ended="",
        written_by="node0",
    )


def test_metrics_of_a_run_come_once_for_each_role(tmp_path: Path) -> None:
    node = Node(tmp_path, roles=(make_role("trainer", 1, 2), make_role("reader", 1, 1)))
    node.telemetry.run_ended(a_result(RunState.SUCCEEDED))
    node.close()
    for role in ("trainer", "reader"):
        assert node.metrics(f"workers.{role}.run_total") == [1]
        assert node.metrics(f"workers.{role}.run_success_with_retries") == [1]
        assert node.metrics(f"workers.{role}.flakiness") == [25]


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.UNKNOWN])
def test_a_run_that_neither_failed_nor_succeeded_has_no_metrics(node: Node, state: RunState) -> None:
    node.telemetry.run_ended(a_result(state))
    node.close()
    assert not Path(node.layout.metrics("node0")).exists()


@pytest.mark.parametrize("is_success", [True, False])
def test_claim_is_timed_whether_or_not_it_came_about(node: Node, is_success: bool) -> None:
    try:
        with node.telemetry.measuring("assign_worker_ranks"):
            node.now += 0.25
            if not is_success:
                raise RuntimeError("disk full")
    except RuntimeError:
        assert not is_success
    node.close()
    assert node.metrics(f"assign_worker_ranks.{'success' if is_success else 'failure'}") == [1]
    assert node.told() == [("ASSIGN_WORKER_RANKS", "AGENT", None)]
    assert node.events()[0]["metadata"]["duration_ms"] == 250


def test_textfile_follows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTOR", str(tmp_path / "collector"))
    (tmp_path / "collector").mkdir()
    node = Node(tmp_path / "run", metrics_textfile="${COLLECTOR}/${RUN_NAME}.prom", env={"RUN_NAME": "x"})
    node.journal.is_head = True
    node.start()
    node.telemetry.run_ended(a_result(RunState.SUCCEEDED))
    node.succeed()
    node.close()
    path = tmp_path / "collector" / "x.prom"
    assert list(path.parent.iterdir()) == [path]
    families = {family.name: family.samples for family in text_string_to_metric_families(path.read_text())}
    (flakiness,) = families["hpc_elastic_workers_flakiness"]
    assert flakiness.labels == {"run": "run", "role": "default", "node": "node0"}
    assert [sample.labels["state"] for sample in families["hpc_elastic_workers_state"] if sample.value] == ["succeeded"]
    assert node.said == []


def test_only_the_heads_node_writes_the_textfile(tmp_path: Path) -> None:
    node = Node(tmp_path / "run", metrics_textfile=str(tmp_path / "x.prom"))
    node.start()
    node.succeed()
    node.close()
    assert not (tmp_path / "x.prom").exists()
