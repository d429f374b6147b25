"""What the script writes when all agents have ended and left no result; and when it must write nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic
from hpc_elastic.agent.conclude import conclude, describe
from hpc_elastic.agent.journal import Journal, stamp
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.decisions import History
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NodeResult, Request, WorkerState
from hpc_elastic.rundir.store import append_line, read_json, write_json
from tests.agent.answers import Answers
from tests.agent.test_journal import HEAD, a_place, an_attempt
from tests.plans import make_run_plan

KILLED = 128 + 9


class Start:
    """One start of job 42, as its script and its head see it."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        self.plan = make_run_plan(self.layout.root)
        root.mkdir()
        Path(self.layout.plan).write_text(dump_plan(self.plan))

    def claim(self, *, restart_count: int = 0, attempt: int | None = 1, job_id: str = "42") -> None:
        place = a_place(job_id, restart_count=restart_count)
        journal = Journal(self.layout, self.plan, place, questions=Answers(is_over=lambda _: True))
        allocation = journal.claim_allocation(HEAD).claim.allocation
        if attempt is not None:
            claimed, world = an_attempt(History(attempts=attempt - 1))
            claimed, world = replace(claimed, allocation=allocation), replace(world, allocation=allocation)
            assert journal.claim_attempt(stamp(claimed), world)[0]

    def ended(self, state: WorkerState) -> None:
        record = NodeResult(
            run="run",
            attempt=1,
            node="node0",
            state=state,
            role="default",
            ranks=(0, 1),
            pids={},
            reason="",
            failures={},
            return_values={},
            started="",
            ended="",
        )
        write_json(self.layout.node_result(1, "node0"), to_json(record))

    def conclude(self, status: int = KILLED, *, is_requeued: bool | None = False) -> Any:
        conclude(self.layout, status, Answers(is_requeued=[is_requeued]))
        return read_json(self.layout.result)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPC_ELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    return Start(tmp_path / "a run")


def test_nothing_is_known_of_agents_that_were_killed_but_that_they_were(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.HEALTHY)
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("UNKNOWN", 7, "no_result")
    assert result["cause"].endswith("the highest exit status was 137 (SIGKILL)")
    assert (result["attempts"], result["nodes"], result["written_by"]) == (1, ["node0"], "script")
    assert Path(start.layout.exit_code).read_text() == "7\n"


def test_agents_that_were_killed_before_the_first_attempt_leave_a_result_too(start: Start) -> None:
    start.claim(attempt=None)
    result = start.conclude()
    assert (result["state"], result["attempts"], result["nodes"]) == ("UNKNOWN", 0, ["node0", "node1"])


def test_the_records_of_all_nodes_prove_a_success(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.SUCCEEDED)
    assert (start.conclude()["state"], start.conclude()["exit_code"]) == ("SUCCEEDED", 0)


def test_a_run_that_was_to_be_cancelled_is_cancelled(start: Start) -> None:
    start.claim()
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    assert (start.conclude()["state"], start.conclude()["exit_code"]) == ("CANCELLED", 10)


def test_the_error_for_which_the_head_gave_up_is_the_cause(start: Start) -> None:
    start.claim()
    output = Path(start.layout.agent_output("node0"))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(f"attempt 1\n{complaint.PREFIX}the disk is full\n")
    result = start.conclude(5)
    assert (result["state"], result["exit_code"], result["cause"]) == ("FAILED", 5, "the disk is full")


@pytest.mark.parametrize("is_requeued", [True, None])
def test_a_job_that_starts_again_or_may_do_so_has_no_result(start: Start, is_requeued: bool | None) -> None:
    start.claim()
    assert start.conclude(is_requeued=is_requeued) is None


def test_agents_that_left_to_be_started_again_leave_no_result(start: Start) -> None:
    start.claim()
    assert start.conclude(75) is None


def test_a_start_that_claimed_nothing_leaves_the_run_alone(start: Start) -> None:
    """Its agents were refused, because the run is at work in another job, or could not be set up."""
    assert start.conclude(3) is None
    start.claim(job_id="41")
    assert start.conclude(5) is None


def test_the_script_of_an_earlier_start_of_the_job_leaves_the_run_alone(start: Start) -> None:
    start.claim()
    start.claim(restart_count=1, attempt=None)
    assert start.conclude() is None


def test_a_result_that_is_there_stands_and_gets_its_exit_code(start: Start) -> None:
    start.claim()
    first = start.conclude()
    os.unlink(start.layout.exit_code)
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    assert start.conclude() == first
    assert Path(start.layout.exit_code).read_text() == "7\n"


def test_a_record_that_cannot_be_read_is_an_error_of_one_line(start: Start) -> None:
    start.claim()
    Path(start.layout.world(1)).write_text("{}")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        start.conclude()


@pytest.mark.parametrize(("status", "text"), [(137, "137 (SIGKILL)"), (1, "1"), (7, "7"), (128, "128"), (255, "255")])
def test_a_status_is_told_with_its_signal(status: int, text: str) -> None:
    assert describe(status) == text


@pytest.mark.parametrize("spoilt", ["plan", "world"])
def test_the_program_says_what_it_cannot_do_in_one_line(start: Start, spoilt: str) -> None:
    start.claim()
    path = start.layout.plan if spoilt == "plan" else start.layout.world(1)
    os.unlink(path)
    if spoilt == "world":
        Path(path).write_text("{}")
    launch = Path(hpc_elastic.__file__).parent / "launch.py"
    done = subprocess.run(
        [sys.executable, str(launch), "hpc_elastic.agent.conclude", start.layout.root, "137"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (5, "", 1), done.stderr
    assert done.stderr.startswith("hpc_elastic: no agent wrote a result, and none can be written: ")


def test_wrong_arguments_are_refused() -> None:
    launch = Path(hpc_elastic.__file__).parent / "launch.py"
    done = subprocess.run(
        [sys.executable, str(launch), "hpc_elastic.agent.conclude", "somewhere"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "usage: launch.py hpc_elastic.agent.conclude RUN_DIR STATUS\n")
