"""What is said to do next: by the signal, the exception, the end of the run and the stacks, not by the class alone."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.failures.root_cause import ObservedFailure, StoppedRanks, find_root_cause
from hpc_elastic.observe.explain import Explanation, explain
from hpc_elastic.observe.explain_advice import ENDED_EARLY
from hpc_elastic.observe.explain_facts import ExplainFacts
from hpc_elastic.observe.explain_reader import read_explain_facts
from hpc_elastic.observe.snapshot import take_tolerant_snapshot
from hpc_elastic.observe.watch import RunWatch
from hpc_elastic.rundir.records import FailureRecord, RootCause, RunState
from hpc_elastic.scheduler.protocol import JobState
from tests.membership.script import a_failure
from tests.observe.builders import RunBuilder
from tests.observe.failed_runs import CAUSE, LATE, failure, silent_rank, stalled, start
from tests.observe.test_snapshot import TellingScheduler


def ended(root: Path, died: FailureRecord, *, reason: str = "restarts_used_up", line: str = "it failed") -> Explanation:
    cause = replace(CAUSE, failure_class=died.failure_class, line=line, rank=died.rank, node=died.node)
    return explained(root, replace(cause, frame=died.frame), died, reason=reason)


def explained(root: Path, cause: RootCause, *failures: FailureRecord, reason: str = "restarts_used_up") -> Explanation:
    run = start(root)
    run.end(
        RunState.FAILED,
        exit_code=1,
        reason=reason,
        cause=cause.line,
        failures={str(each.rank): each for each in failures},
        root_cause=cause,
        time=LATE,
    )
    return explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)


@pytest.mark.parametrize(
    ("signal", "meaning", "advice"),
    [
        ("SIGILL", "processor", "compare the processors"),
        ("SIGXCPU", "limit of CPU time", "ulimit -t"),
        ("SIGALRM", "alarm", "signal.alarm"),
        ("SIGKILL", "a signal from outside of the run", "ask who sent it"),
    ],
)
def test_a_signal_that_nobody_sent_is_not_put_down_to_anybody(
    signal: str, meaning: str, advice: str, tmp_path: Path
) -> None:
    found = ended(tmp_path / "run", replace(failure(start(tmp_path / "other"), 3, "signal"), signal_name=signal))
    assert meaning in found.meaning
    assert advice in found.advice[0]


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("OSError: [Errno 24] Too many open files: 'a'", "ulimit -n"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("RuntimeError: Resource temporarily unavailable", "pids.max"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "ran out of memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "whether the path is there"),
        ("ValueError: no such batch", "begin at train.py:88 in step, the innermost line of your own code"),
    ],
)
def test_what_to_do_about_an_exception_follows_its_words(message: str, advice: str, tmp_path: Path) -> None:
    raised = replace(failure(start(tmp_path / "other"), 3, message=message), frame="train.py:88 in step")
    assert advice in ended(tmp_path / "run", raised).advice[0]


def test_a_rank_that_ended_early_is_not_told_to_be_stuck(tmp_path: Path) -> None:
    victim = ObservedFailure(failure=a_failure(0, failure_class="peer_lost", message="reset"), at=1.0)
    nodes = dict.fromkeys(range(4), "node1")
    cause = find_root_cause(1, [victim], StoppedRanks(nodes=nodes, succeeded=(1,)))
    assert cause is not None
    assert ENDED_EARLY in cause.cause.line
    found = explained(tmp_path / "run", cause.cause, victim.failure)
    assert found.meaning == "it ended before the ranks that still needed it"
    assert "fewer batches" in found.advice[0]


def test_ranks_that_ran_on_after_the_others_are_not_told_to_lack_heartbeats(tmp_path: Path) -> None:
    said = "ranks on node1 still ran elastic.exit_timeout after the first one had exited 0"
    cause = replace(CAUSE, failure_class="stalled", line=f"{said}: ranks 1-3", rank=None, node="", candidates="1-3")
    found = explained(tmp_path / "run", replace(cause, frame="", failed="", silent="1-3"), reason="exit_timeout")
    assert found.meaning == "it ran on after the first rank had exited 0"
    assert found.advice == (
        "look what the ranks that ran on did at the end; raise elastic.exit_timeout if they had work left",
    )


def test_stacks_are_only_promised_where_some_were_taken(tmp_path: Path) -> None:
    without = explain(*facts(silent_rank(tmp_path / "without")))
    assert without.stacks == ()
    assert "set stall_timeout" in without.advice[0]
    found = explain(*facts(stalled(tmp_path / "with")))
    assert found.stacks == (
        "rank 2 on node2 is in open_shard (data.py:31)",
        "3 ranks wait in all_reduce (train.py:88): ranks 0-1,3",
    )
    assert "find out what rank 2 waited for at data.py:31 in open_shard" in found.advice[0]
    assert "hpc-elastic stacks 42 --rank 2" in found.next


def test_of_a_rank_that_exits_the_place_is_named_where_it_is_known(tmp_path: Path) -> None:
    left = replace(failure(start(tmp_path / "other"), 3, "exit_code"), frame="train.py:5 in <module>")
    assert ended(tmp_path / "run", left).advice == ("look why the script exits at train.py:5",)


def test_of_a_rank_that_faulthandler_ended_the_place_is_where_it_waited(tmp_path: Path) -> None:
    said = "faulthandler.dump_traceback_later ended it, after a timeout of 0:00:01"
    left = replace(failure(start(tmp_path / "other"), 3, "exit_code"), frame="train.py:5 in <module>", message=said)
    assert ended(tmp_path / "run", left).advice[0].startswith("find out what it waited for at train.py:5;")


def facts(run: RunBuilder) -> tuple[ExplainFacts, float]:
    layout = run.layout
    return read_explain_facts(layout, take_tolerant_snapshot(layout)), 0.0


@pytest.mark.parametrize(("number", "has_advice"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_where_the_run_directory_is_full_people_are_told_to_free_space_and_nothing_else(
    number: int, has_advice: bool, tmp_path: Path
) -> None:
    run = start(tmp_path / "run")
    run.end(RunState.FAILED, exit_code=5, reason="agent_failed", cause=f"cannot write /x: {os.strerror(number)}")
    advice = explain(*facts(run)).advice
    assert (advice == ("free some space, or choose another place with --run-dir, and submit the job again",)) == (
        has_advice
    )


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("./prog.sh: Permission denied", "chmod +x"),
        ("./prog.sh: No such file or directory", "relative paths begin in the folder of the job file"),
        ("Argument list too long: /usr/bin/python3", "shorten the arguments and the environment"),
        ("./prog.sh: neither a binary of this machine nor a script with a #! line", "#! line"),
        ("./prog.sh: Exec of it failed", "check the entrypoint"),
    ],
)
def test_what_to_do_about_a_program_that_does_not_start_follows_its_error(
    message: str, advice: str, tmp_path: Path
) -> None:
    not_started = failure(start(tmp_path / "other"), 3, "start_failed", message)
    assert advice in ended(tmp_path / "run", not_started).advice[0]


def test_a_job_that_was_cancelled_in_the_queue_gets_no_advice_about_time_limits(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()
    assert RunWatch(run.layout, TellingScheduler(JobState.CANCELLED)).look().reason == "terminated"
    assert explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0).advice == ()


def test_a_run_whose_next_start_slurm_refuses_is_to_be_submitted_again(tmp_path: Path) -> None:
    refusal = "sbatch refused the job: QOSMaxSubmitJobPerUserLimit"
    cause = f"the job's time limit was reached; Slurm does not start the job again: {refusal}"
    run = start(tmp_path / "run").end(RunState.FAILED, exit_code=7, reason="time_limit", cause=cause)
    (advice,) = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0).advice
    assert advice.startswith("mend what Slurm refuses, and submit the job file again")


SCANCEL = "slurmstepd-node1: error: *** JOB 42 ON node1 CANCELLED AT 2026-11-27T13:05:27 ***"


def terminated(root: Path, *lines: str) -> Explanation:
    run = start(root).end(RunState.CANCELLED, exit_code=10, reason="terminated", cause="node1 got SIGTERM from outside")
    run.start_script("\n".join(["hpc_elastic: run directory x", *lines, "hpc-elastic node1: got SIGTERM", ""]))
    return explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)


def test_a_job_that_was_cancelled_with_scancel_is_said_to_be_and_gets_no_advice(tmp_path: Path) -> None:
    explanation = terminated(tmp_path / "run", SCANCEL)
    assert explanation.cause == "somebody cancelled the job with scancel (node1 got SIGTERM from outside)"
    assert explanation.meaning == "a stop that a person asked for"
    assert (explanation.advice, explanation.excerpts, explanation.files) == ((), (), ())


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (SCANCEL[:-4] + " DUE TO TIME LIMIT ***",),
        (SCANCEL[:-4] + " DUE TO PREEMPTION ***",),
        (SCANCEL, "hpc_elastic: run directory x"),
    ],
    ids=["nothing", "time limit", "preemption", "an earlier start"],
)
def test_what_else_ends_a_job_is_not_taken_for_a_scancel(lines: tuple[str, ...], tmp_path: Path) -> None:
    explanation = terminated(tmp_path / "run", *lines)
    assert explanation.cause == "node1 got SIGTERM from outside"
    assert explanation.advice
