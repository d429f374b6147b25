"""What the script writes when all agents have ended and left no result; and when it must write nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic
from hpc_elastic.agent.conclude import Conclusion, conclude, describe
from hpc_elastic.agent.records.journal import Journal, stamp
from hpc_elastic.codec import from_json, to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.decisions import History
from hpc_elastic.observe.facts import FactReader
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NodeResult, Request, Spend, WorkerState, utc_text
from hpc_elastic.rundir.store import append_line, read_json, read_lines, write_json
from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook, JobState
from tests.agent.answers import Answers
from tests.agent.records.runs import HEAD, a_place, an_attempt
from tests.observe.builders import make_failure
from tests.plans import make_run_plan
from tests.tiers import longer

KILLED = 128 + 9


class Start:
    """One start of job 42, as its script and its head see it."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        self.plan = make_run_plan(self.layout.root, time_s=60.0)
        root.mkdir()
        Path(self.layout.plan).write_text(dump_plan(self.plan))

    def claim(self, *, restart_count: int = 0, attempt: int | None = 1, job_id: str = "42", restarts: int = 0) -> None:
        place = a_place(job_id, restart_count=restart_count)
        journal = Journal(self.layout, self.plan, place, questions=Answers(is_over=lambda _: True))
        allocation = journal.claim_allocation(HEAD).claim.allocation
        if attempt is not None:
            claimed, world = an_attempt(History(attempts=attempt - 1, spend=Spend(restarts=restarts)))
            claimed, world = replace(claimed, allocation=allocation), replace(world, allocation=allocation)
            assert journal.claim_attempt(stamp(claimed), world)[0]

    def ended(self, state: WorkerState, *, failure: str = "", detail: str = "") -> None:
        failed = replace(make_failure(1, self.layout), message=failure, node="node0")
        record = NodeResult(
            run="run",
            attempt=1,
            node="node0",
            state=state,
            role="default",
            ranks=(0, 1),
            pids={},
            reason="",
            failures={"1": failed} if failure else {},
            detail=detail,
            return_values={},
            started="",
            ended="",
        )
        write_json(self.layout.node_result(1, "node0"), to_json(record))

    def ask_requeue(self, reason: str) -> None:
        """Record what a head does before its agents leave with 75."""
        request = Request(kind="requeue", by="node0", time="", allocation=1, reason=reason)
        append_line(self.layout.requests, to_json(request))

    def conclude(
        self,
        status: int = KILLED,
        *,
        starts: int = 0,
        is_at_work: bool | None = True,
        is_requeued: bool | None = False,
    ) -> Any:
        conclude(self.layout, status, starts, Answers(is_requeued=[is_requeued], is_at_work=is_at_work))
        return read_json(self.layout.result)

    def complain(self, node: str, message: str, start: tuple[str, int] = ("42", 0)) -> None:
        output = Path(self.layout.agent_output(node))
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a") as file:
            file.write(f"{complaint(message, start)}\ntip: look for it\n")


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
    assert result["cause"] == (
        "all agents (node0) ended before one could write a result; the highest exit status was 137 (SIGKILL)"
    )
    assert (result["root_cause"]["class"], result["root_cause"]["line"]) == ("agent_lost", result["cause"])
    assert (result["attempts"], result["nodes"], result["written_by"]) == (1, ["node0"], "script")
    assert Path(start.layout.exit_code).read_text() == "7\n"


def test_a_step_that_somebody_cancelled_alone_ends_the_run_as_cancelled(start: Start) -> None:
    start.claim()
    output = Path(start.layout.agent_output("node0"))
    output.parent.mkdir(parents=True)
    output.write_text(
        "2026-11-27 10:14:59 hpc-elastic node0: attempt 1: 2 ranks on 1 node (first start)\n"
        "slurmstepd-node0: error: *** STEP 42.0 ON node0 CANCELLED AT 2026-11-27T10:15:01 ***\n"
    )
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("CANCELLED", 10, "terminated")
    assert result["cause"] == (
        "step 42.0 of the job, in which the agents ran, was cancelled, and the agents ended before one could write a "
        "result"
    )


def test_agents_that_were_killed_for_the_memory_of_one_node_are_told_so_and_not_as_cancelled(start: Start) -> None:
    start.claim()
    outputs = {
        "node0": "slurmstepd-node0: error: *** STEP 42.0 ON node0 CANCELLED AT 2026-11-27T10:15:01 ***\n",
        "node1": "slurmstepd-node1: error: StepId=42.0 exceeded memory limit (419430400 > 314572800), being killed\n"
        "2026-11-27 10:15:01 hpc-elastic node1: node0 is lost, which was head: the other side closed the connection\n",
    }
    for node, text in outputs.items():
        output = Path(start.layout.agent_output(node))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "out_of_memory")
    assert result["cause"] == (
        "the scheduler killed all agents with their workers, which went over the job's memory on node1 (400 of 300 MiB)"
    )
    assert (result["root_cause"]["class"], result["root_cause"]["node"]) == ("out_of_memory", "node1")


def test_agents_that_were_killed_before_the_first_attempt_leave_a_result_too(start: Start) -> None:
    start.claim(attempt=None)
    result = start.conclude()
    assert (result["state"], result["attempts"], result["nodes"]) == ("UNKNOWN", 0, ["node0", "node1"])


def test_what_srun_gave_up_for_is_told_before_the_end_of_the_agents(start: Start) -> None:
    start.claim(attempt=None)
    error = "Application launch failed: Job credential expired"
    Path(start.layout.script_output("42")).write_text(f"hpc_elastic: run directory x\nsrun: error: {error}\n")
    result = start.conclude()
    assert (result["state"], result["reason"]) == ("UNKNOWN", "no_result")
    assert result["cause"].startswith(f"srun gave up: {error}; all agents ended")


def test_the_records_of_all_nodes_prove_a_success(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.SUCCEEDED)
    assert (start.conclude()["state"], start.conclude()["exit_code"]) == ("SUCCEEDED", 0)


def test_a_run_that_was_to_be_cancelled_is_cancelled(start: Start) -> None:
    start.claim()
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    assert (start.conclude()["state"], start.conclude()["exit_code"]) == ("CANCELLED", 10)


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_the_error_for_which_an_agent_gave_up_is_the_cause(start: Start, node: str) -> None:
    start.claim(attempt=None)
    start.complain(node, "the disk is full")
    result = start.conclude(5)
    assert (result["state"], result["exit_code"], result["cause"]) == ("FAILED", 5, "the disk is full")


def test_a_complaint_keeps_the_exit_code_of_its_agent(start: Start) -> None:
    start.claim(attempt=None)
    start.complain("node0", "no head was joined")
    assert start.conclude(6)["exit_code"] == 6


def test_a_launcher_that_exits_0_makes_no_failed_run_leave_with_0(start: Start) -> None:
    start.claim(attempt=None)
    start.complain("node0", "no head was joined")
    result = start.conclude(0)
    assert (result["state"], result["exit_code"]) == ("FAILED", 5)


@pytest.mark.parametrize("other", [("42", 1), ("43", 0)])
def test_a_complaint_of_another_start_is_no_cause(start: Start, other: tuple[str, int]) -> None:
    """Of the same job before it was requeued, or of a second job that was refused while this one was at work."""
    start.claim()
    start.complain("node0", "it is still alive", other)
    assert start.conclude()["state"] == "UNKNOWN"


def test_failures_that_spent_the_last_restart_are_the_cause(start: Start) -> None:
    start.claim(restarts=start.plan.restart.max_restarts)
    start.ended(WorkerState.FAILED, failure="ValueError: loss is NaN")
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 1, "restarts_used_up")
    assert result["cause"].startswith("rank 1 on node0 failed: ValueError: loss is NaN; ")
    assert list(result["failures"]) == ["1"]


def test_failures_that_could_have_been_survived_are_told_and_prove_nothing(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.FAILED, failure="ValueError: loss is NaN")
    assert (start.conclude()["state"], list(start.conclude()["failures"])) == ("UNKNOWN", ["1"])


def test_an_agent_that_failed_itself_is_the_cause(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.UNKNOWN, detail="Traceback (most recent call last):\n  ...\nKeyError: 'node9'\n")
    result = start.conclude(7)
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "agent_failed")
    assert result["cause"] == "the agent of node0 failed: KeyError: 'node9'"


def test_the_local_time_limit_is_the_cause(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_ELASTIC_LOCAL_JOB_ID", "local-7-8")
    start.claim(job_id="local-7-8")

    claimed = read_json(start.layout.allocation(1))
    write_json(start.layout.allocation(1), {**claimed, "time": utc_text(time.time() - 60)})
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "time_limit")
    assert result["cause"].startswith("the time limit ended the run")


@pytest.mark.parametrize("is_at_work", [False, None])
def test_a_job_that_the_scheduler_ends_or_starts_again_or_does_not_tell_of_has_no_result(
    start: Start, is_at_work: bool | None
) -> None:
    """Of a job that is over `status` tells more: cancelled, out of time, preempted."""
    start.claim()
    assert start.conclude(is_at_work=is_at_work) is None


@pytest.mark.parametrize(("is_requeued", "state"), [(None, "CANCELLED"), (False, "CANCELLED"), (True, None)])
def test_a_person_who_asked_for_the_end_gets_it_though_slurm_is_silent(
    start: Start, is_requeued: bool | None, state: str | None
) -> None:
    start.claim()
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    result = start.conclude(75, is_at_work=None, is_requeued=is_requeued)
    assert (result and result["state"]) == state


def test_a_success_is_written_whatever_the_scheduler_says(start: Start) -> None:
    start.claim()
    start.ended(WorkerState.SUCCEEDED)
    assert start.conclude(75, is_at_work=None, is_requeued=True)["state"] == "SUCCEEDED"


def test_a_second_script_in_an_allocation_leaves_the_run_of_the_first_alone(start: Start) -> None:
    """Its srun was refused, perhaps; job and restart count are the same."""
    start.claim()
    assert start.conclude(1, starts=1) is None


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


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    launch = Path(hpc_elastic.__file__).parent / "launch.py"
    command = [sys.executable, str(launch), "hpc_elastic.agent.conclude", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.long
def test_the_program_says_what_it_cannot_do_in_one_line(start: Start) -> None:
    start.claim()
    for path in (start.layout.plan, start.layout.world(1)):
        before = Path(path).read_bytes()
        for spoilt in (None, b"{}", b"\xff", b"[" * 100_000, b'{"format_version": ' + b"9" * 6000 + b"}"):
            if spoilt is None:
                os.unlink(path)
            else:
                Path(path).write_bytes(spoilt)
            if spoilt is None and path != start.layout.plan:
                continue  # a roster may be missing
            done = run_program(start.layout.root, "137", "0")
            assert (done.stdout, done.stderr.count("\n")) == ("", 1), (spoilt, done.stderr)
            assert "Traceback" not in done.stderr
            if path == start.layout.plan:
                assert done.returncode == 5
                assert done.stderr.startswith("hpc_elastic: no agent wrote a result, and the script cannot: ")
        Path(path).write_bytes(before)
    assert not os.path.exists(start.layout.result)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [("a",), *longer((("a", "x", "0"),), (("a", "1", "²"),), (("a", "9" * 5000, "0"),))]
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    done = run_program(*arguments)
    assert (done.returncode, done.stderr) == (2, "usage: launch.py hpc_elastic.agent.conclude RUN_DIR STATUS STARTS\n")


@pytest.mark.long
def test_a_second_ctrl_c_does_not_cost_the_result(start: Start) -> None:
    start.claim()
    code = (
        "import os, signal, sys; from hpc_elastic.agent import conclude as asked;"
        "asked.conclude = lambda *_: [os.kill(os.getpid(), n) for n in (signal.SIGINT, signal.SIGTERM)] and "
        "asked.Conclusion(cause='written');"
        "sys.exit(asked.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, start.layout.root, "1", "0"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "hpc_elastic: written\n")


def test_a_job_that_its_head_has_ended_is_started_again_if_its_nodes_have_claimed_two_allocations(start: Start) -> None:
    """The head opened an attempt in the first; whoever had given it up before, and claimed another, joined it."""
    start.claim()
    rival = Journal(start.layout, start.plan, a_place(node_id=1), questions=Answers())
    assert rival.claim_next_allocation(HEAD, 1)
    start.ask_requeue("time_limit")
    answers = Answers()
    assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == ["42"]


def leave_beside_another_claim(start: Start, reason: str) -> Journal:
    """The first head leaves for the next start, and another node has claimed beside it, whose journal is returned."""
    start.claim(attempt=None)
    rival = Journal(start.layout, start.plan, a_place(node_id=1), questions=Answers())
    assert rival.claim_next_allocation(HEAD, 1)
    start.ask_requeue(reason)
    return rival


@pytest.mark.parametrize("reason", ["node_lost", "time_limit"])
def test_a_job_that_its_first_head_has_left_before_an_attempt_is_started_again_after_another_claim(
    reason: str, start: Start
) -> None:
    """The head of the second claim finds that the first has left for the next start, and leaves without a word."""
    rival = leave_beside_another_claim(start, reason)
    assert rival.what_another_head_left_for() == reason
    answers = Answers()
    assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == ["42"]


def test_the_run_ends_if_the_next_start_is_refused_after_the_first_head_has_left_beside_another_claim(
    start: Start,
) -> None:
    leave_beside_another_claim(start, "time_limit")
    answers = Answers()
    answers.refusal = "scontrol: error: Job/step already completing or completed"
    assert "already completing" in conclude(start.layout, 75, 0, answers, pauses_s=()).cause
    assert read_json(start.layout.result)["reason"] == "time_limit"


def test_the_run_ends_if_a_person_wants_its_end_after_the_first_head_has_left_beside_another_claim(
    start: Start,
) -> None:
    leave_beside_another_claim(start, "time_limit")
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login", time="")))
    assert start.conclude(75)["reason"] == "stop_requested"


def test_the_job_of_an_allocation_that_a_head_has_ended_for_the_time_limit_is_started_again(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    answers = Answers()
    assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == ["42"]
    assert read_json(start.layout.result) is None


REBOOTED = "srun: error: Aborting, io error and missing step on node 1"
REFUSED = "srun: error: Task launch for StepId=42.0 failed on node node1: Job credential expired"


def write_output(start: Start, *lines: str) -> None:
    text = "\n".join(["hpc_elastic: run directory x", *lines, ""])
    Path(start.layout.script_output("42")).write_text(text)


@pytest.mark.parametrize("reason", ["preempted", "time_limit"])
def test_a_job_that_a_person_has_cancelled_while_it_was_stopped_is_not_started_again(start: Start, reason: str) -> None:
    """Slurm has the job as cancelled, of which `status` makes the result."""
    start.claim()
    start.ask_requeue(reason)
    write_output(start, CANCELLED)
    answers = Answers(is_at_work=False)
    answers.end = JobOutlook(state=JobState.COMPLETING, restarts=0, is_preempted=reason == "preempted")
    assert conclude(start.layout, 75, 0, answers) == Conclusion()
    assert answers.started_again == []
    assert read_json(start.layout.result) is None


CANCELLED = "slurmstepd-node0: error: *** JOB 42 ON node0 CANCELLED AT 2026-11-28T19:41:18 ***"
IN_ITS_GRACE = JobOutlook(state=JobState.COMPLETING, restarts=0, is_preempted=True)  # when it was cancelled


def test_a_job_that_a_person_has_cancelled_is_not_started_again_if_the_scheduler_is_silent_meanwhile(
    start: Start,
) -> None:
    start.claim()
    start.ask_requeue("preempted")
    write_output(start, CANCELLED)
    answers = Answers(is_at_work=None)
    assert conclude(start.layout, 75, 0, answers, pauses_s=()) == Conclusion()
    assert answers.started_again == []


def test_a_job_of_many_nodes_that_a_person_has_cancelled_while_it_was_stopped_is_not_started_again(
    start: Start,
) -> None:
    """When the agents have left, srun has written a line for each after that of the `scancel`."""
    start.claim()
    start.ask_requeue("preempted")
    ends = (f"srun: error: node{number}: task {number}: Exited with exit code 75" for number in range(1024))
    write_output(start, CANCELLED, *ends)
    answers = Answers(is_at_work=False)
    answers.end = IN_ITS_GRACE
    assert conclude(start.layout, 75, 0, answers) == Conclusion()
    assert answers.started_again == []


@pytest.mark.parametrize(("line", "is_again"), [(CANCELLED, False), ("slurmstepd: something else", True)])
def test_a_job_that_a_person_has_cancelled_before_its_agents_had_begun_is_not_started_again(
    line: str, is_again: bool, start: Start
) -> None:
    """Within the grace of a preemption, of which Slurm still tells the time."""
    write_output(start, line)
    answers = Answers(is_at_work=False)
    answers.end = IN_ITS_GRACE
    assert conclude(start.layout, 10, 0, answers).is_started_again is is_again
    assert answers.started_again == ["42"] * is_again


@pytest.mark.parametrize("is_at_work", [False, None], ids=["the scheduler says so", "the scheduler is silent"])
def test_a_job_that_a_person_cancels_while_its_next_start_is_asked_for_is_not_started_again(
    is_at_work: bool | None, start: Start
) -> None:
    start.claim()
    start.ask_requeue("preempted")
    write_output(start)

    class Cancelling(Answers):
        def start_again(self, job_id: str, without: Exclusion) -> str:
            refusal = super().start_again(job_id, without)
            write_output(start, CANCELLED)
            self._is_at_work, self.refusal = is_at_work, ""
            return refusal

    answers = Cancelling(is_requeued=(None, None))
    answers.refusal = "Unexpected message received"
    assert conclude(start.layout, 75, 0, answers, pauses_s=(0.0, 0.0)) == Conclusion()
    assert answers.started_again == ["42"]
    assert read_json(start.layout.result) is None


@pytest.mark.parametrize(
    ("line", "status", "why"),
    [(REBOOTED, KILLED, "it has rebooted"), (REFUSED, KILLED, "Job credential expired"), (REFUSED, 1, "Job cred")],
    ids=["rebooted", "refused", "refused, of another status"],
)
def test_a_job_whose_node_could_not_be_started_is_started_again_without_it(
    line: str, status: int, why: str, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    start.claim(attempt=None)
    write_output(start, line)
    answers = Answers()
    assert conclude(start.layout, status, 0, answers).is_started_again
    assert f"srun could not start the agents on node1 ({why}" in capfd.readouterr().err
    assert (answers.started_again, answers.without[0].nodes) == (["42"], ("node1",))
    (noted,) = read_lines(start.layout.requests)
    assert (noted["kind"], noted["reason"], noted["allocation"]) == ("requeue", "node_lost", 1)
    assert read_json(start.layout.result) is None


def test_a_task_that_an_srun_of_setup_could_not_start_is_not_what_ended_the_agents(start: Start) -> None:
    start.claim(attempt=None)
    write_output(start, REFUSED, "hpc_elastic: starting an agent on each of 2 nodes (start 0)")
    answers = Answers()
    assert "srun" not in conclude(start.layout, KILLED, 0, answers).cause
    assert not answers.started_again
    assert read_json(start.layout.result)["reason"] == "no_result"


@pytest.mark.parametrize("line", [REBOOTED, REFUSED], ids=["rebooted", "refused"])
@pytest.mark.parametrize(("used", "is_again"), [(0, True), (4, True), (5, False)])
def test_a_job_whose_node_could_not_be_started_before_the_claim_is_started_again_as_often_as_it_may(
    line: str, used: int, is_again: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(used))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[0-1]")
    write_output(start, line)
    answers = Answers()
    assert conclude(start.layout, KILLED, 0, answers).is_started_again == is_again
    assert answers.started_again == ["42"] * is_again
    assert [without.nodes for without in answers.without] == [("node1",)] * is_again


def test_the_node_that_an_unclaimed_start_has_avoided_may_be_had_again_by_a_later_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    for restart_count, node in enumerate(("node1", "node0")):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart_count))
        write_output(start, REFUSED.replace("node1", node))
        assert conclude(start.layout, 1, 0, answers).is_started_again
    assert [(each.nodes, each.earlier) for each in answers.without] == [
        (("node1",), ("node1",)),
        (("node0",), ("node1", "node0")),
    ]


def test_a_start_that_ended_before_its_claim_uses_up_a_requeue_of_the_ones_that_claim(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requeue.max: 1 two were used where srun failed before the claim of one start and after that of the next."""
    plan = replace(start.plan, requeue=replace(start.plan.requeue, max=1))
    Path(start.layout.plan).write_text(dump_plan(plan))
    write_output(start, REFUSED)
    answers = Answers()
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[0-1]")
    assert conclude(start.layout, KILLED, 0, answers).is_started_again
    start.claim(attempt=None)
    assert not conclude(start.layout, KILLED, 0, answers).is_started_again
    assert answers.started_again == ["42"]
    assert read_json(start.layout.result)["cause"].startswith("srun could not start the agents on node1 (")


def test_nodes_that_could_not_be_started_are_the_cause_if_the_job_is_not_started_again(start: Start) -> None:
    start.claim(attempt=None)
    start.complain("node0", "the head is gone")
    plan = replace(start.plan, requeue=replace(start.plan.requeue, on=("preempted",)))
    Path(start.layout.plan).write_text(dump_plan(plan))
    write_output(start, REFUSED, REFUSED.replace("node1", "node0"))
    result = start.conclude()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "node_lost")
    assert result["cause"] == (
        "srun could not start the agents on node1, node0 (Job credential expired), so that no agent went on"
    )


@pytest.mark.parametrize("why", ["an attempt was opened", "a person has stopped it", "not for that", "not named"])
def test_a_job_is_not_started_again_for_an_error_of_srun_if(why: str, start: Start) -> None:
    start.claim(attempt=1 if why == "an attempt was opened" else None)
    write_output(start, REFUSED if why != "not named" else "srun: error: Application launch failed: no")
    if why == "a person has stopped it":
        append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    if why == "not for that":
        plan = replace(start.plan, requeue=replace(start.plan.requeue, on=("preempted",)))
        Path(start.layout.plan).write_text(dump_plan(plan))
    answers = Answers()
    assert not conclude(start.layout, KILLED, 0, answers).is_started_again
    assert answers.started_again == []
    assert read_json(start.layout.result) is not None


def test_a_job_that_the_scheduler_has_requeued_already_is_not_requeued_once_more(start: Start) -> None:
    start.claim()
    start.ask_requeue("preempted")
    answers = Answers(is_requeued=[True])
    assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == []


def test_the_result_says_that_slurm_refused_to_start_the_job_again(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    answers = Answers()
    answers.refusal = "scontrol could not requeue job 42: Requested operation is presently disabled"
    cause = conclude(start.layout, 75, 0, answers).cause
    assert "Requested operation is presently disabled" in cause
    result = read_json(start.layout.result)
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "time_limit")


class Away(Answers):
    """A scheduler that is away for some requests for another start, and says then what a refusal could be."""

    def __init__(self, tries: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.tries = tries
        self.meanwhile = meanwhile

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        return None if self.tries else False

    def start_again(self, job_id: str, without: Exclusion) -> str:
        self.started_again.append(job_id)
        if not self.tries:
            return ""
        self.tries -= 1
        self.meanwhile()
        return "scontrol could not requeue job 42: Unexpected message received"


@pytest.mark.parametrize("tries", [1, 3])
def test_another_start_is_asked_for_until_a_controller_that_is_away_is_back(start: Start, tries: int) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    answers = Away(tries)
    assert conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3).is_started_again
    assert len(answers.started_again) == tries + 1
    assert read_json(start.layout.result) is None


def test_a_controller_that_stays_away_for_too_long_is_named_in_the_result(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    assert "Unexpected message received" in conclude(start.layout, 75, 0, Away(9), pauses_s=(0.0,) * 3).cause
    assert read_json(start.layout.result)["state"] == "FAILED"


def test_a_cancel_goes_before_a_start_that_is_still_asked_for(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    stop = to_json(Request(kind="stop", by="ada@login1", time=""))
    answers = Away(9, lambda: append_line(start.layout.requests, stop))
    conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3)
    assert answers.started_again == ["42"]
    result = read_json(start.layout.result)
    assert (result["state"], result["exit_code"], result["reason"]) == ("CANCELLED", 10, "stop_requested")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (JobOutlook(state=JobState.RUNNING, restarts=0, is_preempted=True), "preempted"),
        (JobOutlook(state=JobState.COMPLETING, restarts=0, is_out_of_time=True), "time_limit"),
    ],
)
def test_the_script_has_the_job_started_again_if_all_agents_were_killed(
    start: Start, end: JobOutlook, reason: str
) -> None:
    start.claim()
    answers = Answers()
    answers.end = end
    assert conclude(start.layout, KILLED, 0, answers).is_started_again
    assert answers.started_again == ["42"]
    told = [from_json(Request, line) for line in read_lines(start.layout.requests)]
    assert [(each.kind, each.reason, each.allocation) for each in told] == [("requeue", reason, 1)]


class Silent(Answers):
    """A scheduler that says only after some questions that it takes the job's nodes and starts nothing again."""

    def __init__(self, questions: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.questions = questions
        self.meanwhile = meanwhile
        self.end = JobOutlook(state=JobState.COMPLETING, restarts=0, is_preempted=True)

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        self.questions -= 1
        self.meanwhile()
        return None if self.questions >= 0 else False


def test_the_script_asks_on_for_agents_that_left_without_an_answer(start: Start) -> None:
    start.claim()
    answers = Silent(3)
    assert conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3).is_started_again
    assert answers.started_again == ["42"]


def test_a_run_whose_scheduler_stays_silent_has_no_result(start: Start) -> None:
    start.claim()
    answers = Silent(9)
    assert conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3) == Conclusion()
    assert (answers.questions, answers.started_again, read_json(start.layout.result)) == (5, [], None)


def test_the_script_asks_no_more_when_a_person_wants_the_end(start: Start) -> None:
    start.claim()
    stop = to_json(Request(kind="stop", by="ada@login1", time=""))
    answers = Silent(9, lambda: append_line(start.layout.requests, stop))
    conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3)
    assert answers.questions == 8
    assert read_json(start.layout.result)["state"] == "CANCELLED"


def test_a_run_that_may_not_be_started_again_has_failed_for_what_ended_it(start: Start) -> None:
    start.plan = replace(start.plan, requeue=replace(start.plan.requeue, max=0))
    Path(start.layout.plan).write_text(dump_plan(start.plan))
    start.claim()
    answers = Answers()
    answers.end = JobOutlook(state=JobState.COMPLETING, restarts=0, is_preempted=True)
    conclude(start.layout, KILLED, 0, answers)
    result = read_json(start.layout.result)
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "preempted")
    assert "requeue.max is 0" in result["cause"]
    assert answers.started_again == []


def test_another_job_is_submitted_once_where_the_site_chains_jobs(start: Start) -> None:
    start.plan = replace(start.plan, requeue=replace(start.plan.requeue, by="chain"))
    Path(start.layout.plan).write_text(dump_plan(start.plan))
    start.claim()
    start.ask_requeue("time_limit")
    answers = Answers()
    for _ in range(2):
        assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == [f"{start.layout.script} after 42"]
    told = [from_json(Request, line) for line in read_lines(start.layout.requests)]
    assert [(each.kind, each.id) for each in told] == [("requeue", None), ("chain", "43")]
    assert FactReader(start.layout).read().job_id == "43"


def test_another_job_is_submitted_if_slurm_never_requeues_this_one(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    answers = Answers()
    answers.is_disabled = True
    assert conclude(start.layout, 75, 0, answers).is_started_again
    assert answers.started_again == ["42", f"{start.layout.script} after 42"]
    told = [from_json(Request, line) for line in read_lines(start.layout.requests)]
    assert [(each.kind, each.id) for each in told] == [("requeue", None), ("chain", "43")]
    assert read_json(start.layout.result) is None


def test_a_refusal_of_another_job_is_told_if_slurm_never_requeues_this_one(start: Start) -> None:
    start.claim()
    start.ask_requeue("time_limit")
    answers = Answers()
    answers.is_disabled, answers.refusal = True, "no reservation"
    assert "no reservation" in conclude(start.layout, 75, 0, answers).cause
    assert read_json(start.layout.result)["exit_code"] == 7


class RefusesForNow(Answers):
    """A scheduler that takes no other job for the first tries, as where a partition is drained."""

    def __init__(self, tries: int, seconds_left: float | None) -> None:
        super().__init__()
        self.tries = tries
        self.is_passing = True
        self.end = JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=seconds_left)

    def submit_after(self, job_id: str, without: Exclusion) -> tuple[str, str]:
        self.refusal = "Required partition not available" if len(self.started_again) < self.tries else ""
        return super().submit_after(job_id, without)


@pytest.mark.parametrize(
    ("seconds_left", "tries", "is_started_again"),
    [(60.0, 3, True), (float("inf"), 3, True), (15.0, 1, False), (None, 1, False)],
)
def test_a_chained_job_that_is_refused_for_now_is_asked_for_again_while_this_one_has_the_time(
    seconds_left: float | None,
    tries: int,
    is_started_again: bool,
    start: Start,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start.plan = replace(start.plan, requeue=replace(start.plan.requeue, by="chain"))
    Path(start.layout.plan).write_text(dump_plan(start.plan))
    start.claim()
    start.ask_requeue("time_limit")
    answers = RefusesForNow(2, seconds_left)
    assert conclude(start.layout, 75, 0, answers, pauses_s=(0.0,) * 3).is_started_again is is_started_again
    assert len(answers.started_again) == tries
    told = "Slurm refuses the next job for now; asking again while this one has the time: Required partition"
    assert capsys.readouterr().err.count(told) == is_started_again
    if not is_started_again:
        assert "Required partition not available" in read_json(start.layout.result)["cause"]


@pytest.mark.parametrize("claims", [1, 2])
@pytest.mark.parametrize(("reason", "words"), [("preempted", "for another job"), (None, "without a word")])
def test_the_next_start_says_why_the_one_before_has_ended(
    start: Start, reason: str | None, words: str, claims: int
) -> None:
    start.claim()
    if claims == 2:  # of the same start; the head has opened its attempt in the first
        rival = Journal(start.layout, start.plan, a_place(node_id=1), questions=Answers())
        assert rival.claim_next_allocation(HEAD, 1)
    if reason is not None:
        start.ask_requeue(reason)
    place = a_place("42", restart_count=1)
    journal = Journal(start.layout, start.plan, place, questions=Answers(is_over=lambda _: True))
    journal.claim_allocation(HEAD)
    assert words in journal.next_start.why_before()


@pytest.mark.parametrize(
    ("end", "again"),
    [
        (JobOutlook(state=JobState.RUNNING, restarts=0, is_preempted=True), True),
        (JobOutlook(state=JobState.COMPLETING, restarts=0, is_out_of_time=True), True),
        (JobOutlook(state=JobState.COMPLETING, restarts=0), False),  # scancel
    ],
)
@pytest.mark.parametrize("has_claim", [True, False])
@pytest.mark.parametrize("status", [10, 143, 137])
def test_a_term_that_reaches_agents_without_a_head_is_told_apart_by_the_script(
    start: Start, end: JobOutlook, again: bool, has_claim: bool, status: int
) -> None:
    """They have all left with 10, as none of them knew what the TERM means, or died of it in their first second."""
    if has_claim:
        start.claim(attempt=None)
    answers = Answers(is_at_work=end.state is JobState.RUNNING)
    answers.end = end
    assert conclude(start.layout, status, 0, answers).is_started_again == again
    assert answers.started_again == (["42"] if again else [])
    assert read_json(start.layout.result) is None


def test_a_start_that_slurm_requeues_by_itself_is_not_started_twice(start: Start) -> None:
    answers = Answers()
    answers.end = JobOutlook(state=JobState.COMPLETING, restarts=1)
    assert conclude(start.layout, 10, 0, answers).is_started_again
    assert answers.started_again == []


def test_nothing_is_started_again_for_agents_that_were_refused_or_whose_end_a_person_wants(start: Start) -> None:
    answers = Answers()
    answers.end = JobOutlook(state=JobState.RUNNING, restarts=0, is_preempted=True)
    assert not conclude(start.layout, 5, 0, answers).is_started_again
    append_line(start.layout.requests, to_json(Request(kind="stop", by="ada@login1", time="")))
    assert not conclude(start.layout, 10, 0, answers).is_started_again
    assert answers.started_again == []


@pytest.mark.long
def test_the_program_exits_75_when_the_job_starts_again(start: Start) -> None:
    code = (
        "import sys; from hpc_elastic.agent import conclude as asked;"
        "asked.conclude = lambda *_: asked.Conclusion(is_started_again=True);"
        "sys.exit(asked.main(sys.argv[1:]))"
    )
    assert subprocess.run([sys.executable, "-c", code, start.layout.root, "10", "0"]).returncode == 75


def test_a_chained_job_that_claimed_nothing_has_another_one_submitted(start: Start) -> None:
    start.plan = replace(start.plan, requeue=replace(start.plan.requeue, by="chain"))
    Path(start.layout.plan).write_text(dump_plan(start.plan))
    start.claim(job_id="41")
    append_line(start.layout.requests, to_json(Request(kind="chain", by="node0", time="", allocation=1, id="42")))
    answers = Answers()
    answers.end = JobOutlook(state=JobState.RUNNING, restarts=0, is_preempted=True)
    assert conclude(start.layout, 10, 1, answers).is_started_again
    assert answers.started_again == [f"{start.layout.script} after 42"]
    assert FactReader(start.layout).read().job_id == "43"
