"""How an agent has the run go on in another job where the node of the batch script was set DOWN."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.lost_script import follow_lost_script
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave
from hpc_elastic.plan.launch_plan import RequeuePlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint, RunResultRecord
from hpc_elastic.rundir.store import read_lines
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook, JobState
from tests.agent.answers import Answers
from tests.plans import make_run_plan

TERMINATED = Leave(exit_code=int(ExitCode.STOPPED), cause="terminated, and a was lost: the other side closed it")
ON_LOSS = RequeuePlan(max=5, on=("node_loss",))
# As 22.05 says it of a job whose batch script's node was set DOWN, and as 24.11 does.
LOST = JobOutlook(state=JobState.COMPLETING, restarts=0, has_lost_node=True)
KILLED = JobOutlook(state=JobState.COMPLETING, restarts=0, has_lost_node=True, is_script_killed=True)


@pytest.fixture(autouse=True)
def term_handler() -> Iterator[None]:
    """Restores what this process does at a TERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Ending:
    """A job of three nodes that ends, as the agent of one of them sees it."""

    def __init__(self, root: Path, *, node_id: int = 1, requeue: RequeuePlan = ON_LOSS) -> None:
        self.layout = RunLayout(str(root))
        self.answers = Answers()
        self.place = Allocation(
            job_id="7", restart_count=0, array_task=None, node_id=node_id, nodes=("a", "b", "c"), is_local=False
        )
        self.plan = plan = replace(make_run_plan(root), requeue=requeue)
        self.journal = Journal(self.layout, plan, self.place, questions=self.answers)
        self.journal.allocation = 1
        (root / "requests.jsonl").touch()
        (root / "agents").mkdir()
        head = Journal(self.layout, plan, replace(self.place, node_id=0), questions=self.answers)
        head.claim_allocation(Endpoint(address="a", port=1))

    def leave(self, outlook: JobOutlook, *, leave: Leave = TERMINATED) -> list[str]:
        """Have the agent leave so; return what was asked of Slurm."""
        self.answers.end = outlook
        follow_lost_script(leave, self.place, self.journal, stands_by_s=0.0, pauses_s=(0.0, 0.0))
        return self.answers.started_again


@pytest.mark.parametrize("outlook", [LOST, KILLED], ids=["22.05", "24.11"])
def test_another_job_takes_the_place_of_one_that_slurm_ends_with_its_scripts_node(
    outlook: JobOutlook, tmp_path: Path
) -> None:
    """A requeue of this one would have Slurm drain the node, whose slurmd takes it for a job that it runs."""
    ending = Ending(tmp_path)
    assert ending.leave(outlook) == [f"{ending.layout.script} after 7"]
    assert ending.answers.without[0].nodes == ("a",)
    told = [(line["kind"], line["reason"], line["id"]) for line in read_lines(ending.layout.requests)]
    assert told == [("requeue", "node_lost", None), ("chain", None, "43")]


@pytest.mark.parametrize(
    "outlook",
    [
        JobOutlook(state=JobState.COMPLETING, restarts=0),  # scancel, after such a loss on 26.05
        JobOutlook(state=JobState.COMPLETING, restarts=0, is_script_killed=True),  # scancel --batch --signal=KILL
        JobOutlook(state=JobState.RUNNING, restarts=0),
        replace(LOST, restarts=1),  # Slurm starts it again itself
    ],
    ids=["cancelled", "script killed", "runs", "requeued"],
)
def test_no_job_takes_the_place_of_one_that_ends_for_another_reason(outlook: JobOutlook, tmp_path: Path) -> None:
    assert Ending(tmp_path).leave(outlook) == []


@pytest.mark.parametrize("node_id", [0, 4])
def test_only_the_next_few_agents_ask_for_another_job(node_id: int, tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.place = replace(ending.place, node_id=node_id, nodes=("a", "b", "c", "d", "e"))
    assert ending.leave(LOST) == []


def test_an_agent_that_leaves_for_another_reason_asks_for_no_job(tmp_path: Path) -> None:
    assert Ending(tmp_path).leave(LOST, leave=replace(TERMINATED, exit_code=0)) == []


def test_a_head_that_has_found_out_why_the_job_ends_leaves_the_next_job_to_this(tmp_path: Path) -> None:
    """It became head between the loss and the TERM, and the batch script that would ask Slurm is dead."""
    ending = Ending(tmp_path)
    ending.journal.next_start.note("node_lost", ["a"])
    left = replace(TERMINATED, exit_code=int(ExitCode.REQUEUE))
    assert ending.leave(KILLED, leave=left) == [f"{ending.layout.script} after 7"]


def test_an_agent_that_has_not_joined_its_head_asks_for_a_job_in_the_place_of_this_one(tmp_path: Path) -> None:
    """It has heard of no allocation, and what it writes without one would count for none."""
    ending = Ending(tmp_path)
    ending.journal.allocation = 0
    assert ending.leave(LOST) == [f"{ending.layout.script} after 7"]
    assert [line["allocation"] for line in read_lines(ending.layout.requests)] == [1, 1]


def test_a_job_that_ends_for_another_node_is_left_to_its_script(tmp_path: Path) -> None:
    """Without --no-kill Slurm ends a job with any of its nodes, and then the script lives."""
    ending = Ending(tmp_path)
    ending.journal.next_start.note("node_lost", ["c"])
    assert ending.leave(LOST, leave=replace(TERMINATED, exit_code=int(ExitCode.REQUEUE))) == []


def test_a_job_that_has_waited_for_this_allocation_is_no_follower_of_itself(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    line = {"format_version": 1, "kind": "chain", "by": "a", "time": "2026-01-02T03:04:05Z", "allocation": 1, "id": "7"}
    Path(ending.layout.requests).write_text(json.dumps(line) + "\n")
    assert ending.leave(LOST) == [f"{ending.layout.script} after 7"]


@pytest.mark.parametrize("reason", ["preempted", "time_limit"])
def test_an_allocation_that_ends_for_a_reason_that_the_head_has_noted_is_the_scripts(
    reason: str, tmp_path: Path
) -> None:
    """Nothing is asked of Slurm then: the script waits for the agents, and may have little time."""
    ending = Ending(tmp_path)
    ending.journal.next_start.note(reason)
    asked: list[str] = []
    ending.answers.outlook = lambda job_id: asked.append(job_id)  # type: ignore[method-assign]
    assert ending.leave(LOST, leave=replace(TERMINATED, exit_code=int(ExitCode.REQUEUE))) == asked == []


def test_one_agent_alone_asks_for_another_job(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.leave(LOST)
    ending.place = replace(ending.place, node_id=2)
    assert len(ending.leave(LOST)) == 1


@pytest.mark.parametrize("requeue", [RequeuePlan(max=5, on=("preempted",)), RequeuePlan(max=0, on=())])
def test_no_job_takes_the_place_where_the_run_may_not_start_again(requeue: RequeuePlan, tmp_path: Path) -> None:
    """Its script is dead, and need not have said why: the agent writes the result."""
    ending = Ending(tmp_path, requeue=requeue)
    assert ending.leave(LOST) == []
    assert list(read_lines(ending.layout.requests)) == []
    result = RunResultRecord(**json.loads(Path(ending.layout.result).read_text()))
    assert (result.state, result.exit_code, result.reason, result.written_by) == ("FAILED", 7, "node_lost", "b")
    assert result.cause.startswith("a, the node of the batch script, was set DOWN, and Slurm ends job 7 with it; ")


def test_a_refusal_of_the_job_that_is_to_take_its_place_stands_in_the_result(tmp_path: Path) -> None:
    """Each agent is refused it; the first would have written the result while the others still asked, if at once."""
    ending = Ending(tmp_path)
    ending.answers.refusal = "sbatch: error: Invalid account or account/partition combination specified"
    assert len(ending.leave(LOST)) == 1
    result = RunResultRecord(**json.loads(Path(ending.layout.result).read_text()))
    assert (result.state, result.exit_code, result.reason, result.written_by) == ("FAILED", 7, "node_lost", "b")
    assert result.cause == (
        "a, the node of the batch script, was set DOWN, and Slurm ends job 7 with it; no other job takes its place: "
        + ending.answers.refusal
    )


def test_an_agent_that_is_refused_the_job_leaves_the_result_to_one_that_is_not(tmp_path: Path) -> None:
    """One node may have no sbatch; the next agent asks while this one waits."""
    ending = Ending(tmp_path)
    ending.answers.refusal = "sbatch: not found"
    other = Journal(ending.layout, ending.plan, replace(ending.place, node_id=2), questions=Answers())
    other.allocation = 1

    def submit_elsewhere(job_id: str, without: Exclusion) -> tuple[str, str]:
        other.next_start.start_again(["a"], is_by_another_job=True)
        return "", ending.answers.refusal

    ending.answers.submit_after = submit_elsewhere  # type: ignore[method-assign]
    ending.leave(LOST)
    assert not Path(ending.layout.result).exists()
    assert [line["kind"] for line in read_lines(ending.layout.requests)] == ["requeue", "chain"]
