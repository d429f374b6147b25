"""Where a run stands: the result first, then the scheduler, then the claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.observe.diagnosis import decide_state, missing_result
from hpc_elastic.observe.facts import FactReader, Facts
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import RunBuilder


def job(state: JobState, *, exit_code: str | None = None) -> JobStatus:
    return JobStatus(job_id="42", state=state, native_state=state.value, exit_code=exit_code)


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run").submit()


def facts(run: RunBuilder) -> Facts:
    return FactReader(run.layout).read()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, RunState.PENDING),
        (JobState.PENDING, RunState.PENDING),
        (JobState.RUNNING, RunState.RUNNING),
        (JobState.COMPLETING, RunState.RUNNING),
    ],
)
def test_state_of_a_run_without_claims_is_the_schedulers(
    run: RunBuilder, state: JobState | None, expected: RunState
) -> None:
    assert decide_state(facts(run), job(state) if state else None) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, RunState.RUNNING),
        (JobState.PENDING, RunState.REQUEUED),
        (JobState.RUNNING, RunState.RUNNING),
        (JobState.FAILED, RunState.RUNNING),
    ],
)
def test_state_of_a_run_that_was_allocated(run: RunBuilder, state: JobState | None, expected: RunState) -> None:
    run.allocate()
    assert decide_state(facts(run), job(state) if state else None) is expected


@pytest.mark.parametrize(
    ("restarts", "expected"), [(0, RunState.RUNNING), (1, RunState.REQUEUED)], ids=["ends", "starts again"]
)
def test_a_run_whose_job_slurm_has_requeued_is_so_while_slurm_waits_for_a_lost_node(
    run: RunBuilder, restarts: int, expected: RunState
) -> None:
    run.allocate()
    status = replace(job(JobState.COMPLETING), restarts=restarts)
    assert decide_state(facts(run), status) is expected
    run.allocate(2)
    assert decide_state(facts(run), status) is RunState.RUNNING


@pytest.mark.parametrize("state", list(JobState))
def test_result_outranks_the_scheduler(run: RunBuilder, state: JobState) -> None:
    run.allocate().open_attempt(1).end(RunState.FAILED, exit_code=1)
    assert decide_state(facts(run), job(state)) is RunState.FAILED
    assert missing_result(facts(run), job(state)) is None


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.COMPLETING])
def test_no_result_is_missing_if_the_job_is_not_over(run: RunBuilder, state: JobState) -> None:
    assert missing_result(facts(run), job(state)) is None


def test_no_result_is_missing_if_the_scheduler_did_not_answer(run: RunBuilder) -> None:
    assert missing_result(facts(run), None) is None


def test_the_exit_code_of_agents_that_could_not_write_is_the_runs_where_none_of_them_could_say_why(
    run: RunBuilder,
) -> None:
    run.allocate().open_attempt(1)
    ending = missing_result(facts(run), job(JobState.FAILED, exit_code="5:0"))
    assert ending is not None
    assert (ending.state, ending.exit_code) == (RunState.FAILED, ExitCode.RUN_DIRECTORY)
    assert ending.cause == (
        "the job failed with exit code 5: its agents could not use the run directory, and no agent wrote a result"
    )


@pytest.mark.parametrize(
    ("state", "word", "cause"),
    [
        (JobState.FAILED, "FAILED", "cannot write /runs/1: Disk quota exceeded, and no agent wrote a result"),
        (JobState.GONE, "ended", "cannot write /runs/1: Disk quota exceeded, and no agent wrote a result"),
        (
            JobState.FAILED,
            "OUT_OF_MEMORY",
            "the job was killed because it went over its memory, and no agent wrote a result",
        ),
        (JobState.TIMEOUT, "TIMEOUT", "the time limit ended the job, and no agent wrote a result"),
    ],
)
def test_a_run_directory_that_refuses_writes_is_the_cause_unless_the_scheduler_knows_a_better_one(
    run: RunBuilder, state: JobState, word: str, cause: str
) -> None:
    run.allocate().open_attempt(1)
    status = replace(job(state), native_state=word)
    ending = missing_result(facts(run), status, refusal="cannot write /runs/1: Disk quota exceeded")
    assert ending is not None
    assert ending.cause == cause


@pytest.mark.parametrize(
    ("code", "said", "cause"),
    [
        ("5:0", "hpc_elastic: cannot write /r/allocations/0001.json: Disk quota exceeded", None),
        (None, "hpc_elastic: cannot write /r/allocations/0001.json: No space left on device", None),
        ("5:0", "", "the script ended with exit code 5 before any agent started"),
    ],
    ids=["the job's exit code is known", "it is not", "nothing could be said"],
)
def test_agents_that_could_not_claim_the_allocation_for_want_of_space_failed_in_the_run_directory_and_not_in_setup(
    run: RunBuilder, code: str | None, said: str, cause: str | None
) -> None:
    Path(run.layout.script_output("42")).write_text(f"{said}\n")
    ending = missing_result(facts(run), job(JobState.FAILED if code else JobState.GONE, exit_code=code), said)
    assert ending is not None
    assert (ending.state, ending.exit_code, ending.reason) == (RunState.FAILED, 5, "agent_failed")
    assert ending.cause == (cause or said.removeprefix("hpc_elastic: "))


def test_a_job_that_is_gone_has_not_failed_for_want_of_space_as_far_as_anybody_knows(run: RunBuilder) -> None:
    """`cancel` on a full disk writes no request, and a job of this machine leaves no trace then."""
    refusal = "cannot write /runs/1: Disk quota exceeded"
    before = missing_result(facts(run), job(JobState.GONE), refusal=refusal)
    assert before is not None
    assert (before.state, refusal in before.cause) == (RunState.UNKNOWN, False)
    run.allocate().open_attempt(1)
    begun = missing_result(facts(run), job(JobState.GONE), refusal=refusal)
    assert begun is not None
    assert (begun.state, begun.exit_code, refusal in begun.cause) == (RunState.UNKNOWN, ExitCode.RUN_DIRECTORY, True)


def test_an_agent_that_failed_before_it_could_claim_the_allocation_has_not_failed_in_setup(run: RunBuilder) -> None:
    run.start_script()
    said = (
        "the system refuses this agent another open file: Too many open files; limits here: 16 open files (ulimit -n)"
    )
    ending = missing_result(facts(run), job(JobState.FAILED, exit_code="7:0"), f"hpc_elastic: {said}")
    assert ending is not None
    assert (ending.exit_code, ending.reason, ending.cause) == (ExitCode.NODE_LOST, "agent_failed", said)


def test_a_node_that_was_set_down_is_the_cause_whatever_the_run_directory_refuses(run: RunBuilder) -> None:
    run.allocate().open_attempt(1)
    killed = job(JobState.FAILED, exit_code="0:15")
    for refusal in ("", "cannot write /runs/1: Disk quota exceeded"):
        ending = missing_result(facts(run), killed, failed_nodes=["node1"], refusal=refusal)
        assert ending is not None
        assert ending.reason == "node_lost"


def test_job_cancelled_while_pending_is_certain(run: RunBuilder) -> None:
    ending = missing_result(facts(run), job(JobState.CANCELLED))
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.CANCELLED, "terminated", ExitCode.STOPPED)
    assert ending.is_certain


@pytest.mark.parametrize(
    ("reason", "failed_nodes", "exit_code", "expected"),
    [
        ("RaisedSignal:9(Killed)", ("node1",), "0:9", "node_lost"),  # 24.11
        ("JobLaunchFailure", (), "0:9", "node_lost"),  # 22.05, whose srun has not said it yet
        ("RaisedSignal:9(Killed)", ("node2",), "0:9", "no_result"),  # which the run has survived
        ("NonZeroExitCode", ("node1",), "1:0", "no_result"),
    ],
)
def test_a_job_that_ended_as_the_node_of_its_script_was_set_down_has_lost_it(
    reason: str, failed_nodes: tuple[str, ...], exit_code: str, expected: str, run: RunBuilder
) -> None:
    status = replace(job(JobState.FAILED, exit_code=exit_code), reason=reason)
    ending = missing_result(facts(run.start_script().allocate().open_attempt(1)), status, failed_nodes=failed_nodes)
    assert ending is not None
    assert (ending.reason, ending.exit_code, ending.is_certain) == (expected, ExitCode.NODE_LOST, False)
    if expected == "node_lost":
        assert ending.cause == "node1, the node of the job's script, was set DOWN, and Slurm ended the job with it"


@pytest.mark.parametrize(
    ("nodes", "expected"), [("node[1-2]", "no_result"), ("node2", "node_lost"), (None, "node_lost")]
)
def test_a_job_of_22_05_that_has_the_node_of_its_killed_script_has_not_lost_it(
    nodes: str | None, expected: str, run: RunBuilder
) -> None:
    """Slurm says JobLaunchFailure also after `scancel --batch --signal=KILL`."""
    status = replace(job(JobState.FAILED, exit_code="0:9"), reason="JobLaunchFailure", nodes=nodes)
    ending = missing_result(facts(run.start_script().allocate().open_attempt(1)), status)
    assert ending is not None
    assert ending.reason == expected


@pytest.mark.parametrize(
    ("state", "reason", "ended"),
    [
        (JobState.PREEMPTED, "preempted", "the job was preempted and not requeued"),
        (JobState.TIMEOUT, "time_limit", "the time limit ended the job"),
    ],
)
def test_a_job_that_was_killed_before_anybody_asked_for_the_next_start_says_so(
    state: JobState, reason: str, ended: str, run: RunBuilder
) -> None:
    run.allocate().open_attempt(1).end_allocation(1, reason)
    ending = missing_result(facts(run), job(state, exit_code="0:9"), "*** JOB 42 CANCELLED ***")
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, reason, ExitCode.NODE_LOST)
    assert ending.cause == f"{ended}, and Slurm killed it before its next start was asked for"
    assert not ending.is_certain  # the request may still be on its way


@pytest.mark.parametrize("has_attempt", [True, False])
def test_the_end_that_a_head_has_recorded_counts_if_the_nodes_of_its_start_have_claimed_two_allocations(
    has_attempt: bool, run: RunBuilder
) -> None:
    run.allocate().allocate(2, restart_count=0).end_allocation(1, "preempted")
    if has_attempt:
        run.open_attempt(1)
    ending = missing_result(facts(run), job(JobState.PREEMPTED, exit_code="0:9"))
    assert ending is not None
    assert ending.cause.endswith("and Slurm killed it before its next start was asked for")


def test_the_end_of_an_earlier_start_is_not_that_of_the_latest_one(run: RunBuilder) -> None:
    run.allocate().open_attempt(1).end_allocation(1, "preempted").allocate(2).allocate(3, restart_count=1)
    ending = missing_result(facts(run), replace(job(JobState.PREEMPTED), restarts=1))
    assert ending is not None
    assert ending.cause.endswith("and no agent wrote a result")


@pytest.mark.parametrize("change", [{"restarts": 1}, {"job_id": "43"}], ids=["requeued", "chained"])
def test_a_job_whose_next_start_was_killed_before_it_began_was_asked_for(
    change: dict[str, Any], run: RunBuilder
) -> None:
    run.allocate().open_attempt(1).end_allocation(1, "preempted")
    ending = missing_result(facts(run), replace(job(JobState.PREEMPTED), **change))
    assert ending is not None
    assert ending.cause == "the job was preempted and not requeued, and no agent wrote a result"


@pytest.mark.parametrize(("has_begun", "start"), [(False, "its start"), (True, "another start")])
def test_a_waiting_job_whose_deadline_came_too_soon_has_not_reached_its_time_limit(
    has_begun: bool, start: str, run: RunBuilder
) -> None:
    if has_begun:
        run.allocate().open_attempt(1).end_allocation(1, "time_limit")
    ending = missing_result(facts(run), replace(job(JobState.TIMEOUT), native_state="DEADLINE"), "job CANCELLED")
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "deadline", ExitCode.NODE_LOST)
    assert ending.cause == f"Slurm removed the waiting job: its deadline left no time for {start}"
    assert ending.is_certain


def test_job_cancelled_after_a_request_was_stopped_by_a_person(run: RunBuilder) -> None:
    ending = missing_result(facts(run.request_stop()), job(JobState.CANCELLED))
    assert ending is not None
    assert ending.reason == "stop_requested"


def test_job_cancelled_during_its_setup_had_started(run: RunBuilder) -> None:
    run.start_script().request_stop()
    ending = missing_result(facts(run), job(JobState.CANCELLED))
    assert ending is not None
    assert (ending.cause, ending.is_certain) == ("the job was cancelled before any agent started", True)


def test_job_that_vanished_after_a_request_is_cancelled(run: RunBuilder) -> None:
    ending = missing_result(facts(run.allocate().request_stop()), job(JobState.GONE))
    assert ending is not None
    assert (ending.state, ending.is_certain) == (RunState.CANCELLED, False)


def test_cancelled_job_with_agents_has_to_settle(run: RunBuilder) -> None:
    ending = missing_result(facts(run.allocate()), job(JobState.CANCELLED))
    assert ending is not None
    assert not ending.is_certain


def test_script_that_died_of_a_signal_before_an_agent_ended_with_no_exit_code(run: RunBuilder) -> None:
    run.start_script()
    ending = missing_result(facts(run), job(JobState.COMPLETED, exit_code="0:15"))
    assert ending is not None
    assert ending.cause == "the script ended by signal 15 before any agent started"


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_job_whose_script_was_cancelled_with_scancel_is_cancelled(has_begun: bool, run: RunBuilder) -> None:
    run.start_script()
    if has_begun:
        run.allocate()
    ending = missing_result(facts(run), job(JobState.FAILED, exit_code="0:9"), is_scancelled=True)
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.CANCELLED, "terminated", ExitCode.STOPPED)
    before = "and no agent could write a result" if has_begun else "before any agent started"
    assert ending.cause == f"the job was cancelled with its script (`scancel --batch`) {before}"


@pytest.mark.parametrize(("exit_code", "is_scancelled"), [("0:9", False), ("1:0", True)])
def test_a_job_that_failed_otherwise_is_not_taken_for_cancelled(
    exit_code: str, is_scancelled: bool, run: RunBuilder
) -> None:
    status = job(JobState.FAILED, exit_code=exit_code)
    ending = missing_result(facts(run.start_script().allocate()), status, is_scancelled=is_scancelled)
    assert ending is not None
    assert (ending.state, ending.reason) == (RunState.FAILED, "no_result")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_script_whose_output_slurm_cannot_open_has_not_begun(run: RunBuilder, is_first: bool) -> None:
    ending = missing_result(facts(run if is_first else run.allocate()), job(JobState.FAILED, exit_code="0:53"))
    assert ending is not None
    assert (ending.reason, ending.exit_code) == ("run_directory", ExitCode.RUN_DIRECTORY)
    assert ending.is_certain is is_first
    assert "the run directory is not there, or cannot be written" in ending.cause


@pytest.mark.parametrize(
    ("native", "ended"),
    [("CANCELLED", "the job was cancelled"), ("COMPLETED", "the job ended"), ("GONE", "the job ended")],
)
def test_a_run_whose_allocation_ended_before_it_got_a_step_is_cancelled(
    native: str, ended: str, tmp_path: Path
) -> None:
    run = RunBuilder(tmp_path / "run").submit(foreground=True).start_script()
    ending = missing_result(facts(run), JobStatus(job_id="42", state=JobState.CANCELLED, native_state=native))
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.CANCELLED, "terminated", ExitCode.STOPPED)
    assert (ending.cause, ending.is_certain) == (f"{ended} before any agent started", True)


def test_nodes_on_which_no_agent_could_be_started_are_the_cause_if_none_has_claimed(run: RunBuilder) -> None:
    run.start_script()
    why = "srun could not start the agents on node3 (Job credential expired)"
    status = job(JobState.FAILED, exit_code="137:0")
    ending = missing_result(facts(run), status, "srun: error: node4: task 3: Killed", launch_error=why)
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "node_lost", ExitCode.NODE_LOST)
    assert ending.cause == f"{why}, so that no agent went on"


def test_nodes_on_which_no_agent_could_be_started_in_a_later_start_are_the_cause(run: RunBuilder) -> None:
    run.start_script().allocate()
    why = "srun could not start the agents on node3 (Job credential expired)"
    status = job(JobState.FAILED, exit_code="137:0")
    ending = missing_result(facts(run), status, f"hpc_elastic: {why}", launch_error=why)
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "node_lost", ExitCode.NODE_LOST)
    assert ending.cause == f"{why}, so that no agent went on"


def test_a_run_in_the_foreground_that_a_person_stops_before_an_agent_starts_is_cancelled(tmp_path: Path) -> None:
    """Ctrl-C while srun waits for another step of the allocation ends the script, and no job."""
    run = RunBuilder(tmp_path / "run").submit(foreground=True)
    run.start_script("srun: Cancelled pending job step with signal 15\n")
    failed = job(JobState.FAILED, exit_code="1:0")
    before = missing_result(facts(run), failed, "x")
    assert before is not None
    assert before.reason == "setup_failed"
    run.request_stop()
    found = missing_result(facts(run), failed, "srun: error: Unable to create step for job 42")
    assert found is not None
    assert (found.state, found.exit_code, found.reason) == (RunState.CANCELLED, ExitCode.STOPPED, "stop_requested")
    assert found.cause == "the run was stopped before any agent started"


def test_script_that_ended_before_an_agent_is_a_setup_failure(run: RunBuilder) -> None:
    run.start_script()
    ending = missing_result(facts(run), job(JobState.FAILED, exit_code="3:0"), "setup line failed: module load x")
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "setup_failed", ExitCode.SETUP)
    assert (
        ending.cause == "the script ended with exit code 3 before any agent started: setup line failed: module load x"
    )
    assert ending.is_certain


@pytest.mark.parametrize(("change", "starts"), [({"restarts": 1}, 2), ({}, 2), ({"job_id": "43"}, 1)])
def test_a_setup_that_fails_in_a_later_start_is_the_cause_and_no_lost_node(
    change: dict[str, Any], starts: int, run: RunBuilder
) -> None:
    run.start_script().allocate().open_attempt(1).end_allocation(1, "preempted")
    status = replace(job(JobState.FAILED, exit_code="3:0"), **change)
    ending = missing_result(facts(run), status, "setup line failed: module load x", starts=starts)
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "setup_failed", ExitCode.SETUP)
    assert ending.cause.startswith("the script ended with exit code 3 before any agent started: setup line failed")


def test_agents_that_leave_with_3_and_without_a_result_have_not_failed_in_setup(run: RunBuilder) -> None:
    run.start_script().allocate().open_attempt(1)
    ending = missing_result(facts(run), job(JobState.FAILED, exit_code="3:0"), "x", starts=1)
    assert ending is not None
    assert (ending.reason, ending.exit_code) == ("no_result", ExitCode.NODE_LOST)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_script_that_never_began_may_have_been_replaced_by_what_bash_runs_before_it(
    has_begun: bool, run: RunBuilder
) -> None:
    run.submit(bash_env="/home/ada/.env").start_script("Welcome\n")
    status = job(JobState.COMPLETED, exit_code="0:0")
    ending = missing_result(facts(run), status, "Welcome", has_begun=has_begun)
    assert ending is not None
    assert ending.exit_code == ExitCode.SETUP
    assert ending.cause == (
        "the script ended with exit code 0 before any agent started: Welcome"
        if has_begun
        else "the job ended with exit code 0 and its script never began: /home/ada/.env, which BASH_ENV names and bash "
        "runs before each script, may have exited or run another program (`exec`): Welcome"
    )


@pytest.mark.parametrize(
    ("state", "expected", "reason"),
    [
        (JobState.TIMEOUT, RunState.FAILED, "time_limit"),
        (JobState.PREEMPTED, RunState.FAILED, "preempted"),
        (JobState.NODE_FAIL, RunState.FAILED, "node_lost"),
        (JobState.FAILED, RunState.FAILED, "no_result"),
        (JobState.COMPLETED, RunState.UNKNOWN, "no_result"),
        (JobState.GONE, RunState.UNKNOWN, "no_result"),
    ],
)
def test_job_that_ended_with_its_agents_silent(
    run: RunBuilder, state: JobState, expected: RunState, reason: str
) -> None:
    ending = missing_result(facts(run.allocate().open_attempt(1)), job(state))
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (expected, reason, ExitCode.NODE_LOST)
    assert not ending.is_certain


def test_a_job_that_was_killed_for_its_memory_is_told_as_such(run: RunBuilder) -> None:
    """Slurm's state OUT_OF_MEMORY is one of failure; accounting has it also where every record is missing."""
    killed = replace(job(JobState.FAILED, exit_code="0:125"), native_state="OUT_OF_MEMORY")
    ending = missing_result(facts(run.allocate().open_attempt(1)), killed)
    assert ending is not None
    assert (ending.state, ending.reason, ending.exit_code) == (RunState.FAILED, "out_of_memory", ExitCode.NODE_LOST)
    assert ending.cause == "the job was killed because it went over its memory, and no agent wrote a result"


@pytest.mark.parametrize(("native", "reason"), [("DEADLINE", "deadline"), ("BOOT_FAIL", "node_lost")])
def test_slurms_other_words_mean_what_their_state_means(run: RunBuilder, native: str, reason: str) -> None:
    state = {"DEADLINE": JobState.TIMEOUT, "BOOT_FAIL": JobState.NODE_FAIL}[native]
    ending = missing_result(facts(run.allocate().open_attempt(1)), replace(job(state), native_state=native))
    assert ending is not None
    assert ending.reason == reason


def test_result_of_a_newer_version_is_unknown_if_its_state_is(run: RunBuilder) -> None:
    Path(run.layout.result).write_text('{"state": "HIBERNATED"}')
    assert decide_state(facts(run), None) is RunState.UNKNOWN
