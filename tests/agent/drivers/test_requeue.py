"""How a head ends a run that the scheduler stops: what it is told, records and answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.drivers.coordinator import CoordinatorTimes
from hpc_elastic.agent.drivers.head_watch import WatchTimes
from hpc_elastic.agent.drivers.job_clock import JobClock, TimeLeft
from hpc_elastic.errors import MissingNode, RendezvousCause
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.messages import Assign, End, GiveNotice, Join, Stop, Stopped, Terminated
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.plan.launch_plan import RequeuePlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.store import append_line, read_json, read_lines
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import JobOutlook, JobState
from tests.agent.answers import Answers
from tests.agent.drivers.test_coordinator import Scene, play, terminate, until
from tests.membership.script import a_join
from tests.plans import make_plan

QUICK = CoordinatorTimes(scheduler_answers_within_s=0.05, asks_again_after_s=0.01, watch=WatchTimes(look_every_s=0.001))
PREEMPTED = JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=5, is_preempted=True)
OUT_OF_TIME = JobOutlook(state=JobState.COMPLETING, restarts=0, is_out_of_time=True)
REQUEUED = JobOutlook(state=JobState.COMPLETING, restarts=1)
CANCELLED = JobOutlook(state=JobState.COMPLETING, restarts=0)
ENDED_FOR_A_NODE = JobOutlook(state=JobState.COMPLETING, restarts=0, has_lost_node=True)


def ending_by(answer: JobOutlook | None) -> Answers:
    answers = Answers(is_requeued=[None] if answer is None else [False])
    answers.end = answer
    return answers


def reasons(root: Path) -> list[Any]:
    """The reasons of the requeues that the head has recorded."""
    return [line["reason"] for line in read_lines(RunLayout(root).requests) if line["kind"] == "requeue"]


def stops(root: Path) -> list[str]:
    events = (root / "nodes" / "node0" / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in events]
    return [event["metadata"]["reason"] for event in found if event["name"] == "run.stopping"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (PREEMPTED, "preempted"),
        (OUT_OF_TIME, "time_limit"),
        (REQUEUED, "requeued"),
        (ENDED_FOR_A_NODE, "node_lost"),
    ],
    ids=["preempted", "time-limit", "requeued", "node-lost"],
)
def test_a_term_of_the_scheduler_leaves_the_run_without_a_result(
    tmp_path: Path, answer: JobOutlook, reason: str
) -> None:
    async def scene(made: Scene) -> None:
        assert (await terminate(made)).exit_code == 75

    play(tmp_path, scene, answers=ending_by(answer), times=QUICK)
    assert reasons(tmp_path) == [reason]
    assert stops(tmp_path) == [reason]
    assert read_json(RunLayout(tmp_path).result) is None


def test_why_a_run_stops_is_recorded_though_its_workers_are_gone_before_slurm_has_answered(tmp_path: Path) -> None:
    answers = ending_by(PREEMPTED)
    is_over, asked = threading.Event(), itertools.count()
    answer_at_once = answers.outlook

    def outlook(job_id: str) -> JobOutlook | None:
        if next(asked) == 0:
            is_over.wait(30)
        return answer_at_once(job_id)

    answers.outlook = outlook  # type: ignore[method-assign]

    async def scene(made: Scene) -> None:
        assert (await terminate(made)).exit_code == 75
        is_over.set()

    play(tmp_path, scene, answers=answers, times=QUICK)
    assert stops(tmp_path) == ["preempted"]


def test_a_job_that_slurm_ends_for_a_failed_node_is_no_cancelled_one(tmp_path: Path) -> None:
    """As salloc without --no-kill: nothing starts it again."""

    async def scene(made: Scene) -> None:
        next_start = made.coordinator._journal.next_start
        next_start._plan = replace(next_start._plan, requeue=RequeuePlan(max=0, on=()))
        assert (await terminate(made)).exit_code == 7

    play(tmp_path, scene, answers=ending_by(ENDED_FOR_A_NODE), times=QUICK)
    result = read_json(RunLayout(tmp_path).result)
    assert (result["state"], result["reason"], stops(tmp_path)) == ("FAILED", "node_lost", ["node_lost"])
    assert result["cause"] == "a node of the job failed, and the scheduler ended all of the job for it"


def test_an_end_that_requeue_does_not_answer_writes_no_result_where_slurm_has_requeued_the_job(tmp_path: Path) -> None:
    """Slurm has counted the next start a moment after it has said why it ends this one."""
    answers = Answers(is_requeued=[True])
    answers.end = ENDED_FOR_A_NODE

    async def scene(made: Scene) -> None:
        next_start = made.coordinator._journal.next_start
        next_start._plan = replace(next_start._plan, requeue=RequeuePlan(max=0, on=()))
        assert (await terminate(made)).exit_code == 75

    play(tmp_path, scene, answers=answers, times=QUICK)
    assert reasons(tmp_path) == ["node_lost"]
    assert read_json(RunLayout(tmp_path).result) is None


def test_a_term_that_slurm_does_not_explain_cancels_the_run(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        assert (await terminate(made)).exit_code == 10

    play(tmp_path, scene, answers=ending_by(CANCELLED), times=QUICK)
    assert (reasons(tmp_path), stops(tmp_path)) == ([], ["terminated"])


def test_a_term_of_which_slurm_says_nothing_stays_unknown(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        end = await terminate(made)
        assert end.exit_code == 75
        assert "does not say" in end.cause

    play(tmp_path, scene, answers=ending_by(None), times=QUICK)
    assert (reasons(tmp_path), stops(tmp_path)) == ([], ["unknown"])


def test_a_person_who_cancels_a_preempted_run_goes_before_its_requeue(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator._watch.is_stop_requested = True
        assert (await terminate(made)).exit_code == 10

    play(tmp_path, scene, answers=ending_by(PREEMPTED), times=QUICK)
    assert reasons(tmp_path) == []
    assert read_json(RunLayout(tmp_path).result)["reason"] == "stop_requested"


def a_clock(made: Scene, left: str, *, lead_s: float, grace_s: float) -> JobClock:
    """A clock of the scene's head, which was told so much time."""
    plan = make_plan()
    place = Allocation(
        job_id="42", restart_count=0, array_task=None, node_id=0, nodes=("node0",), is_local=False, time_left=left
    )
    time_left = TimeLeft(plan, place, asyncio.get_running_loop().time())
    time_left.times = type(time_left.times)(notice_s=lead_s, stop_s=grace_s)
    head = made.coordinator
    return JobClock(
        time_left,
        head._head,
        do=head._do,
        journal=head._journal,
        say=lambda *_: None,
        stopping=head._end.stopping,
    )


def test_the_workers_are_stopped_before_the_time_limit_and_the_job_starts_again(tmp_path: Path) -> None:
    answers = ending_by(JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=0.2))

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        watching = asyncio.ensure_future(a_clock(made, "0:01", lead_s=0.9, grace_s=0.8).watch())
        stop = await until(made, Stop)
        assert isinstance(stop, Stop)
        assert stop.reason.startswith("the job's time limit is reached in")
        made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == 75
        await watching

    play(tmp_path, scene, answers=answers, times=QUICK)
    assert (reasons(tmp_path), stops(tmp_path)) == (["time_limit"], ["time_limit"])


def test_a_reservation_whose_end_is_the_time_limit_is_named(tmp_path: Path) -> None:
    answers = ending_by(
        JobOutlook(
            state=JobState.RUNNING, restarts=0, seconds_left=0.2, reservation="course", ends_with_reservation=True
        )
    )

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        clock = a_clock(made, "0:01", lead_s=0.9, grace_s=0.8)
        clock.look_again()
        watching = asyncio.ensure_future(clock.watch())
        stop = await until(made, Stop)
        assert isinstance(stop, Stop)
        assert stop.reason.startswith("the job's reservation course ends in")
        made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.cause.startswith("the job's reservation course ended; the job is started again")
        await watching

    play(tmp_path, scene, answers=answers, times=QUICK)
    assert (reasons(tmp_path), stops(tmp_path)) == (["time_limit"], ["time_limit"])
    (told,) = [line for line in read_lines(RunLayout(tmp_path).requests) if line["kind"] == "requeue"]
    assert told["reservation"] == "course"


def test_a_run_that_a_person_cancels_as_its_time_limit_comes_near_is_not_started_again(tmp_path: Path) -> None:
    """Its workers still stop for the TERM when the head's own clock would stop them for the time limit."""

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        made.coordinator.received_from_own(Terminated(signal_name="SIGTERM"))
        await until(made, Stop)
        await a_clock(made, "0:00", lead_s=0.9, grace_s=0.8).watch()
        made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == 10

    play(tmp_path, scene, answers=ending_by(CANCELLED), times=QUICK)
    assert (reasons(tmp_path), stops(tmp_path)) == ([], ["terminated"])
    assert read_json(RunLayout(tmp_path).result)["state"] == "CANCELLED"


def test_the_workers_go_on_if_the_limit_was_raised_and_are_stopped_at_a_preemption(tmp_path: Path) -> None:
    answers = ending_by(JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=3600))

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        clock = a_clock(made, "0:00", lead_s=0.9, grace_s=0.8)
        clock._asked_at = -1e9
        watching = asyncio.ensure_future(clock.watch())
        while clock._end.left(asyncio.get_running_loop().time()) < 3000:
            await asyncio.sleep(0.001)
        answers.end = PREEMPTED
        clock.look_again()
        while not clock._end.is_preempted:
            await asyncio.sleep(0.001)
        assert not watching.done()
        answers.end = JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=0.1, is_preempted=True)
        clock.look_again()
        stop = await until(made, Stop)
        assert isinstance(stop, Stop)
        assert "for another job" in stop.reason
        await watching

    play(tmp_path, scene, answers=answers, times=QUICK)
    assert stops(tmp_path) == ["preempted"]


def test_the_plan_counts_where_slurm_has_said_nothing() -> None:
    place = Allocation(job_id="42", restart_count=0, array_task=None, node_id=0, nodes=("node0",), is_local=False)
    time_left = TimeLeft(make_plan(time_s=100.0), place, 1000.0)
    assert time_left.left(1000.0) == float("inf")
    time_left.told(None, 1000.0)
    assert time_left.left(1010.0) == 90.0


def test_an_answer_about_a_job_that_does_not_run_moves_nothing() -> None:
    place = Allocation(
        job_id="42", restart_count=0, array_task=None, node_id=0, nodes=("node0",), is_local=False, time_left="1:00"
    )
    time_left = TimeLeft(make_plan(), place, 1000.0)
    time_left.told(JobOutlook(state=JobState.COMPLETING, restarts=1, seconds_left=3600), 1000.0)
    assert time_left.left(1000.0) == 60.0


def test_the_signal_to_the_batch_shell_makes_the_head_ask_slurm_and_is_no_notice_by_itself(tmp_path: Path) -> None:
    looked: list[None] = []

    class Clock:
        def look_again(self) -> None:
            looked.append(None)

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        made.coordinator._clock = Clock()  # type: ignore[assignment]
        request = {"kind": "notice", "by": "slurm", "time": "now", "id": "slurm-42-1"}
        append_line(RunLayout(tmp_path).requests, {"format_version": 1, **request})
        while not looked:
            await asyncio.sleep(0.001)

    play(tmp_path, scene, times=QUICK)
    events = (tmp_path / "nodes" / "node0" / "events.jsonl").read_text()
    assert "notice" not in events


def ask_to_stop(root: Path, *, requeue: bool, seconds_left: float = 0.0, time: str = "now") -> None:
    request = {"kind": "stop", "by": "ada@login1", "time": time, "id": "s", "seconds_left": seconds_left}
    append_line(RunLayout(root).requests, {"format_version": 1, **request, "requeue": requeue})


@pytest.mark.parametrize(("requeue", "exit_code"), [(True, 75), (False, 10)])
def test_a_stop_that_a_person_announced_ends_the_allocation_or_the_run(
    tmp_path: Path, requeue: bool, exit_code: int
) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        ask_to_stop(tmp_path, requeue=requeue)
        await until(made, Stop)
        made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == exit_code
        assert "ada@login1" in end.cause

    play(tmp_path, scene, times=QUICK)
    assert reasons(tmp_path) == (["requeue_requested"] if requeue else [])
    assert (read_json(RunLayout(tmp_path).result) is None) == requeue


def test_a_new_head_carries_out_a_stop_that_was_announced_to_the_one_before(tmp_path: Path) -> None:
    ask_to_stop(tmp_path, requeue=False)

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        while not isinstance(message := await made.heard.get(), End):
            if isinstance(message, Stop):  # unless the head has heard of it before the workers were started
                made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
        assert message.cause == "stopped by ada@login1"

    play(tmp_path, scene, times=QUICK)


def test_a_new_head_counts_an_announced_stop_by_what_its_member_has_heard_and_not_by_another_machines_clock(
    tmp_path: Path,
) -> None:
    ask_to_stop(tmp_path, requeue=False, seconds_left=90.0, time="2020-01-01T00:00:00.000000Z")

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        has_workers = False
        while True:  # the head may hear of it before the workers are started, or after
            message = await made.heard.get()
            assert not isinstance(message, Stop)
            has_workers |= isinstance(message, Assign)
            if isinstance(message, End):  # nobody's work was waited for
                assert not has_workers
                return
            if isinstance(message, (Assign, GiveNotice)) and message.notice is not None:
                assert 50.0 < (message.notice.seconds_left or 0.0) <= 60.0
                return

    heard = NoticeGiven(reason="operator", seconds_left=60.0, by="ada@login1")
    play(tmp_path, scene, times=QUICK, heard=heard)


def test_a_requeue_that_there_cannot_be_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    async def scene(made: Scene) -> None:
        next_start = made.coordinator._journal.next_start
        next_start._plan = replace(next_start._plan, requeue=RequeuePlan(max=0, on=()))
        made.coordinator._say = lambda text, level="info": said.append(text)  # type: ignore[method-assign]
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        ask_to_stop(tmp_path, requeue=True)
        while not any("asked for another start" in text for text in said):
            await asyncio.sleep(0.001)
        assert made.heard.empty()

    play(tmp_path, scene, times=QUICK)
    assert any(text.endswith("requeue.max is 0, so the job is not started again; nothing was done") for text in said)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_run_that_is_short_of_nodes_as_one_could_start_no_agent_begins_anew_without_it(
    tmp_path: Path, *, is_allowed: bool
) -> None:
    missing = MissingNode(node="node1", cause=RendezvousCause.NEVER_STARTED, detail="has never started its agent")

    async def scene(made: Scene) -> None:
        next_start = made.coordinator._journal.next_start
        on = ("node_loss",) if is_allowed else ("preempted",)
        next_start._plan = replace(next_start._plan, requeue=RequeuePlan(max=1, on=on))
        made.coordinator.received_from_own(a_join(0))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == (75 if is_allowed else 6)
        assert "node1 has never started its agent" in end.cause

    times = replace(QUICK, watch=replace(QUICK.watch, diagnose_after_s=0.001))
    play(
        tmp_path, scene, nodes=2, diagnose=lambda _: [Diagnosis(missing=missing, gave_up=True, ended=True)], times=times
    )
    told = [line for line in read_lines(RunLayout(tmp_path).requests) if line["kind"] == "requeue"]
    assert [(line["reason"], line["nodes"]) for line in told] == ([("node_lost", ["node1"])] if is_allowed else [])
    result = read_json(RunLayout(tmp_path).result)
    assert (result is None) == is_allowed
    assert is_allowed or result["reason"] == "nodes_missing"


@pytest.mark.parametrize(
    ("by", "allocation", "is_heeded"), [("node1", 1, True), ("node0", 1, False), ("node1", None, False)]
)
def test_a_head_without_enough_nodes_leaves_as_another_one_of_its_start_has_left(
    tmp_path: Path, by: str, allocation: int | None, *, is_heeded: bool
) -> None:
    """It was cut off from that one, or paused: its result would keep the run from going on in the next start."""
    note = {"kind": "requeue", "by": by, "time": "2026-01-02T03:04:05.000000Z", "reason": "node_lost"}
    missing = MissingNode(node="node1", cause=RendezvousCause.BLOCKED_PORT, detail="met a blocked port")

    async def scene(made: Scene) -> None:
        made.coordinator._journal.claim_allocation(Endpoint(address="10.0.0.0", port=1))
        append_line(RunLayout(tmp_path).requests, {"format_version": 1, **note, "allocation": allocation})
        made.coordinator.received_from_own(a_join(0))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == (75 if is_heeded else 6)

    times = replace(QUICK, watch=replace(QUICK.watch, diagnose_after_s=0.001))
    play(tmp_path, scene, nodes=2, diagnose=lambda _: [Diagnosis(missing=missing, gave_up=True)], times=times)
    assert (read_json(RunLayout(tmp_path).result) is None) == is_heeded


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [(partial(a_join, problem="x is not mounted"), "setup_failed"), (partial(a_join, unhealthy="x"), "nodes_missing")],
)
@pytest.mark.parametrize("is_one_of_two", [True, False])
def test_a_run_that_has_too_few_fit_nodes_begins_anew_without_the_others_if_these_are_few(
    tmp_path: Path, faulty: Callable[[int], Join], reason: str, *, is_one_of_two: bool
) -> None:
    nodes = 2 if is_one_of_two else 1

    async def scene(made: Scene) -> None:
        next_start = made.coordinator._journal.next_start
        next_start._plan = replace(next_start._plan, requeue=RequeuePlan(max=1, on=("node_loss",)))
        if is_one_of_two:
            made.coordinator._head.joined(faulty(1), 0.0)
        made.coordinator.received_from_own(a_join(0) if is_one_of_two else faulty(0))
        end = await until(made, End)
        assert isinstance(end, End)
        assert (end.exit_code == 75) == is_one_of_two

    play(tmp_path, scene, nodes=nodes, times=QUICK)
    told = [line for line in read_lines(RunLayout(tmp_path).requests) if line["kind"] == "requeue"]
    assert [(line["reason"], line["nodes"]) for line in told] == [("node_lost", ["node1"])] * is_one_of_two
    assert is_one_of_two or read_json(RunLayout(tmp_path).result)["reason"] == reason


@pytest.mark.parametrize(
    ("answer", "most_s"),
    [
        (replace(PREEMPTED, seconds_left=300), 300),  # GraceTime: a TERM at its begin
        (PREEMPTED, 20),
        (OUT_OF_TIME, 20),
        (replace(OUT_OF_TIME, state=JobState.RUNNING, seconds_left=14), 20),  # the KILL comes after the TERM
        (None, 20),
        (REQUEUED, None),
    ],
    ids=["preempted", "preempted-soon", "out-of-time", "nearly-out-of-time", "unknown", "requeued"],
)
def test_states_are_written_within_a_time_that_leaves_the_script_its_own_for_the_requeue(
    tmp_path: Path, answer: JobOutlook | None, most_s: float | None
) -> None:
    async def scene(made: Scene) -> None:
        terminated_at = asyncio.get_running_loop().time()
        assert (await terminate(made)).exit_code == 75
        found = made.coordinator._end.flushes_within_s()
        if most_s is None:
            assert found is None
        else:
            passed = asyncio.get_running_loop().time() - terminated_at
            assert found is not None
            assert most_s - passed <= found <= most_s

    play(tmp_path, scene, answers=ending_by(answer), times=QUICK)
