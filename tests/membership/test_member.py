"""A member, by scripts: working, reporting, stopping, fencing, leaving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    Leave,
    Log,
    Note,
    RecordFailure,
    SendToHead,
    StartWorkers,
    StopWorkers,
    WriteNodeResult,
)
from hpc_elastic.membership.member import Member, MemberPhase
from hpc_elastic.membership.messages import (
    Beat,
    Broken,
    Dropped,
    Echo,
    End,
    Ended,
    Failed,
    Finished,
    Refused,
    Started,
    Stop,
    StopManner,
    Stopped,
    Terminated,
    Welcome,
)
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.membership.timing import TERM_SETTLES_S, Timing
from hpc_elastic.rundir.records import WorkerState
from tests.membership.script import a_failure, a_join, an_assign, of_kind

LEASE_S = 9.0


def told(actions: list[Action]) -> list[object]:
    return [action.message for action in of_kind(actions, SendToHead)]


def joining(node_id: int = 1) -> Member:
    return Member(a_join(node_id), run="run", timing=Timing(lease_s=LEASE_S))


def parked() -> Member:
    member = joining()
    member.connected(0, is_joined=True)
    member.received(Welcome(allocation=1, head="node0"), 0)
    return member


def working(*, nodes: int = 2) -> Member:
    member = parked()
    (start,) = of_kind(member.received(an_assign(nodes=nodes), 0), StartWorkers)
    assert start.assign.attempt == 1
    return member


def finished() -> Member:
    member = working()
    (written,) = of_kind(succeed(member), WriteNodeResult)
    member.node_result_written(written.result)
    return member


def succeed(member: Member) -> list[Action]:
    """Both workers exit 0."""
    return [*member.worker_exited(1, 0, 0, 1), *member.worker_exited(1, 1, 0, 1)]


def stopping() -> Member:
    member = working()
    member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="rank 0 failed"), 0)
    return member


def stop(manner: StopManner = StopManner.RESTART, *, attempt: int = 1) -> Stop:
    return Stop(attempt=attempt, manner=manner, reason="because")


def stop_workers(manner: StopManner, *, is_terminated: bool = False, attempt: int = 1) -> StopWorkers:
    return StopWorkers(attempt=attempt, manner=manner, is_terminated=is_terminated)


# Joining.


def test_tells_its_own_head_who_it_is() -> None:
    assert told(joining(0).connected(0, is_joined=False)) == [replace(a_join(0), number=1)]


def test_each_question_to_be_taken_in_has_a_higher_number() -> None:
    member = joining(1)
    assert [member.asks().number, member.asks().number] == [1, 2]


def test_does_not_join_twice() -> None:
    assert joining().connected(0, is_joined=True) == []


def test_leaves_with_the_heads_code_if_it_is_refused() -> None:
    member = joining()
    member.connected(0, is_joined=True)
    actions = member.received(Refused(reason="node1 has joined already", exit_code=3), 0)
    assert actions == [Leave(exit_code=3, cause="node1 has joined already")]


def test_leaves_if_it_is_terminated_before_there_is_a_head() -> None:
    (leave,) = joining().terminated("SIGTERM", 9, have_workers=True)
    assert isinstance(leave, Leave)
    assert leave.exit_code == ExitCode.STOPPED


# Working.


def test_reports_a_failure_when_its_error_file_is_written() -> None:
    member = working()
    assert member.worker_exited(1, 0, -9, 1) == [RecordFailure(attempt=1, local_rank=0, exitcode=-9, ended_at=1)]
    failure = a_failure(2, exitcode=-9)
    assert told(member.failure_recorded(failure)) == [Failed(attempt=1, failure=failure)]
    assert member.phase is MemberPhase.WORKING


def test_reports_success_when_the_nodes_record_is_durable() -> None:
    member = working()
    actions = succeed(member)
    (write,) = of_kind(actions, WriteNodeResult)
    assert (write.result.state, write.result.ranks) == (WorkerState.SUCCEEDED, (2, 3))
    assert told(actions) == [Ended(attempt=1)], "once, for the first one"
    assert told(member.node_result_written(write.result)) == [Finished(attempt=1)]


def test_a_stop_between_success_and_its_record_comes_first() -> None:
    member = working()
    (write,) = of_kind(succeed(member), WriteNodeResult)
    assert member.received(stop(), 0) == [stop_workers(StopManner.RESTART)]
    assert member.node_result_written(write.result) == []


def test_a_stop_between_success_and_its_record_leaves_the_record_of_a_success() -> None:
    """The head may find that every rank has exited 0, and that is what the run has come to then."""
    member = working()
    succeed(member)
    member.received(stop(), 0)
    actions = member.workers_stopped(1, (), 26001)
    (write,) = of_kind(actions, WriteNodeResult)
    assert (write.result.state, write.result.reason) == (WorkerState.SUCCEEDED, "every worker exited 0")
    (stopped,) = told(actions)
    assert isinstance(stopped, Stopped)
    assert stopped.succeeded == "2-3"


def test_the_record_is_that_of_a_success_also_if_what_the_workers_have_left_behind_survives_kill() -> None:
    """The run has succeeded then, if all other ranks have exited 0 as well."""
    member = working()
    succeed(member)
    member.received(stop(), 0)
    actions = member.workers_stopped(1, (77,), 26001)
    (write,) = of_kind(actions, WriteNodeResult)
    assert (write.result.state, write.result.unkillable) == (WorkerState.SUCCEEDED, (77,))
    (stopped,) = told(actions)
    assert isinstance(stopped, Stopped)
    assert (stopped.succeeded, stopped.unkillable) == ("2-3", (77,))


@pytest.mark.parametrize(
    ("exits_at", "state", "succeeded"),
    [
        pytest.param(8.9, WorkerState.STOPPED, "", id="just before the TERM"),
        pytest.param(8.0, WorkerState.SUCCEEDED, "2-3", id="a second before"),
    ],
)
@pytest.mark.parametrize("is_own", [True, False], ids=["of this node", "that is coming"])
def test_workers_that_exit_0_just_before_a_term_from_outside_may_have_handled_it(
    is_own: bool, exits_at: float, state: WorkerState, succeeded: str
) -> None:
    """The TERM comes to agent and workers in any order, and a script may save and exit 0 in its handler."""
    member = working()
    member.worker_exited(1, 0, 0, exits_at)
    member.worker_exited(1, 1, 0, exits_at)
    if is_own:
        member.terminated("SIGTERM", 9, have_workers=True)
    else:
        member.received(replace(stop(StopManner.GRACE), is_term_coming=True), 9)
    actions = member.workers_stopped(1, (), 26001)
    (write,) = of_kind(actions, WriteNodeResult)
    assert write.result.state is state
    (stopped,) = told(actions)
    assert isinstance(stopped, Stopped)
    assert stopped.succeeded == succeeded


def test_reports_that_every_worker_has_its_process_when_the_nodes_record_is_durable() -> None:
    member = working()
    (write,) = of_kind(member.workers_started(1, {"2": 70, "3": 71}), WriteNodeResult)
    assert (write.result.state, write.result.pids, write.result.ended) == (
        WorkerState.HEALTHY,
        {"2": 70, "3": 71},
        None,
    )
    assert told(member.node_result_written(write.result)) == [Started(attempt=1)]
    assert member.phase is MemberPhase.WORKING


def test_a_stop_before_the_start_was_reported_comes_first() -> None:
    member = working()
    (write,) = of_kind(member.workers_started(1, {}), WriteNodeResult)
    member.received(stop(), 0)
    assert member.node_result_written(write.result) == []
    assert member.workers_started(1, {}) == []


def test_works_on_after_a_failure_that_is_ignored() -> None:
    member = parked()
    member.received(an_assign(is_failure_ignored=True), 0)
    member.worker_exited(1, 0, 1, 1)
    failure = a_failure(2)
    actions = member.failure_recorded(failure)
    assert told(actions) == [Failed(attempt=1, failure=failure)]
    assert of_kind(actions, WriteNodeResult) == []  # not before every worker of the node has its process
    assert member.phase is MemberPhase.WORKING
    (write,) = of_kind(member.worker_exited(1, 1, 0, 2), WriteNodeResult)
    assert (write.result.state, list(write.result.failures)) == (WorkerState.FAILED, ["2"])
    assert told(member.node_result_written(write.result)) == [Finished(attempt=1)]


def test_records_a_node_as_unhealthy_while_the_others_run_on_after_an_ignored_failure() -> None:
    member = parked()
    member.received(an_assign(is_failure_ignored=True), 0)
    member.workers_started(1, {"2": 100, "3": 101})
    member.worker_exited(1, 0, 1, 1)
    (write,) = of_kind(member.failure_recorded(a_failure(2)), WriteNodeResult)
    record = write.result
    assert (record.state, record.ended, list(record.failures)) == (WorkerState.UNHEALTHY, None, ["2"])
    assert record.reason == "1 of 2 workers failed, which is ignored; the others run on"
    assert member.node_result_written(record) == []
    assert member.phase is MemberPhase.WORKING


def test_writes_no_record_of_a_failure_that_stops_all_others_at_once() -> None:
    member = working()
    member.workers_started(1, {"2": 100, "3": 101})
    member.worker_exited(1, 0, 1, 1)
    assert of_kind(member.failure_recorded(a_failure(2)), WriteNodeResult) == []


def test_is_not_finished_before_an_ignored_failure_is_written_down() -> None:
    member = parked()
    member.received(an_assign(is_failure_ignored=True), 0)
    assert not of_kind(member.worker_exited(1, 1, 0, 1), WriteNodeResult)
    assert not of_kind(member.worker_exited(1, 0, -9, 1), WriteNodeResult)
    (write,) = of_kind(member.failure_recorded(a_failure(2, exitcode=-9)), WriteNodeResult)
    assert write.result.state is WorkerState.FAILED


def test_passes_over_an_assignment_of_an_attempt_that_it_had() -> None:
    member = stopping()
    member.workers_stopped(1, (), 26000)
    assert not of_kind(member.received(an_assign(attempt=1), 0), StartWorkers)
    assert of_kind(member.received(an_assign(attempt=2), 0), StartWorkers)


def test_reports_what_broke_beside_the_workers() -> None:
    assert told(working().node_broke("the store host ended")) == [Broken(attempt=1, reason="the store host ended")]
    assert parked().node_broke("the store host ended") == []


# Stopping.


def test_tells_that_it_has_stopped_when_no_worker_is_left() -> None:
    member = working()
    assert member.received(stop(), 0) == [stop_workers(StopManner.RESTART)]
    actions = member.workers_stopped(1, (), 26000)
    (write,) = of_kind(actions, WriteNodeResult)
    assert (write.result.state, write.result.reason) == (WorkerState.STOPPED, "because")
    assert told(actions) == [Stopped(attempt=1, failures=(), unkillable=(), store_port=26000)]
    assert member.phase is MemberPhase.PARKED


def test_a_stop_of_another_attempt_changes_nothing() -> None:
    assert working().received(stop(attempt=2), 0) == []


def test_a_stop_and_an_assignment_of_an_older_attempt_change_nothing() -> None:
    member = working()
    member.received(stop(), 0)
    member.workers_stopped(1, (), 26000)
    member.received(an_assign(attempt=2), 0)
    assert member.received(stop(attempt=1), 0) == []
    assert not of_kind(member.received(an_assign(attempt=1), 0), StartWorkers)
    assert (member.phase, member.attempt) == (MemberPhase.WORKING, 2)


def test_a_worker_that_ends_by_term_after_the_stop_has_not_failed() -> None:
    assert stopping().worker_exited(1, 0, -15, 1) == []
    assert stopping().worker_exited(1, 0, 143, 1) == []


def test_a_worker_that_failed_by_itself_while_the_others_stop_is_recorded_too() -> None:
    member = stopping()
    assert member.worker_exited(1, 1, -9, 1) == [RecordFailure(attempt=1, local_rank=1, exitcode=-9, ended_at=1)]
    assert member.workers_stopped(1, (), 26000) == []
    (stopped,) = [message for message in told(member.failure_recorded(a_failure(3))) if isinstance(message, Stopped)]
    assert [failure.rank for failure in stopped.failures] == [3]


def test_a_worker_that_ends_while_slurms_term_is_expected_has_not_failed() -> None:
    member = working()
    member.received(Stop(attempt=1, manner=StopManner.GRACE, reason="node0 got TERM", is_term_coming=True), 0)
    assert member.worker_exited(1, 0, 1, 1) == []


def ends_after_the_term(manner: StopManner) -> tuple[Member, list[Action]]:
    member = working()
    member.received(Stop(attempt=1, manner=manner, reason="because", is_term_coming=False), 1)
    return member, member.worker_exited(1, 1, 1, 2, is_after_stop=True)


def test_a_worker_that_ends_after_the_term_of_a_failures_stop_has_failed_if_its_error_file_says_so() -> None:
    member, asked = ends_after_the_term(StopManner.RESTART)
    assert asked == [RecordFailure(attempt=1, local_rank=1, exitcode=1, ended_at=2, is_after_stop=True)]
    assert told(member.workers_stopped(1, (), 26000)) == []
    failure = replace(a_failure(3), is_after_stop=True)
    (stopped,) = [message for message in told(member.failure_recorded(failure)) if isinstance(message, Stopped)]
    assert stopped.failures == (failure,)


def test_a_worker_that_ends_after_the_term_without_an_error_file_was_stopped() -> None:
    member, _ = ends_after_the_term(StopManner.RESTART)
    member.workers_stopped(1, (), 26000)
    assert told(member.ended_by_stop(1, 1)) == [Stopped(attempt=1, failures=(), unkillable=(), store_port=26000)]


def test_a_worker_that_ends_after_the_term_of_another_stop_has_not_failed() -> None:
    assert ends_after_the_term(StopManner.GRACE)[1] == []


def test_a_worker_that_ends_while_its_stacks_are_taken_ended_after_the_stop() -> None:
    """The signal may wake it out of a call that would have gone on, and then it finds that its peers are gone."""
    member = working()
    member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="it hangs", takes_stacks=True), 1)
    assert member.worker_exited(1, 1, 1, 2) == [
        RecordFailure(attempt=1, local_rank=1, exitcode=1, ended_at=2, is_after_stop=True)
    ]


def test_a_worker_that_was_reported_as_stalled_is_not_judged_once_more_by_its_end() -> None:
    member = working()
    stalled = replace(a_failure(3), failure_class="stalled", exitcode=9)
    member.failure_recorded(stalled)
    member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="it hangs", takes_stacks=True), 1)
    assert member.worker_exited(1, stalled.local_rank, 1, 2) == []
    (stopped,) = [message for message in told(member.workers_stopped(1, (), 26000)) if isinstance(message, Stopped)]
    assert stopped.failures == (stalled,)


def test_what_the_stacks_said_of_waiting_ranks_goes_to_the_head() -> None:
    member = working()
    member.received(Stop(attempt=1, manner=StopManner.RESTART, reason="it hangs", takes_stacks=True), 1)
    (stopped,) = told(member.workers_stopped(1, (), 26000, 17, {3, 2}, paused={2}))
    assert isinstance(stopped, Stopped)
    assert (stopped.step, stopped.waiting, stopped.paused) == (17, "2-3", "2")


def test_keeps_stopped_back_until_every_failure_is_recorded() -> None:
    member = working()
    member.worker_exited(1, 0, 1, 1)
    member.worker_exited(1, 1, 1, 1)
    member.failure_recorded(a_failure(2))
    member.received(stop(), 0)
    assert member.workers_stopped(1, (), 26000) == []
    actions = member.failure_recorded(a_failure(3))
    (stopped,) = told(actions)
    assert isinstance(stopped, Stopped)
    assert [failure.rank for failure in stopped.failures] == [2, 3]
    (write,) = of_kind(actions, WriteNodeResult)
    assert (write.result.state, list(write.result.failures)) == (WorkerState.FAILED, ["2", "3"])


def test_a_finished_nodes_record_of_success_stands_when_the_others_failed() -> None:
    member = finished()
    member.received(stop(), 0)
    actions = member.workers_stopped(1, (), 26000)
    assert not of_kind(actions, WriteNodeResult)
    assert told(actions)


def test_only_a_fence_and_the_death_of_an_agent_are_harder_than_a_stop_under_way() -> None:
    member = stopping()
    assert member.received(stop(StopManner.GRACE), 0) == []
    assert member.received(stop(StopManner.LOSS), 0) == [stop_workers(StopManner.LOSS)]
    assert member.received(stop(StopManner.LOSS), 0) == []
    assert member.received(stop(StopManner.FENCE), 0) == [stop_workers(StopManner.FENCE)]


def test_the_end_while_working_stops_the_workers_with_grace_and_then_leaves() -> None:
    member = working()
    assert member.received(End(exit_code=10, cause="cancelled"), 0) == [stop_workers(StopManner.GRACE)]
    actions = member.workers_stopped(1, (), 26000)
    assert actions[-1] == Leave(exit_code=10, cause="cancelled")
    assert not told(actions)


@pytest.mark.parametrize("make", [working, stopping])
def test_an_end_without_a_result_fences_the_workers_for_others_may_go_on(make: Callable[[], Member]) -> None:
    """A member that takes the time of its grace has no lease any more that would tell it so."""
    member = make()
    end = End(exit_code=5, cause="no space left", is_settled=False)
    assert member.received(end, 0) == [stop_workers(StopManner.FENCE)]
    assert member.workers_stopped(1, (), 26000)[-1] == Leave(exit_code=5, cause="no space left")


def test_the_end_while_stopping_lets_the_stop_finish() -> None:
    member = stopping()
    assert member.received(End(exit_code=10, cause="cancelled"), 0) == []
    assert member.workers_stopped(1, (), 26000)[-1] == Leave(exit_code=10, cause="cancelled")


@pytest.mark.parametrize("make", [parked, finished])
def test_the_end_makes_a_member_without_workers_leave(make: Callable[[], Member]) -> None:
    member = make()
    actions = member.received(End(exit_code=0, cause="done"), 0)
    if member.phase is MemberPhase.STOPPING:  # what a worker left behind has its grace
        actions = member.workers_stopped(1, (), 26000)
    assert actions == [Leave(exit_code=0, cause="done")]


# A TERM from outside.


def test_a_term_is_told_and_stops_the_workers_without_another_one() -> None:
    actions = working().terminated("SIGTERM", 9, have_workers=True)
    assert told(actions) == [Terminated(signal_name="SIGTERM")]
    assert actions[-1] == stop_workers(StopManner.GRACE, is_terminated=True)


def test_a_signal_for_the_agent_alone_is_passed_on_to_the_workers() -> None:
    actions = working().terminated("SIGINT", 9, have_workers=False)
    assert actions[-1] == stop_workers(StopManner.GRACE, is_terminated=False)


def test_workers_that_start_after_the_term_get_one_of_their_own() -> None:
    member = parked()
    member.terminated("SIGTERM", 9, have_workers=True)
    member.received(an_assign(), 0)
    assert member.received(stop(StopManner.GRACE), 0) == [stop_workers(StopManner.GRACE, is_terminated=False)]


def test_workers_are_left_to_the_term_that_is_coming_if_the_head_knows_of_one() -> None:
    coming = Stop(attempt=1, manner=StopManner.GRACE, reason="scancel", is_term_coming=True)
    (action,) = working().received(coming, 0)
    assert action == StopWorkers(attempt=1, manner=StopManner.GRACE, is_terminated=False, is_term_coming=True)
    member = parked()
    member.terminated("SIGTERM", 9, have_workers=True)
    member.received(an_assign(), 0)  # these workers are too young for it
    assert member.received(coming, 0) == [stop_workers(StopManner.GRACE, is_terminated=False)]


def test_a_worker_that_died_of_term_is_judged_when_none_came_for_the_agent() -> None:
    member = working()
    assert member.worker_exited(1, 0, -15, 1.0) == []
    assert member.next_tick() == 1.0 + TERM_SETTLES_S
    assert RecordFailure(attempt=1, local_rank=0, exitcode=-15, ended_at=1.0) in member.tick(1.0 + TERM_SETTLES_S)


def test_a_worker_that_died_of_the_agents_own_term_is_no_failure() -> None:
    member = working()
    member.worker_exited(1, 0, -15, 1.0)
    member.terminated("SIGTERM", 9, have_workers=True)
    assert not of_kind(member.tick(2.0), RecordFailure)
    assert member.worker_exited(1, 1, -15, 1.1) == []


def test_a_worker_that_died_of_term_is_recorded_if_its_peers_failure_comes_first() -> None:
    member = working()
    member.worker_exited(1, 0, -15, 1.0)
    record = RecordFailure(attempt=1, local_rank=0, exitcode=-15, ended_at=1.0)
    assert member.received(stop(), 0) == [record, stop_workers(StopManner.RESTART)]


# Leases.


def test_beats_every_third_of_the_lease() -> None:
    member = parked()
    assert member.next_tick() == LEASE_S / 3
    assert told(member.tick(3)) == [Beat(number=1)]
    assert told(member.tick(5)) == []


def test_the_lease_counts_from_when_the_echoed_beat_was_sent() -> None:
    member = working()
    member.tick(3)
    assert member.fence_deadline() == 6
    member.received(Echo(number=1), 0)
    assert member.fence_deadline() == 3 + 6


def test_the_lease_counts_from_the_join_if_the_welcome_was_long_on_its_way() -> None:
    member = joining()
    member.connected(5, is_joined=True, asked=0)
    member.received(Welcome(allocation=1, head="node0"), 5)
    member.received(an_assign(), 5)
    assert member.fence_deadline() == 6
    assert told(member.tick(5)) == [Beat(number=1)]
    member.received(Echo(number=1), 5)
    assert member.fence_deadline() == 5 + 6


def test_an_assignment_that_comes_after_a_lease_since_the_join_is_none() -> None:
    member = joining(1)
    member.connected(20, is_joined=True, asked=0)  # what the head said waited in the network
    member.received(Welcome(allocation=1, head="node0"), 20)
    actions = member.received(an_assign(), 20)
    assert not of_kind(actions, StartWorkers)
    assert of_kind(actions, DiscoverHead)


def test_a_welcome_that_comes_when_the_head_has_just_been_given_up_is_passed_over() -> None:
    """Both are due in one turn after a pause; parked without a head, it would heed no TERM and note a loss twice."""
    member = joining(1)
    member.connected(20, is_joined=True, asked=0)
    assert [note.name for note in of_kind(member.tick(20), Note)] == ["head.lost"]
    assert member.received(Welcome(allocation=1, head="node0"), 20) == []
    member.connected(21, is_joined=False)
    member.received(Welcome(allocation=1, head="node1", gathers=True), 21)
    assert not of_kind(member.disconnected("the head is back", is_dead=False), Note)
    (leave,) = of_kind(member.terminated("SIGTERM", 9, have_workers=False), Leave)
    assert leave.exit_code == ExitCode.STOPPED


@pytest.mark.parametrize(("silent_s", "was_silent"), [(2.9, False), (3.0, True)])
def test_a_reset_after_a_silence_of_two_beats_may_be_that_of_a_machine_that_has_started_again(
    silent_s: float, was_silent: bool
) -> None:
    member = working()
    member.disconnected("reset", is_dead=True, now=silent_s)
    (search,) = of_kind(member.workers_stopped(1, (), 25001), DiscoverHead)
    assert search.lost.was_silent == was_silent


@pytest.mark.parametrize(("silent_s", "was_silent"), [(3.2, False), (4.4, False), (4.5, True)])
def test_a_spare_that_beats_more_rarely_takes_a_longer_silence_for_one(silent_s: float, was_silent: bool) -> None:
    """Its beats are 3 s apart, as before it knew how many the members are."""
    (search,) = of_kind(parked().disconnected("reset", is_dead=True, now=silent_s), DiscoverHead)
    assert search.lost.was_silent == was_silent


def test_a_member_that_waits_for_a_rarer_beat_from_before_its_part_takes_no_silence_until_then_for_one() -> None:
    member = parked()
    assert told(member.tick(3)) == [Beat(number=1)]
    member.received(Echo(number=1), 3)
    member.received(an_assign(), 3)
    assert not member.tick(5.9)
    member.disconnected("reset", is_dead=True, now=6.2)
    (search,) = of_kind(member.workers_stopped(1, (), 25001), DiscoverHead)
    assert not search.lost.was_silent


def test_an_echo_of_no_beat_is_no_news() -> None:
    member = working()
    member.received(Echo(number=99), 0)
    assert member.fence_deadline() == 6


def test_fences_if_the_head_is_silent_for_two_thirds_of_the_lease() -> None:
    member = working()
    member.tick(3)
    assert not of_kind(member.tick(5.9), StopWorkers)
    assert of_kind(member.tick(6), StopWorkers) == [stop_workers(StopManner.FENCE)]
    assert not told(member.tick(100))


def test_the_silence_of_a_head_is_told_with_three_digits() -> None:
    member = Member(a_join(1), run="run", timing=Timing(lease_s=10.0))
    member.connected(0, is_joined=True)
    member.received(Welcome(allocation=1, head="node0"), 0)
    (search,) = of_kind(member.tick(7), DiscoverHead)
    assert search.lost.why == "no answer for 6.67 s"


def test_the_guard_is_told_no_deadline_while_there_are_no_workers() -> None:
    assert parked().fence_deadline() == float("inf")
    assert working().fence_deadline() == finished().fence_deadline() == 6


def test_the_guard_fences_a_member_that_is_frozen_while_it_stops_its_workers() -> None:
    """They have their grace, and the head may go on without this node meanwhile."""
    member = stopping()
    assert member.fence_deadline() == 6
    member.workers_stopped(1, (), 26000)
    assert member.fence_deadline() == float("inf")


def test_a_member_without_workers_notices_a_silent_head_too() -> None:
    member = parked()
    member.tick(3)
    assert of_kind(member.tick(6), DiscoverHead)


def test_a_world_of_one_beside_its_head_has_no_lease() -> None:
    member = joining(0)
    member.connected(0, is_joined=False)
    member.received(Welcome(allocation=1, head="node0"), 0)
    member.received(an_assign(nodes=1, group_rank=0), 0)
    assert member.fence_deadline() == float("inf")
    assert not of_kind(member.tick(1000), StopWorkers)


def test_a_world_of_one_with_its_head_elsewhere_has_a_lease() -> None:
    assert working(nodes=1).fence_deadline() == 6


def test_does_not_spin_if_the_head_is_silent_while_the_last_stop_takes_long() -> None:
    member = stopping()
    member.received(End(exit_code=0, cause="done"), 0)
    member.tick(100)
    assert member.next_tick() > 100


# The head is lost.


@pytest.mark.parametrize("make", [working, finished, stopping])
def test_kills_its_workers_if_the_head_is_lost(make: Callable[[], Member]) -> None:
    member = make()
    assert of_kind(member.disconnected("reset", is_dead=True), StopWorkers) == [stop_workers(StopManner.FENCE)]
    (search,) = of_kind(member.workers_stopped(1, (), 26000), DiscoverHead)
    assert search.lost == LostHead(node="node0", contact=0, is_dead=True, why="reset", attempt=1)


def test_says_goodbye_to_a_head_that_it_gives_up_when_its_workers_are_gone() -> None:
    member = working()
    assert not told(member.disconnected("no answer", is_dead=False))
    assert told(member.workers_stopped(1, (), 26000)) == [Dropped(reason="no answer")]


def test_searches_for_another_head_if_it_has_no_workers() -> None:
    assert of_kind(parked().disconnected("reset", is_dead=True), DiscoverHead)


def test_is_a_member_again_when_it_has_found_a_head() -> None:
    member = working()
    member.disconnected("reset", is_dead=True)
    member.workers_stopped(1, (), 26000)
    member.connected(10, is_joined=True)
    member.received(Welcome(allocation=1, head="node2", gathers=True), 10)
    assert of_kind(member.received(an_assign(attempt=2), 11), StartWorkers)
    assert told(member.tick(13)) == [Beat(number=1)]


def test_remembers_the_head_of_the_world_if_its_successor_only_gathered() -> None:
    member = working()
    member.disconnected("no answer", is_dead=False)
    member.workers_stopped(1, (), 26000)
    member.connected(10, is_joined=True)
    member.received(Welcome(allocation=1, head="node2", gathers=True), 10)
    actions = member.disconnected("closed", is_dead=True)  # and tells people nothing: it was nobody's head yet
    assert not of_kind(actions, Log)
    (search,) = of_kind(actions, DiscoverHead)
    assert search.lost == LostHead(node="node0", contact=0, is_dead=False, why="no answer", attempt=1)


def test_a_word_of_the_head_before_it_closes_is_no_death() -> None:
    member = parked()
    (search,) = of_kind(member.received(Dropped(reason="no answer for 9 s"), 20), DiscoverHead)
    assert (search.lost.is_dead, search.lost.contact) == (False, 20)


def test_who_got_a_term_leaves_when_its_head_is_lost() -> None:
    member = working()
    member.terminated("SIGTERM", 9, have_workers=True)
    member.disconnected("reset", is_dead=True)
    (leave,) = of_kind(member.workers_stopped(1, (), 26000), Leave)
    assert leave.exit_code == ExitCode.STOPPED


def test_who_has_workers_that_survive_kill_takes_no_part_any_more() -> None:
    member = working()
    member.disconnected("reset", is_dead=True)
    (leave,) = of_kind(member.workers_stopped(1, (77,), 26000), Leave)
    assert (leave.exit_code, leave.cause) == (ExitCode.STALLED, "77 survived KILL, and the head is lost")


def test_a_closed_connection_after_the_end_is_no_loss() -> None:
    member = finished()
    member.received(End(exit_code=0, cause="done"), 0)
    assert member.disconnected("closed", is_dead=True) == []


def test_the_head_is_lost_once() -> None:
    member = working()
    member.disconnected("reset", is_dead=True)
    assert member.disconnected("reset again", is_dead=True) == []


def test_passes_over_what_only_a_member_says() -> None:
    member = working()
    assert not of_kind(member.received(a_join(0), 0), StopWorkers)
