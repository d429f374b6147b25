"""When a job is started again, and when its workers are stopped before its end."""

from __future__ import annotations

import pytest

from hpc_elastic.membership.requeue import end_times, find_refusal
from hpc_elastic.plan.launch_plan import RequeuePlan
from hpc_elastic.rundir.allocation_ends import describe_end

ALL = ("preempted", "time_limit", "node_loss")


@pytest.mark.parametrize("reason", ["preempted", "time_limit", "node_lost"])
def test_a_job_is_started_again_as_often_as_the_plan_says(reason: str) -> None:
    plan = RequeuePlan(max=2, on=ALL)
    assert [find_refusal(plan, reason, used=used) for used in (0, 1)] == ["", ""]
    assert find_refusal(plan, reason, used=2) == "all 2 requeues of requeue.max are used up"


def test_a_job_is_not_started_again_for_a_cause_that_the_plan_does_not_name() -> None:
    plan = RequeuePlan(max=2, on=("time_limit",))
    assert "requeue.on does not have preempted" in find_refusal(plan, "preempted", used=0)
    assert "requeue.on does not have node_loss" in find_refusal(plan, "node_lost", used=0)


def test_a_job_is_never_started_again_without_requeues_or_after_another_end() -> None:
    assert "requeue.max is 0" in find_refusal(RequeuePlan(max=0, on=ALL), "time_limit", used=0)
    assert find_refusal(RequeuePlan(max=5, on=ALL), "no_progress", used=0)


def test_a_person_who_asks_for_another_start_is_refused_only_where_slurm_would_refuse() -> None:
    assert find_refusal(RequeuePlan(max=1, on=()), "requeue_requested", used=7) == ""
    assert "requeue.max is 0" in find_refusal(RequeuePlan(max=0, on=ALL), "requeue_requested", used=0)


def test_the_one_requeue_is_one() -> None:
    assert find_refusal(RequeuePlan(max=1, on=ALL), "time_limit", used=1) == "the one requeue of requeue.max is used up"


@pytest.mark.parametrize(
    ("lead_s", "grace_s", "stop_s"),
    [(120, 60, 70), (30, 15, 25), (30, 30, 31), (3, 1.5, 3)],
)
def test_the_workers_are_stopped_so_that_grace_and_records_fit(lead_s: float, grace_s: float, stop_s: float) -> None:
    times = end_times(lead_s, grace_s)
    assert (times.notice_s, times.stop_s) == (lead_s, stop_s)


def test_the_end_of_an_allocation_is_told_also_where_nobody_could_say_why() -> None:
    assert describe_end(1, "preempted") == "allocation 1 ended because Slurm took the job's nodes for another job"
    assert describe_end(2, None) == "allocation 2 ended without a word, killed perhaps"
