"""What is said of a job that waits in the queue."""

from __future__ import annotations

import pytest

from hpc_elastic.observe.waiting import Wait, describe_vain_starts, find_reason


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("PENDING", "Resources", "Resources"),
        ("PENDING", None, ""),
        ("CONFIGURING", None, "CONFIGURING"),
        ("CONFIGURING", "Prolog", "Prolog"),
        ("COMPLETING", "NonZeroExitCode", "COMPLETING"),
        ("COMPLETING", None, "COMPLETING"),
        ("COMPLETING", "launch failed requeued held", "launch failed requeued held"),
        (None, None, ""),
    ],
)
def test_the_state_is_the_reason_of_a_job_where_it_says_more(
    state: str | None, reason: str | None, expected: str
) -> None:
    assert find_reason(state, reason) == expected


def test_a_job_whose_nodes_boot_or_whose_epilog_runs_is_told_so() -> None:
    assert Wait("7", "CONFIGURING").why.startswith("its nodes are made ready: they boot, or a prolog")
    assert Wait("7", "COMPLETING").why.startswith("Slurm still ends the start before: an epilog")
    assert Wait("7", "COMPLETING").endless == ""


def test_a_job_that_its_partition_allows_no_more_does_not_start_by_itself() -> None:
    told = Wait("7", "PartitionTimeLimit").endless
    assert told.startswith("job 7 does not start by itself: it asks for more than its partition allows now (")


def test_starts_without_an_agent_are_told_when_there_are_several() -> None:
    assert [describe_vain_starts("7", times, has_begun=True) for times in (-1, 0, 1)] == ["", "", ""]
    assert describe_vain_starts("7", 2, has_begun=False).startswith(
        "Slurm has begun to start job 7 2 times, and no agent"
    )
    assert " 2 times since its last one, and no agent has" in describe_vain_starts("7", 2, has_begun=True)
