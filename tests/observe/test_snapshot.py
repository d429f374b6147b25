"""What is read of a run directory, also of one that is torn or half there."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.failures.pace import NO_PACE
from hpc_elastic.observe.diagnosis import missing_result
from hpc_elastic.observe.facts import FactReader, agent_complaint
from hpc_elastic.observe.narrate import describe_left_out, where_to_look
from hpc_elastic.observe.present import status_rows
from hpc_elastic.observe.snapshot import make_snapshot, snapshot_to_json, take_snapshot
from hpc_elastic.observe.watch_view import watch_rows
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import TIME, RunBuilder, make_failure, refuse_writes
from tests.observe.failed_runs import BEGAN_S, CAUSE, KINDS
from tests.rundir.test_full_disk import full_disk


class SilentScheduler:
    """A scheduler that does not answer."""

    name = "slurm"

    def submit(self, plan: LaunchPlan, script: str) -> str:
        raise SchedulerError("the controller does not answer")

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        raise SchedulerError("the controller does not answer")

    def cancel(self, job_id: str) -> None:
        raise SchedulerError("the controller does not answer")


class TellingScheduler(SilentScheduler):
    """A scheduler that says what it was told."""

    def __init__(self, state: JobState, reason: str | None = None, *, restarts: int = 0) -> None:
        self.state, self.reason, self.restarts = state, reason, restarts
        self.asked: list[tuple[str, ...]] = []

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.asked.append(tuple(job_ids))
        return {
            job_id: JobStatus(
                job_id=job_id,
                state=self.state,
                native_state=self.state.value,
                reason=self.reason,
                restarts=self.restarts,
            )
            for job_id in job_ids
        }


def test_snapshot_of_a_run_that_restarted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.open_attempt(2, reason="rank 3 was killed by SIGKILL", restarts=1)
    snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    assert snapshot.state is RunState.RUNNING
    assert (snapshot.attempts, snapshot.restarts, snapshot.max_restarts) == (2, 1, 3)
    assert (snapshot.nodes, snapshot.workers) == (("node1", "node2"), 4)
    assert [attempt.reason for attempt in snapshot.attempt_history][1] == "rank 3 was killed by SIGKILL"


def test_scheduler_is_not_asked_if_there_is_a_result(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    scheduler = TellingScheduler(JobState.GONE)
    assert take_snapshot(run.layout, scheduler).state is RunState.SUCCEEDED
    assert scheduler.asked == []


def test_newest_allocation_says_which_job_is_asked_for(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit("42").allocate(1).allocate(2, job_id="43")
    scheduler = TellingScheduler(JobState.RUNNING)
    assert take_snapshot(run.layout, scheduler).job_id == "43"
    assert scheduler.asked == [("43",)]


@pytest.mark.parametrize(
    ("has_begun", "restarts", "told"),
    [
        (True, 1, ""),
        (True, 2, ""),
        (True, 4, "job 42 3 times since its last one"),
        (False, 1, ""),
        (False, 2, "job 42 2 times, "),
    ],
)
def test_starts_of_a_job_that_had_no_agent_are_a_note(
    has_begun: bool, restarts: int, told: str, tmp_path: Path
) -> None:
    """As those of a prolog of the cluster that fails: Slurm starts the job again each time, and only counts."""
    run = RunBuilder(tmp_path / "run").submit()
    if has_begun:
        run.allocate()
    scheduler = TellingScheduler(JobState.PENDING, "BeginTime", restarts=restarts)
    note = take_snapshot(run.layout, scheduler).note or ""
    assert (told in note and "no agent has come of it" in note) if told else not note


@pytest.mark.parametrize(
    ("state", "reason", "is_held"),
    [
        (JobState.PENDING, "JobHeldAdmin", True),
        (JobState.PENDING, "launch failed requeued held", True),
        (JobState.PENDING, "Resources", False),
        (JobState.RUNNING, "JobHeldAdmin", False),
    ],
)
def test_a_job_that_is_held_is_a_note_with_what_releases_it(
    state: JobState, reason: str, is_held: bool, tmp_path: Path
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate()
    snapshot = take_snapshot(run.layout, TellingScheduler(state, reason))
    assert (snapshot.note or "").endswith(f"; `scontrol release {run.job_id}`") == is_held


def test_silent_scheduler_is_a_note_and_no_error(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate()
    snapshot = take_snapshot(run.layout, SilentScheduler())
    assert snapshot.state is RunState.RUNNING
    assert snapshot.note == "the state is from the run directory alone: the controller does not answer"


def test_torn_roster_and_absent_records_are_tolerated(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.world(1)).write_text('{"format_ver')
    Path(run.layout.submission).unlink()
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.state, snapshot.workers, snapshot.job_id) == (RunState.RUNNING, None, "42")


def test_the_folder_of_an_attempt_that_could_not_be_opened_is_no_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).fail_attempt(1, "rank 1 on node1 failed")
    Path(run.layout.attempt(2)).mkdir()
    Path(run.layout.world(2)).write_bytes(Path(run.layout.world(1)).read_bytes())
    snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    assert (snapshot.attempts, snapshot.workers, snapshot.between) == (1, 4, "rank 1 on node1 failed")


@pytest.mark.parametrize("silent_s", [0, 60])
def test_status_says_that_a_quota_is_used_up_where_the_head_writes_no_samples(
    silent_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    samples = Path(run.layout.samples("node1"))
    samples.parent.mkdir(exist_ok=True)
    samples.touch()
    os.utime(samples, (time.time() - silent_s, time.time() - silent_s))
    reader, before = FactReader(run.layout), sorted(tmp_path.rglob("*"))
    said = f"your quota is used up on the file system of {run.layout.root}: free some space"
    with monkeypatch.context() as patch:
        refuse_writes(patch, run.layout.root, errno.EDQUOT)
        assert [reader.read().disk_lack, reader.read().disk_lack] == [said if silent_s else ""] * 2
        note = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note
        assert note == (f"{said}, or what the run writes is lost" if silent_s else None)
    assert take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note is None
    assert sorted(tmp_path.rglob("*")) == before


def test_status_says_that_no_space_is_left_until_there_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    full_disk(monkeypatch, run.layout.root)
    said = f"no space is left on the file system of {run.layout.root}: free some, or what the run writes is lost"
    assert take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note == said
    assert str(take_snapshot(run.layout, TellingScheduler(JobState.FAILED)).note).endswith(f"not there yet; {said}")
    run.end()
    assert take_snapshot(run.layout, None).note is None


def test_the_paths_of_a_run_directory_that_was_moved_are_those_of_now(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.end(RunState.FAILED, exit_code=1, reason="no_progress", failures={"3": make_failure(3, run.layout)})
    moved = RunLayout((tmp_path / "run").rename(tmp_path / "moved"))
    snapshot = take_snapshot(moved, None)
    assert snapshot.failures["3"]["error_file"] == moved.error(1, 3)
    assert where_to_look(snapshot)[-1] == moved.error(1, 3)


def test_empty_directory_is_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    snapshot = take_snapshot(RunLayout(tmp_path), None)
    assert snapshot.state is RunState.PENDING
    assert snapshot.note is not None


def test_json_has_stable_keys(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    data = json.loads(json.dumps(snapshot_to_json(take_snapshot(run.layout, None))))
    assert list(data) == [
        "format_version", "run", "name", "run_dir", "site", "scheduler", "job_id", "state", "exit_code", "reason",
        "cause", "job_state", "job_reason", "job_nodes", "submitted", "started", "ended", "allocations", "attempts",
        "restarts", "max_restarts", "node_losses", "max_node_losses", "nodes", "spares", "lost_nodes", "awaited_nodes",
        "workers",
        "attempt_history", "failures", "array", "array_task", "parameters", "note", "root_cause",
        "notice", "between", "set_aside", "left_out", "changed_scripts", "clock_steps",
    ]  # fmt: skip
    assert (data["state"], data["exit_code"], data["started"]) == ("SUCCEEDED", 0, TIME)
    assert data["attempt_history"][0]["nodes"] == ["node1", "node2"]


def test_snapshot_of_a_run_that_lost_a_node_and_has_a_spare_left(tmp_path: Path) -> None:
    nodes = ("node1", "node2", "node3", "node4")
    run = RunBuilder(tmp_path / "run").submit().allocate(nodes=nodes).open_attempt(1)
    run.note("node1", "node.joined", *nodes, attempt=0).note("node1", "node.lost", "node2", attempt=1)
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.node_losses, snapshot.max_node_losses) == (1, 64)  # it is counted before the next claim is there
    run.open_attempt(2, nodes=("node1", "node3"), node_losses=1)
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.nodes, snapshot.spares, snapshot.lost_nodes) == (("node1", "node3"), ("node4",), ("node2",))
    assert (snapshot.node_losses, snapshot.restarts) == (1, 0)
    rows = dict(status_rows(snapshot))
    assert (rows["spares"], rows["lost"]) == ("1 node (node4)", "1 node (node2)")
    assert (rows["restarts"], rows["node losses"]) == ("0 of 3", "1 of 64")


def test_status_names_the_nodes_that_are_waited_for_until_the_first_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate(nodes=("node1", "node2", "node3"))
    assert take_snapshot(run.layout, None).awaited_nodes == ()  # no head has said yet who is there
    run.note("node1", "node.joined", "node1", "node3", attempt=0)
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.spares, snapshot.awaited_nodes) == (("node1", "node3"), ("node2",))
    rows = dict(status_rows(snapshot))
    assert (rows["joined"], rows["waiting for"]) == ("2 nodes (node1, node3)", "1 node (node2)")
    assert dict(watch_rows(snapshot, NO_PACE))["waiting for"] == "1 node (node2)"
    run.open_attempt(1, nodes=("node1", "node3"))
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.spares, snapshot.awaited_nodes) == ((), ())


def test_status_names_the_nodes_that_the_others_began_without_also_when_the_run_is_over(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate(nodes=("node1", "node2", "node3", "node4"))
    run.note("node1", "node.joined", "node1", attempt=0)
    run.note("node1", "node.left_out", "node2", "node3", attempt=0, reason="cannot take part: no /data")
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.awaited_nodes, list(snapshot.left_out)) == (("node4",), ["node2", "node3"])
    run.note("node1", "node.left_out", "node4", attempt=0, reason="has given no sign of its agent")
    run.open_attempt(1, nodes=("node1", "node5")).note("node1", "node.joined", "node4", attempt=1)  # it came late
    told = "node2, node3: cannot take part: no /data"
    assert dict(watch_rows(take_snapshot(run.layout, None), NO_PACE))["left out"] == told
    run.end()
    snapshot = take_snapshot(run.layout, None)
    assert dict(status_rows(snapshot))["left out"] == told
    assert snapshot_to_json(snapshot)["left_out"] == dict.fromkeys(("node2", "node3"), "cannot take part: no /data")


def test_of_many_nodes_that_were_left_out_for_reasons_of_their_own_the_number_is_told() -> None:
    reasons = {f"node{number}": f"has never started its agent: agents/node{number}.out is empty" for number in range(9)}
    told = describe_left_out({**reasons, "node9": reasons["node0"]})
    assert told.startswith("node0, node9: has never started its agent: agents/node0.out is empty; node1: ")
    assert told.endswith("; node2: has never started its agent: agents/node2.out is empty; and 6 more")


def test_status_names_an_unhealthy_node_also_when_the_run_is_over(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate(nodes=("node1", "node2", "node3"))
    run.note("node1", "node.joined", "node1", "node2", "node3", attempt=0)
    run.note("node1", "node.unhealthy", "node3", attempt=0, reason="scratch: the disk is full").open_attempt(1).end()
    rows = dict(status_rows(take_snapshot(run.layout, None)))
    assert rows["set aside"] == "node3 (unhealthy: scratch: the disk is full)"


def test_snapshot_of_a_new_allocation_knows_nothing_of_the_nodes_of_the_one_before(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.note("node1", "node.joined", "node1", "node2", attempt=0).note("node1", "node.lost", "node2", attempt=1)
    run.allocate(2, nodes=("node1", "node2", "node3"))
    run.open_attempt(2, nodes=("node1", "node2"), node_losses=1, allocation=2)
    run.note("node1", "node.joined", "node1", "node2", "node3", attempt=1, allocation=2)
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.spares, snapshot.lost_nodes, snapshot.node_losses) == (("node3",), (), 1)


def test_snapshot_of_a_start_that_was_claimed_twice_knows_its_nodes(tmp_path: Path) -> None:
    """The first head was only slow, and opened its attempt when another node had claimed in its place."""
    nodes = ("node1", "node2", "node3")
    run = RunBuilder(tmp_path / "run").submit().allocate(1, nodes=nodes)
    run.allocate(2, nodes=nodes, node="node2", restart_count=0).open_attempt(1, allocation=1)
    run.note("node1", "node.joined", *nodes, attempt=0).note("node1", "node.lost", "node2", attempt=1)
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.spares, snapshot.lost_nodes, snapshot.node_losses) == (("node3",), ("node2",), 1)


def test_status_says_nothing_of_spares_and_losses_if_there_are_none(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    labels = [label for label, _ in status_rows(take_snapshot(run.layout, None))]
    assert not {"spares", "lost", "node losses"} & set(labels)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.NODE_FAIL, JobState.TIMEOUT])
def test_the_run_directorys_word_goes_before_that_of_slurm(tmp_path: Path, state: JobState) -> None:
    """Who ends the job of a run whose batch host was lost cancels it, and Slurm says so for ever."""
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    facts = FactReader(run.layout).read()
    snapshot = make_snapshot(facts, JobStatus(job_id="42", state=state, native_state=f"{state.value} by 0"))
    assert (snapshot.state, snapshot.exit_code, snapshot.note) == (RunState.SUCCEEDED, 0, None)
    assert missing_result(facts, JobStatus(job_id="42", state=state, native_state=state.value)) is None


def test_the_word_of_the_head_that_came_last_is_what_counts(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.agents).mkdir(exist_ok=True)
    Path(run.layout.agent_output("node1")).write_text(complaint("nobody invited this agent again", ("42", 0)) + "\n")
    Path(run.layout.agent_output("node2")).write_text(complaint("the disk is full", ("42", 0)) + "\n")
    assert agent_complaint(FactReader(run.layout).read()) == "nobody invited this agent again"
    run.open_attempt(2, nodes=("node2", "node3"))
    assert agent_complaint(FactReader(run.layout).read()) == "the disk is full"


def test_the_word_of_an_agent_of_another_start_or_job_does_not_count(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.agents).mkdir(exist_ok=True)
    others = (("42", 1), ("41", 0), None)
    lines = [complaint("the disk is full", start) for start in others]
    Path(run.layout.agent_output("node1")).write_text("\n".join([*lines, ""]))
    assert agent_complaint(FactReader(run.layout).read()) == ""


def test_job_that_the_scheduler_has_forgotten_is_told_so(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate()
    gone = JobStatus(job_id="42", state=JobState.GONE, native_state="")
    snapshot = make_snapshot(FactReader(run.layout).read(), gone)
    assert snapshot.note == "the job is not known to the scheduler any more; its result is not there yet"


def test_complaint_of_several_lines_is_found_again_as_one_that_is_safe() -> None:
    line = complaint("no\x1b[2J\nroom", ("42", 0))
    assert line == "hpc-elastic agent (job 42, start 0): error: no\\x1b[2J\\nroom"


def test_status_of_a_run_that_restarted_says_when_and_why_and_for_how_long(tmp_path: Path) -> None:
    run = KINDS["out_of_memory"](tmp_path / "run")
    snapshot = take_snapshot(run.layout, None)
    rows = dict(status_rows(snapshot, now=BEGAN_S + 7200))
    assert "out-of-memory killer: 251 of 256 GiB" in rows["last restart"]
    assert rows["elapsed"] == "1 h 59 min"
    assert "last restart" not in dict(status_rows(take_snapshot(KINDS["succeeded"](tmp_path / "over").layout, None)))


def test_status_shows_the_root_cause_unless_the_cause_has_it(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.end(RunState.FAILED, exit_code=1, cause="the time limit ended the run", root_cause=CAUSE)
    assert dict(status_rows(take_snapshot(run.layout, None)))["root cause"] == CAUSE.line
    other = KINDS["exception"](tmp_path / "other")
    assert "root cause" not in dict(status_rows(take_snapshot(other.layout, None)))


def test_a_run_that_is_over_without_an_attempt_does_not_wait_for_one(tmp_path: Path) -> None:
    over = KINDS["lost_before_first_attempt"](tmp_path / "over").layout
    assert dict(status_rows(take_snapshot(over, None)))["attempts"] == "none"
    pending = KINDS["pending"](tmp_path / "pending").layout
    assert dict(status_rows(take_snapshot(pending, None)))["attempts"] == "none yet"


def test_status_names_the_logs_of_the_rank_in_the_root_cause(tmp_path: Path) -> None:
    run = KINDS["segmentation_fault"](tmp_path / "run")
    assert ("", "hpc-elastic logs 42 --rank 2") in status_rows(take_snapshot(run.layout, None))


def test_roster_gives_the_same_facts_in_whichever_form_it_is_written(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.open_attempt(2, roles={"actor": 1, "learner": 2})
    seen = []
    for indent in (None, 2, 7):
        if indent:
            for number in (1, 2):
                path = Path(run.layout.world(number))
                path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
        facts = FactReader(run.layout).read()
        seen.append([(attempt.workers, attempt.roles) for attempt in facts.attempts])
    assert seen == [[(4, ()), (4, ("learner",))]] * 3


@pytest.mark.parametrize(
    "roster", ["", "{", '{"roles": [],\n  "nodes": []}', '{"roles": [5],\n  "nodes": []}', '{"roles": 5}', "[]"]
)
def test_roster_that_is_torn_or_of_another_shape_is_not_there_yet(tmp_path: Path, roster: str) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.world(1)).write_text(roster)
    assert [attempt.workers for attempt in FactReader(run.layout).read().attempts] == [None]


def test_status_says_that_the_workers_will_be_stopped_until_the_run_is_over(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    give_notice(run, "in about 90 s (time limit, the clock)", time_ns=1)
    give_notice(run, "in about 10 s (preemption, slurm)", time_ns=2)
    snapshot = take_snapshot(run.layout, None)
    assert snapshot.notice is not None
    assert snapshot.notice.endswith(": the workers will be stopped in about 10 s (preemption, slurm)")
    assert dict(status_rows(snapshot))["notice"] == snapshot.notice
    assert take_snapshot(run.end().layout, None).notice is None


def test_status_says_nothing_of_a_notice_of_an_older_start(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    give_notice(run, "soon", time_ns=1)
    run.allocate(2, restart_count=1).open_attempt(2, allocation=2)
    assert take_snapshot(run.layout, None).notice is None


def give_notice(run: RunBuilder, text: str, *, time_ns: int) -> None:
    event = {"time_ns": time_ns, "allocation": 1, "name": "notice.given"}
    store.append_line(run.layout.events("node1"), {**event, "message": f"notice: the workers will be stopped {text}"})


def test_status_says_that_no_attempt_runs_between_two(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    assert take_snapshot(run.layout, None).between is None
    snapshot = take_snapshot(run.fail_attempt(1, "rank 3 on node2 was killed").layout, None)
    assert dict(status_rows(snapshot))["between"] == (
        "attempt 1 has ended, and the next one is not open yet: rank 3 on node2 was killed"
    )
    assert take_snapshot(run.open_attempt(2, restarts=1).layout, None).between is None


def test_status_says_that_an_attempt_goes_on_whose_claim_another_head_wanted_and_gave_up(tmp_path: Path) -> None:
    """The other head was there before, and notes what it sees while it makes the claim as of that attempt."""
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.allocate(2, node="node2", restart_count=0).open_attempt(2, nodes=("node2", "node1"), allocation=2)
    run.note("node1", "node.lost", "node2", attempt=2).fail_attempt(2, "node2 was lost")
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.between, snapshot.lost_nodes) == (None, ())


def test_status_of_a_run_that_is_over_has_nothing_between_attempts(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).fail_attempt(1, "rank 3 was killed")
    assert take_snapshot(run.end().layout, None).between is None


def test_status_names_the_reservation_whose_end_was_the_time_limit(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.end_allocation(1, "time_limit", reservation="course")
    assert take_snapshot(run.layout, None).between == "the job's reservation course ended"


def test_status_says_why_the_allocation_has_ended_until_the_next_one_opens_an_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end_allocation(1, "time_limit")
    assert take_snapshot(run.layout, None).between == "the job's time limit was reached"
    run.allocate(2)  # which gathers its nodes
    assert take_snapshot(run.layout, None).between == "the job's time limit was reached"
    run.open_attempt(2, allocation=2)
    assert take_snapshot(run.layout, None).between is None


def test_no_attempt_runs_where_the_job_started_again_and_nobody_said_why(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).allocate(2)
    assert take_snapshot(run.layout, None).between == "allocation 1 ended without a word, killed perhaps"


def test_a_second_claim_of_the_same_start_ends_no_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).allocate(2, restart_count=0)
    assert take_snapshot(run.layout, None).between is None


def test_a_head_of_an_older_start_does_not_say_that_the_latest_attempt_has_ended(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).fail_attempt(1, "node2 was lost")
    assert take_snapshot(run.allocate(2).open_attempt(2, allocation=2).layout, None).between is None


@pytest.mark.parametrize(
    "line", ['{"name": "attempt.failed"', '["attempt.failed"]', '{"name": "attempt.failed", "message": 7}']
)
def test_a_torn_event_about_an_attempt_ends_none(tmp_path: Path, line: str) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    store.append_line(run.layout.events("node1"), line)
    assert take_snapshot(run.layout, None).between is None


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("srun: Job 42 step creation temporarily disabled, retrying (Requested nodes are busy)", True),
        ("srun: Job 42 step creation still disabled, retrying (Requested nodes are busy)", True),
        ("srun: Step created for StepId=42.1", False),
    ],
)
def test_a_run_whose_agents_wait_for_another_step_of_the_job_says_so(line: str, is_told: bool, tmp_path: Path) -> None:
    """In `salloc`, beside a step that holds all CPUs, srun waits as long as that lasts."""
    run = RunBuilder(tmp_path / "run").submit().start_script(f"hpc_elastic: run directory x\n{line}\n")
    snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    told = "srun waits to start the agents (Requested nodes are busy): another step of job 42 may hold its CPUs"
    assert (told in (snapshot.note or "")) is is_told
    run.allocate()
    assert "srun waits" not in (take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note or "")


@pytest.mark.parametrize(
    ("foreground", "age_s", "more", "is_told"),
    [
        (True, 60, "", True),
        (True, 60, "srun: cluster configuration lacks support for cpu binding\n", True),
        (True, 5, "", False),
        (False, 60, "", False),
        (True, 60, "srun: Job 42 step creation temporarily disabled, retrying (Requested nodes are busy)\n", False),
    ],
)
def test_a_run_in_an_allocation_whose_srun_says_nothing_names_the_other_steps(
    foreground: bool, age_s: float, more: str, is_told: bool, tmp_path: Path
) -> None:
    """srun asks for a step for two minutes before it says that it waits (tried on 22.05 and 24.11)."""
    run = RunBuilder(tmp_path / "run").submit(foreground=foreground)
    launches = "hpc_elastic: starting an agent on each of 2 nodes (start 0)\n"
    run.start_script(f"hpc_elastic: run directory x\n{launches}{more}")
    written = time.time() - age_s
    os.utime(run.layout.script_output("42"), (written, written))
    told = (
        "srun has started no agent yet: another step of job 42 may hold its CPUs or memory; `squeue --steps --jobs=42`"
    )
    assert (told in (take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note or "")) is is_told
    run.allocate()
    assert "srun has" not in (take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note or "")


def test_agents_that_srun_has_started_and_that_load_python_for_long_are_no_wait_of_srun(tmp_path: Path) -> None:
    """Slurm opens the output of an agent as it starts it (22.05, 24.11 and 26.05)."""
    run = RunBuilder(tmp_path / "run").submit(foreground=True)
    run.start_script("hpc_elastic: starting an agent on each of 2 nodes (start 0)\n")
    os.utime(run.layout.script_output("42"), (time.time() - 60, time.time() - 60))
    assert "srun has" in (take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note or "")
    Path(run.layout.agents).mkdir(exist_ok=True)
    Path(run.layout.agent_output("node1")).touch()
    assert "srun has" not in (take_snapshot(run.layout, TellingScheduler(JobState.RUNNING)).note or "")
