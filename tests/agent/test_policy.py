"""The policy, by histories: what was seen, one thing after the other, and what was decided each time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.agent.policy import SILENT_END, Policy, charge_silent_ends
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.decisions import (
    Decision,
    Finish,
    History,
    Ignore,
    Observation,
    RestartWorkers,
    SilentEnds,
    Trigger,
)
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.launch_plan import BackoffPlan, RestartPlan
from hpc_elastic.rundir.records import FailureRecord, RunState
from tests.membership.script import a_failure, a_restart_plan

VALUE_ERROR = a_failure(1)
KEY_ERROR = a_failure(1, message="KeyError: 'x'")
KILLED = a_failure(2, exitcode=-9, failure_class="signal", message="killed by SIGKILL")
NO_START = a_failure(0, failure_class="start_failed", message="No such file or directory: python")


@dataclass(frozen=True)
class Seen:
    """A thing that the head saw, as a table has room for it."""

    trigger: Trigger = Trigger.WORKER_FAILED
    failure: FailureRecord | None = None
    progress: str | None = None
    step: int | None = None
    nodes: tuple[str, ...] = ("node1",)
    detail: str = ""
    is_enough: bool = False


def failed(failure: FailureRecord, progress: str | None = None, step: int | None = None) -> Seen:
    return Seen(failure=failure, progress=progress, step=step)


LOSS = Seen(Trigger.NODE_LOST, detail="not heard for 3 s", is_enough=True)
NOT_ENOUGH = replace(LOSS, is_enough=False)
JOINED = Seen(Trigger.NODE_JOINED)
FAILURES = (Trigger.WORKER_FAILED, Trigger.NODE_BROKEN)


def tell(policy: Policy, seen: list[Seen], *, history: History | None = None) -> list[str]:
    """What is decided: `restart`, or the reason and exit code of the end, which is the last word."""
    history, words = history or History(), []
    for number, one in enumerate(seen, 1):
        if one.trigger is Trigger.NODE_LOST:  # the head counts them
            spend = replace(history.spend, node_losses=history.spend.node_losses + len(one.nodes))
            history = replace(history, spend=spend)
        observation = Observation(
            trigger=one.trigger,
            attempt=number,
            failure=one.failure,
            nodes=one.nodes,
            detail=one.detail,
            progress=one.progress,
            step=one.step,
            is_enough=one.is_enough,
            node_losses=history.spend.node_losses,
        )
        decision = policy.decide(replace(history, attempts=number), observation, now=100.0)
        words.append(word(decision))
        if not isinstance(decision, RestartWorkers):
            break
        history = decision.history
    return words


def word(decision: Decision) -> str:
    if isinstance(decision, Finish):
        return f"{decision.reason} {int(decision.exit_code)}"
    if isinstance(decision, Ignore):
        return "ignore"
    return "restart" if decision.roles is None else f"restart {' '.join(sorted(decision.roles))}"


HISTORIES: dict[str, tuple[RestartPlan, list[Seen], list[str]]] = {
    "restarts until the budget is spent": (
        a_restart_plan(2),
        [failed(VALUE_ERROR), failed(KILLED), failed(KEY_ERROR)],
        ["restart", "restart", "restarts_used_up 1"],
    ),
    "never restarts with no budget": (a_restart_plan(0), [failed(VALUE_ERROR)], ["restarts_used_up 1"]),
    "the same failure goes on without a progress file": (
        a_restart_plan(5, no_progress_limit=3),
        [failed(VALUE_ERROR)] * 6,
        ["restart"] * 5 + ["restarts_used_up 1"],
    ),
    "the same failure with no progress ends at the limit": (
        a_restart_plan(9, no_progress_limit=3),
        [failed(VALUE_ERROR, "p0")] * 3,
        ["restart", "restart", "no_progress 8"],
    ),
    "progress in between starts the count again": (
        a_restart_plan(9, no_progress_limit=3),
        [failed(VALUE_ERROR, p) for p in ("p0", "p0", "p1", "p1", "p1")],
        ["restart"] * 4 + ["no_progress 8"],
    ),
    "steps that are repeated are no progress": (
        a_restart_plan(9, no_progress_limit=3),
        [failed(VALUE_ERROR, step=step) for step in (100, 40, 100)],
        ["restart", "restart", "no_progress 8"],
    ),
    "a step beyond all before starts the count again": (
        a_restart_plan(9, no_progress_limit=3),
        [failed(VALUE_ERROR, step=step) for step in (100, 40, 101, 101, 60)],
        ["restart"] * 4 + ["no_progress 8"],
    ),
    "no heartbeat at all where there were some is no progress": (
        a_restart_plan(9, no_progress_limit=2),
        [failed(VALUE_ERROR, step=5), failed(VALUE_ERROR)],
        ["restart", "no_progress 8"],
    ),
    "the steps of a lost node's attempt are not forgotten": (
        a_restart_plan(9, no_progress_limit=2),
        [failed(VALUE_ERROR, step=5), LOSS, failed(VALUE_ERROR, step=5)],
        ["restart", "restart", "no_progress 8"],
    ),
    "a file that changes is progress, though the steps are repeated": (
        a_restart_plan(9, no_progress_limit=2),
        [failed(VALUE_ERROR, "p0", 5), failed(VALUE_ERROR, "p1", 5), failed(VALUE_ERROR, "p1", 5)],
        ["restart", "restart", "no_progress 8"],
    ),
    "a further step is progress, though no file changes": (
        a_restart_plan(9, no_progress_limit=2),
        [failed(VALUE_ERROR, "p0", 5), failed(VALUE_ERROR, "p0", 6), failed(VALUE_ERROR, "p0", 6)],
        ["restart", "restart", "no_progress 8"],
    ),
    "another failure in between starts the count again": (
        a_restart_plan(9, no_progress_limit=3),
        [failed(f, "p0") for f in (VALUE_ERROR, VALUE_ERROR, KILLED, VALUE_ERROR, VALUE_ERROR, VALUE_ERROR)],
        ["restart"] * 5 + ["no_progress 8"],
    ),
    "the same failure on another rank with other numbers is the same": (
        a_restart_plan(9, no_progress_limit=2),
        [
            failed(a_failure(1, message="OutOfMemory at 0x7f12, 31 MiB"), "p0"),
            failed(a_failure(5, message="OutOfMemory at 0x9a00, 12 MiB"), "p0"),
        ],
        ["restart", "no_progress 8"],
    ),
    "a worker that cannot be started ends the run at once": (
        a_restart_plan(9),
        [failed(VALUE_ERROR), failed(NO_START)],
        ["restart", "start_failed 1"],
    ),
    "a broken node is answered with a restart, within the budget": (
        a_restart_plan(1),
        [Seen(Trigger.NODE_BROKEN, detail="the store host ended")] * 2,
        ["restart", "restarts_used_up 1"],
    ),
    "a lost node with too few left": (a_restart_plan(), [NOT_ENOUGH], ["node_lost 7"]),
    "a lost node with enough left costs no restart": (
        a_restart_plan(1),
        [LOSS, LOSS, LOSS, failed(VALUE_ERROR), LOSS, failed(KILLED)],
        ["restart"] * 5 + ["restarts_used_up 1"],
    ),
    "lost nodes until their own budget is spent": (
        a_restart_plan(0, max_node_losses=2),
        [LOSS, LOSS, LOSS],
        ["restart", "restart", "node_losses_used_up 7"],
    ),
    "two nodes lost at once are two losses": (
        a_restart_plan(max_node_losses=2),
        [replace(LOSS, nodes=("node1", "node2")), LOSS],
        ["restart", "node_losses_used_up 7"],
    ),
    "no lost node is survived with no budget for them": (
        a_restart_plan(max_node_losses=0),
        [LOSS],
        ["node_losses_used_up 7"],
    ),
    "too few nodes is said before a spent budget": (a_restart_plan(max_node_losses=0), [NOT_ENOUGH], ["node_lost 7"]),
    "a lost node between two failures does not make them different ones": (
        a_restart_plan(9, no_progress_limit=2),
        [failed(VALUE_ERROR, "p0"), LOSS, failed(VALUE_ERROR, "p0")],
        ["restart", "restart", "no_progress 8"],
    ),
    "a node that joins costs nothing": (
        a_restart_plan(0, max_node_losses=0),
        [JOINED, JOINED, failed(VALUE_ERROR)],
        ["restart", "restart", "restarts_used_up 1"],
    ),
    "an unfit node": (a_restart_plan(), [Seen(Trigger.NODE_UNFIT)], ["setup_failed 3"]),
    "missing nodes": (a_restart_plan(), [Seen(Trigger.NODES_MISSING)], ["nodes_missing 6"]),
    "a request to stop": (a_restart_plan(), [Seen(Trigger.STOP_REQUESTED)], ["stop_requested 10"]),
    "a TERM from outside": (a_restart_plan(), [Seen(Trigger.TERMINATED)], ["terminated 10"]),
    "unkillable processes": (a_restart_plan(), [Seen(Trigger.UNKILLABLE)], ["unkillable 9"]),
    "success after a restart": (
        a_restart_plan(),
        [failed(VALUE_ERROR), Seen(Trigger.SUCCEEDED)],
        ["restart", "succeeded 0"],
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    plan, seen, expected = HISTORIES[name]
    assert tell(Policy(restart=plan), seen) == expected


SEEN = st.builds(
    lambda trigger, failure, **more: Seen(
        trigger=trigger, failure=failure if trigger is Trigger.WORKER_FAILED else None, **more
    ),
    trigger=st.sampled_from(Trigger),
    failure=st.sampled_from([VALUE_ERROR, KEY_ERROR, KILLED, NO_START]),
    progress=st.none() | st.sampled_from(["p0", "p1"]),
    nodes=st.sampled_from([("node1",), ("node1", "node2")]),
    is_enough=st.booleans(),
)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.lists(SEEN, max_size=30))
def test_neither_budget_is_ever_exceeded_whatever_happens(
    limit: int, losses: int, no_progress: int, seen: list[Seen]
) -> None:
    policy = Policy(restart=a_restart_plan(limit, no_progress_limit=no_progress, max_node_losses=losses))
    words = tell(policy, seen)
    answered = [one for one, word in zip(seen, words, strict=False) if word == "restart"]
    assert sum(one.trigger in FAILURES for one in answered) <= limit
    assert sum(len(one.nodes) for one in answered if one.trigger is Trigger.NODE_LOST) <= losses


@given(st.lists(SEEN, max_size=10))
def test_only_failures_changes_of_nodes_and_requests_are_answered_with_a_restart(seen: list[Seen]) -> None:
    policy = Policy(restart=a_restart_plan(99, no_progress_limit=99))
    requests = (Trigger.RESTART_REQUESTED, Trigger.DRAIN_REQUESTED, Trigger.STATE_MISSING)
    for one, decided in zip(seen, tell(policy, seen), strict=False):
        if decided == "restart":
            assert one.trigger in (*FAILURES, Trigger.NODE_LOST, Trigger.NODE_JOINED, *requests)


def test_a_restart_spends_one_and_keeps_what_it_saw() -> None:
    observation = Observation(trigger=Trigger.WORKER_FAILED, attempt=3, failure=KILLED, progress="p0")
    decision = Policy(restart=a_restart_plan()).decide(History(attempts=3), observation, 100.0)
    assert isinstance(decision, RestartWorkers)
    assert decision.history.spend.restarts == 1
    assert decision.history.progress == "p0"
    assert decision.history.same_failures == 1
    assert (decision.manner, decision.reason) == (StopManner.RESTART, "rank 2 on node0 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("seen", "manner", "reason"),
    [
        (LOSS, StopManner.FENCE, "node1 was lost: not heard for 3 s"),
        (replace(LOSS, nodes=("node1", "node4")), StopManner.FENCE, "node1, node4 were lost: not heard for 3 s"),
        (JOINED, StopManner.GRACE, "node1 joined"),
    ],
    ids=["lost", "two lost", "joined"],
)
def test_a_change_of_nodes_restarts_everybody_at_once_and_leaves_the_history_as_it_is(
    seen: Seen, manner: StopManner, reason: str
) -> None:
    policy = Policy(restart=a_restart_plan(first_s=2), roles=ROLES)
    history = History(attempts=3, failure_signature="x", same_failures=1, progress="p0")
    observation = Observation(
        trigger=seen.trigger,
        attempt=3,
        nodes=seen.nodes,
        detail=seen.detail,
        progress="p1",
        is_enough=seen.is_enough,
        node_losses=len(seen.nodes),
    )
    decided = policy.decide(history, observation, 100.0)
    assert decided == RestartWorkers(roles=None, at=100.0, manner=manner, reason=reason, history=history)


@pytest.mark.parametrize(("limit", "losses", "said"), [(0, 1, "1 node loss"), (64, 65, "65 node losses")])
def test_the_end_for_too_many_lost_nodes_says_how_many_and_the_limit(limit: int, losses: int, said: str) -> None:
    observation = Observation(
        trigger=Trigger.NODE_LOST, attempt=9, nodes=("node3",), detail="why", is_enough=True, node_losses=losses
    )
    decided = Policy(restart=a_restart_plan(max_node_losses=limit)).decide(History(attempts=9), observation, 0.0)
    assert isinstance(decided, Finish)
    assert decided.manner is StopManner.FENCE
    assert decided.cause == (
        f"node3 was lost: why; {said} in this run, expected at most restart.max_node_losses, which is {limit}"
    )


@pytest.mark.parametrize(("used", "pause"), [(0, 1.0), (1, 3.0), (2, 9.0), (3, 20.0), (10_000, 20.0)])
def test_the_pause_grows_by_the_factor_up_to_its_maximum(used: int, pause: float) -> None:
    backoff = BackoffPlan(first_s=1, factor=3, max_s=20)
    policy = Policy(restart=RestartPlan(max_restarts=9, backoff=backoff, no_progress_limit=3, max_node_losses=9))
    assert policy.backoff_s(used) == pause


def test_who_asks_for_no_pause_has_none_after_however_many_restarts() -> None:
    restart = RestartPlan(
        max_restarts=9, backoff=BackoffPlan(first_s=0, factor=2, max_s=60), no_progress_limit=3, max_node_losses=9
    )
    assert [Policy(restart=restart, run="train").backoff_s(used) for used in (0, 1023, 1024, 5000)] == [0.0] * 4


def test_runs_that_failed_together_do_not_start_together() -> None:
    restart = RestartPlan(
        max_restarts=9, backoff=BackoffPlan(first_s=8, factor=2, max_s=60), no_progress_limit=3, max_node_losses=9
    )
    pauses = [Policy(restart=restart, run=f"sweep-{number}").backoff_s(0) for number in range(100)]
    assert all(8 <= pause <= 10 for pause in pauses)
    assert max(pauses) - min(pauses) > 1.5
    late = [Policy(restart=restart, run=f"sweep-{number}").backoff_s(30) for number in range(100)]
    assert all(48 <= pause <= 60 for pause in late)
    assert max(late) - min(late) > 9
    assert Policy(restart=restart, run="sweep-1").backoff_s(0) == pauses[1]  # a successor waits as long


def test_the_next_attempt_starts_no_earlier_than_the_pause() -> None:
    observation = Observation(trigger=Trigger.WORKER_FAILED, attempt=1, failure=VALUE_ERROR)
    decision = Policy(restart=a_restart_plan(first_s=2)).decide(History(attempts=1), observation, 100.0)
    assert isinstance(decision, RestartWorkers)
    assert decision.at == 102.0


@pytest.mark.parametrize(
    ("trigger", "state", "manner"),
    [
        (Trigger.SUCCEEDED, RunState.SUCCEEDED, StopManner.GRACE),
        (Trigger.STOP_REQUESTED, RunState.CANCELLED, StopManner.GRACE),
        (Trigger.TERMINATED, RunState.CANCELLED, StopManner.GRACE),
        (Trigger.NODE_LOST, RunState.FAILED, StopManner.FENCE),
        (Trigger.NODES_MISSING, RunState.FAILED, StopManner.RESTART),
        (Trigger.UNKILLABLE, RunState.FAILED, StopManner.RESTART),
    ],
)
def test_who_may_save_before_the_end(trigger: Trigger, state: RunState, manner: StopManner) -> None:
    observation = Observation(trigger=trigger, attempt=1, nodes=("node1",), detail="why")
    decision = Policy(restart=a_restart_plan()).decide(History(), observation, 0.0)
    assert isinstance(decision, Finish)
    assert (decision.state, decision.manner) == (state, manner)
    assert decision.cause


def test_the_cause_names_the_budget_that_is_spent() -> None:
    observation = Observation(trigger=Trigger.WORKER_FAILED, attempt=1, failure=VALUE_ERROR)
    decision = Policy(restart=a_restart_plan(0)).decide(History(), observation, 0.0)
    assert isinstance(decision, Finish)
    assert decision.cause == "rank 1 on node0 failed with exit code 1: ValueError: no"
    assert decision.exit_code is ExitCode.WORKERS_FAILED


ROLES = {"trainer": "restart_all", "reader": "restart_role", "watcher": "ignore"}


@pytest.mark.parametrize(
    ("trigger", "role", "roles"),
    [
        (Trigger.WORKER_FAILED, "trainer", None),
        (Trigger.WORKER_FAILED, "reader", frozenset({"reader"})),
        (Trigger.NODE_BROKEN, "trainer", None),
        (Trigger.NODE_BROKEN, "reader", frozenset({"reader"})),
        (Trigger.NODE_BROKEN, "watcher", None),  # its node may hold the store of the others
        (Trigger.STATE_MISSING, "trainer", None),
        (Trigger.STATE_MISSING, "reader", frozenset({"reader"})),
        (Trigger.STATE_MISSING, "watcher", None),  # it starts with a new store, which the others share
    ],
)
def test_a_roles_policy_says_whose_workers_restart(trigger: Trigger, role: str, roles: frozenset[str] | None) -> None:
    failure = a_failure(1, role=role) if trigger is Trigger.WORKER_FAILED else None
    policy = Policy(restart=a_restart_plan(), roles=ROLES)
    observation = Observation(trigger=trigger, attempt=1, role=role, failure=failure, nodes=("node1",), detail="broke")
    decision = policy.decide(History(), observation, now=0)
    assert isinstance(decision, RestartWorkers)
    assert decision.roles == roles


def test_a_state_that_only_ignored_roles_lack_restarts_only_these() -> None:
    roles = {"trainer": "restart_role", "watcher": "ignore", "recorder": "ignore"}
    observation = Observation(trigger=Trigger.STATE_MISSING, attempt=1, role="watcher", nodes=("node1",), detail="gone")
    decision = Policy(restart=a_restart_plan(), roles=roles).decide(History(), observation, now=0)
    assert isinstance(decision, RestartWorkers)
    assert decision.roles == frozenset({"watcher", "recorder"})


@pytest.mark.parametrize("failure_class", ["exception", "signal", "start_failed"])
def test_a_failure_in_a_role_that_is_ignored_is_ignored_whatever_the_budget(failure_class: str) -> None:
    failure = a_failure(1, role="watcher", failure_class=failure_class)
    policy = Policy(restart=a_restart_plan(0), roles=ROLES)
    observation = Observation(trigger=Trigger.WORKER_FAILED, attempt=1, role="watcher", failure=failure)
    decision = policy.decide(History(), observation, now=0)
    assert isinstance(decision, Ignore)
    assert "rank 1 on node0" in decision.reason


@pytest.mark.parametrize(
    ("others", "decided"),
    [("restart_role", Ignore), ("restart_all", RestartWorkers)],
    ids=["a store of its own", "shared"],
)
def test_a_store_that_only_an_ignored_role_has_is_not_worth_a_restart(others: str, decided: type[Decision]) -> None:
    policy = Policy(restart=a_restart_plan(), roles={"trainer": others, "reader": "ignore"})
    observation = Observation(
        trigger=Trigger.NODE_BROKEN, attempt=1, role="reader", nodes=("node2",), detail="the store host ended"
    )
    assert isinstance(policy.decide(History(attempts=1), observation, 0.0), decided)


def test_a_run_whose_ranks_have_saved_after_a_notice_has_not_failed() -> None:
    taken = Observation(trigger=Trigger.NOTICE_TAKEN, attempt=2, detail="ranks 0-3 exited 75", notice="operator")
    decision = Policy(restart=a_restart_plan()).decide(History(attempts=2), taken, 100.0)
    assert isinstance(decision, Finish)
    assert (decision.state, decision.reason) == (RunState.CANCELLED, "notice_taken")
    assert (decision.manner, decision.cause) == (StopManner.GRACE, "ranks 0-3 exited 75 (operator)")
    decision = Policy(restart=a_restart_plan()).decide(
        History(attempts=2), replace(taken, notice="preemption"), 100.0
    )  # what the notice announced; whether the job starts again is decided with that
    assert isinstance(decision, Finish)
    assert (decision.state, decision.reason) == (RunState.FAILED, "preempted")


# Starts of the job that ended without a word, after which Slurm alone has started it again.


def worked(step: int | None = None, progress: str | None = None, idle: int = 0) -> SilentEnds:
    return SilentEnds(has_worked=True, idle=idle, step=step, progress=progress)


@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        ([worked(7), worked(7), worked(5), worked()], [1, 2, 3, 4]),
        ([worked(7), worked(7), worked(8), worked(8)], [1, 2, 1, 2]),
        ([worked(progress="a"), worked(progress="a"), worked(progress="b")], [1, 2, 1]),
        ([worked(7, "a"), worked(7, "b"), worked(8, "b"), worked(8, "b")], [1, 1, 1, 2]),
        ([worked(), worked(), worked()], [1, 1, 1]),  # nobody knows
        ([worked(7), worked(7, idle=2)], [1, 4]),
        ([SilentEnds(idle=2)], [2]),
        ([SilentEnds()], [0]),
    ],
)
def test_silent_ends_are_counted_while_the_run_gets_no_further(ends: list[SilentEnds], counts: list[int]) -> None:
    history, found = History(), []
    for end in ends:
        history = charge_silent_ends(history, end)
        found.append(history.same_failures)
    assert found == counts
    assert history.spend == History().spend


def test_silent_ends_are_not_added_to_a_failure_that_came_before() -> None:
    failed_before = History(attempts=2, failure_signature="ValueError", same_failures=2, step=7)
    after = charge_silent_ends(failed_before, worked(7))
    assert (after.failure_signature, after.same_failures) == (SILENT_END, 1)


@pytest.mark.parametrize(("count", "ends"), [(2, False), (3, True)])
def test_a_run_whose_starts_end_silently_again_and_again_ends_for_good(count: int, ends: bool) -> None:
    history = History(attempts=count, failure_signature=SILENT_END, same_failures=count)
    seen = Observation(trigger=Trigger.ENDED_SILENTLY, attempt=count, detail="allocation 3 ended without a word")
    decision = Policy(restart=a_restart_plan(), silent_ends_limit=3).decide(history, seen, 0.0)
    if not ends:
        assert isinstance(decision, Ignore)
        return
    assert isinstance(decision, Finish)
    assert (decision.reason, decision.exit_code) == ("no_progress", ExitCode.NO_PROGRESS)
    assert "start 3 of the job in a row" in decision.cause
    assert "requeue.max" in decision.cause


def test_a_failure_of_workers_does_not_end_a_run_for_its_silent_ends() -> None:
    history = History(attempts=5, failure_signature=SILENT_END, same_failures=9)
    seen = Observation(trigger=Trigger.WORKER_FAILED, attempt=5, failure=VALUE_ERROR, step=7)
    assert isinstance(Policy(restart=a_restart_plan()).decide(history, seen, 0.0), RestartWorkers)


@given(
    st.lists(st.sampled_from(["silent", "idle", "further", "failure"]), max_size=60),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_no_run_is_started_for_ever_without_progress(events: list[str], restarts: int, limit: int) -> None:
    """Where steps are told, the starts between two steps of progress are bounded, whatever ends them."""
    policy = Policy(restart=a_restart_plan(restarts, no_progress_limit=99), silent_ends_limit=limit)
    history, since_progress, furthest = History(step=0), 0, 0
    for event in events:
        if event == "failure":
            seen = Observation(trigger=Trigger.WORKER_FAILED, attempt=1, failure=VALUE_ERROR, step=furthest)
            decision = policy.decide(history, seen, 0.0)
            if isinstance(decision, Finish):
                return
            assert isinstance(decision, RestartWorkers)
            history = decision.history
            continue
        since_progress = 0 if event == "further" else since_progress + 1
        furthest += event == "further"
        ends = SilentEnds(idle=1) if event == "idle" else worked(furthest)
        history = charge_silent_ends(history, ends)
        seen = Observation(trigger=Trigger.ENDED_SILENTLY, attempt=1, detail="killed")
        if isinstance(policy.decide(history, seen, 0.0), Finish):
            assert since_progress >= limit - 1
            return
        assert since_progress < limit * (restarts + 1)


@pytest.mark.parametrize(
    ("trigger", "is_enough"), [(Trigger.NODE_LOST, True), (Trigger.NODE_LOST, False), (Trigger.EXIT_TIMEOUT, False)]
)
def test_a_decision_about_hundreds_of_nodes_names_the_first(trigger: Trigger, is_enough: bool) -> None:
    """A switch takes a rack along, and all but one rank may hang at the end: the line had 14,000 characters."""
    seen = Observation(
        trigger=trigger,
        attempt=1,
        nodes=tuple(f"gpu-{number:03d}" for number in range(400)),
        detail="not heard for 10 s",
        is_enough=is_enough,
    )
    decision = Policy(restart=a_restart_plan(max_node_losses=999), roles={}).decide(History(), seen, 0.0)
    assert isinstance(decision, (Finish, RestartWorkers))
    line = decision.cause if isinstance(decision, Finish) else decision.reason
    assert "gpu-006, gpu-007 and 392 more " in line
    assert "gpu-008" not in line
