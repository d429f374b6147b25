"""The head when nodes are lost, come back or take over, by scripts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

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
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.messages import Assign, Beat, Dropped, End, Join, Refused, Stop, StopManner, Welcome
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.ranks import assign_worker_ranks
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import AGENT, MOST_LATE_S, OTHERS_RETURN_WITHIN_S, Timing
from hpc_elastic.rundir.records import RunState, Spend, World
from tests.membership.script import (
    HeadScript,
    a_join,
    a_restart_plan,
    a_seat,
    of_kind,
    sent,
    the_cause,
    the_claim,
    the_result,
)

LEASE_S = 9.0


def running(nodes: int = 4, *, min_nodes: int = 2, **options: object) -> HeadScript:
    script = HeadScript(nodes, min_nodes=min_nodes, **options)  # type: ignore[arg-type]
    script.run()
    return script


def restart(script: HeadScript, *node_ids: int) -> list[Action]:
    """Who is left stops, and the next attempt is claimed as soon as it may be."""
    actions = [action for node_id in node_ids for action in script.stopped(node_id)]
    return actions or []


# A node is lost.


def test_a_dead_agent_stops_the_others_and_the_run_goes_on_with_them() -> None:
    script = running()
    stops = sent(script.lose(2), Stop)
    assert {stop.manner for stop in stops.values()} == {StopManner.LOSS}
    assert set(stops) == {"node0", "node1", "node3"}
    claim = the_claim(restart(script, 0, 1, 3)).claim
    assert (claim.attempt, claim.members, claim.reason) == (
        2,
        ("node0", "node1", "node3"),
        "node2 was lost: the connection closed",
    )
    assert claim.spend == Spend(restarts=0, node_losses=1)


def test_a_node_whose_machine_said_that_its_agent_is_dead_is_not_waited_for() -> None:
    script = running()
    script.lose(2, is_gone=True)
    assert of_kind(restart(script, 0, 1, 3), ClaimAttempt)


def test_a_node_that_fell_silent_has_fenced_before_the_next_attempt() -> None:
    script = running()
    script.pass_time(100)
    script.say(2, Beat(number=10_000))
    script.lose(2, is_gone=False)
    assert not of_kind(restart(script, 0, 1, 3), ClaimAttempt)
    gone_after_s = Timing(lease_s=LEASE_S).gone_after_heard_s
    assert not of_kind(script.pass_time(gone_after_s - 0.1), ClaimAttempt)
    assert of_kind(script.pass_time(0.2), ClaimAttempt)


def test_a_node_that_fell_silent_and_is_back_is_not_waited_for_until_it_would_have_fenced() -> None:
    script = running(min_nodes=4)
    script.pass_time(100)
    script.lose(2, is_gone=False)
    script.lose(3, is_gone=False)
    restart(script, 0, 1)
    assert not of_kind(script.join(2), ClaimAttempt)
    began = script.now
    actions = script.join(3) + script.pass_time(0)
    assert (len(the_claim(actions).claim.members), script.now) == (4, began)


def test_a_node_that_is_back_does_not_hurry_the_fence_of_another_one() -> None:
    script = running(min_nodes=3)
    script.pass_time(100)
    script.lose(2, is_gone=False)
    script.lose(3, is_gone=False)
    restart(script, 0, 1)
    assert not of_kind(script.join(2) + script.pass_time(LEASE_S / 3), ClaimAttempt)
    assert the_claim(script.pass_time(LEASE_S)).claim.members == ("node0", "node1", "node2")


def test_a_head_that_was_paused_opens_no_attempt_without_its_own_node() -> None:
    script = running()
    script.lose(2)
    script.lose(0)
    assert not of_kind(restart(script, 1, 3), ClaimAttempt)
    assert the_claim(script.join(0)).claim.members == ("node0", "node1", "node3")


def test_every_node_that_is_lost_in_one_incident_counts() -> None:
    script = running(min_nodes=1)
    script.lose(2)
    script.lose(3)
    assert the_claim(restart(script, 0, 1)).claim.spend.node_losses == 2


def test_a_loss_takes_the_place_of_the_failure_that_came_of_it() -> None:
    script = running()
    script.fail(1)
    assert {stop.manner for stop in sent(script.lose(2), Stop).values()} == {StopManner.LOSS}
    assert the_claim(restart(script, 0, 1, 3)).claim.spend == Spend(restarts=0, node_losses=1)


@pytest.mark.parametrize(
    ("nodes", "min_nodes", "lost", "manner"),
    [
        (4, 2, [2], StopManner.LOSS),
        (4, 3, [2, 3], StopManner.LOSS),
        (4, 2, [2, 3], StopManner.FENCE),  # if both live after all, they are enough to go on
        (2, 1, [1], StopManner.FENCE),
    ],
)
def test_ranks_that_save_may_finish_where_those_that_count_as_dead_could_not_go_on(
    nodes: int, min_nodes: int, lost: list[int], manner: StopManner
) -> None:
    script = running(nodes, min_nodes=min_nodes)
    stops: dict[str, Stop] = {}
    for node in lost:
        stops |= sent(script.lose(node), Stop)
    assert {stop.manner for stop in stops.values()} <= {StopManner.LOSS, manner}
    assert stops["node0"].manner is manner


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_second_loss_in_silence_fences_ranks_that_save(is_gone: bool) -> None:
    script = running(5, min_nodes=3)
    assert {stop.manner for stop in sent(script.lose(2), Stop).values()} == {StopManner.LOSS}
    again = {stop.manner for stop in sent(script.lose(3, is_gone=is_gone), Stop).values()}
    assert again == (set() if is_gone else {StopManner.FENCE})


def test_a_node_that_is_back_in_the_network_and_said_goodbye_fences_ranks_that_save() -> None:
    script = running()
    stops = sent(script.say(2, Dropped(reason="no answer for 6 s")), Stop)
    assert {stop.manner for stop in stops.values()} == {StopManner.FENCE}


def test_too_many_losses_end_the_run() -> None:
    script = running(restart=a_restart_plan(max_node_losses=0))
    script.lose(2)
    assert the_cause(restart(script, 0, 1, 3)) == ("node_losses_used_up", ExitCode.NODE_LOST)


def test_fewer_than_min_end_the_run_at_once_if_those_who_are_lost_are_dead() -> None:
    script = running(min_nodes=3)
    script.lose(2)
    script.lose(3)
    result = the_result(restart(script, 0, 1))
    assert (result.reason, result.exit_code) == ("node_lost", ExitCode.NODE_LOST)
    assert result.cause.startswith("node2, node3 were lost: "), result.cause


def test_a_node_lost_between_attempts_is_counted_and_not_waited_for() -> None:
    script = running(restart=a_restart_plan(first_s=60))
    script.fail(1)
    restart(script, 0, 1, 2, 3)
    assert script.head.phase is HeadPhase.PAUSING
    script.lose(2)
    claim = the_claim(script.pass_time(61)).claim
    assert (claim.members, claim.spend) == (("node0", "node1", "node3"), Spend(restarts=1, node_losses=1))


def test_a_final_stop_becomes_a_hard_one_when_a_member_falls_silent() -> None:
    script = running()
    script.head.stop_requested("ada@login", script.now)
    assert {stop.manner for stop in sent(script.lose(2, is_gone=False), Stop).values()} == {StopManner.FENCE}


# Leases.


def test_a_member_whose_echoes_are_lost_is_lost_though_its_beats_come() -> None:
    """It has fenced, and may be about to succeed this head."""
    script = running()
    script.beating.discard(2)
    lost_at = None
    for number in range(1, 40):
        script.say(2, Beat(number=number, heard=0))
        if of_kind(script.pass_time(0.5), Drop):
            lost_at = script.now
            break
    assert lost_at == pytest.approx(LEASE_S, abs=0.6)


def test_the_guard_of_the_head_is_told_when_the_oldest_answer_is_a_lease_old() -> None:
    script = running()
    assert script.head.fence_deadline() == LEASE_S
    script.pass_time(30)
    assert LEASE_S / 2 < script.head.fence_deadline() - script.now < LEASE_S


def test_the_head_looks_at_the_moment_in_which_the_oldest_answer_is_a_lease_old() -> None:
    """Who has its answers could succeed it from then on; the next look of those that it makes anyhow is later."""
    script = running()
    for script.now in (1.1, 1.2):  # by the second beat they say that they have the answer to the first
        for node_id in (1, 2, 3):
            script.beats += 1
            script.say(node_id, Beat(number=script.beats, heard=script.heard.get(node_id, 0)))
            script.heard[node_id] = script.beats
    script.beating.clear()
    deadline = pytest.approx(1.1 + LEASE_S)
    looks: list[float] = []
    while not looks or looks[-1] < 1.05 + LEASE_S:
        script.now = script.head.next_tick()
        script.head.tick(script.now)
        looks.append(script.now)
    assert looks[-1] == deadline
    assert looks[-1] - looks[-2] < LEASE_S / 12


def test_the_guard_of_the_head_is_told_to_hurry_when_a_member_fell_silent() -> None:
    script = running()
    script.pass_time(30)
    script.lose(2, is_gone=False)
    assert script.head.fence_deadline() <= script.now + 0.25
    restart(script, 0, 1, 3)
    assert script.head.fence_deadline() > script.now + 1


# Who may end the run.


def test_a_side_with_too_few_waits_for_what_the_others_do() -> None:
    script = running(min_nodes=2)
    for node_id in (1, 2, 3):
        script.lose(node_id, is_gone=False)
    actions = restart(script, 0)
    assert not of_kind(actions, WriteResult)
    assert script.head.phase is HeadPhase.AWAITING_QUORUM
    assert not of_kind(script.pass_time(3 * LEASE_S), WriteResult)
    assert the_cause(script.pass_time(2)) == ("node_lost", ExitCode.NODE_LOST)


def test_the_run_goes_on_if_enough_are_back_before_the_others_went_on() -> None:
    script = running(min_nodes=2)
    for node_id in (1, 2, 3):
        script.lose(node_id, is_gone=False)
    restart(script, 0)
    assert not of_kind(script.join(1), ClaimAttempt)  # the others may not have fenced
    claim = the_claim(script.pass_time(LEASE_S)).claim
    assert claim.members == ("node0", "node1")


def test_the_run_goes_on_if_enough_are_back_when_the_workers_are_stopped() -> None:
    script = running(min_nodes=2)
    for node_id in (1, 2, 3):
        script.lose(node_id, is_gone=False)
    script.join(1)
    restart(script, 0)
    claim = the_claim(script.pass_time(LEASE_S)).claim
    assert (claim.members, claim.reason) == (("node0", "node1"), "enough nodes are back")


def test_a_run_whose_losses_are_used_up_as_enough_nodes_are_back_ends_for_that_and_not_for_too_few() -> None:
    script = HeadScript(5, min_nodes=4, join_timeout_s=LEASE_S, restart=a_restart_plan(max_node_losses=1))
    script.join(0, 1, 2, 3)  # the fifth one is late
    script.pass_time(LEASE_S + 1)
    script.claimed()
    for node_id in (1, 2):
        script.lose(node_id, is_gone=False)
    restart(script, 0, 3)
    script.join(1, 4)
    result = the_result(script.pass_time(3 * LEASE_S + 2))
    assert (result.reason, result.exit_code) == ("node_losses_used_up", ExitCode.NODE_LOST)
    told = "2 node losses in this run, expected at most restart.max_node_losses, which is 1"
    assert result.cause == f"node1, node2 were lost: the connection closed; {told}"
    assert result.root_cause is not None
    assert result.root_cause.line == result.cause


def test_losses_are_what_ends_a_run_whose_nodes_are_back_after_a_round_found_too_few() -> None:
    """None of the losses was why the run was to end: the round that followed the first one was."""
    script = HeadScript(4, min_nodes=3, join_timeout_s=LEASE_S, restart=a_restart_plan(max_node_losses=1))
    script.join(0, 1, 2)  # the fourth one may come
    script.pass_time(LEASE_S + 1)
    script.claimed()
    script.lose(1, is_gone=False)
    restart(script, 0, 2)
    while script.head.phase is not HeadPhase.AWAITING_QUORUM:
        script.pass_time(1)
    script.lose(2, is_gone=False)
    script.join(1, 3)
    result = the_result(script.pass_time(3 * LEASE_S))
    told = "2 node losses in this run, expected at most restart.max_node_losses, which is 1"
    assert (result.reason, result.exit_code) == ("node_losses_used_up", ExitCode.NODE_LOST)
    assert result.cause == f"node2 was lost: it did not return; {told}"


def test_nodes_whose_loss_ends_the_run_as_they_are_back_are_lost_nodes_though_a_connection_was_reset() -> None:
    script = running(min_nodes=3, restart=a_restart_plan(max_node_losses=1))
    script.lose(1, is_gone=False)
    script.lose(2)
    restart(script, 0, 3)
    script.join(1, 2)
    cause = the_result(script.pass_time(3 * LEASE_S + 2)).root_cause
    assert cause is not None
    assert (cause.nodes, cause.failure_class) == (("node1", "node2"), "node_lost")


def test_a_member_that_says_goodbye_may_take_the_heads_place_so_its_own_workers_are_fenced() -> None:
    script = running(min_nodes=1)
    script.pass_time(30)
    script.say(2, Dropped(reason="no answer for 6 s"))
    assert script.head.fence_deadline() <= script.now + 0.1


def test_a_goodbye_fences_workers_that_have_their_grace_at_the_end_of_the_run() -> None:
    script = running(min_nodes=1)
    script.head.stop_requested("ada", script.now)
    actions = script.say(2, Dropped(reason="no answer for 6 s"))
    assert {stop.manner for stop in sent(actions, Stop).values()} == {StopManner.FENCE}
    assert set(sent(actions, Stop)) == {"node0", "node1", "node3"}
    assert script.head.fence_deadline() <= script.now + 0.1


def test_a_head_that_looks_late_has_had_its_own_fence_when_its_lease_was_over() -> None:
    """A pause must not put the fence off: whoever succeeds this head does not wait for it."""
    script = running(min_nodes=1)
    script.pass_time(30)
    script.now += LEASE_S + 0.1
    script.head.tick(script.now)
    assert script.head.fence_deadline() <= 30 + LEASE_S + 0.1
    script.lose(2, is_gone=False)
    assert script.head.fence_deadline() <= 30 + LEASE_S + 0.1, "a later loss does not put it off"


def test_an_attempt_that_was_claimed_has_no_fence_of_a_loss_before_it() -> None:
    script = running(min_nodes=1)
    script.say(2, Dropped(reason="no answer for 6 s"))
    restart(script, 0, 1)
    script.lose(3, is_gone=False)
    the_claim(script.pass_time(LEASE_S))
    script.claimed()
    assert script.head.fence_deadline() > script.now


def test_nobody_ends_a_run_that_a_silent_node_could_go_on_with_and_nobody_else() -> None:
    """The minimum is all that there are: without the silent one nobody can go on, so to wait for it costs nothing."""
    script = running(min_nodes=4)
    script.lose(3, is_gone=False)
    assert not of_kind(restart(script, 0, 1, 2), WriteResult)
    assert not of_kind(script.pass_time(2 * LEASE_S - 0.1), WriteResult)
    claim = the_claim(script.join(3)).claim
    assert (len(claim.members), claim.spend.node_losses) == (4, 1)


def test_a_silent_node_that_does_not_come_back_ends_a_run_that_needs_it() -> None:
    script = running(min_nodes=4)
    script.lose(3, is_gone=False)
    restart(script, 0, 1, 2)
    assert the_cause(script.pass_time(2 * LEASE_S)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_dead_node_ends_a_run_that_needs_it_at_once() -> None:
    script = running(min_nodes=4)
    script.lose(3)
    assert the_cause(restart(script, 0, 1, 2)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_side_with_too_few_waits_for_a_silent_node_whoever_was_lost_before() -> None:
    script = running(min_nodes=2)
    script.lose(1)
    restart(script, 0, 2, 3)
    script.claimed()
    script.lose(2)
    restart(script, 0, 3)
    script.claimed()
    script.lose(3, is_gone=False)
    assert not of_kind(restart(script, 0), WriteResult)
    assert the_cause(script.pass_time(3 * LEASE_S + 1)) == ("node_lost", ExitCode.NODE_LOST)


def test_members_whose_connections_end_after_a_silence_may_have_given_the_head_up() -> None:
    """The network of the head's node was down for as long as they are patient, and their kernels answer with resets."""
    script = running(min_nodes=2)
    script.beating = {0}
    script.pass_time(Timing(lease_s=LEASE_S).patience_s)
    for node_id in (1, 2, 3):
        script.lose(node_id)
    assert not of_kind(restart(script, 0), WriteResult)
    actions = [*script.join(1), *script.join(2), *script.pass_time(LEASE_S)]
    assert the_claim(actions).claim.members == ("node0", "node1", "node2")


def test_members_whose_connections_end_while_they_beat_are_dead() -> None:
    script = running(min_nodes=2)
    script.pass_time(LEASE_S)
    for node_id in (1, 2, 3):
        script.lose(node_id)
    assert the_cause(restart(script, 0)) == ("node_lost", ExitCode.NODE_LOST)


@pytest.mark.parametrize("how", ["says goodbye", "joins again"])
def test_members_whose_connections_end_as_one_that_lives_gave_its_own_up_may_live_too(how: str) -> None:
    """Resets by something between them, or by the kernels of members that were told of no route to the head."""
    script = running(min_nodes=3)
    script.pass_time(LEASE_S)
    if how == "says goodbye":
        script.say(1, Dropped(reason="reset"))
    else:
        script.head.lost("node1", "joins again", script.now, is_gone=True, may_return=True)
        script.join(1)
    script.lose(2)
    script.lose(3)
    assert not of_kind(restart(script, 0), WriteResult)
    claim = the_claim([*script.join(1, 2, 3), *script.pass_time(LEASE_S / 2)]).claim
    assert (len(claim.members), claim.spend.node_losses) == (4, 0)


@pytest.mark.parametrize("doubt", ["another gave its own up", "it was silent"])
def test_a_needed_member_whose_connection_ends_in_doubt_and_that_is_dead_is_waited_for_two_leases(doubt: str) -> None:
    """And not as long as one that has not joined yet; the run ends for its loss, after which the job may go on."""
    script = running(min_nodes=4)
    script.pass_time(LEASE_S)
    if doubt == "it was silent":
        script.beating.discard(2)
        script.pass_time(LEASE_S * 2 / 3 * 0.8)
    else:
        script.say(1, Dropped(reason="reset"))
        script.join(1)
    script.lose(2)
    stays = (0, 1, 3) if doubt == "it was silent" else (0, 3)
    assert not of_kind([*restart(script, *stays), *script.pass_time(2 * LEASE_S - 0.1)], WriteResult)
    result = the_result(script.pass_time(0.1))
    assert (result.reason, result.cause) == (
        "node_lost",
        "node2 was lost: the connection closed; too few nodes are left to go on",
    )


@pytest.mark.parametrize("how", ["reset after a silence", "reset after another gave its own up", "silent"])
def test_a_member_that_is_back_before_the_first_attempt_is_no_loss_though_others_are_still_to_come(how: str) -> None:
    """They copy an image, say; the run ended two leases later, as if they could not come any more."""
    script = HeadScript(4, min_nodes=4)
    script.join(0, 1, 2)
    script.pass_time(LEASE_S)
    if how == "reset after a silence":
        script.beating.discard(2)
        script.pass_time(Timing(lease_s=LEASE_S).silent_before_reset_s)
    elif how == "reset after another gave its own up":
        script.say(1, Dropped(reason="reset"))
        script.join(1)
    script.lose(2, is_gone=how != "silent")
    script.pass_time(1)
    assert not of_kind([*script.join(2), *script.pass_time(60)], WriteResult)
    assert len(the_claim(script.join(3)).claim.members) == 4


def test_a_member_that_is_lost_and_back_again_and_again_gives_the_first_round_no_more_time() -> None:
    script = HeadScript(3, min_nodes=3, join_timeout_s=60)
    script.join(0, 1)
    for _ in range(5):
        script.pass_time(11)
        script.lose(1, is_gone=False)
        script.join(1)
    assert the_cause(script.pass_time(5)) == ("nodes_missing", ExitCode.NODES_MISSING)


def test_the_heads_own_member_that_gave_its_connection_up_before_has_left_if_it_leaves() -> None:
    """Else the next start of the job would wait for it."""
    script = running(nodes=1, min_nodes=1)
    script.say(0, Dropped(reason="no answer for 6 s"))
    script.join(0)
    script.head.result_written(int(ExitCode.REQUEUE), "the job is preempted", script.now)
    (over,) = of_kind(script.lose(0), HeadOver)
    assert over.have_all_left


def test_members_whose_connections_end_long_after_one_gave_its_own_up_are_dead() -> None:
    script = running(min_nodes=3)
    script.say(1, Dropped(reason="reset"))
    the_claim([*restart(script, 0, 2, 3), *script.join(1)])
    script.pass_time(LEASE_S / 2)
    script.claimed()
    script.lose(2)
    script.lose(3)
    assert the_cause(restart(script, 0, 1)) == ("node_lost", ExitCode.NODE_LOST)


def test_whose_connection_was_reset_may_live_where_the_network_has_taken_another() -> None:
    script = running(min_nodes=2)
    script.lose(2, is_gone=False)
    script.lose(1)
    script.lose(3)
    assert not of_kind(restart(script, 0), WriteResult)
    assert script.head.phase is HeadPhase.AWAITING_QUORUM


def test_a_head_that_another_one_follows_tells_everybody_and_ends_nothing() -> None:
    script = running()
    actions = script.head.superseded("node2 has opened attempt 2")
    assert set(sent(actions, Dropped)) == {"node1", "node2", "node3"}
    assert of_kind(actions, Superseded)
    assert script.head.phase is HeadPhase.OVER
    assert script.head.superseded("again") == []


def test_whoever_says_goodbye_may_come_back_and_the_run_is_not_over() -> None:
    script = running(min_nodes=3)
    script.say(2, Dropped(reason="no answer for 6 s"))
    script.say(3, Dropped(reason="no answer for 6 s"))
    assert not of_kind(restart(script, 0, 1), WriteResult)
    assert not of_kind(script.join(2), ClaimAttempt)
    claim = the_claim(script.pass_time(LEASE_S / 2)).claim
    assert (claim.members, claim.spend.node_losses) == (("node0", "node1", "node2"), 1)


def test_members_that_missed_a_head_for_a_moment_are_all_in_the_next_attempt_and_none_is_lost() -> None:
    script = running(min_nodes=1)
    for node_id in (1, 2, 3):
        script.say(node_id, Dropped(reason="no answer for 6 s"))
    assert not of_kind(restart(script, 0), ClaimAttempt)
    assert not of_kind(script.join(3, 1), ClaimAttempt)
    claim = the_claim(script.join(2)).claim
    assert (len(claim.members), claim.spend.node_losses) == (4, 0)


def test_a_member_that_said_goodbye_is_lost_if_it_is_not_back_in_time() -> None:
    script = running(min_nodes=1)
    script.say(2, Dropped(reason="no answer for 6 s"))
    assert not of_kind(restart(script, 0, 1, 3), ClaimAttempt)
    claim = the_claim(script.pass_time(LEASE_S / 2)).claim
    assert (claim.members, claim.spend.node_losses) == (("node0", "node1", "node3"), 1)


def test_goodbyes_that_turn_out_to_be_losses_count_against_the_limit() -> None:
    script = running(3, min_nodes=1, restart=a_restart_plan(max_node_losses=0))
    script.say(2, Dropped(reason="no answer for 6 s"))
    restart(script, 0, 1)
    assert the_cause(script.pass_time(3 * LEASE_S + 2)) == ("node_losses_used_up", ExitCode.NODE_LOST)


def test_a_head_that_was_paused_waits_for_those_that_it_has_not_heard_meanwhile() -> None:
    """The silence was its own; they have fenced, and look for it."""
    script = running(min_nodes=1)
    script.now += LEASE_S + 1
    script.head.tick(script.now)
    assert script.head.fence_deadline() <= script.now
    assert not of_kind(restart(script, 0), ClaimAttempt)
    assert not of_kind(script.join(1, 3), ClaimAttempt)
    claim = the_claim(script.join(2)).claim
    assert (len(claim.members), claim.spend.node_losses) == (4, 0)


def woken() -> tuple[HeadScript, list[Action]]:
    """A head that stood still for longer than a lease, and what it does then."""
    script = running(min_nodes=1)
    script.now += LEASE_S + 1
    return script, script.head.tick(script.now)


def test_a_head_that_was_paused_names_no_node_that_comes_back() -> None:
    script, done = woken()
    done += script.say(1, Dropped(reason="it has lost this head: no answer for 6 s; node1 itself stood still"))
    done += [*restart(script, 0), *script.join(1, 3), *script.join(2)]
    claim = the_claim(done).claim
    assert claim.reason == "node0 stood still for 9 s, and heard nothing"
    assert (len(claim.members), claim.spend.node_losses) == (4, 0)


def test_a_head_that_was_paused_tells_of_itself_where_a_member_has_given_it_up_meanwhile() -> None:
    """The pause was shorter than the lease, and longer than that member's patience."""
    script = running(min_nodes=1)
    script.beating = {1, 2, 3}
    script.pass_time(1)
    script.now += 6.5
    done = script.head.tick(script.now)
    done += script.say(1, Dropped(reason="no answer for 6 s"))
    done += [*restart(script, 0, 2, 3), *script.join(1)]
    claim = the_claim(done).claim
    assert claim.reason == "node0 stood still for 6 s, and heard nothing"
    assert (len(claim.members), claim.spend.node_losses) == (4, 0)


def late_head(late_s: float, *, has_ended: bool = False) -> tuple[HeadScript, list[Action]]:
    """A head that checks its leases so much too late for its own workers, and what it does; all members were heard.

    `has_ended`: its own workers have exited 0 before.
    """
    script = running(min_nodes=1)
    if has_ended:
        script.finish(0)
    script.now += LEASE_S / 3
    for number in (1, 2):
        for node_id in (1, 2, 3):
            script.say(node_id, Beat(number=number, heard=number - 1))
        if number == 1:
            script.head.tick(script.now)
    script.now = script.head.fence_deadline() + late_s
    return script, script.head.tick(script.now)


def test_workers_that_the_guard_may_have_killed_start_again_though_no_member_was_silent() -> None:
    """They have been heard since the head looked at its leases and told the guard until when these let workers run."""
    script, done = late_head(AGENT.guard_s)
    done += restart(script, 0, 1, 2, 3)
    claim = the_claim(done).claim
    assert re.fullmatch(r"node0 stood still for [0-9.]+ s, and heard nothing", claim.reason)
    assert (len(claim.members), claim.spend.node_losses, claim.spend.restarts) == (4, 0, 0)


def test_a_head_whose_own_workers_had_ended_when_its_guard_killed_restarts_nobody() -> None:
    script, done = late_head(AGENT.guard_s, has_ended=True)
    assert not of_kind(done, SendToMember)
    assert script.head.phase is HeadPhase.RUNNING
    for node_id in (1, 2, 3):
        done += script.finish(node_id)
    assert the_result(done).state.value == "SUCCEEDED"


def test_a_head_that_is_late_but_not_for_its_guard_goes_on() -> None:
    script, done = late_head(AGENT.guard_s / 2)
    assert not of_kind(done, SendToMember)
    assert script.head.phase is HeadPhase.RUNNING


def test_a_side_whose_others_do_not_come_back_in_time_still_waits_for_what_they_do() -> None:
    script = running(min_nodes=2, join_timeout_s=5)
    for node_id in (1, 2, 3):
        script.say(node_id, Dropped(reason="no answer for 6 s"))
    restart(script, 0)
    assert not of_kind(script.pass_time(3 * LEASE_S), WriteResult)
    assert the_cause(script.pass_time(2)) == ("node_lost", ExitCode.NODE_LOST)


def short_of(*lost: int, min_nodes: int = 4, **options: Any) -> HeadScript:
    """Of four nodes these have said goodbye, and the others have stopped."""
    script = running(min_nodes=min_nodes, **options)
    for node_id in lost:
        script.say(node_id, Dropped(reason="no answer for 6 s"))
        script.beating.discard(node_id)
    assert not of_kind(restart(script, *sorted(script.attempts.keys() - {*lost})), WriteResult)
    return script


def test_a_needed_member_that_said_goodbye_and_does_not_return_ends_the_run_two_leases_later() -> None:
    """As a silent one does. One that hears nothing would else end the run first, and name all others."""
    script = short_of(3)
    assert not of_kind(script.pass_time(2 * LEASE_S - 0.1), WriteResult)
    result = the_result(script.pass_time(0.1))
    assert (result.reason, result.exit_code) == ("node_lost", ExitCode.NODE_LOST)
    assert result.cause == "node3 was lost: no return in time; too few nodes are left to go on"
    assert result.root_cause is not None
    assert (result.root_cause.node, result.root_cause.failure_class) == ("node3", "node_lost")
    assert script.head.at_fault.to_avoid == ("node3",)
    assert script.head.charged.spend.node_losses == 1


@pytest.mark.parametrize(("after_s", "losses"), [(LEASE_S / 2 - 0.1, 0), (LEASE_S / 2 + 0.1, 1), (2 * LEASE_S - 1, 1)])
def test_a_needed_member_that_said_goodbye_and_returns_is_in_the_next_attempt(after_s: float, losses: int) -> None:
    script = short_of(3)
    assert not of_kind(script.pass_time(after_s), ClaimAttempt)
    claim = the_claim(script.join(3)).claim
    assert (len(claim.members), claim.spend.node_losses) == (4, losses)


def test_needed_members_of_which_too_few_return_are_named_without_those_that_are_back() -> None:
    script = short_of(1, 2, 3, min_nodes=3)
    script.join(2)
    script.pass_time(LEASE_S)
    assert the_cause(script.pass_time(2 * LEASE_S)) == ("node_lost", ExitCode.NODE_LOST)
    assert script.head.at_fault.to_avoid == ("node1", "node3")


def test_a_node_that_said_goodbye_to_an_earlier_world_is_waited_for_two_leases_when_it_is_needed() -> None:
    script = short_of(3, min_nodes=3)
    script.pass_time(LEASE_S)
    script.claimed()
    script.pass_time(5 * LEASE_S)
    script.lose(2)
    assert not of_kind([*restart(script, 0, 1), *script.pass_time(2 * LEASE_S - 0.1)], WriteResult)
    result = the_result(script.pass_time(0.2))
    lost = "node2, node3 were lost: the connection closed (node2), no return in time (node3)"
    assert (result.reason, result.cause) == ("node_lost", f"{lost}; too few nodes are left to go on")


def without_a_spare(join_timeout_s: float) -> HeadScript:
    """Three nodes are needed and at work; the fourth has not come yet, and node2 says goodbye."""
    script = HeadScript(4, min_nodes=3, max_nodes=3, join_timeout_s=join_timeout_s)
    script.join(0, 1, 2)
    script.pass_time(5)
    script.claimed()
    script.say(2, Dropped(reason="no answer for 6 s"))
    script.beating.discard(2)
    restart(script, 0, 1)
    return script


def test_a_node_that_may_come_for_the_first_time_is_waited_for_beside_one_that_said_goodbye() -> None:
    script = without_a_spare(join_timeout_s=600)
    assert not of_kind(script.pass_time(2 * LEASE_S - 1), WriteResult)
    assert the_claim(script.join(3)).claim.members == ("node0", "node1", "node3")


def test_a_node_that_has_never_come_is_waited_for_no_longer_than_a_silent_one() -> None:
    """The one that said goodbye would end the run else, and name those that are here."""
    script = without_a_spare(join_timeout_s=600)
    assert the_cause(script.pass_time(2 * LEASE_S + 1)) == ("node_lost", ExitCode.NODE_LOST)


@pytest.mark.parametrize(("join_timeout_s", "waits_s"), [(600, 2 * LEASE_S), (15, 10)])
def test_a_spare_that_has_not_come_yet_has_a_moment_to_take_the_place_of_a_dead_node(
    join_timeout_s: float, waits_s: float
) -> None:
    """But it has no longer than `join_timeout`, of which five seconds have passed."""
    script = HeadScript(4, min_nodes=3, max_nodes=3, join_timeout_s=join_timeout_s)
    script.join(0, 1, 2)
    script.pass_time(5)
    script.claimed()
    script.lose(2, is_gone=True)
    script.stopped(0)
    assert not of_kind([*script.stopped(1), *script.pass_time(waits_s - 1)], WriteResult)
    assert the_cause(script.pass_time(2)) == ("node_lost", ExitCode.NODE_LOST)


def test_the_only_node_of_a_role_that_said_goodbye_and_does_not_return_ends_the_run() -> None:
    roles = {0: "trainer", 1: "trainer", 2: "trainer", 3: "reader"}
    needs = {"trainer": 1, "reader": 1}
    script = short_of(3, min_nodes=2, roles=roles, role_nodes=needs, role_max_nodes={"trainer": 3, "reader": 1})
    assert the_cause(script.pass_time(3 * LEASE_S + 2)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_spare_takes_the_place_of_a_needed_member_that_said_goodbye() -> None:
    script = short_of(2, min_nodes=3, max_nodes=3)
    claim = the_claim(script.pass_time(LEASE_S / 2)).claim
    assert claim.members == ("node0", "node1", "node3")


def test_the_heads_own_node_that_was_paused_with_it_is_not_what_the_run_ends_for() -> None:
    script = short_of(0, 3)
    assert not of_kind([*script.join(3), *script.pass_time(3 * LEASE_S)], WriteResult)
    assert len(the_claim(script.join(0)).claim.members) == 4


def test_a_run_that_has_lost_too_many_nodes_does_not_go_on_when_they_are_back() -> None:
    script = running(min_nodes=2, restart=a_restart_plan(max_node_losses=1))
    for node_id in (1, 2, 3):
        script.lose(node_id, is_gone=False)
    restart(script, 0)
    assert script.head.phase is HeadPhase.AWAITING_QUORUM
    assert not of_kind([*script.join(1), *script.join(2)], ClaimAttempt)
    assert of_kind(script.pass_time(3 * LEASE_S + 2), WriteResult)


def left_alone(**options: Any) -> HeadScript:
    """A head of four whose three members have all fallen silent: two nodes would be enough."""
    script = running(min_nodes=2, **options)
    for node_id in (1, 2, 3):
        script.lose(node_id, is_gone=False)
    restart(script, 0)
    script.pass_time(LEASE_S)
    return script


@pytest.mark.parametrize("limit", [1, 3])
def test_nodes_that_were_lost_together_and_are_back_count_as_one_and_all_of_them_go_on(limit: int) -> None:
    """A switch that starts again cuts all nodes off from each other for some seconds."""
    script = left_alone(restart=a_restart_plan(max_node_losses=limit))
    assert not of_kind([*script.join(1), *script.pass_time(0.5), *script.join(2), *script.pass_time(0.9)], ClaimAttempt)
    claim = the_claim(script.join(3)).claim
    assert claim.members == ("node0", "node1", "node2", "node3")
    assert claim.spend.node_losses == 1


def test_the_cause_of_an_attempt_of_nodes_that_are_back_names_them_and_not_that_too_few_are_left() -> None:
    script = left_alone()
    cause = the_claim([*script.join(1, 2, 3), *script.pass_time(2)]).claim.root_cause
    assert cause is not None
    assert cause.line == "node1, node2, node3 were lost: the connection closed"
    assert (cause.node, cause.nodes) == ("", ("node1", "node2", "node3"))


def test_the_end_of_a_run_for_want_of_nodes_names_all_that_are_lost_and_not_the_first_alone() -> None:
    script = running(min_nodes=4)
    script.lose(1, is_gone=False)
    restart(script, 0, 2, 3)
    script.lose(3, is_gone=False)
    result = the_result(script.pass_time(3 * LEASE_S + 2))
    assert result.cause == "node1, node3 were lost: the connection closed; too few nodes are left to go on"
    assert result.root_cause is not None
    assert (result.root_cause.line, result.root_cause.nodes) == (result.cause, ("node1", "node3"))


def test_a_node_that_does_not_come_back_with_the_others_is_awaited_for_a_moment() -> None:
    script = left_alone()
    script.join(1, 2)
    assert not of_kind(script.pass_time(OTHERS_RETURN_WITHIN_S - 0.1), ClaimAttempt)
    claim = the_claim(script.pass_time(0.2)).claim
    assert claim.members == ("node0", "node1", "node2")
    assert claim.spend.node_losses == 2, "one that is gone, and the restart for those that are back"


def test_a_node_that_comes_back_again_and_again_holds_no_attempt_up_for_longer_than_half_a_lease() -> None:
    script = running(min_nodes=2)
    for node_id in (2, 3):
        script.lose(node_id, is_gone=False)
    actions = [*restart(script, 0, 1), *script.join(2)]
    while not of_kind(actions, ClaimAttempt):
        script.lose(2)
        actions = [*script.join(2), *script.pass_time(0.3)]
        assert script.now < 4 * LEASE_S, "a link that drops messages"
    fenced_at = script.head._members.losses.may_start_at  # those that are silent
    assert script.now <= fenced_at + LEASE_S / 2 + 0.6


def test_most_of_a_world_that_does_not_come_back_is_one_loss_too_many_when_the_round_is_closed() -> None:
    script = running(5, min_nodes=2, restart=a_restart_plan(max_node_losses=2))
    for node_id in (2, 3, 4):
        script.lose(node_id, is_gone=False)
    restart(script, 0, 1)
    result = the_result(script.pass_time(4 * LEASE_S))
    assert result.reason == "node_losses_used_up"
    assert result.cause.startswith("node2, node3, node4 were lost: "), result.cause


def test_a_node_that_stays_away_is_one_loss_too_many_though_it_was_most_of_a_world_when_too_few_were_here() -> None:
    """The round is closed with a spare in its place: with as many nodes here it is no fault of their network."""
    script = HeadScript(5, min_nodes=3, max_nodes=4, restart=a_restart_plan(max_node_losses=1), lease_s=LEASE_S)
    script.run()
    for node_id in (4, 3):
        script.lose(node_id, is_gone=False)
    restart(script, 0, 2)
    told = script.lose(1, is_gone=False)
    assert "run.yielding" in [note.name for note in of_kind(told, Note)]
    script.join(3)
    assert script.head.phase is HeadPhase.PAUSING
    script.join(4)
    result = the_result(script.pass_time(2 * LEASE_S))
    assert result.reason == "node_losses_used_up"
    assert result.cause.startswith("node1 was lost: "), result.cause
    assert "2 node losses in this run, expected at most restart.max_node_losses, which is 1" in result.cause


def test_a_node_that_comes_and_goes_is_counted_once_an_attempt() -> None:
    script = running(restart=a_restart_plan(first_s=60))
    script.fail(1)
    restart(script, 0, 1, 2, 3)
    for _ in range(2):
        script.lose(2)
        script.join(2)
    assert the_claim(script.pass_time(61)).claim.spend.node_losses == 1


# Spares, returns, growth.


def test_a_spare_takes_the_place_of_a_lost_node_and_nobody_elses_ranks_change() -> None:
    script = running(4, min_nodes=3, max_nodes=3)
    script.lose(1)
    world = the_claim(restart(script, 0, 2)).world
    assert [node.node for node in world.nodes] == ["node0", "node3", "node2"]


def test_the_worlds_record_names_the_nodes_that_wait() -> None:
    world = the_claim(HeadScript(4, min_nodes=2, max_nodes=2).join(0, 1, 2, 3)).world
    assert [(spare.node, spare.agent) for spare in world.spares] == [
        (node, a_join(number).agent) for number, node in ((2, "node2"), (3, "node3"))
    ]


def test_a_spare_that_is_lost_disturbs_nobody() -> None:
    script = running(4, min_nodes=3, max_nodes=3)
    assert not sent(script.lose(3), Stop)
    assert script.head.phase is HeadPhase.RUNNING


def test_an_unfit_node_is_left_out_if_there_are_enough_without_it() -> None:
    script = HeadScript(3, min_nodes=2, max_nodes=2)
    script.join(0, 1)
    actions = script.join(2, problem="/scratch is not mounted")
    assert sent(actions, Refused)["node2"].exit_code == ExitCode.SETUP
    assert the_claim(actions).claim.members == ("node0", "node1")
    (note,) = [note for note in of_kind(actions, Note) if note.name == "node.left_out"]
    assert note.metadata == {"node": "node2", "reason": "cannot take part: /scratch is not mounted"}


def test_a_run_that_cannot_begin_names_an_unfit_node_that_it_had_left_out_before_too() -> None:
    script = HeadScript(4, min_nodes=3, max_nodes=3)
    script.join(0)
    assert sent(script.join(2, problem="/scratch is not mounted"), Refused)
    script.join(3, problem="/scratch is not mounted")
    (result,) = of_kind(script.pass_time(2.5), WriteResult)
    assert result.result.cause == "node2, node3: /scratch is not mounted"


def test_a_node_that_returns_waits_for_the_next_attempt() -> None:
    script = running()
    script.lose(2)
    restart(script, 0, 1, 3)
    script.claimed()
    actions = script.join(2)
    assert sent(actions, Welcome)["node2"].is_late
    assert "node.returned" in [note.name for note in of_kind(actions, Note)]
    assert script.head.phase is HeadPhase.RUNNING
    script.fail(1, rank=1, attempt=2)
    assert "node2" in the_claim(restart(script, 0, 1, 3)).claim.members


def test_a_node_that_returns_is_taken_in_at_once_if_the_job_says_so() -> None:
    script = running(rejoin="immediately")
    script.lose(2)
    restart(script, 0, 1, 3)
    script.claimed()
    stops = sent(script.join(2), Stop)
    assert {stop.manner for stop in stops.values()} == {StopManner.GRACE}
    claim = the_claim(restart(script, 0, 1, 3)).claim
    assert (claim.members, claim.spend) == (("node0", "node1", "node3", "node2"), Spend(restarts=0, node_losses=1))


def test_nobody_is_stopped_for_a_newcomer_that_finds_no_room() -> None:
    script = HeadScript(3, min_nodes=1, max_nodes=2, rejoin="immediately")
    script.join(0, 1)
    script.pass_time(601)
    script.claimed()
    assert not sent(script.join(2), Stop)


# Succession.


def succession(*, is_dead: bool, contact: float = 0.0, is_finished: bool = False, nodes: int = 4) -> Succession:
    lost = LostHead(node="node0", contact=contact, is_dead=is_dead, why="no answer for 6 s")
    return Succession(lost=lost, world=the_world(nodes), is_finished=is_finished)


def the_world(nodes: int) -> World:
    seats = [a_seat(node_id) for node_id in range(nodes)]
    return assign_worker_ranks(seats, run="run", attempt=3, allocation=1, head="node0", restarts={})


def succeeding(given: Succession, *, min_nodes: int = 2, nodes: int = 4, **options: Any) -> HeadScript:
    history = History(attempts=3, spend=Spend(restarts=2, node_losses=1))
    return HeadScript(nodes, min_nodes=min_nodes, node="node1", history=history, succession=given, **options)


def test_a_successor_goes_on_at_once_if_everybody_is_here_and_the_head_is_dead() -> None:
    script = succeeding(succession(is_dead=True))
    script.join(1, 2)
    claim = the_claim(script.join(3)).claim
    assert (claim.attempt, claim.predecessor, claim.members) == (4, 3, ("node1", "node2", "node3"))
    assert claim.spend == Spend(restarts=2, node_losses=2)
    assert claim.reason == "node0 was lost: no answer for 6 s"


def test_a_successor_that_stood_still_gives_a_head_that_may_have_too_a_moment_to_be_found() -> None:
    given = succession(is_dead=False, contact=-60.0)
    assert the_claim(joined_by_all(succeeding(given)))
    paused = succeeding(replace(given, lost=replace(given.lost, was_paused=True)))
    assert not of_kind(joined_by_all(paused), ClaimAttempt)
    assert not of_kind(paused.pass_time(LEASE_S / 2 - 0.1), ClaimAttempt)
    assert the_claim(paused.pass_time(0.2))
    is_dead = replace(given.lost, was_paused=True, is_dead=True)
    assert the_claim(joined_by_all(succeeding(replace(given, lost=is_dead))))


def test_a_successor_that_stood_still_while_it_gathered_gives_members_a_moment_to_return() -> None:
    """They have not lost it for any fault of their own; one that does not return has had the time to."""
    script = succeeding(succession(is_dead=True), min_nodes=1)
    script.join(1, 2)
    script.now += 3 * LEASE_S
    assert not of_kind(script.head.tick(script.now), ClaimAttempt), "without node2, which it has not heard meanwhile"
    assert not of_kind(script.join(2), ClaimAttempt), "node3 may come as well"
    assert not of_kind(script.pass_time(LEASE_S / 2 - 0.1), ClaimAttempt)
    claim = the_claim(script.pass_time(0.2)).claim
    assert (claim.members, claim.reason) == (("node1", "node2"), "node0, node3 were lost: no answer for 6 s")


def test_a_successor_that_stands_still_again_waits_no_second_time_for_members() -> None:
    """Else one that does so again and again would never open an attempt."""
    script = succeeding(succession(is_dead=True), min_nodes=1)
    script.join(1, 2)
    script.now += 3 * LEASE_S
    assert not of_kind(script.head.tick(script.now), ClaimAttempt)
    script.join(2)
    script.now += 3 * LEASE_S
    assert the_claim(script.head.tick(script.now)).claim.members == ("node1",)


def joined_by_all(script: HeadScript) -> list[Action]:
    script.join(1, 2)
    return script.join(3)


@pytest.mark.parametrize(("here", "leases"), [((1, 2, 3), 1), ((1, 2), 2)], ids=["all", "some"])
@pytest.mark.parametrize("is_dead", [False, True])
def test_a_successor_waits_until_nobody_else_can_be_at_work(
    here: tuple[int, ...], leases: int, *, is_dead: bool
) -> None:
    if is_dead and leases == 1:
        return
    script = succeeding(succession(is_dead=is_dead))
    assert not of_kind(script.join(*here), ClaimAttempt)
    assert not of_kind(script.pass_time(leases * LEASE_S + 0.4), ClaimAttempt)
    assert of_kind(script.pass_time(0.2), ClaimAttempt)


def test_a_successor_does_not_spin_while_it_waits_longer_than_between_two_reminders() -> None:
    script = succeeding(succession(is_dead=False, contact=80.0))  # as with a lease of more than a minute
    script.join(0, 1, 2, 3)  # the one that was head is back
    assert not of_kind(script.pass_time(70), ClaimAttempt)
    assert script.head.gathering.next_tick() > script.now
    assert of_kind(script.pass_time(20), ClaimAttempt)


def test_a_successor_whose_own_node_has_not_joined_names_no_end_of_its_wait() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), nodes=3)
    assert not of_kind(script.join(2), ClaimAttempt)
    (said, *_) = [log.text for log in of_kind(script.pass_time(31), Log) if log.text.startswith("waiting for")]
    assert said == "waiting for node0, node1 to join"


def test_a_successor_with_too_few_waits_for_a_spare_that_is_on_its_way() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), min_nodes=3, nodes=4)
    assert not of_kind(script.join(1, 2), ClaimAttempt)
    assert the_claim(script.join(3)).claim.members == ("node3", "node1", "node2")


def test_a_successor_with_too_few_waits_for_nobody_who_cannot_come() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), min_nodes=3, nodes=3)
    result = the_result(script.join(1, 2))
    assert (result.reason, result.exit_code) == ("node_lost", 7)


def test_a_successor_waits_for_no_spare_if_the_work_is_done() -> None:
    script = succeeding(succession(is_dead=True, nodes=3, is_finished=True), min_nodes=3, nodes=4)
    assert the_result(script.join(1, 2)).state is RunState.SUCCEEDED


def test_a_successor_says_whose_place_it_has_taken() -> None:
    script = succeeding(succession(is_dead=True))
    script.join(1, 2, 3)
    notes = [note for note in of_kind(script.claimed(), Note) if note.name == "head.succeeded"]
    assert [note.message for note in notes] == ["node1 is head now, in the place of node0"]
    script.lose(3)
    restart(script, 1, 2)
    assert "head.succeeded" not in [note.name for note in of_kind(script.claimed(), Note)]


def test_a_successor_that_has_claimed_says_to_its_spares_that_it_is_their_head_now() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), nodes=4, max_nodes=2)
    script.join(1)
    script.join(2)
    script.join(3)
    welcomed = sent(script.claimed(), Welcome)
    assert set(welcomed) == {"node3"}
    assert not welcomed["node3"].gathers


def test_a_successor_says_that_it_only_gathers_until_it_has_claimed() -> None:
    script = succeeding(succession(is_dead=True))
    assert sent(script.join(1), Welcome)["node1"].gathers
    script.join(2)
    script.join(3)
    script.claimed()
    assert not sent(script.join(0), Welcome)["node0"].gathers


def test_a_successor_that_finds_the_work_done_writes_the_result() -> None:
    script = succeeding(succession(is_dead=True, is_finished=True))
    script.join(1, 2)
    assert the_result(script.join(3)).state is RunState.SUCCEEDED


def test_whoever_leaves_a_successors_round_again_ends_no_run() -> None:
    script = succeeding(succession(is_dead=False), min_nodes=4)
    script.join(1, 2)
    assert not of_kind(script.lose(2), WriteResult)
    assert script.head.phase is HeadPhase.GATHERING


def test_a_successor_whose_contact_is_old_waits_for_its_own_node() -> None:
    script = succeeding(succession(is_dead=False, contact=-1000), min_nodes=1)
    assert not of_kind(script.pass_time(LEASE_S), ClaimAttempt)
    assert of_kind(script.join(1), ClaimAttempt)


def test_a_successor_whose_contact_is_old_has_half_a_lease_to_be_found() -> None:
    script = succeeding(succession(is_dead=False, contact=-1000), min_nodes=1)
    assert not of_kind([*script.join(1), *script.pass_time(LEASE_S / 2 - 0.1)], ClaimAttempt)
    assert the_claim(script.pass_time(0.2)).claim.members == ("node1",)


def test_a_successors_round_that_a_member_joins_at_its_end_waits_a_moment_for_the_others() -> None:
    script = succeeding(succession(is_dead=False, contact=-1000), min_nodes=1)
    actions = [*script.join(1), *script.pass_time(LEASE_S / 2 - 0.5), *script.join(2)]
    assert not of_kind([*actions, *script.pass_time(OTHERS_RETURN_WITHIN_S - 0.1)], ClaimAttempt)
    assert the_claim(script.pass_time(0.2)).claim.members == ("node1", "node2")


def test_a_member_that_joins_again_and_again_holds_a_successors_round_up_for_half_a_lease_at_most() -> None:
    script = succeeding(succession(is_dead=False, contact=-1000), min_nodes=1)
    actions = script.join(1)
    while not of_kind(actions, ClaimAttempt):
        actions = [*script.join(2), *script.pass_time(0.3)]
        script.lose(2)
        assert script.now <= LEASE_S + 0.6, "a link that drops messages"


def test_a_successor_with_too_few_ends_the_run_when_nobody_else_went_on() -> None:
    script = succeeding(succession(is_dead=False), min_nodes=2)
    script.join(1)
    actions = script.pass_time(3 * LEASE_S + 0.9)
    assert not of_kind(actions, WriteResult)
    assert script.head.phase is HeadPhase.AWAITING_QUORUM
    assert the_cause(script.pass_time(0.5)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_successor_whose_head_is_dead_and_whose_min_is_out_of_reach_ends_the_run_at_once() -> None:
    script = succeeding(succession(is_dead=True, nodes=2), min_nodes=2, nodes=2)
    assert the_cause(script.join(1)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_successor_that_was_paused_for_long_gives_the_others_a_lease_and_a_round_of_dialling() -> None:
    script = succeeding(succession(is_dead=False, contact=-1000.0), min_nodes=2)
    assert not of_kind(script.join(1), WriteResult)
    waits_s = 1.5 * LEASE_S + MOST_LATE_S  # half of a lease to be found
    assert not of_kind(script.pass_time(waits_s - 0.5), WriteResult)
    assert of_kind(script.pass_time(1), WriteResult)


def test_a_member_that_left_a_gathering_again_is_counted_once() -> None:
    script = succeeding(succession(is_dead=True))
    script.join(1, 2)
    script.lose(2)
    assert the_claim([*script.join(3), *script.pass_time(19)]).claim.spend.node_losses == 3  # node0, node2


def test_a_member_that_left_a_gathering_and_came_back_is_not_lost() -> None:
    script = succeeding(succession(is_dead=True))
    script.join(1, 2)
    script.lose(2)
    claim = the_claim(script.join(2, 3)).claim
    assert claim.members == ("node1", "node2", "node3")
    assert claim.spend.node_losses == 2, "the history has one, and node0 is lost"


def test_spares_have_a_moment_to_come_to_a_successor_that_has_room() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), nodes=4, max_nodes=3)
    assert not of_kind(script.join(1, 2), ClaimAttempt)
    assert the_claim(script.join(3)).claim.members == ("node3", "node1", "node2")


def test_a_node_that_is_set_aside_leaves_room_for_a_spare() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), nodes=5, max_nodes=3)
    script.head.drain_requested("node3", "ada", 0.0)
    assert not of_kind(script.join(1, 2, 3), ClaimAttempt), "the drained node takes nobody's place"
    assert the_claim(script.join(4)).claim.members == ("node4", "node1", "node2")


def test_a_successor_does_not_wait_long_for_spares() -> None:
    script = succeeding(succession(is_dead=True, nodes=3), nodes=4, max_nodes=3)
    script.join(1, 2)
    assert the_claim(script.pass_time(1)).claim.members == ("node1", "node2")


def test_a_successor_keeps_to_the_lease_however_short_join_timeout_is() -> None:
    script = succeeding(succession(is_dead=False), join_timeout_s=1)
    script.join(1, 2)
    assert not of_kind(script.pass_time(2 * LEASE_S), ClaimAttempt)
    assert of_kind(script.pass_time(1), ClaimAttempt)


def test_ranks_stay_when_the_head_is_lost() -> None:
    script = succeeding(succession(is_dead=True))
    script.join(1, 2)
    world = the_claim(script.join(3)).world
    assert [node.node for node in world.nodes] == ["node1", "node2", "node3"]


# Two heads before the first attempt.


@pytest.mark.parametrize(
    ("nodes", "is_reached", "does_yield"),
    [
        pytest.param((0,), False, True, id="too few"),
        pytest.param((0, 1), False, False, id="enough"),
        pytest.param((0, 1), True, True, id="enough, and the other answers"),
    ],
)
def test_a_first_head_yields_to_a_later_one_only_while_it_has_too_few_nodes_or_that_one_answers(
    *, nodes: tuple[int, ...], is_reached: bool, does_yield: bool
) -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(*nodes)
    actions = script.head.yields("node2", 2, 0.0, is_reached=is_reached)
    assert bool(of_kind(actions, Superseded)) == does_yield


def test_a_head_that_has_opened_an_attempt_yields_to_no_claim_of_the_allocation() -> None:
    assert running().head.yields("node2", 2, 0.0) == []
    assert running().head.yields("node2", 2, 0.0, is_reached=True) == []


def test_a_head_whose_first_attempt_started_no_workers_looks_for_no_other_one() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1, 2)
    assert script.head.phase is HeadPhase.CLAIMING
    script.head.received("node1", Dropped(reason="no answer for 6 s"), script.now)
    script.claimed()
    assert (script.head.phase, script.head.is_at_first) == (HeadPhase.GATHERING, False)


# The end of the Slurm job.


def launched(node_id: int, *, is_launch_host: bool = False) -> Join:
    return replace(a_join(node_id), can_end_job=node_id > 1, is_launch_host=is_launch_host)


def end(script: HeadScript, exit_code: ExitCode = ExitCode.SUCCESS) -> list[str]:
    """Who is told to end the job when the run is over, or stops in this allocation."""
    ends = sent(script.head.result_written(int(exit_code), "it is over", script.now), End)
    return [node for node, message in ends.items() if message.ends_job]


@pytest.mark.parametrize(("is_gone", "enders"), [(False, ["node2"]), (True, [])], ids=["silent", "agent died"])
def test_the_first_agent_that_can_ends_the_job_of_a_lost_batch_host(*, is_gone: bool, enders: list[str]) -> None:
    script = HeadScript(4, min_nodes=2, node="node1")
    for node_id in range(4):
        script.head.joined(launched(node_id, is_launch_host=node_id == 0), script.now)
    claimed = script.claimed()
    assert set(sent(claimed, Assign)) == {"node0", "node1", "node2", "node3"}
    script.lose(0, is_gone=is_gone)
    assert end(script) == enders


def test_the_first_agent_tries_to_end_the_job_of_a_lost_batch_host_if_slurm_answered_none_at_the_start() -> None:
    script = HeadScript(4, min_nodes=2, node="node1")
    for node_id in range(4):
        script.head.joined(replace(a_join(node_id), is_launch_host=node_id == 0), script.now)
    script.claimed()
    script.lose(0, is_gone=False)
    assert end(script) == ["node1"]


@pytest.mark.parametrize(("silent_s", "enders"), [(2.0, []), (4.0, ["node2"])], ids=["at once", "after a silence"])
def test_a_batch_host_that_resets_its_connection_after_a_silence_may_have_started_again(
    silent_s: float, enders: list[str]
) -> None:
    """Its kernel answers as that of a dead agent does, and the batch script is gone."""
    script = HeadScript(4, min_nodes=2, node="node1")
    for node_id in range(4):
        script.head.joined(launched(node_id, is_launch_host=node_id == 0), script.now)
    script.claimed()
    script.head.received("node0", Beat(number=1), script.now)
    script.now += silent_s
    script.lose(0)
    assert end(script) == enders


@pytest.mark.parametrize(("silent_s", "enders"), [(4.4, []), (4.5, ["node2"])], ids=["one beat", "after a silence"])
def test_a_batch_host_without_a_part_has_not_started_again_where_its_agent_dies_between_two_of_its_rarer_beats(
    silent_s: float, enders: list[str]
) -> None:
    """They are 3 s apart, as those of the others are not."""
    script = HeadScript(4, min_nodes=2, max_nodes=3, node="node1")
    script.head.joined(replace(launched(0, is_launch_host=True), unhealthy="it has no GPU"), script.now)
    for node_id in (1, 2, 3):
        script.head.joined(launched(node_id), script.now)
    claimed = script.claimed()
    assert set(sent(claimed, Assign)) == {"node1", "node2", "node3"}
    script.head.received("node0", Beat(number=1), script.now)
    script.now += silent_s
    script.lose(0)
    assert end(script) == enders


@pytest.mark.parametrize(("was_silent", "enders"), [(False, []), (True, ["node2"])])
def test_a_successor_of_a_batch_host_that_may_have_started_again_ends_its_job(
    *, was_silent: bool, enders: list[str]
) -> None:
    given = succession(is_dead=True)
    lost = replace(given.lost, was_silent=was_silent)
    script = succeeding(replace(given, lost=lost, world=replace(given.world, launch_node="node0")))
    for node_id in (1, 2, 3):
        script.head.joined(launched(node_id), script.now)
    assert end(script) == enders


def test_nobody_ends_a_job_that_the_scheduler_starts_again() -> None:
    script = HeadScript(4, min_nodes=2, node="node1")
    for node_id in range(4):
        script.head.joined(launched(node_id, is_launch_host=node_id == 0), script.now)
    script.claimed()
    script.lose(0)
    assert end(script, ExitCode.REQUEUE) == []


def test_a_successor_knows_from_the_world_where_the_batch_script_ran() -> None:
    given = succession(is_dead=False)
    given = replace(given, world=replace(given.world, launch_node="node0"))
    script = succeeding(given)
    for node_id in (1, 2, 3):
        script.head.joined(launched(node_id), script.now)
        script.beating.add(node_id)
    world = the_claim(script.pass_time(LEASE_S + 1)).world
    assert (world.launch_node, world.is_launch_node_lost) == ("node0", True)
    assert end(script) == ["node2"]


def test_a_dropped_member_is_told_before_its_connection_is_closed() -> None:
    script = running()
    script.beating.discard(2)
    actions = script.pass_time(LEASE_S + 1)
    told = actions.index(SendToMember(node="node2", message=Dropped(reason="no answer for 9 s")))
    assert told < actions.index(Drop(node="node2"))


def test_each_of_many_members_that_fall_silent_together_is_told_once_to_kill_its_workers() -> None:
    """Each told of each would be 16 million messages for 4,096 nodes, in one turn of the loop."""
    script = HeadScript(64, min_nodes=1)
    script.run()
    for number in range(64):
        script.start(number)
    script.beating = {0}
    stops = [send for send in of_kind(script.pass_time(40), SendToMember) if isinstance(send.message, Stop)]
    told = Counter(send.node for send in stops if send.message.manner is StopManner.FENCE)  # type: ignore[union-attr]
    assert len(told) > 60
    assert max(told.values()) == 1


def test_a_new_start_opens_its_attempt_as_soon_as_no_old_agent_has_workers() -> None:
    script = HeadScript(2, lease_s=LEASE_S, may_predecessor_live=True)
    opens_at = Timing(lease_s=LEASE_S).starts_again_after_s
    assert not of_kind(script.join(0, 1), ClaimAttempt)
    assert not of_kind(script.pass_time(opens_at - 0.001), ClaimAttempt)
    assert of_kind(script.pass_time(0.002), ClaimAttempt), "and not at the next look at the leases"


def test_a_lone_successor_does_not_end_a_run_whose_head_says_that_it_is_there() -> None:
    """What the head says on disk is all that a node can know whose cable is cut."""
    script = succeeding(succession(is_dead=False), min_nodes=4)
    script.join(1)
    script.pass_time(2 * LEASE_S + 2)
    assert script.head.awaits_quorum_for_another
    for _ in range(5):
        assert not script.head.other_is_present(script.now)
        assert not of_kind(script.pass_time(2 * LEASE_S - 1), WriteResult)
    assert the_cause(script.pass_time(2)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_head_is_awaited_while_nodes_that_it_has_lost_may_live_until_it_opens_the_next_attempt() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    awaited = [script.head.is_awaited]
    script.lose(2, is_gone=False)
    awaited.append(script.head.is_awaited)
    restart(script, 0, 1)
    script.pass_time(LEASE_S)
    awaited.append(script.head.is_awaited)
    script.claimed()
    assert [*awaited, script.head.is_awaited] == [False, True, True, False]


def test_nobody_awaits_a_head_whose_lost_nodes_are_dead() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.lose(2, is_gone=True)
    assert not script.head.is_awaited
