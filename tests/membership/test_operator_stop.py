"""A stop that a person announces: the workers are told, have their time, and the run or the allocation ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, ClaimAttempt
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.messages import Assign, Finished, GiveNotice, Stop, StopManner, Terminated
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import RunState
from tests.membership.script import HeadScript, a_restart_plan, of_kind, sent, the_result
from tests.membership.test_head import claiming, finish_all, gathering, pausing

STOP = OperatorStop(by="ada@login1", seconds_left=30.0)
AGAIN = replace(STOP, is_requeue=True)


def announce(script: HeadScript, stop: OperatorStop = STOP) -> list[Action]:
    return script.head.stop_announced(stop, script.now)


def at_work(nodes: int = 2) -> HeadScript:
    script = HeadScript(nodes, restart=a_restart_plan())
    script.run()
    return script


def stopped(script: HeadScript) -> list[Action]:
    return [action for node in range(script.nodes) for action in script.stopped(node)]


def saved(script: HeadScript) -> list[Action]:
    """All ranks save and exit 75."""
    actions: list[Action] = []
    for node in range(script.nodes):
        script.end(node)
        actions = script.say(node, Finished(attempt=1, again=f"{2 * node}-{2 * node + 1}"))
    return actions


def test_the_workers_are_told_first_and_stopped_with_grace_when_their_time_is_over() -> None:
    script = at_work()
    told = announce(script)
    given = NoticeGiven(reason="operator", seconds_left=30.0, by="ada@login1")
    assert sent(told, GiveNotice) == {f"node{node}": GiveNotice(attempt=1, notice=given) for node in range(2)}
    assert not sent([*told, *script.pass_time(29)], Stop)
    assert script.head.next_tick() <= script.now + 1.0
    asked = sent(script.pass_time(1), Stop)
    assert {stop.manner for stop in asked.values()} == {StopManner.GRACE}
    assert len(asked) == 2
    result = the_result(stopped(script))
    assert (result.state, result.exit_code, result.reason) == (RunState.CANCELLED, ExitCode.STOPPED, "stop_requested")
    assert result.cause == "stopped by ada@login1"


def test_the_run_ends_at_once_when_every_rank_has_saved_and_left() -> None:
    script = at_work()
    announce(script)
    result = the_result(saved(script))
    assert (result.state, result.exit_code, result.reason) == (RunState.CANCELLED, ExitCode.STOPPED, "stop_requested")
    assert result.cause == "stopped by ada@login1: ranks 0-3 exited 75 after the notice, to go on later"


def test_a_run_whose_ranks_all_exit_0_has_succeeded() -> None:
    script = at_work()
    announce(script)
    script.finish(0)
    assert the_result(script.finish(1)).state is RunState.SUCCEEDED


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_requeue_ends_the_allocation_and_names_who_asked(is_saved: bool) -> None:
    script = at_work()
    announce(script, AGAIN)
    if is_saved:
        result = the_result(saved(script))
    else:
        script.pass_time(30)
        result = the_result(stopped(script))
    assert (result.state, result.reason) == (RunState.FAILED, "requeue_requested")
    assert result.cause.startswith("ada@login1 asked for another start of the job")


@pytest.mark.parametrize("make", [gathering, claiming, pausing])
def test_there_is_no_wait_where_no_worker_is_at_work(make: Callable[[], HeadScript]) -> None:
    script = make()
    actions = finish_all(script, announce(script))
    assert the_result(actions).reason == "stop_requested"
    assert not sent(actions, Assign)


def test_a_failure_meanwhile_is_answered_by_a_restart_that_knows_of_the_end() -> None:
    script = at_work()
    announce(script)
    script.pass_time(10)
    script.fail(0)
    stopped(script)
    parts = sent(script.claimed(), Assign)
    assert [part.notice.seconds_left for part in parts.values() if part.notice] == [20.0, 20.0]
    assert sent(script.pass_time(20), Stop)


def test_a_cancel_does_not_wait_for_the_announced_time() -> None:
    script = at_work()
    announce(script)
    assert sent(script.head.stop_requested("bob@login1", script.now), Stop)
    assert the_result(stopped(script)).cause == "cancelled by bob@login1"
    assert not script.pass_time(30)


def test_the_latest_announcement_says_what_and_the_earliest_says_when() -> None:
    script = at_work()
    announce(script, AGAIN)
    announce(script, replace(STOP, by="bob@login1", seconds_left=300.0))
    assert sent(script.pass_time(30), Stop)
    assert the_result(stopped(script)).cause == "stopped by bob@login1"


def test_a_run_whose_end_is_announced_is_not_started_again_by_a_later_request() -> None:
    script = at_work()
    announce(script)
    announce(script, replace(AGAIN, by="bob@login1", seconds_left=5.0))
    assert sent(script.pass_time(5), Stop)
    assert the_result(stopped(script)).cause == "stopped by ada@login1"


@pytest.mark.parametrize("stop", [STOP, AGAIN])
@pytest.mark.parametrize("trigger", [Trigger.TIME_LIMIT, Trigger.PREEMPTED])
def test_the_end_of_the_allocation_that_comes_first_ends_as_announced(stop: OperatorStop, trigger: Trigger) -> None:
    script = at_work()
    announce(script, stop)
    script.head.job_ends(trigger, "it ends", script.now)
    assert the_result(stopped(script)).reason == ("requeue_requested" if stop.is_requeue else "stop_requested")


@pytest.mark.parametrize("trigger", [Trigger.TIME_LIMIT, Trigger.PREEMPTED])
def test_the_end_of_the_allocation_is_written_at_once_though_a_node_fell_silent_just_before(trigger: Trigger) -> None:
    """Slurm kills in half a minute who would wait for that node as long as before a loss ends the run."""
    script = HeadScript(3, min_nodes=1, restart=a_restart_plan())
    script.run()
    script.lose(2, is_gone=False)
    script.head.job_ends(trigger, "it ends", script.now)
    assert the_result([*script.stopped(0), *script.stopped(1)]).reason == trigger.value


@pytest.mark.parametrize(("how", "reason"), [("the clock", "time_limit"), ("a TERM", "terminated")])
def test_a_head_that_awaits_a_quorum_ends_for_what_ends_the_allocation(how: str, reason: str) -> None:
    """Whether the job starts again is decided by that: a person who cancels it, or a preemption, means another end."""
    script = HeadScript(3, restart=a_restart_plan())
    script.run()
    script.lose(2, is_gone=False)
    script.stopped(0)
    script.stopped(1)
    assert script.head.phase is HeadPhase.AWAITING_QUORUM
    if how == "the clock":
        ended = script.head.job_ends(Trigger.TIME_LIMIT, "it ends", script.now)
    else:
        ended = script.say(0, Terminated(signal_name="SIGTERM"))
    assert the_result(ended).reason == reason


@pytest.mark.parametrize("when", ["while it waits", "while the others stop"])
@pytest.mark.parametrize("how", ["at once", "announced"])
def test_a_run_that_a_person_stops_is_not_resumed_when_lost_nodes_are_back(how: str, when: str) -> None:
    script = HeadScript(3, restart=a_restart_plan())
    script.run()
    script.lose(2, is_gone=False)
    actions = script.stopped(0)
    if when == "while it waits":
        script.stopped(1)
        assert script.head.phase is HeadPhase.AWAITING_QUORUM
    head, stop = script.head, replace(STOP, seconds_left=0.0)
    actions = head.stop_requested(STOP.by, script.now) if how == "at once" else head.stop_announced(stop, script.now)
    if when == "while the others stop":
        actions += script.stopped(1)
    result = the_result(actions)
    assert (result.state, result.reason) == (RunState.CANCELLED, "stop_requested")
    assert not of_kind(script.join(2), ClaimAttempt)


def test_nothing_is_announced_when_the_run_ends() -> None:
    script = at_work()
    script.finish(0)
    script.finish(1)
    assert not announce(script)
