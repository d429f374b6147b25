"""When the head's agent asks for the next start of a job itself, before Slurm's KILL reaches the batch script."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from hpc_elastic.agent.before_kill import ask_before_kill
from hpc_elastic.agent.conclude import conclude
from hpc_elastic.agent.records.another_start import ask_for_another_start
from hpc_elastic.agent.records.journal import Journal, stamp
from hpc_elastic.codec import to_json
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave
from hpc_elastic.observe.facts import FactReader
from hpc_elastic.plan.launch_plan import RequeuePlan, dump_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint, Request
from hpc_elastic.rundir.shared_lines import append_shared_line
from hpc_elastic.rundir.store import read_lines, write_json
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import JobOutlook, JobState
from tests.agent.answers import Answers
from tests.agent.records.runs import a_result, an_attempt
from tests.plans import make_run_plan

AGAIN = Leave(exit_code=int(ExitCode.REQUEUE), cause="the job was preempted; the job is started again")
PREEMPTED = JobOutlook(state=JobState.COMPLETING, restarts=0, is_preempted=True)
OUT_OF_TIME = JobOutlook(state=JobState.COMPLETING, restarts=0, is_out_of_time=True)
CANCELLED = JobOutlook(state=JobState.COMPLETING, restarts=0)
BY_CHAIN = RequeuePlan(max=5, on=("preempted",), by="chain")


class Ending:
    """A job that is being ended, as the agent of its head sees it."""

    def __init__(self, root: Path, *, requeue: RequeuePlan | None = None, reason: str | None = "preempted") -> None:
        self.layout = RunLayout(str(root))
        self.answers = Answers()
        self.place = Allocation(
            job_id="7", restart_count=0, array_task=None, node_id=0, nodes=("a", "b"), is_local=False
        )
        requeue = requeue or RequeuePlan(max=5, on=("preempted", "time_limit"))
        self.plan = replace(make_run_plan(root), requeue=requeue)
        self.journal = Journal(self.layout, self.plan, self.place, questions=self.answers)
        (root / "requests.jsonl").touch()
        (root / "agents").mkdir()
        self.journal.claim_allocation(Endpoint(address="a", port=1))
        self.journal.is_head = True
        if reason is not None:
            self.journal.next_start.note(reason)

    def leave(self, outlook: JobOutlook | None, *, leave: Leave = AGAIN) -> list[str]:
        """Have the agent leave so; return what was asked of Slurm."""
        self.answers.outlook = lambda job_id: outlook  # type: ignore[method-assign]
        ask_before_kill(leave, self.place, self.journal)
        return self.answers.started_again


@pytest.mark.parametrize("outlook", [PREEMPTED, OUT_OF_TIME], ids=["preempted", "out of time"])
def test_the_heads_agent_asks_for_the_next_start_if_slurm_is_about_to_kill_the_script(
    outlook: JobOutlook, tmp_path: Path
) -> None:
    assert Ending(tmp_path).leave(outlook) == ["7"]


def test_the_script_submits_no_second_job_if_the_heads_agent_has_submitted_one(tmp_path: Path) -> None:
    ending = Ending(tmp_path, requeue=BY_CHAIN)
    ending.leave(PREEMPTED)
    script = Journal(ending.layout, ending.plan, ending.place, questions=ending.answers)
    script.allocation = 1
    assert ask_for_another_start(script, say=print, pauses_s=()) == ""
    assert ending.answers.started_again == [f"{ending.layout.script} after 7"]
    assert [(line["kind"], line["id"]) for line in read_lines(ending.layout.requests)][1:] == [("chain", "43")]


def test_the_script_asks_for_no_second_start_if_slurm_has_counted_the_one_of_the_heads_agent(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.leave(PREEMPTED)
    script = Journal(ending.layout, ending.plan, ending.place, questions=Answers(is_requeued=(True,)))
    script.allocation = 1
    assert ask_for_another_start(script, say=print, pauses_s=()) == ""
    assert ending.answers.started_again == ["7"]


@pytest.mark.parametrize(
    "outlook",
    [
        CANCELLED,  # by scancel, after the reason was recorded
        replace(PREEMPTED, state=JobState.RUNNING),  # within GraceTime: a requeue would end what is still written
        JobOutlook(state=JobState.RUNNING, restarts=0),  # stopped by the agents' own clock, in time
        replace(PREEMPTED, restarts=1),  # Slurm starts it again itself
        None,
    ],
    ids=["cancelled", "in its grace", "runs", "requeued", "no answer"],
)
def test_the_next_start_is_left_to_the_script_if_slurm_is_not_about_to_kill_it(
    outlook: JobOutlook | None, tmp_path: Path
) -> None:
    assert Ending(tmp_path).leave(outlook) == []


@pytest.mark.parametrize("reason", [None, "node_lost"])
def test_no_start_is_asked_for_if_the_head_has_not_decided_on_one_for_this(reason: str | None, tmp_path: Path) -> None:
    """After the loss of the script's node a requeue does harm, and `lost_script` submits another job."""
    assert Ending(tmp_path, reason=reason).leave(PREEMPTED) == []


@pytest.mark.parametrize("seconds_left", [None, 60.0], ids=["at once", "with notice"])
def test_no_start_is_asked_for_if_a_person_has_asked_for_the_end_of_the_run(
    seconds_left: float | None, tmp_path: Path
) -> None:
    ending = Ending(tmp_path)
    stop = Request(kind="stop", by="ada@login", time="2026-01-02T03:04:05Z", seconds_left=seconds_left)
    append_shared_line(ending.layout.requests, to_json(stop))
    assert ending.leave(PREEMPTED) == []


def test_no_start_is_asked_for_if_the_run_is_over(tmp_path: Path) -> None:
    """Another head of this start may have ended it, which this one, cut off from it, had not heard of."""
    ending = Ending(tmp_path)
    write_json(ending.layout.result, to_json(a_result()))
    assert ending.leave(PREEMPTED) == []


def test_no_start_is_asked_for_if_the_run_goes_on_in_another_job(tmp_path: Path) -> None:
    """A person has submitted the job file again, and that start has claimed the next allocation."""
    ending = Ending(tmp_path)
    later = replace(ending.place, job_id="8")
    questions = Answers(is_over=lambda _: True)
    Journal(ending.layout, ending.plan, later, questions=questions).claim_allocation(Endpoint(address="a", port=1))
    assert ending.leave(PREEMPTED) == []


@pytest.mark.parametrize(
    ("ended", "asked"), [("", []), (" DUE to SIGNAL Terminated", []), (" DUE TO PREEMPTION", ["7"])]
)
def test_no_start_is_asked_for_if_a_person_has_cancelled_the_job_within_the_grace_of_a_preemption(
    ended: str, asked: list[str], tmp_path: Path
) -> None:
    """Slurm still tells the time of the preemption then."""
    ending = Ending(tmp_path)
    line = f"slurmstepd-a: error: *** JOB 7 ON a CANCELLED AT 2026-11-28T19:41:18{ended} ***"
    Path(ending.layout.script_output("7")).write_text(f"hpc_elastic: run directory x\n{line}\n")
    assert ending.leave(PREEMPTED) == asked


@pytest.mark.parametrize("by", ["chain", "requeue"])
def test_the_script_submits_no_second_job_if_the_nodes_of_one_start_have_claimed_two_allocations(
    by: Literal["chain", "requeue"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head has opened an attempt in the first, and whoever had given it up and claimed the second has joined it."""
    ending = Ending(tmp_path, requeue=replace(BY_CHAIN, by=by))
    ending.answers.is_disabled = by == "requeue"
    claimed, world = an_attempt()
    assert ending.journal.claim_attempt(stamp(claimed), world)[0]
    rival = Journal(ending.layout, ending.plan, replace(ending.place, node_id=1), questions=ending.answers)
    assert rival.claim_next_allocation(Endpoint(address="b", port=1), 1)
    asked = [*ending.leave(PREEMPTED)]
    assert asked[-1] == f"{ending.layout.script} after 7"
    Path(ending.layout.plan).write_text(dump_plan(ending.plan))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPC_ELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert conclude(ending.layout, int(ExitCode.REQUEUE), 0, ending.answers, pauses_s=()).is_started_again
    assert ending.answers.started_again.count(f"{ending.layout.script} after 7") == 1
    assert FactReader(ending.layout).read().job_id == "43"


def test_one_agent_alone_asks_for_the_next_start(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.journal.is_head = False
    assert ending.leave(PREEMPTED) == []


def test_an_agent_that_leaves_for_another_reason_asks_for_no_start(tmp_path: Path) -> None:
    assert Ending(tmp_path).leave(PREEMPTED, leave=replace(AGAIN, exit_code=int(ExitCode.STOPPED))) == []


def test_the_script_asks_again_if_the_heads_agent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = Ending(tmp_path)
    ending.answers.refusal = "scontrol: error: Unable to contact slurm controller"
    assert ending.leave(PREEMPTED) == ["7"]
    assert "job 7 is not started again yet: scontrol: error: Unable" in capsys.readouterr().out
    ending.answers.refusal = ""
    assert ask_for_another_start(ending.journal, say=print, pauses_s=()) == ""
    assert ending.answers.started_again == ["7", "7"]
