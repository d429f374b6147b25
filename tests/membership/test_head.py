"""The head, by scripts: gathering, opening attempts, stopping all, ending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import (
    Action,
    ClaimAttempt,
    Drop,
    HeadOver,
    Log,
    Note,
    SendToMember,
    Superseded,
    WriteResult,
)
from hpc_elastic.membership.decisions import History, Trigger
from hpc_elastic.membership.messages import (
    Assign,
    Beat,
    Broken,
    Dropped,
    Echo,
    End,
    Ended,
    Failed,
    Finished,
    Refused,
    Spares,
    Started,
    Stop,
    StopManner,
    Stopped,
    Terminated,
    Welcome,
)
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.timing import CLOSING_BOUND_S, MOST_SPARES
from hpc_elastic.rundir.records import Candidate, FailureRecord, RunState, SetAside, Spend
from tests.membership.script import (
    HeadScript,
    a_failure,
    a_join,
    a_restart_plan,
    of_kind,
    sent,
    the_cause,
    the_claim,
    the_result,
)

# Gathering.


def test_claims_the_first_attempt_the_moment_all_have_joined() -> None:
    script = HeadScript(3)
    assert not of_kind(script.join(0, 2), ClaimAttempt)
    claim = the_claim(script.join(1)).claim
    assert (claim.attempt, claim.predecessor, claim.members) == (1, None, ("node0", "node1", "node2"))
    assert claim.spend == Spend()


def test_sends_each_node_its_own_part_only_after_the_claim() -> None:
    script = HeadScript(2)
    assert not sent(script.join(0, 1), Assign)
    parts = sent(script.claimed(), Assign)
    assert [(part.group_rank, part.first_rank, part.world_size) for part in parts.values()] == [(0, 0, 4), (1, 2, 4)]
    assert {part.master.port for part in parts.values()} == {25000}


def test_goes_on_with_enough_nodes_if_join_timeout_passes() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    assert not of_kind(script.pass_time(599), ClaimAttempt)
    assert the_claim(script.pass_time(2)).claim.members == ("node0", "node1")


def test_says_every_30_seconds_whom_it_waits_for() -> None:
    script = HeadScript(3)
    script.join(0, 2)
    lines = [say.text for say in of_kind(script.pass_time(95), Log)]
    assert lines == [f"waiting for node1 to join; {left} s left" for left in (570, 540, 510)]


def test_fails_naming_the_missing_nodes_if_too_few_join_in_time() -> None:
    script = HeadScript(3)
    script.join(0)
    result = the_result(script.pass_time(601))
    assert (result.reason, result.exit_code) == ("nodes_missing", ExitCode.NODES_MISSING)
    assert result.cause == "1 of at least 3 nodes joined within 600 s; missing: node1, node2 (never started)"


def test_does_not_wait_again_at_a_restart_for_nodes_that_never_came() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    script.pass_time(601)
    script.claimed()
    script.fail(1)
    script.stopped(0)
    assert the_claim(script.stopped(1)).claim.attempt == 2


def test_takes_nodes_beyond_max_as_spares_by_their_id() -> None:
    script = HeadScript(3, min_nodes=2, max_nodes=2)
    assert the_claim(script.join(2, 1, 0)).claim.members == ("node0", "node1")


def test_refuses_a_second_agent_of_a_node() -> None:
    script = HeadScript(2)
    script.join(1)
    refusal = script.head.refusal(a_join(1))
    assert refusal == Refused(
        reason="an agent of node1 has joined already; start exactly one task a node", exit_code=ExitCode.SETUP
    )


def test_refuses_a_node_that_is_not_of_the_step() -> None:
    refusal = HeadScript(2).head.refusal(a_join(7))
    assert refusal is not None
    assert refusal.reason == "node7 is not one of the step's nodes, node0, node1"


def test_ends_the_run_if_a_node_joins_and_is_unfit() -> None:
    script = HeadScript(2)
    script.join(0)
    actions = script.join(1, problem="sees 3 GPUs")
    assert the_cause(actions) == ("setup_failed", ExitCode.SETUP)
    (note,) = [note for note in of_kind(actions, Note) if note.name == "node.left_out"]
    assert note.metadata == {"node": "node1", "reason": "cannot take part: sees 3 GPUs"}


def test_a_head_that_waits_for_others_to_say_that_they_are_unfit_names_nobody_as_missing() -> None:
    """Nobody is waited for to join any more, though the head is called for another reason when a line is due."""
    script = HeadScript(3, min_nodes=3)
    script.join(0)
    script.pass_time(29.9)
    script.join(1, problem="no torch")
    assert of_kind(script.pass_time(0.2), Log) == []


def test_a_head_does_not_spin_while_others_may_say_that_they_are_unfit_too() -> None:
    script = HeadScript(3, min_nodes=3)
    script.join(0)
    script.pass_time(599.9)
    assert not of_kind(script.join(1, problem="sees 3 GPUs"), WriteResult)
    script.pass_time(0.2)  # join_timeout is over
    assert script.head.next_tick() > script.now
    assert the_cause(script.pass_time(3)) == ("setup_failed", ExitCode.SETUP)


def test_a_late_comer_waits_beside_the_world_and_is_in_the_next() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    script.pass_time(601)
    script.claimed()
    late = script.join(2)
    assert sent(late, Welcome)["node2"].is_late
    assert not sent(late, Assign)
    script.fail(0)
    script.stopped(0)
    assert the_claim(script.stopped(1)).claim.members == ("node0", "node1", "node2")


def test_spares_hear_where_the_agents_of_all_spares_listen_as_each_of_them_comes() -> None:
    script = HeadScript(5, min_nodes=2, max_nodes=2)
    script.join(0, 1)
    script.pass_time(2)
    script.claimed()
    assert not sent(script.join(4), Spares), "it is the only one"
    for node_id, named in ((2, (2, 4)), (3, (2, 3, 4))):
        told = sent(script.join(node_id), Spares)
        assert set(told) == {f"node{each}" for each in named}, "the members of the world need not know"
        agents = tuple(Candidate(node=f"node{each}", agent=a_join(each).agent) for each in named)
        assert {spares.agents for spares in told.values()} == {agents}


def test_a_member_of_the_world_that_comes_back_is_no_news_for_the_spares() -> None:
    script = HeadScript(4, min_nodes=2, max_nodes=2)
    script.join(0, 1)
    script.pass_time(2)
    script.claimed()
    script.join(2, 3)
    script.head.lost("node1", "the other side closed the connection", script.now, is_gone=True)
    assert not sent(script.join(1), Spares)


def test_spares_beyond_those_that_are_named_hear_of_the_named_ones_and_trouble_nobody() -> None:
    script = HeadScript(2 + MOST_SPARES + 1, min_nodes=2, max_nodes=2)
    script.join(0, 1)
    script.pass_time(2)
    script.claimed()
    script.join(*range(2, 2 + MOST_SPARES))
    told = sent(script.join(2 + MOST_SPARES), Spares)
    assert [*told] == [f"node{2 + MOST_SPARES}"]
    (spares,) = told.values()
    assert [each.node for each in spares.agents] == [f"node{each}" for each in range(2, 2 + MOST_SPARES)]


def test_an_unfit_late_comer_is_refused_and_the_world_works_on() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    script.pass_time(601)
    script.claimed()
    refused = sent(script.join(2, problem="sees 3 GPUs"), Refused)
    assert refused["node2"].reason == "sees 3 GPUs"
    assert script.head.phase is HeadPhase.RUNNING
    assert script.lose(2) == []


# Restarts.


def test_a_failure_stops_all_and_the_next_attempt_starts_when_all_have_stopped() -> None:
    script = HeadScript(2)
    script.run()
    stops = sent(script.fail(1), Stop)
    assert [(stop.attempt, stop.manner) for stop in stops.values()] == [(1, StopManner.RESTART)] * 2
    assert not of_kind(script.stopped(0), ClaimAttempt)
    claim = the_claim(script.stopped(1)).claim
    assert (claim.attempt, claim.predecessor, claim.spend) == (2, 1, Spend(restarts=1))
    assert claim.reason == "rank 2 on node1 failed with exit code 1: ValueError: no"
    parts = sent(script.claimed(), Assign)
    assert {part.attempt for part in parts.values()} == {2}
    assert parts["node1"].master.port == 26000


def test_failures_of_two_nodes_at_once_spend_one_restart() -> None:
    script = HeadScript(2)
    script.run()
    script.fail(0)
    assert script.fail(1) == []
    script.stopped(1)
    assert the_claim(script.stopped(0)).claim.spend == Spend(restarts=1)


CLOSED = "RuntimeError: Connection closed by peer"


def a_victim(rank: int, node: str) -> FailureRecord:
    return a_failure(rank, node=node, message=CLOSED, failure_class="peer_lost")


def test_the_claim_names_the_culprit_that_was_heard_of_last() -> None:
    script = HeadScript(2)
    script.run()
    stops = sent(script.report(0, a_victim(0, "node0")), Stop)
    assert set(stops) == {"node0", "node1"}, "the restart must not wait for the cause"
    assert stops["node0"].reason.startswith("first observed: rank 0 on node0")
    culprit = a_failure(3, node="node1", message="KeyError: 'lr'")
    script.stopped(0, a_victim(0, "node0"), a_victim(1, "node0"))
    claim = the_claim(script.stopped(1, culprit)).claim
    assert claim.reason == "rank 3 on node1 failed with exit code 1: KeyError: 'lr'"
    assert claim.failure_signature == "exception/1/KeyError: 'lr'"
    cause = claim.root_cause
    assert cause is not None
    assert (cause.rank, cause.attempt, cause.failed, cause.victims, cause.observed_first) == (3, 1, "3", "0-1", 0)
    script.claimed()
    script.fail(0)
    script.stopped(0)
    again = the_claim(script.stopped(1)).claim.root_cause
    assert again is not None
    assert (again.attempt, again.failed, again.victims) == (2, "0", ""), "the failures of attempt 1 are forgotten"


def test_the_log_names_the_cause_once_and_the_first_observed_only_at_debug_level() -> None:
    script = HeadScript(2)
    script.run()
    before = of_kind(script.report(0, a_victim(0, "node0")), Log)
    assert [log.level for log in before] == ["debug"]
    script.stopped(0)
    said = [log.text for log in of_kind(script.stopped(1, a_failure(2, node="node1")), Log) if log.level == "info"]
    assert said == ["attempt 1: rank 2 on node1 failed with exit code 1: ValueError: no; restarting all ranks"]


def test_the_result_names_the_culprit_of_the_last_attempt() -> None:
    script = HeadScript(2, restart=a_restart_plan(0))
    script.run()
    script.report(0, a_victim(0, "node0"))
    script.stopped(0, a_victim(0, "node0"))
    result = the_result(script.stopped(1, a_failure(2, node="node1")))
    assert (result.reason, result.cause) == (
        "restarts_used_up",
        "rank 2 on node1 failed with exit code 1: ValueError: no",
    )
    assert result.root_cause is not None
    assert (result.root_cause.rank, result.root_cause.victims) == (2, "0")


def test_no_progress_is_judged_by_the_culprits_and_not_by_their_victims() -> None:
    script = HeadScript(2, restart=a_restart_plan(10, no_progress_limit=2))
    script.run()
    script.head.progress_seen("p")
    for message in ("KeyError: 'a'", "KeyError: 'b'", "KeyError: 'c'"):  # the victim says the same each time
        script.report(0, a_victim(0, "node0"))
        script.stopped(0)
        the_claim(script.stopped(1, a_failure(3, node="node1", message=message)))
        script.claimed()
    script.report(1, a_victim(2, "node1"))
    script.stopped(1)
    result = the_result(script.stopped(0, a_failure(1, node="node0", message="KeyError: 'c'")))
    assert result.reason == "no_progress"


def test_an_attempt_that_repeats_the_steps_of_an_earlier_one_makes_no_progress() -> None:
    script = HeadScript(2, restart=a_restart_plan(10, no_progress_limit=3))
    script.run()
    for steps in ((7, 8), (None, 3), (9, 8), (9, 9)):  # the furthest of both nodes: 8, 3 again, 9, 9 again
        script.report(0, a_failure(0, node="node0"))
        script.stopped(0, step=steps[0])
        claim = the_claim(script.stopped(1, step=steps[1])).claim
        script.claimed()
    assert (claim.step, claim.same_failures) == (9, 2)
    script.report(0, a_failure(0, node="node0"))
    script.stopped(0)
    assert the_result(script.stopped(1)).reason == "no_progress"


def test_steps_count_that_were_made_before_a_restart_that_costs_nothing() -> None:
    script = HeadScript(2, restart=a_restart_plan(10, no_progress_limit=3))
    script.run()
    script.head.restart_requested("ada@login", script.now)
    script.stopped(0, step=20)
    the_claim(script.stopped(1, step=20))
    script.claimed()
    for step in (5, 10):  # neither comes as far
        script.report(0, a_failure(0, node="node0"))
        script.stopped(0, step=step)
        claim = the_claim(script.stopped(1, step=step)).claim
        script.claimed()
    assert (claim.step, claim.same_failures) == (20, 2)


def a_timeout(rank: int, node: str) -> FailureRecord:
    return a_failure(rank, node=node, failure_class="collective_timeout", message="Timed out waiting for all_reduce")


def test_a_stop_for_a_time_out_waits_a_moment_for_the_others_that_waited() -> None:
    script = HeadScript(2)
    script.run()
    assert script.report(0, a_timeout(0, "node0")) == []
    assert script.pass_time(1.5) == []
    assert script.report(1, a_victim(2, "node1")) == []  # of the connection to rank 0
    script.report(1, a_timeout(3, "node1"))
    stops = of_kind(script.pass_time(0.6), SendToMember)
    assert [(each.node, each.message.takes_stacks) for each in stops if isinstance(each.message, Stop)] == [
        ("node0", True),
        ("node1", True),
    ]
    script.stopped(0)
    cause = the_claim(script.stopped(1)).claim.root_cause
    assert cause is not None
    assert (cause.rank, cause.failure_class, cause.victims) == (1, "silent", "0,2-3")


def test_a_stop_for_ranks_that_waited_for_a_process_group_waits_for_the_others_too() -> None:
    script = HeadScript(2)
    script.run()
    waited = "DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1"
    for rank, node in ((0, 0), (2, 1), (3, 1)):
        failure = a_failure(rank, node=f"node{node}", failure_class="rendezvous", message=waited)
        assert script.report(node, failure) == []
    stops = of_kind(script.pass_time(2.1), SendToMember)
    assert [each.message.takes_stacks for each in stops if isinstance(each.message, Stop)] == [True, True]
    script.stopped(0)
    cause = the_claim(script.stopped(1)).claim.root_cause
    assert cause is not None
    assert (cause.rank, cause.failure_class, cause.victims) == (1, "silent", "0,2-3")


def test_a_culprit_ends_the_wait_after_a_time_out_at_once() -> None:
    script = HeadScript(2)
    script.run()
    assert script.report(0, a_timeout(0, "node0")) == []
    told = script.report(1, a_failure(2, node="node1"))
    assert {each.node for each in of_kind(told, SendToMember) if isinstance(each.message, Stop)} == {"node0", "node1"}
    script.stopped(0)
    cause = the_claim(script.stopped(1)).claim.root_cause
    assert cause is not None
    assert (cause.rank, cause.observed_first) == (2, 0)


def test_when_every_rank_has_timed_out_nobody_is_waited_for() -> None:
    script = HeadScript(1)
    script.run()
    assert script.report(0, a_timeout(0, "node0")) == []
    assert of_kind(script.report(0, a_timeout(1, "node0")), SendToMember)


def test_a_lost_node_ends_the_wait_after_a_time_out() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    assert script.report(0, a_timeout(0, "node0")) == []
    assert of_kind(script.lose(2), SendToMember)
    script.stopped(0)
    claim = the_claim(script.stopped(1)).claim
    assert claim.reason == "node2 was lost: the connection closed"
    assert script.claimed() != []
    assert script.pass_time(3.0) == []  # nothing of the held time-out is left


def test_a_node_that_is_lost_while_workers_stop_is_the_cause_of_their_failures() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.report(0, a_victim(0, "node0"))
    script.lose(2)
    script.stopped(0)
    claim = the_claim(script.stopped(1)).claim
    assert claim.reason == "node2 was lost: the connection closed"
    assert claim.root_cause is not None
    assert (claim.root_cause.failure_class, claim.root_cause.node) == ("agent_lost", "node2")


def test_a_node_that_is_lost_while_an_attempt_is_claimed_is_the_cause_of_that_attempts_end() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1, 2)
    script.lose(2)
    cause = the_claim(script.claimed(attempt=1)).claim.root_cause  # nobody was assigned to it, so nobody has to stop
    assert cause is not None
    assert (cause.failure_class, cause.node, cause.attempt) == ("agent_lost", "node2", 1)


def test_the_log_of_a_loss_while_the_first_attempt_is_claimed_names_no_attempt_and_no_restart() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1, 2)
    said = [log.text for log in of_kind(script.lose(2), Log)]
    told = "before the first attempt: node2 was lost: the connection closed; gathering the nodes again"
    assert said == [told], "attempts are counted from 1, and no rank has started"


def test_the_events_of_a_loss_while_an_attempt_is_claimed_are_of_that_attempt() -> None:
    """Its claim, which names the lost node, may be on disk: readers would take the node for one that is at work."""
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.fail(1)
    script.stopped(0)
    script.stopped(2)
    assert len(the_claim(script.stopped(1)).claim.members) == 3
    actions = [*script.lose(2), *script.join(2)]
    noted = {note.name: note.attempt for note in of_kind(actions, Note)}
    assert noted == dict.fromkeys(("node.lost", "attempt.failed", "node.joined", "node.parked", "node.returned"), 2)
    said = of_kind(actions, Log)[0].text
    assert said == "before attempt 2 starts: node2 was lost: the connection closed; gathering the nodes again"


@pytest.mark.parametrize(("is_gone", "failure_class"), [(True, "agent_lost"), (False, "node_lost")])
def test_a_lost_agent_is_told_from_a_lost_node(is_gone: bool, failure_class: str) -> None:
    script = HeadScript(3, min_nodes=3)
    script.run()
    actions = [*script.lose(2, is_gone=is_gone), *script.stopped(0), *script.stopped(1), *script.pass_time(600)]
    cause = the_result(actions).root_cause
    assert cause is not None
    assert (cause.failure_class, cause.node) == (failure_class, "node2")


def test_a_rank_that_exited_0_early_is_named_where_the_others_lost_their_peer() -> None:
    script = HeadScript(2)
    script.run()
    script.report(0, a_victim(0, "node0"))
    script.stopped(0, a_victim(0, "node0"))
    claim = the_claim(script.stopped(1, succeeded="3")).claim
    assert claim.reason.startswith(
        "rank 3 had ended with exit code 0 while others still worked; rank 0 on node0 failed"
    )


def test_a_failure_in_a_role_that_is_ignored_is_never_the_cause() -> None:
    restarts = {"trainer": "restart_all", "watcher": "ignore"}
    script = HeadScript(2, roles={0: "trainer", 1: "watcher"}, restarts=restarts)
    script.run()
    script.report(1, a_failure(2, node="node1", role="watcher", message="KeyError: 'x'"))
    script.report(0, a_failure(0, node="node0", role="trainer", failure_class="peer_lost", message=CLOSED))
    script.stopped(0)
    assert "rank 0 on node0" in the_claim(script.stopped(1)).claim.reason


def test_a_failure_of_an_older_attempt_changes_nothing() -> None:
    script = HeadScript(2)
    script.run()
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    assert script.fail(1, attempt=1) == []
    assert script.head.phase is HeadPhase.RUNNING


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_report_of_another_attempt_changes_nothing_whatever_it_says(attempt: int) -> None:
    script = HeadScript(2)
    script.run()
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    for message in (
        Started(attempt=attempt),
        Ended(attempt=attempt),
        Failed(attempt=attempt, failure=a_failure(2, attempt=attempt)),
        Broken(attempt=attempt, reason="the disk"),
        Finished(attempt=attempt),
        Stopped(attempt=attempt, failures=(), unkillable=(7,), store_port=1),
    ):
        assert [script.say(number, message) for number in range(2)] == [[], []]
    assert script.head.phase is HeadPhase.RUNNING
    script.finish(0)
    assert the_cause(script.finish(1)) == ("succeeded", ExitCode.SUCCESS)


def test_waits_for_the_backoff_before_it_claims() -> None:
    script = HeadScript(2, restart=a_restart_plan(first_s=4))
    script.run()
    script.fail(0)
    script.stopped(0)
    assert not of_kind(script.stopped(1), ClaimAttempt)
    assert not of_kind(script.pass_time(3.9), ClaimAttempt)
    assert the_claim(script.pass_time(0.2)).claim.attempt == 2


def test_a_broken_node_restarts_all() -> None:
    script = HeadScript(2)
    script.run()
    actions = script.say(0, Broken(attempt=1, reason="the store host ended"))
    assert set(sent(actions, Stop)) == {"node0", "node1"}


def test_a_finished_node_is_stopped_and_started_too_if_another_fails() -> None:
    script = HeadScript(2)
    script.run()
    script.finish(0)
    assert set(sent(script.fail(1), Stop)) == {"node0", "node1"}
    script.stopped(0)
    script.stopped(1)
    assert set(sent(script.claimed(), Assign)) == {"node0", "node1"}
    script.finish(1)
    assert script.head.phase is HeadPhase.RUNNING


def test_goes_on_from_the_history_of_an_earlier_allocation() -> None:
    script = HeadScript(1, restart=a_restart_plan(2), history=History(attempts=4, spend=Spend(restarts=2)))
    claim = the_claim(script.join(0)).claim
    assert (claim.attempt, claim.predecessor, claim.spend) == (5, 4, Spend(restarts=2))
    script.claimed()
    script.fail(0)
    assert the_cause(script.stopped(0)) == ("restarts_used_up", ExitCode.WORKERS_FAILED)


# The end.


def test_succeeds_when_all_nodes_of_one_attempt_have_finished() -> None:
    script = HeadScript(2)
    script.run()
    assert script.finish(1) == []
    result = the_result(script.finish(0))
    assert (result.state, result.exit_code, result.attempts, result.restarts) == (RunState.SUCCEEDED, 0, 1, 0)
    assert result.failures == {}
    ends = sent(script.head.result_written(0, "done", script.now), End)
    assert ends == {f"node{number}": End(exit_code=0, cause="done") for number in range(2)}
    assert script.lose(1) == []
    assert script.lose(0) == [HeadOver(have_all_left=True)]


def test_the_result_names_all_failures_of_the_last_attempt_by_rank() -> None:
    script = HeadScript(2, restart=a_restart_plan(0))
    script.run()
    script.fail(1, rank=3)
    script.stopped(1, a_failure(3), a_failure(2))
    result = the_result(script.stopped(0, a_failure(0)))
    assert list(result.failures) == ["0", "2", "3"]
    assert (result.state, result.reason) == (RunState.FAILED, "restarts_used_up")


def test_ends_without_members_that_do_not_leave() -> None:
    script = HeadScript(2)
    script.run()
    script.finish(0)
    script.finish(1)
    script.head.result_written(0, "done", script.now)
    script.lose(0)
    assert of_kind(script.pass_time(CLOSING_BOUND_S + 0.1), HeadOver)


def test_says_what_stands_in_the_result_if_another_one_was_there_before() -> None:
    script = HeadScript(1)
    script.run()
    script.finish(0)
    ends = sent(script.head.result_written(10, "cancelled by ada", script.now), End)
    assert ends["node0"] == End(exit_code=10, cause="cancelled by ada")


def test_refuses_with_the_runs_exit_code_whoever_comes_while_it_ends() -> None:
    script = HeadScript(2, min_nodes=1, restart=a_restart_plan(0))
    script.join(0)
    script.pass_time(601)
    script.claimed()
    script.fail(0)
    script.stopped(0)
    script.head.result_written(1, "it failed", script.now)
    assert script.head.refusal(a_join(1)) == Refused(reason="the run is over", exit_code=1)


@pytest.mark.parametrize("trigger", [Trigger.TIME_LIMIT, Trigger.PREEMPTED])
def test_whoever_comes_while_it_is_asked_whether_the_job_starts_again_leaves_as_the_answer_says(
    trigger: Trigger,
) -> None:
    """A head that takes over near the job's end ends the run before its own node's member has joined it."""
    script = HeadScript(2, min_nodes=1)
    assert the_result(script.head.job_ends(trigger, "it ends", script.now)).exit_code != ExitCode.REQUEUE
    if (refusal := script.head.refusal(a_join(0))) is None:
        script.join(0)
    ends = sent(script.head.result_written(int(ExitCode.REQUEUE), "it starts again", script.now), End)
    told = ends["node0"] if refusal is None else refusal
    assert told.exit_code == ExitCode.REQUEUE


def test_names_processes_that_survived_kill() -> None:
    script = HeadScript(2)
    script.run()
    script.fail(0)
    script.stopped(0, unkillable=(4242,))
    result = the_result(script.stopped(1))
    assert (result.reason, result.exit_code) == ("unkillable", ExitCode.STALLED)
    assert "4242" in result.cause
    assert "node0" in result.cause


def test_is_no_head_any_more_if_the_claim_is_another_heads() -> None:
    script = HeadScript(2)
    script.join(0, 1)
    actions = script.claimed(is_ours=False)
    assert set(sent(actions, Dropped)) == {"node1"}  # its own member hears it from the agent
    assert of_kind(actions, Superseded) == [Superseded(reason="another head has opened attempt 1")]
    assert not of_kind(actions, WriteResult)


def test_ends_all_if_the_disk_fails_and_starts_nothing() -> None:
    script = HeadScript(2)
    script.join(0, 1)
    actions = script.head.disk_failed("no space left", script.now)
    end = End(exit_code=5, cause="no space left", is_settled=False)
    assert sent(actions, End) == {"node0": end, "node1": end}
    assert script.claimed() == []


# A stop, a loss, in each phase.


def gathering() -> HeadScript:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    return script


def claiming() -> HeadScript:
    script = HeadScript(2)
    script.join(0, 1)
    return script


def running() -> HeadScript:
    script = HeadScript(2)
    script.run()
    return script


def stopping() -> HeadScript:
    script = running()
    script.fail(1)
    return script


def pausing() -> HeadScript:
    script = HeadScript(2, restart=a_restart_plan(first_s=4))
    script.run()
    script.fail(1)
    script.stopped(0)
    script.stopped(1)
    return script


def finish_all(script: HeadScript, actions: list[Action], *, without: tuple[int, ...] = ()) -> list[Action]:
    """What follows when the claim comes through and everybody who is asked to stop does."""
    if script.head.phase is HeadPhase.CLAIMING:
        actions = [*actions, *script.claimed()]
    if script.head.phase is HeadPhase.STOPPING:
        actions += [a for n in range(script.nodes) if n not in without for a in script.stopped(n)]
    return actions


PHASES = [gathering, claiming, running, stopping, pausing]


@pytest.mark.parametrize("make", PHASES)
def test_a_stop_request_ends_the_run_in_every_phase(make: Callable[[], HeadScript]) -> None:
    script = make()
    actions = finish_all(script, script.head.stop_requested("ada@login1", script.now))
    result = the_result(actions)
    assert (result.state, result.reason, result.exit_code) == (RunState.CANCELLED, "stop_requested", ExitCode.STOPPED)
    assert result.cause == "cancelled by ada@login1"
    assert not sent(actions, Assign)


@pytest.mark.parametrize("make", PHASES)
def test_a_term_of_one_agent_ends_the_run_in_every_phase(make: Callable[[], HeadScript]) -> None:
    script = make()
    actions = finish_all(script, script.say(1, Terminated(signal_name="SIGTERM")))
    assert the_cause(actions) == ("terminated", ExitCode.STOPPED)


@pytest.mark.parametrize("make", PHASES[1:])
def test_a_lost_node_ends_the_run_in_every_phase_if_too_few_are_left(make: Callable[[], HeadScript]) -> None:
    script = make()
    actions = finish_all(script, script.lose(1), without=(1,))
    assert the_cause(actions) == ("node_lost", ExitCode.NODE_LOST)
    assert not sent(actions, Assign)


def test_a_lost_node_of_a_running_world_has_the_others_fenced() -> None:
    assert {stop.manner for stop in sent(running().lose(1, is_gone=False), Stop).values()} == {StopManner.FENCE}


def test_a_loss_while_stopping_for_a_restart_fences_who_is_not_stopped_yet() -> None:
    script = HeadScript(3)
    script.run()
    script.fail(1)
    script.stopped(2)
    stops = sent(script.lose(1, is_gone=False), Stop)
    assert {node: stop.manner for node, stop in stops.items()} == {"node0": StopManner.FENCE}


def test_goes_on_without_a_node_that_is_lost_before_the_round_closes_if_enough_are_left() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    assert script.lose(1)[0] is not None
    assert the_claim(script.join(2)).claim.members == ("node0", "node2")


def test_a_lost_spare_disturbs_nobody() -> None:
    script = HeadScript(3, min_nodes=2, max_nodes=2)
    script.run()
    assert not sent(script.lose(2), Stop)
    assert script.head.phase is HeadPhase.RUNNING


def test_a_restart_that_a_person_asks_for_costs_nothing() -> None:
    script = HeadScript(2, restart=a_restart_plan(0))
    script.run()
    stops = of_kind(script.head.restart_requested("ada@login1", script.now), SendToMember)
    assert {(each.node, each.message.manner) for each in stops if isinstance(each.message, Stop)} == {
        ("node0", StopManner.GRACE),
        ("node1", StopManner.GRACE),
    }
    script.stopped(0)
    claim = the_claim(script.stopped(1)).claim
    assert (claim.attempt, claim.reason, claim.spend.restarts) == (2, "ada@login1 asked for a restart", 0)
    assert claim.root_cause is None


def test_a_restart_is_no_business_of_a_head_without_an_attempt_at_work() -> None:
    script = HeadScript(2)
    (told,) = script.head.restart_requested("ada@login1", script.now)
    assert isinstance(told, Log)
    assert "no attempt is at work" in told.text
    assert script.head.phase is HeadPhase.GATHERING


def names_of(script: HeadScript, actions: list[Action]) -> list[str]:
    claim = the_claim(actions)
    script.claimed()
    return [node.node for node in claim.world.nodes]


def test_a_drained_node_has_no_workers_any_more_and_nothing_is_charged() -> None:
    script = HeadScript(3, min_nodes=2, restart=a_restart_plan(0))
    script.run()
    script.head.drain_requested("node1", "ada@login1", script.now)
    script.stopped(0)
    script.stopped(1)
    actions = script.stopped(2)
    assert the_claim(actions).claim.reason == "ada@login1 drained node1"
    assert names_of(script, actions) == ["node0", "node2"]
    assert script.head.drain_requested("node1", "bob", script.now) == []


@pytest.mark.parametrize(
    ("node", "why"), [("node1", "too few other nodes are here"), ("node9", "none of the job's nodes: node0, node1")]
)
def test_a_node_that_cannot_be_drained_stays_at_work(node: str, why: str) -> None:
    script = HeadScript(2)
    script.run()
    (told,) = script.head.drain_requested(node, "ada@login1", script.now)
    assert isinstance(told, Log)
    assert why in told.text
    assert script.head.phase is HeadPhase.RUNNING


def test_a_drain_while_the_nodes_are_gathered_stands_for_the_attempt_that_follows() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0)
    script.head.drain_requested("node0", "ada@login1", script.now)
    script.join(1)
    assert names_of(script, script.join(2)) == ["node1", "node2"]


def test_a_drain_while_an_attempt_is_claimed_gives_the_next_one_without_that_node() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0)
    script.join(1)
    assert [node.node for node in the_claim(script.join(2)).world.nodes] == ["node0", "node1", "node2"]
    script.head.drain_requested("node1", "ada@login1", script.now)
    actions = script.claimed()
    assert not sent(actions, Assign)
    assert the_claim(actions).claim.reason == "ada@login1 drained node1"
    assert names_of(script, actions) == ["node0", "node2"]


def test_a_drained_head_goes_on_as_head_without_workers() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.head.drain_requested("node0", "ada@login1", script.now)
    script.stopped(0)
    script.stopped(1)
    assert names_of(script, script.stopped(2)) == ["node1", "node2"]


def fail_on(script: HeadScript, node_id: int, failure_class: str, nodes: tuple[int, ...]) -> list[Action]:
    """The outcome of a failure of this class on a node; `nodes` are those of the attempt."""
    rank = script.head._members.world.nodes[nodes.index(node_id)].first_rank  # type: ignore[union-attr]
    script.report(node_id, a_failure(rank, node=f"node{node_id}", failure_class=failure_class, message="Xid 79"))
    actions: list[Action] = []
    for node in nodes:
        actions = script.stopped(node)
    return actions


def test_a_node_whose_hardware_failed_is_left_out_of_the_next_attempt() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    actions = fail_on(script, 1, "cuda_hardware", (0, 1, 2))
    (aside,) = the_claim(actions).claim.set_aside
    assert (aside.node, aside.allocation) == ("node1", script.settings.allocation)
    assert names_of(script, actions) == ["node0", "node2"]
    # With one more blamed there are too few left: it is used all the same.
    assert names_of(script, fail_on(script, 2, "cuda_hardware", (0, 2))) == ["node0", "node2"]


def test_another_start_is_to_avoid_what_is_unhealthy_lost_drained_or_blamed() -> None:
    script = HeadScript(5, min_nodes=2)
    script.run()
    assert not script.head.at_fault.to_avoid
    script.head.drain_requested("node3", "ada@login1", script.now)
    for node in range(5):
        script.stopped(node)
    script.claimed()
    script.lose(4)
    for node in (0, 1, 2):
        script.stopped(node)
    script.claimed()
    fail_on(script, 2, "cuda_hardware", (0, 1, 2))
    assert script.head.at_fault.to_avoid == ("node4", "node3", "node2")


def test_a_node_that_is_blamed_while_all_are_needed_is_left_to_the_next_start() -> None:
    script = HeadScript(2, min_nodes=2)
    script.run()
    actions = fail_on(script, 1, "cuda_hardware", (0, 1))
    assert names_of(script, actions) == ["node0", "node1"]
    assert [each.node for each in the_claim(actions).claim.set_aside] == ["node1"]
    assert script.head.at_fault.to_avoid == ("node1",)
    script.claimed()
    actions = fail_on(script, 1, "cuda_hardware", (0, 1))
    assert [each.node for each in the_claim(actions).claim.set_aside] == ["node1"]


def test_an_exception_sets_no_node_aside() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    actions = fail_on(script, 1, "exception", (0, 1, 2))
    assert the_claim(actions).claim.set_aside == ()
    assert names_of(script, actions) == ["node0", "node1", "node2"]


def test_a_node_that_is_set_aside_is_used_again_before_the_run_ends_for_want_of_nodes() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    fail_on(script, 1, "cuda_hardware", (0, 1, 2))
    script.claimed()
    script.lose(2)
    assert names_of(script, script.stopped(0)) == ["node0", "node1"]


@pytest.mark.parametrize(("later", "used"), [(1, ["node0", "node2"]), (3, ["node0", "node2"]), (4, 3)])
def test_a_blame_is_carried_into_later_allocations_and_forgotten_after_three(later: int, used: object) -> None:
    blamed = SetAside(node="node1", why="rank 1 on node1: Xid 79", allocation=1)
    history = History(attempts=4, set_aside=(blamed,))
    script = HeadScript(3, min_nodes=2, history=history, allocation=1 + later)
    actions = [action for node_id in range(3) for action in script.join(node_id)]
    names = [node.node for node in the_claim(actions).world.nodes]
    assert names == used or len(names) == used


def test_a_second_stop_request_changes_nothing() -> None:
    script = running()
    script.head.stop_requested("ada", script.now)
    assert script.head.stop_requested("bob", script.now) == []


def test_a_cancelled_restart_spends_nothing() -> None:
    script = stopping()
    script.head.stop_requested("ada", script.now)
    script.stopped(0)
    assert the_result(script.stopped(1)).restarts == 0


# Leases.


def test_answers_each_beat_with_its_number() -> None:
    assert sent(running().say(1, Beat(number=7)), Echo) == {"node1": Echo(number=7)}


def test_a_node_that_is_silent_for_a_whole_lease_is_lost() -> None:
    script = running()
    script.beating.discard(1)
    assert not of_kind(script.pass_time(8.9), Drop)
    actions = script.pass_time(0.2)
    assert actions.index(Drop(node="node1")) > actions.index(
        SendToMember(node="node1", message=Dropped(reason="no answer for 9 s"))
    )
    assert set(sent(actions, Stop)) == {"node0"}


def test_a_node_that_beats_is_not_lost() -> None:
    script = running()
    script.pass_time(1000)
    assert script.head.phase is HeadPhase.RUNNING


def test_the_heads_own_node_needs_no_lease() -> None:
    script = HeadScript(1)
    script.run()
    script.beating.clear()
    script.pass_time(1000)
    assert script.head.phase is HeadPhase.RUNNING


def test_drops_who_sends_what_only_a_head_sends() -> None:
    assert Drop(node="node1") in running().say(1, Welcome(allocation=1, head="node0"))


def test_drops_who_has_not_joined() -> None:
    assert HeadScript(2).say(1, Beat(number=1)) == [Drop(node="node1")]


@pytest.mark.parametrize("backoff_s", [0.0, 60.0])
def test_a_failure_that_its_nodes_stop_has_overtaken_changes_nothing(backoff_s: float) -> None:
    """The run's progress is read from disk before a failure is passed on, and a stop waits for nothing."""
    script = HeadScript(2, restart=a_restart_plan(first_s=backoff_s))
    script.run()
    script.fail(0, rank=0)
    script.stopped(0)
    script.stopped(1, a_failure(2, node="node1"))
    phase = script.head.phase
    assert script.fail(1, rank=2) == []
    assert script.fail(1, rank=3) == []
    assert script.head.phase is phase
    script.pass_time(backoff_s + 1)
    script.claimed()
    assert script.head.attempt == 2
