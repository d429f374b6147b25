"""Why srun gave up, by what it wrote on the sandbox's Slurm 22.05."""

from __future__ import annotations

import pytest

from hpc_elastic.scheduler.slurm.srun_errors import find_launch_error, find_rebooted

BEGINS = "hpc_elastic: run directory /home/ada/run"
NOT_LAUNCHED = (
    BEGINS,
    "srun: cluster configuration lacks support for cpu binding",
    "srun: got SIGCONT",
    "srun: error: Task launch for StepId=53.0 failed on node node4: Job credential expired",
    "srun: error: Task launch for StepId=53.0 failed on node node2: Job credential expired",
    "srun: error: Application launch failed: Job credential expired",
    "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
    "srun: error: node1: task 0: Killed",
)
REBOOTED = (
    BEGINS,
    "srun: error: _server_read: fd 14 error reading header: Connection reset by peer",
    "srun: error: Aborting, io error and missing step on node 2",
    "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
    "srun: error: Timed out waiting for job step to complete",
)
KILLED = (BEGINS, "srun: error: node1: task 0: Killed")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (NOT_LAUNCHED, "Task launch for StepId=53.0 failed on node node4: Job credential expired"),
        (REBOOTED, "Aborting, io error and missing step on node 2"),
        (KILLED, ""),
        ((*NOT_LAUNCHED, *KILLED), ""),
        ((*KILLED, *REBOOTED), "Aborting, io error and missing step on node 2"),
        (NOT_LAUNCHED[5:], "Application launch failed: Job credential expired"),
        ((), ""),
    ],
    ids=["not launched", "rebooted", "killed", "an earlier start", "a later start", "a long output", "no output"],
)
def test_the_first_error_of_the_latest_start_counts(lines: tuple[str, ...], found: str) -> None:
    assert find_launch_error(lines) == found


@pytest.mark.parametrize(
    ("lines", "place"), [(REBOOTED, 2), (NOT_LAUNCHED, None), (KILLED, None)], ids=["it", "refused", "killed"]
)
def test_a_node_that_has_rebooted_is_told_by_its_place_in_the_step(lines: tuple[str, ...], place: int | None) -> None:
    assert find_rebooted(find_launch_error(lines)) == place
