"""What sacct answers, recorded from a real one by `python -m tests.captured.record_accounting`."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from tests.scheduler.slurm.captured import FOLDER, captured

VERSIONS = sorted(path.parent.name for path in FOLDER.glob("slurm-*/accounting-completed.json"))

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def accounting(version: str, case: str, *job_ids: str) -> dict[str, JobStatus]:
    """What accounting knows of the captured jobs, or of these."""
    capture = captured(version, f"accounting-{case}")
    assert capture.command[:6] == commands.sacct_command(capture.job_ids)[:6]  # else it must be recorded anew
    found = output.parse_accounting(capture.output, job_ids or capture.job_ids)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("case", "state", "exit_code", "nodes"),
    [
        ("running", JobState.RUNNING, "0:0", "node3"),
        ("completed", JobState.COMPLETED, "0:0", "node1"),
        ("failed", JobState.FAILED, "3:0", "node1"),
        ("killed", JobState.FAILED, "0:9", "node1"),
        ("cancelled", JobState.CANCELLED, "0:0", "node2"),
        ("cancelled-pending", JobState.CANCELLED, "0:0", None),
        ("timeout", JobState.TIMEOUT, "0:0", "node1"),
        ("requeued", JobState.CANCELLED, "0:0", "node3"),
        ("requeued-duplicates", JobState.CANCELLED, "0:0", "node3"),  # its first row says REQUEUED
    ],
)
def test_accounting_tells_state_exit_code_and_nodes(
    version: str, case: str, state: JobState, exit_code: str, nodes: str | None
) -> None:
    (status,) = accounting(version, case).values()
    assert (status.state, status.exit_code, status.nodes) == (state, exit_code, nodes)


def test_a_job_whose_node_failed_is_no_job_that_failed(version: str) -> None:
    (status,) = accounting(version, "node-fail").values()
    exit_code = "0:0" if version == "slurm-22.05" else "1:0"
    assert (status.state, status.exit_code, status.nodes) == (JobState.NODE_FAIL, exit_code, "node2")


def test_a_cancellation_says_by_whom(version: str) -> None:
    (status,) = accounting(version, "cancelled").values()
    assert status.native_state == "CANCELLED by 0"


def test_a_requeued_job_has_a_row_for_each_start_where_all_are_shown(version: str) -> None:
    rows = captured(version, "accounting-requeued-duplicates").output.stdout.splitlines()
    assert [row.split("|")[2] for row in rows] == ["REQUEUED", "CANCELLED by 0"]


def test_accounting_leaves_out_what_it_does_not_know(version: str) -> None:
    assert [status.state for status in accounting(version, "mixed").values()] == [JobState.COMPLETED, JobState.FAILED]
    assert accounting(version, "unknown") == {}


def test_accounting_knows_by_their_array_the_tasks_that_were_cancelled_while_they_waited(version: str) -> None:
    capture = captured(version, "accounting-array-rest-cancelled")
    (array,) = capture.job_ids
    found = accounting(version, "array-rest-cancelled", f"{array}_0", f"{array}_3", f"{array}1_3")
    assert {name: status.state for name, status in found.items()} == {
        f"{array}_0": JobState.RUNNING,
        f"{array}_3": JobState.CANCELLED,
    }
    assert accounting(version, "array-task-cancelled") == {}  # so it is asked for by its array


def test_a_data_base_that_is_down_is_no_answer(version: str) -> None:
    """There is accounting: what it ought to know is unknown, and not gone."""
    capture = captured(version, "accounting-no-slurmdbd")
    with pytest.raises(SchedulerError, match=r"sacct does not answer: .*Connection refused"):
        output.parse_accounting(capture.output, capture.job_ids)
