"""Journals of one run directory, and the claims and results that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings, open_attempt
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AttemptClaim,
    Endpoint,
    RunResultRecord,
    RunState,
    World,
)
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.plans import make_run_plan

HEAD = Endpoint(address="10.0.0.1", port=20000)


def a_place(job_id: str = "42", *, restart_count: int = 0, node_id: int = 0) -> Allocation:
    return Allocation(
        job_id=job_id,
        restart_count=restart_count,
        array_task=None,
        node_id=node_id,
        nodes=("node0", "node1"),
        is_local=False,
    )


def must_not_ask(job_id: str) -> bool | None:
    raise AssertionError(f"asked about job {job_id}")


class Runs:
    """Journals of one run directory, each as another agent has it."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)

    def journal(
        self, place: Allocation | None = None, *, is_over: Callable[[str], bool | None] = must_not_ask, **plan: Any
    ) -> Journal:
        return Journal(
            self.layout,
            replace(make_run_plan(self.layout.root), **plan),
            place or a_place(),
            questions=Answers(is_over=is_over),
        )


def an_attempt(history: History | None = None, node: str = "node0") -> tuple[AttemptClaim, World]:
    settings = HeadSettings(
        run="run",
        node=node,
        allocation=1,
        expected=("node0",),
        min_nodes=1,
        max_nodes=1,
        join_timeout_s=1,
        lease_s=1,
        started="",
    )
    seat = Seat(node="node0", node_id=0, agent=HEAD, store_port=1, workers=2, role="default")
    return open_attempt(settings, history or History(), [seat], "first start")


def a_result(exit_code: int = 0, cause: str = "every rank exited 0") -> RunResultRecord:
    return RunResultRecord(
        run="run",
        state=RunState.SUCCEEDED,
        exit_code=exit_code,
        reason="succeeded",
        cause=cause,
        attempts=1,
        restarts=0,
        failures={},
        return_values={},
        nodes=("node0",),
        started=None,
        ended="",
        written_by="node0",
    )
