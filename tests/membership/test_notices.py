"""A notice, by scripts: the head names one call for all ranks that share a store, and each member has its own wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import (
    Action,
    HoldForNotice,
    NameNotice,
    Note,
    RecordFailure,
    WriteNodeResult,
    WriteResult,
)
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import (
    Assign,
    Ended,
    Finished,
    GiveNotice,
    NoticeFrom,
    NoticePolls,
    Stop,
    StopManner,
)
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import RunState, WorkerState
from tests.membership.script import HeadScript, a_restart_plan, an_assign, of_kind, sent, the_cause, the_result
from tests.membership.test_member import joining, parked, stopping, told, working

GIVEN = NoticeGiven(reason="time_limit", seconds_left=90.0, by="the clock")
LATE = NoticeGiven(reason="preemption", seconds_left=10.0, by="slurm")


def give(script: HeadScript, notice: NoticeGiven = GIVEN) -> list[Action]:
    return script.head.notice_given(notice, script.now)


def polls(script: HeadScript, node_id: int, made: int, beats: int = 0, attempt: int = 1) -> list[Action]:
    return script.say(node_id, NoticePolls(attempt=attempt, made=NoticeCounts(polls=made, beats=beats)))


# The head.


def test_all_members_are_told_once_and_nothing_is_stopped() -> None:
    script = HeadScript(3)
    script.run()
    actions = give(script)
    assert sent(actions, GiveNotice) == {f"node{number}": GiveNotice(attempt=1, notice=GIVEN) for number in range(3)}
    (note,) = of_kind(actions, Note)
    assert (note.name, note.attempt) == ("notice.given", 1)
    assert note.message == "notice: the workers will be stopped in about 90 s (time limit, the clock)"
    assert note.metadata == {"reason": "time_limit", "seconds_left": 90.0, "by": "the clock"}
    assert script.head.phase is HeadPhase.RUNNING
    assert not give(script)


def test_names_the_call_after_the_last_one_that_any_rank_has_made() -> None:
    script = HeadScript(3)
    script.run()
    give(script)
    assert not sent(polls(script, 2, 7, beats=1), NoticeFrom)
    assert not sent(polls(script, 0, 3, beats=9), NoticeFrom)
    named = sent(polls(script, 1, 5), NoticeFrom)
    first = NoticeFrom(attempt=1, first=NoticeCounts(polls=8, beats=10))
    assert named == {"node0": first, "node1": first, "node2": first}


def test_a_member_counts_once() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    assert not polls(script, 0, 3)
    assert not polls(script, 0, 9)
    assert sent(polls(script, 1, 1), NoticeFrom)["node0"].first.polls == 4
    assert not polls(script, 1, 1)


def test_counts_of_an_older_attempt_are_passed_over() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    assert not polls(script, 0, 3, attempt=0)
    polls(script, 0, 3)
    assert not polls(script, 1, 3, attempt=2)


def test_the_call_is_named_though_the_workers_are_being_stopped() -> None:
    script = HeadScript(3)
    script.run()
    give(script)
    assert not sent(polls(script, 0, 3), NoticeFrom)
    assert {stop.manner for stop in sent(script.fail(1), Stop).values()} == {StopManner.RESTART}
    script.stopped(2)
    assert not sent(polls(script, 1, 4), NoticeFrom)
    named = sent(polls(script, 2, 5), NoticeFrom)
    assert named == dict.fromkeys(
        ("node0", "node1", "node2"), NoticeFrom(attempt=1, first=NoticeCounts(polls=6, beats=1))
    )


def test_no_call_hears_if_a_node_is_lost_that_has_not_answered() -> None:
    """Its workers may have made any number of calls; those of the others would wait in vain while they are stopped."""
    script = HeadScript(3)
    script.run()
    give(script)
    polls(script, 0, 3)
    named = sent(script.head.lost("node2", "it is gone", script.now, is_gone=True), NoticeFrom)
    assert named == dict.fromkeys(("node0", "node1"), NoticeFrom(attempt=1, first=NoticeCounts(polls=0, beats=0)))
    assert not polls(script, 1, 5)


def test_no_call_hears_if_workers_were_being_stopped_before_the_notice() -> None:
    script = HeadScript(3)
    script.run()
    give(script)
    polls(script, 0, 3)
    named = sent(script.say(2, NoticePolls(attempt=1, made=None)), NoticeFrom)
    assert named == dict.fromkeys(
        ("node0", "node1", "node2"), NoticeFrom(attempt=1, first=NoticeCounts(polls=0, beats=0))
    )
    assert not polls(script, 1, 5)


def test_a_node_that_is_lost_after_its_answer_changes_nothing() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    polls(script, 1, 3)
    assert not sent(script.head.lost("node1", "it is gone", script.now, is_gone=True), NoticeFrom)
    assert sent(polls(script, 0, 5), NoticeFrom) == {
        "node0": NoticeFrom(attempt=1, first=NoticeCounts(polls=6, beats=1))
    }


def test_the_workers_of_a_later_attempt_hear_of_it_at_their_first_call() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    polls(script, 0, 3)
    script.pass_time(20)
    script.fail(1)
    script.stopped(0)
    script.stopped(1)
    parts = sent(script.claimed(), Assign)
    assert [part.notice for part in parts.values()] == [replace(GIVEN, seconds_left=70.0)] * 2
    assert not polls(script, 0, 3, attempt=2)
    assert not polls(script, 1, 3, attempt=2)


def test_a_notice_before_the_first_attempt_is_in_its_assignments() -> None:
    script = HeadScript(2)
    script.join(0, 1)
    assert not sent(give(script), GiveNotice)
    assert sent(script.claimed(), Assign)["node1"].notice == GIVEN


def test_a_later_notice_that_leaves_less_time_changes_what_is_said_and_is_agreed_on_no_more() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    polls(script, 0, 3)
    assert sent(give(script, LATE), GiveNotice)["node0"].notice == LATE
    assert sent(polls(script, 1, 4), NoticeFrom)["node1"].first.polls == 5
    assert not polls(script, 0, 9)
    assert not give(script, GIVEN)
    assert not give(script, replace(GIVEN, seconds_left=None))


def test_a_later_notice_is_not_agreed_on_for_an_attempt_that_began_with_one() -> None:
    script = HeadScript(2)
    script.join(0, 1)
    give(script)
    script.claimed()
    assert len(sent(give(script, LATE), GiveNotice)) == 2
    assert not polls(script, 0, 3)
    assert not polls(script, 1, 3)


def test_a_notice_whose_time_is_over_keeps_no_later_one_from_the_workers() -> None:
    script = HeadScript(2)
    script.run()
    give(script, replace(GIVEN, seconds_left=5.0))
    script.pass_time(5)
    assert sent(give(script), GiveNotice)["node0"].notice == GIVEN
    assert not give(script)


def test_another_reason_counts_where_no_time_is_known() -> None:
    script = HeadScript(2)
    script.run()
    give(script, replace(GIVEN, seconds_left=None))
    assert not give(script, replace(GIVEN, seconds_left=None))
    assert give(script, replace(LATE, seconds_left=None))
    assert give(script, GIVEN)


def test_a_role_that_restarts_alone_has_a_call_of_its_own() -> None:
    """Its store is its own, and so are its steps: a reader may ask a thousand times a second."""
    script = HeadScript(3, roles={2: "reader"}, restarts={"default": "restart_all", "reader": "restart_role"})
    script.run()
    give(script)
    assert sent(polls(script, 2, 5000), NoticeFrom)["node2"].first.polls == 5001
    polls(script, 0, 3)
    named = sent(polls(script, 1, 4), NoticeFrom)
    assert {node: message.first.polls for node, message in named.items()} == {"node0": 5, "node1": 5}


def test_roles_that_share_a_store_share_the_call() -> None:
    script = HeadScript(2, roles={1: "reader"}, restarts={"default": "restart_all", "reader": "ignore"})
    script.run()
    give(script)
    polls(script, 1, 50)
    assert sent(polls(script, 0, 4), NoticeFrom)["node0"].first.polls == 51


def test_a_role_that_starts_again_hears_of_it_at_once_while_the_others_agree() -> None:
    script = HeadScript(2, roles={1: "reader"}, restarts={"default": "restart_all", "reader": "restart_role"})
    script.run()
    script.fail(1)
    give(script)  # while the reader stops
    script.stopped(1)
    parts = sent(script.claimed(), Assign)
    assert {node: part.notice for node, part in parts.items()} == {"node1": GIVEN}
    assert sent(polls(script, 0, 4), NoticeFrom)["node0"].first.polls == 5
    assert not polls(script, 1, 4, attempt=2)


def test_no_notice_is_given_when_the_run_ends() -> None:
    script = HeadScript(2)
    script.run()
    script.finish(0)
    script.finish(1)
    assert script.head.phase is HeadPhase.CLOSING
    assert not give(script)


def again(script: HeadScript, node_id: int, ranks: str) -> list[Action]:
    script.end(node_id)
    return script.say(node_id, Finished(attempt=1, again=ranks))


def the_end(script: HeadScript) -> tuple[str, ExitCode]:
    """How the run ends whose second node still runs when exit_timeout is over."""
    script.pass_time(31)
    script.stopped(0)
    return the_cause(script.stopped(1))


def test_the_run_stops_at_once_if_every_rank_has_saved_and_exited() -> None:
    script = HeadScript(2)
    script.run()
    give(script)
    assert not again(script, 0, "0-1")
    actions = again(script, 1, "3")
    assert the_cause(actions) == ("time_limit", ExitCode.NODE_LOST)  # the end that the notice announced
    result = the_result(actions)
    assert result.state is RunState.FAILED
    assert result.cause == "ranks 0-1,3 exited 75 after the notice, to go on later"
    assert (result.restarts, result.failures) == (0, {})


def test_a_rank_that_has_saved_is_forgotten_at_the_next_attempt() -> None:
    script = HeadScript(2, restart=a_restart_plan())
    script.run()
    give(script)
    again(script, 0, "0-1")
    script.fail(1)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    script.finish(0)
    assert the_result(script.finish(1)).state is RunState.SUCCEEDED


def test_ranks_that_run_on_after_the_others_have_saved_do_not_make_the_run_a_success() -> None:
    script = HeadScript(2, exit_timeout_s=30, after_exit_timeout="succeed")
    script.run()
    give(script)
    again(script, 0, "0-1")
    assert the_end(script) == ("time_limit", ExitCode.NODE_LOST)


def test_a_role_that_runs_on_does_not_make_it_a_success_either() -> None:
    roles = {"default": "restart_all", "reader": "ignore"}
    script = HeadScript(2, roles={1: "reader"}, restarts=roles, exit_timeout_s=30)
    script.run()
    give(script)
    again(script, 0, "0-1")
    assert the_end(script) == ("time_limit", ExitCode.NODE_LOST)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_run_has_succeeded_if_only_ranks_are_to_go_on_whose_failures_are_ignored(is_stopped: bool) -> None:
    """So do the script and a successor find by the nodes' records, and the job would not be started again for them."""
    roles = {"default": "restart_all", "reader": "ignore"}
    script = HeadScript(2, roles={1: "reader"}, restarts=roles)
    script.run()
    give(script)
    again(script, 1, "2-3")
    if is_stopped:  # before the other node could say so
        script.head.job_ends(Trigger.TIME_LIMIT, "the time is over", script.now)
        script.stopped(1)
        actions = script.stopped(0, succeeded="0-1")
    else:
        actions = script.finish(0)
    result = the_result(actions)
    assert (result.state, result.reason) == (RunState.SUCCEEDED, "succeeded")
    assert result.cause == "every rank exited 0, but for ranks 2-3 that exited 75 after the notice, which is ignored"


def test_ranks_that_run_on_after_the_others_have_saved_are_stopped_before_the_result_is_written() -> None:
    script = HeadScript(2, exit_timeout_s=30)
    script.run()
    give(script)
    again(script, 0, "0-1")
    actions = script.pass_time(31)
    assert {stop.manner for stop in sent(actions, Stop).values()} == {StopManner.GRACE}
    assert not of_kind(actions, WriteResult)
    assert script.stopped(0) == []
    assert the_result(script.stopped(1)).cause == "ranks 0-1 exited 75 after the notice, to go on later"


# A member.


def test_has_its_workers_wait_and_tells_how_often_they_have_asked() -> None:
    member = working()
    assert member.received(GiveNotice(attempt=1, notice=GIVEN), 1) == [HoldForNotice(attempt=1, notice=GIVEN)]
    made = NoticeCounts(polls=3, beats=4)
    assert told(member.polls_counted(1, made)) == [NoticePolls(attempt=1, made=made)]
    named = NoticeFrom(attempt=1, first=NoticeCounts(polls=7, beats=8))
    assert member.received(named, 2) == [NameNotice(attempt=1, first=named.first)]
    assert member.phase is MemberPhase.WORKING


def test_a_stop_does_not_end_the_wait_for_the_call_that_hears() -> None:
    """A call of these workers, or of a rank on another node, would wait for as long as they have to save."""
    member = working()
    member.received(GiveNotice(attempt=1, notice=GIVEN), 1)
    member.received(Stop(attempt=1, manner=StopManner.GRACE, reason="a person has stopped the run"), 1)
    assert member.phase is MemberPhase.STOPPING
    made, named = NoticeCounts(polls=3, beats=4), NoticeFrom(attempt=1, first=NoticeCounts(polls=7, beats=8))
    assert told(member.polls_counted(1, made)) == [NoticePolls(attempt=1, made=made)]
    assert member.received(named, 2) == [NameNotice(attempt=1, first=named.first)]


def test_says_so_if_its_workers_are_being_stopped_already() -> None:
    assert told(stopping().received(GiveNotice(attempt=1, notice=GIVEN), 1)) == [NoticePolls(attempt=1, made=None)]


def test_passes_over_a_notice_for_another_attempt() -> None:
    named = NoticeFrom(attempt=1, first=NoticeCounts(polls=7, beats=8))
    for member, attempt in ((joining(), 1), (working(), 2)):
        assert not member.received(GiveNotice(attempt=attempt, notice=GIVEN), 1)
        assert not member.received(replace(named, attempt=attempt), 1)
        assert not member.polls_counted(attempt, NoticeCounts(polls=1, beats=1))


def test_a_worker_that_exits_75_after_a_notice_has_not_failed() -> None:
    member = working()
    member.received(GiveNotice(attempt=1, notice=GIVEN), 1)
    assert told(member.worker_exited(1, 0, 75, 1)) == [Ended(attempt=1)]
    (written,) = of_kind(member.worker_exited(1, 1, 0, 1), WriteNodeResult)
    assert (written.result.state, written.result.reason) == (
        WorkerState.STOPPED,
        "every worker exited 0, or 75 after the notice",
    )
    assert told(member.node_result_written(written.result)) == [Finished(attempt=1, again="2")]


def test_a_worker_that_exits_75_without_a_notice_has_failed() -> None:
    assert of_kind(working().worker_exited(1, 0, 75, 1), RecordFailure)


def test_a_notice_in_the_assignment_counts_for_the_exit_too() -> None:
    member = parked()
    member.received(replace(an_assign(), notice=GIVEN), 0)
    assert told(member.worker_exited(1, 0, 75, 1)) == [Ended(attempt=1)]


def test_a_worker_that_exits_75_in_a_stop_after_a_notice_has_not_failed() -> None:
    member = working()
    member.received(GiveNotice(attempt=1, notice=GIVEN), 1)
    member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="rank 0 failed"), 1)
    assert not member.worker_exited(1, 0, 75, 2, is_after_stop=True)
