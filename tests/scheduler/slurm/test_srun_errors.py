"""Why srun gave up, by what it wrote on the sandbox's Slurm 22.05."""

from __future__ import annotations

import pytest

from hpc_elastic.scheduler.slurm.srun_errors import (
    describe_unstarted,
    find_ended_agents,
    find_failed_nodes,
    find_launch_error,
    find_over_memory,
    find_unstarted,
    tells_of_scancel,
)

BEGINS = "hpc_elastic: run directory /home/ada/run"
LAUNCHES = "hpc_elastic: starting an agent on each of 4 nodes (start 1)"
SETUP_FAILED = "hpc_elastic: setup line failed (status 1): srun cp data.tar /tmp"
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
        ((*NOT_LAUNCHED, LAUNCHES, *KILLED[1:]), ""),
        ((*NOT_LAUNCHED, SETUP_FAILED), ""),
        ((*NOT_LAUNCHED, SETUP_FAILED, *REBOOTED), "Aborting, io error and missing step on node 2"),
        ((*NOT_LAUNCHED, LAUNCHES, *REBOOTED[1:]), "Aborting, io error and missing step on node 2"),
        ((), ""),
    ],
    ids=[
        "not launched",
        "rebooted",
        "killed",
        "an earlier start",
        "a later start",
        "a long output",
        "of setup, which tolerates it",
        "of setup, which fails",
        "after a start whose setup has failed",
        "after that of setup",
        "no output",
    ],
)
def test_the_first_error_of_the_latest_start_counts(lines: tuple[str, ...], found: str) -> None:
    assert find_launch_error(lines) == found


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        (REBOOTED, {"node3": "it has rebooted"}),
        (REBOOTED[:2] + NOT_LAUNCHED[3:4], {"node4": "Job credential expired"}),
        (NOT_LAUNCHED, {"node4": "Job credential expired", "node2": "Job credential expired"}),
        (KILLED, {}),
        ((*NOT_LAUNCHED, *KILLED), {}),
        ((*NOT_LAUNCHED, LAUNCHES, *KILLED[1:]), {}),
        ((*NOT_LAUNCHED, SETUP_FAILED), {}),
    ],
    ids=[
        "rebooted",
        "one refuses",
        "two refuse",
        "killed",
        "an earlier start",
        "of setup, which tolerates it",
        "of setup, which fails",
    ],
)
def test_the_nodes_on_which_srun_could_start_no_agent_are_found(lines: tuple[str, ...], nodes: dict[str, str]) -> None:
    assert find_unstarted(lines, ("node1", "node2", "node3", "node4")) == nodes


EARLIER = "hpc_elastic: starting an agent on each of 4 nodes (start 0)"
LATER = "hpc_elastic: starting an agent on each of 4 nodes (start 2)"
NO_IO = "srun: error: task 2 launch failed: Slurmd could not connect IO"
GAVE_UP = (  # of 24.11.5, as it was printed
    "srun: error: Task launch for StepId=1.0 failed on node node3: Unspecified error",
    "srun: error: Application launch failed: Unspecified error",
    "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
)
CANCELLED = (
    "slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-27T19:51:13 ***",
    "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
)
FORCED = (  # by `scancel --signal=KILL 3.0`: 22.05.8, 24.11.5 and 26.05.5
    "srun: error: node1: task 0: Killed",
    "srun: error: node2: task 1: Killed",
    "srun: Force Terminated StepId=3.0",
)
FAILED = "slurmstepd-node1: error: *** STEP 3.0 ON node1 FAILED (non-zero exit code or other failure mode) ***"
ALL_KILLED = tuple(f"srun: error: node{number + 1}: task {number}: Killed" for number in (3, 1, 0))
NO_PROGRAM = "srun: error: node[2,4]: tasks 1,3: Exited with exit code 2"
NO_PROGRAM_THERE = dict.fromkeys(("node2", "node4"), "Exited with exit code 2")


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        ((BEGINS, LAUNCHES, NO_IO), {"node3": "launch failed: Slurmd could not connect IO"}),
        ((BEGINS, LAUNCHES, NO_PROGRAM), dict.fromkeys(("node2", "node4"), "Exited with exit code 2")),
        ((BEGINS, LAUNCHES, "srun: error: node1: task 0: Killed"), {"node1": "Killed"}),
        ((BEGINS, NO_PROGRAM, LAUNCHES), {}),
        ((BEGINS, EARLIER, NO_PROGRAM, BEGINS), {}),
        ((BEGINS, EARLIER, NO_PROGRAM), {}),
        ((BEGINS, EARLIER, NO_PROGRAM, BEGINS, LAUNCHES), {}),
        ((BEGINS, LAUNCHES, BEGINS, LATER, NO_PROGRAM), {}),
        (("cut", NO_PROGRAM), {}),
        ((BEGINS, NO_PROGRAM), {}),
        # Of an srun that a line of setup has started in the background.
        ((BEGINS, LAUNCHES, "srun: error: node3: task 0: Exited with exit code 4"), {}),
        ((BEGINS, LAUNCHES, "srun: error: node[3-4]: tasks 0-3: Exited with exit code 4"), {}),
        ((BEGINS, LAUNCHES, "srun: error: node[3-4]: tasks 2-5: Exited with exit code 4"), {}),
        ((BEGINS, LAUNCHES, "srun: error: node3: task 7-2: Killed"), {}),
        ((BEGINS, LAUNCHES, "srun: error: task 9 launch failed: x", "srun: error: node[1: task 1: x"), {}),
        ((BEGINS, LAUNCHES, *GAVE_UP, *ALL_KILLED), {}),
        ((BEGINS, LAUNCHES, NO_IO, *GAVE_UP, *ALL_KILLED), {"node3": "launch failed: Slurmd could not connect IO"}),
        ((BEGINS, LAUNCHES, *CANCELLED, *ALL_KILLED), {}),
        ((BEGINS, LAUNCHES, *CANCELLED[::-1], *ALL_KILLED), {}),
        ((BEGINS, LAUNCHES, *FORCED), {}),
        (
            (
                BEGINS,
                LAUNCHES,
                *(f"srun: error: node{number}: task {number - 1}: Interrupt" for number in (2, 1, 4, 3)),
            ),
            {},
        ),
        ((BEGINS, LAUNCHES, FAILED, *ALL_KILLED), {}),
        ((BEGINS, LAUNCHES, NO_PROGRAM, "srun: Terminating StepId=3.0", *ALL_KILLED), NO_PROGRAM_THERE),
        (
            (BEGINS, LAUNCHES, NO_PROGRAM, "srun: launch/slurm: _step_signal: Terminating StepId=3.0", *ALL_KILLED),
            NO_PROGRAM_THERE,
        ),
        ((), {}),
    ],
    ids=[
        "not launched",
        "two end",
        "killed",
        "of setup",
        "an earlier start",
        "an earlier start, of which NFS shows no more",
        "an earlier start, and another launch",
        "a later start",
        "of a long setup in a script of a site's own",
        "of an older script",
        "another srun in the background: other task",
        "another srun in the background: more tasks",
        "another srun in the background: more tasks than nodes",
        "no tasks",
        "no such node",
        "srun gives up for another node",
        "srun gives up for another node than the first",
        "cancelled",
        "cancelled, as srun tells first",
        "killed with a signal to the step, which srun tells last",
        "all end",
        "the step has failed",
        "ended for those of two nodes",
        "ended for those of two nodes, in the words of 22.05",
        "no output",
    ],
)
def test_the_nodes_whose_agents_have_ended_are_found(lines: tuple[str, ...], nodes: dict[str, str]) -> None:
    assert find_ended_agents(lines, ("node1", "node2", "node3", "node4"), start=1) == nodes


def test_a_rebooted_node_of_which_only_the_place_is_known_is_left_out() -> None:
    assert find_unstarted(REBOOTED, ("node1", "node2")) == {}


def test_nodes_that_could_not_be_started_are_told_by_reason() -> None:
    unstarted = {"b": "Job credential expired", "a": "Socket timed out", "c": "Job credential expired"}
    told = "srun could not start the agents on b, c (Job credential expired); a (Socket timed out)"
    assert describe_unstarted(unstarted) == told
    assert describe_unstarted({}) == ""
    many = describe_unstarted({f"n{number}": "x" for number in range(10)})
    assert many == "srun could not start the agents on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more (x)"


SCANCEL = "slurmstepd-node1: error: *** JOB 42 ON node1 CANCELLED AT 2026-11-27T13:05:27"
RUNS_ON = "hpc_elastic: the job runs on after a TERM to its script"


@pytest.mark.parametrize(
    ("lines", "is_told"),
    [
        ((BEGINS, f"{SCANCEL} ***"), True),
        ((BEGINS, f"{SCANCEL} DUE to SIGNAL Killed ***"), True),
        ((BEGINS, f"{SCANCEL} DUE TO TIME LIMIT ***"), False),
        ((BEGINS, f"{SCANCEL} DUE TO JOB REQUEUE ***"), False),
        ((BEGINS, SCANCEL.replace("JOB 42", "STEP 42.0") + " ***"), False),
        ((BEGINS, f"{SCANCEL} ***", BEGINS), False),
        ((BEGINS, f"{SCANCEL} ***", RUNS_ON), False),
        ((BEGINS, RUNS_ON, f"{SCANCEL} ***"), True),
    ],
    ids=[
        "22.05",
        "26.05",
        "time limit",
        "requeue",
        "a step",
        "an earlier start",
        "a TERM to the script alone",
        "after a TERM to the script alone",
    ],
)
def test_a_scancel_is_told_by_the_script_of_the_latest_start(lines: tuple[str, ...], is_told: bool) -> None:
    assert tells_of_scancel(lines) == is_told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "slurmstepd-node2: error: StepId=42.0 exceeded memory limit (425394176 > 314572800), being killed",
            "406 of 300 MiB",
        ),
        ("slurmstepd: error: Step 42.0 exceeded memory limit (425394176 > 314572800), being killed", "406 of 300 MiB"),
        (
            "slurmstepd: error: Job 42 exceeded virtual memory limit (425394176 > 314572800), being killed",
            "406 of 300 MiB",
        ),
        (
            "[2026-11-27T22:32:20.1] slurmstepd: error: Step 42.0 exceeded memory limit (99 > 9), being killed",
            "0 of 0 MiB",
        ),
        ("slurmstepd-node2: error: StepId=41.0 exceeded memory limit (425394176 > 314572800), being killed", ""),
        ("rank 3 exceeded memory limit (425394176 > 314572800), being killed", ""),
        (CANCELLED[0], ""),
    ],
)
def test_a_step_that_went_over_its_memory_is_told_with_how_much_it_had(line: str, told: str) -> None:
    assert find_over_memory(("hpc-elastic node2: attempt 1", line, "hpc-elastic node2: node1 is lost"), "42") == told


def test_nodes_that_slurm_takes_from_the_job_are_those_of_its_latest_start() -> None:
    lines = (
        BEGINS,
        "srun: error: Node failure on node9",
        BEGINS,
        "srun: error: Node failure on node2",
        "srun: error: x",
    )
    assert find_failed_nodes((*lines, "srun: error: Node failure on node2")) == ("node2",)
