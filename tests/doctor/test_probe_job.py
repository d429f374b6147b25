"""How long the answers of a job are waited for, by histories; and what is said of a job that did not bring them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.doctor.probe_job import (
    ALL_ANSWERS_S,
    ENDLESS_S,
    FIRST_ANSWER_S,
    FIRST_LINE_S,
    OUTPUT_S,
    GivenUp,
    JobTimes,
    ProbeOutcome,
    judge_job,
    why_to_stop,
)
from hpc_elastic.doctor.results import Severity
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.doctor.told import told

WELL, _ = told("well")
OUTCOME = ProbeOutcome(
    job_id="7", nodes=WELL.nodes, answers=WELL.answers, sent=WELL.sent, read=WELL.read, waited_s=2.0, took_s=9.0
)
Moment = tuple[float, JobState, bool, bool]  # when, what the scheduler says, whether there is output, and an answer


def given_up_at(*history: Moment, pending_s: float = 600.0) -> tuple[float, str, str] | None:
    """When no more is waited for, why, and the key that is named; each moment holds until the next one."""
    times = JobTimes(began=0.0)
    ends = [*(at for at, *_ in history[1:]), 5000.0]
    for (at, state, has_output, has_answers), end in zip(history, ends, strict=True):
        now = at
        while now < end:
            status = JobStatus(job_id="7", state=state, native_state=state.value, reason="Priority", exit_code="0:53")
            times.note(now, state, has_answers=has_answers)
            found = why_to_stop(now, times, status, has_output=has_output, folder="/runs/a", pending_s=pending_s)
            if found is not None:
                return now, found.problem, found.key
            now += 1.0
    return None


def test_a_job_that_does_not_start_is_given_up_with_its_reason() -> None:
    found = given_up_at((0, JobState.PENDING, False, False), pending_s=60.0)
    assert found == (60.0, "it did not start within 60 s (Priority)", "")


def test_a_job_that_never_starts_by_itself_is_given_up_soon_with_what_to_do() -> None:
    reason = "QOSMaxWallDurationPerJobLimit"
    waits = JobStatus(job_id="7", state=JobState.PENDING, native_state="PENDING", reason=reason)
    times = JobTimes(began=0.0)
    times.note(0.0, JobState.PENDING, has_answers=False)

    def found_at(now: float) -> GivenUp | None:
        return why_to_stop(now, times, waits, has_output=False, folder="/runs/a", pending_s=600.0)

    assert found_at(ENDLESS_S - 1) is None
    found = found_at(ENDLESS_S)
    assert found is not None
    assert f"it asks for more, or less, than one job of its account or QOS may have ({reason})" in found.problem
    assert "sacctmgr show qos" in found.advice
    assert "--set sbatch.qos=NAME" in found.advice


def test_a_job_that_starts_in_time_has_the_time_for_setup_and_checks() -> None:
    history: list[Moment] = [(0, JobState.PENDING, False, False), (50, JobState.RUNNING, True, False)]
    found = given_up_at(*history, (80, JobState.RUNNING, True, True), pending_s=60.0)
    assert found == (81 + ALL_ANSWERS_S, "not all nodes answered within 130 s", "")
    found = given_up_at(*history)
    assert found == (51 + FIRST_ANSWER_S, "no node answered within 300 s of its start", "")


def test_a_job_that_writes_nothing_is_given_up_after_a_minute() -> None:
    found = given_up_at((0, JobState.RUNNING, False, False))
    assert found is not None
    assert (found[0], found[2]) == (FIRST_LINE_S + 1, "run_root")


def test_the_output_of_a_job_that_is_over_is_waited_for() -> None:
    ended = (10.0, JobState.FAILED, False, False)
    found = given_up_at((0, JobState.PENDING, False, False), ended)
    problem = "it has ended (FAILED 0:53), and nothing that it wrote has come to /runs/a"
    assert found == (10 + OUTPUT_S, problem, "run_root")
    late = (12.0, JobState.FAILED, True, False)
    found = given_up_at((0, JobState.PENDING, False, False), ended, late)
    assert found == (10 + OUTPUT_S, "it has ended (FAILED 0:53) before all nodes had answered", "")


def test_an_answer_proves_the_start_whatever_the_scheduler_says() -> None:
    found = given_up_at((0, JobState.PENDING, False, False), (5, JobState.PENDING, True, True), pending_s=60.0)
    assert found == (6 + ALL_ANSWERS_S, "not all nodes answered within 130 s", "")


def test_a_job_with_all_answers_is_well() -> None:
    (result,) = judge_job(OUTCOME)
    assert (result.verdict, result.found) == (Severity.OK, "job 7: 9 s, after 2 s of waiting")


@pytest.mark.parametrize("lines", [(), ("srun: error: node3: task 2: Exited with exit code 3",)])
def test_a_silent_node_is_named_with_what_slurm_says_of_it(lines: tuple[str, ...]) -> None:
    answers = tuple(each for each in OUTCOME.answers if each.node != "node3")
    (result,) = judge_job(replace(OUTCOME, answers=answers, problem="it has ended", lines=lines))
    said = f"; Slurm says: {lines[0]}" if lines else ""
    assert (result.nodes, result.found) == (("node3",), f"node3 gave no answer{said}")


def test_a_launch_that_slurmd_does_not_answer_in_time_may_wait_for_a_prolog() -> None:
    answers = tuple(each for each in OUTCOME.answers if each.node != "node3")
    line = "srun: error: Task launch for StepId=7.0 failed on node node3: Socket timed out on send/recv operation"
    (result,) = judge_job(replace(OUTCOME, answers=answers, problem="it has ended", lines=(line,)))
    assert (result.key, "how long its prolog takes" in result.action) == ("", True)


def test_a_node_that_stopped_half_way_is_named() -> None:
    answers = tuple(each for each in OUTCOME.answers if (each.node, each.check) != ("node2", "end"))
    (result,) = judge_job(replace(OUTCOME, answers=answers, problem="not all nodes answered within 130 s"))
    assert result.found == "node2 did not make all checks"


def test_a_job_without_an_answer_is_told_with_its_last_line() -> None:
    outcome = replace(OUTCOME, answers=(), problem="it has ended", advice="read it", key="run_root", lines=("a", " b "))
    (result,) = judge_job(outcome)
    assert (result.found, result.action, result.key) == ("job 7: it has ended; it wrote: b", "read it", "run_root")
    assert result.verdict is Severity.FAIL
