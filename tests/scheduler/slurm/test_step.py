"""What Slurm writes to the output of a step that somebody cancels alone, on each Slurm that was tried."""

from __future__ import annotations

import pytest

from hpc_elastic.scheduler.slurm.step import find_cancelled_step

AGENT = "2026-11-27 10:14:59 hpc-elastic node1: attempt 1: 2 ranks on 2 nodes (first start)"
CANCELLED = "slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-27T10:15:01 ***"
NEWER = (
    "[2026-11-27T10:22:20.723] error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-27T10:22:20 DUE to SIGNAL Killed ***"
)


@pytest.mark.parametrize(("line", "step"), [(CANCELLED, "12.0"), (NEWER, "1.0")], ids=["22.05 and 24.11", "26.05"])
def test_a_step_that_was_cancelled_alone_is_known_by_the_last_line(line: str, step: str) -> None:
    assert find_cancelled_step([AGENT, line]) == step


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [AGENT],
        [CANCELLED, AGENT],  # of the start before
        [AGENT, CANCELLED.removesuffix("***") + "DUE TO TIME LIMIT ***"],
        [AGENT, CANCELLED.removesuffix("***") + "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"],
        [AGENT, CANCELLED.replace("STEP 12.0", "JOB 12")],
        [AGENT, "slurmstepd: error: Step 12.0 exceeded memory limit (9000 > 8000), being killed", CANCELLED],
    ],
    ids=["no output", "no line", "before an agent's line", "time limit", "node failure", "whole job", "memory"],
)
def test_no_step_counts_as_cancelled_for_another_line(lines: list[str]) -> None:
    assert find_cancelled_step(lines) == ""
