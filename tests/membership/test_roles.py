"""A head with several roles: whose workers stop, whose run on, and when the run is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from hpc_elastic.errors import ExitCode, MissingNode, RendezvousCause
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.membership.actions import Action, Log, Note, WriteResult
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.held_states import shared_place
from hpc_elastic.membership.messages import Assign, Beat, Broken, Finished, Health, Stop, StopManner
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.ranks import NodeLimits, assign_worker_ranks, find_swaps
from hpc_elastic.membership.timing import AGENT
from hpc_elastic.rundir.records import SetAside
from hpc_elastic.rundir.state_records import ChosenState, HeldState, KeptState, StateVersion
from hpc_elastic.rundir.states import RunState
from tests.membership.script import (
    HeadScript,
    a_failure,
    a_restart_plan,
    a_seat,
    of_kind,
    sent,
    the_cause,
    the_claim,
    the_result,
)

TRAINER, READER, WATCHER = "trainer", "reader", "watcher"
A_DAMAGED_STATE = Broken(attempt=1, reason="the file is damaged", state=StateVersion(attempt=1, step=7))


def two_roles(trainer: str = "restart_all", reader: str = "restart_role", **options: object) -> HeadScript:
    """Nodes 0 and 1 train, nodes 2 and 3 read; the world is at work."""
    script = HeadScript(
        4,
        roles={0: TRAINER, 1: TRAINER, 2: READER, 3: READER},
        restarts={TRAINER: trainer, READER: reader},
        **options,  # type: ignore[arg-type]
    )
    script.run()
    return script


def test_a_failure_in_a_role_that_restarts_alone_stops_only_that_role() -> None:
    script = two_roles()
    stops = sent(script.fail(2), Stop)
    assert list(stops) == ["node2", "node3"]
    assert {stop.manner for stop in stops.values()} == {StopManner.RESTART}
    assert script.stopped(2) == []
    claim = the_claim(script.stopped(3)).claim
    assert (claim.attempt, claim.roles, claim.members) == (2, (READER,), ("node0", "node1", "node2", "node3"))
    parts = sent(script.claimed(), Assign)
    assert list(parts) == ["node2", "node3"]
    assert [(part.attempt, part.first_rank, part.first_role_rank, part.world_size) for part in parts.values()] == [
        (2, 4, 0, 8),
        (2, 6, 2, 8),
    ]
    assert {part.master.port for part in parts.values()} == {26002}, "a store of its own, on its first node"
    assert script.head.phase is HeadPhase.RUNNING


def test_workers_that_the_guard_may_have_killed_start_again_though_another_role_is_restarting() -> None:
    """The head stands still for long enough while that role waits, and no member was silent."""
    script = two_roles(trainer="restart_role", restart=a_restart_plan(first_s=30))
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    assert script.head.phase is HeadPhase.PAUSING
    script.now += 3
    for number in (1, 2):
        for node_id in (1, 2, 3):
            script.say(node_id, Beat(number=number, heard=number - 1))
        if number == 1:
            script.head.tick(script.now)
    script.now = script.head.fence_deadline() + AGENT.guard_s
    assert list(sent(script.head.tick(script.now), Stop)) == ["node0", "node1"]


def test_a_failure_in_a_role_that_restarts_all_stops_everybody() -> None:
    script = two_roles()
    assert list(sent(script.fail(0), Stop)) == ["node0", "node1", "node2", "node3"]
    for node in range(3):
        assert script.stopped(node) == []
    assert the_claim(script.stopped(3)).claim.roles == (TRAINER, READER)
    assert len(sent(script.claimed(), Assign)) == 4


def test_an_ignored_failure_is_said_and_changes_nothing() -> None:
    script = two_roles(reader="ignore")
    actions = script.fail(3)
    assert not sent(actions, Stop)
    (said,) = of_kind(actions, Log)
    assert "rank 6 on node3" in said.text
    assert "ignored" in said.text
    assert [note.name for note in of_kind(actions, Note)] == ["failure.ignored"]
    for node in range(3):
        assert script.finish(node) == []
    assert the_result(script.finish(3)).state.value == "SUCCEEDED"


def test_reports_of_a_role_that_runs_on_count_for_its_own_attempt() -> None:
    script = two_roles()
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    script.claimed()
    assert script.finish(0) == []  # of attempt 1, while attempt 2 is the run's latest
    assert script.finish(1) == []
    assert script.finish(2) == []
    assert the_result(script.finish(3)).state.value == "SUCCEEDED"


def test_a_run_is_not_over_while_a_role_is_being_restarted() -> None:
    script = two_roles()
    script.fail(2)
    assert script.finish(0) == []
    assert script.finish(1) == []
    script.stopped(2)
    script.stopped(3)
    script.claimed()
    assert script.finish(2) == []
    assert the_result(script.finish(3)).state.value == "SUCCEEDED"


def test_a_failure_of_another_role_widens_a_restart_under_way_and_spends_one_restart() -> None:
    script = two_roles()
    script.fail(2)
    assert list(sent(script.fail(1), Stop)) == ["node0", "node1", "node2", "node3"]
    for node in range(3):
        assert script.stopped(node) == []
    claim = the_claim(script.stopped(3)).claim
    assert (claim.roles, claim.spend.restarts) == ((TRAINER, READER), 1)


def test_a_second_failure_in_a_role_that_is_being_stopped_changes_nothing() -> None:
    script = two_roles()
    script.fail(2)
    assert not sent(script.fail(3), Stop)


def test_a_failure_of_another_role_while_the_next_attempt_is_claimed_stops_that_role_too() -> None:
    script = two_roles(trainer="restart_role")
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    assert not sent(script.fail(0), Stop), "the claim is under way"
    assert list(sent(script.claimed(), Stop)) == ["node0", "node1"]
    assert script.stopped(0) == []
    claim = the_claim(script.stopped(1)).claim
    assert (claim.attempt, claim.predecessor, claim.roles, claim.spend.restarts) == (3, 2, (TRAINER, READER), 2)
    assert len(sent(script.claimed(), Assign)) == 4


def test_a_failure_of_another_role_during_the_pause_stops_that_role_too() -> None:
    script = two_roles(trainer="restart_role", restart=a_restart_plan(first_s=5))
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    assert script.head.phase is HeadPhase.PAUSING
    assert list(sent(script.fail(1), Stop)) == ["node0", "node1"]
    script.stopped(0)
    script.stopped(1)
    assert the_claim(script.pass_time(10)).claim.roles == (TRAINER, READER)


def test_a_failure_during_the_pause_before_another_ones_restart_is_the_cause_of_the_end() -> None:
    script = two_roles(trainer="restart_role", restart=a_restart_plan(1, first_s=5))
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    assert script.head.phase is HeadPhase.PAUSING
    script.fail(1)
    script.stopped(0)
    result = the_result(script.stopped(1))
    assert (result.reason, result.root_cause.node if result.root_cause else "") == ("restarts_used_up", "node1")
    assert result.cause.startswith("rank 2 on node1 ")


def test_a_run_that_ends_for_one_role_stops_the_others_before_its_result_is_written() -> None:
    script = two_roles(restart=a_restart_plan(no_progress_limit=1))
    script.head.progress_seen("as before")
    assert list(sent(script.fail(2), Stop)) == ["node2", "node3"]
    script.stopped(2)
    assert list(sent(script.stopped(3), Stop)) == ["node0", "node1"], "the cause is known, and ends the run"
    assert script.stopped(0) == []
    assert the_cause(script.stopped(1)) == ("no_progress", ExitCode.NO_PROGRESS)


def test_a_node_that_is_to_blame_loses_its_place_when_all_roles_are_stopped() -> None:
    script = HeadScript(
        5,
        min_nodes=4,
        max_nodes=4,
        roles={0: TRAINER, 1: TRAINER, 2: READER, 3: READER, 4: READER},
        restarts={READER: "restart_role"},
        role_nodes={TRAINER: 2, READER: 2},
    )
    script.run()
    failure = a_failure(4, node="node2", role=READER, failure_class=FailureClass.CUDA_HARDWARE.value)
    assert list(sent(script.report(2, failure), Stop)) == ["node2", "node3"]
    script.stopped(2, failure)
    assert list(sent(script.stopped(3), Stop)) == ["node0", "node1"]
    script.stopped(0)
    claim = the_claim(script.stopped(1)).claim
    assert (claim.roles, claim.members) == ((TRAINER, READER), ("node0", "node1", "node4", "node3"))
    assert claim.spend.restarts == 1


def test_a_state_that_cannot_be_loaded_restarts_only_the_role_that_was_to_begin_with_it() -> None:
    script = two_roles()
    script.finish(0)
    script.finish(1)
    assert list(sent(script.say(3, A_DAMAGED_STATE), Stop)) == ["node2", "node3"]
    script.stopped(2)
    claim = the_claim(script.stopped(3)).claim
    assert (claim.roles, claim.spend.restarts) == ((READER,), 0)


def test_a_state_that_cannot_be_loaded_while_another_role_is_stopped_leaves_that_ones_failure_paid_for() -> None:
    script = two_roles(trainer="restart_role", restart=a_restart_plan(first_s=5))
    script.fail(0)
    added = script.say(3, A_DAMAGED_STATE)
    assert sorted(sent(added, Stop)) == ["node0", "node1", "node2", "node3"]
    assert [log.text for log in of_kind(added, Log)] == [
        "attempt 1: node3: the file is damaged; restarting the ranks of reader and trainer"
    ]
    for node in range(4):
        script.stopped(node)
    assert script.head.phase is HeadPhase.PAUSING
    claim = the_claim(script.pass_time(10)).claim
    assert (claim.roles, claim.spend.restarts) == ((TRAINER, READER), 1)
    assert claim.reason == "rank 0 on node0 failed with exit code 1: ValueError: no"
    assert claim.root_cause is not None


def holds(role: str, *versions: tuple[int, int]) -> tuple[HeldState, ...]:
    """What a node has of its role's states, which are the same on all ranks."""
    return tuple(HeldState(attempt=attempt, step=step, part=shared_place(role)) for attempt, step in versions)


def begins_with(actions: Sequence[Action]) -> dict[str, StateVersion | None]:
    return {node: part.state for node, part in sent(actions, Assign).items()}


def test_a_state_that_one_role_cannot_load_is_still_loaded_by_another_role() -> None:
    """Both have saved after the same step, each its own state."""
    script = two_roles(trainer="restart_role")
    script.fail(2)
    script.stopped(2, held=holds(READER, (1, 7)))
    script.stopped(3, held=holds(READER, (1, 7)))
    seven = StateVersion(attempt=1, step=7)
    assert begins_with(script.claimed()) == {"node2": seven, "node3": seven}
    script.say(3, replace(A_DAMAGED_STATE, attempt=2))
    script.stopped(2, held=holds(READER, (1, 7)))
    script.stopped(3)
    assert begins_with(script.claimed()) == {"node2": None, "node3": None}
    script.fail(0)
    script.stopped(0, held=holds(TRAINER, (1, 6), (1, 7)))
    script.stopped(1, held=holds(TRAINER, (1, 6), (1, 7)))
    assert begins_with(script.claimed()) == {"node0": seven, "node1": seven}


def test_a_kept_state_that_one_role_cannot_load_is_still_loaded_by_another_role() -> None:
    places = frozenset({shared_place(TRAINER), shared_place(READER)})
    seven = StateVersion(attempt=1, step=7)
    kept = [KeptState(ended=1, version=seven, places=places)]
    script = two_roles(trainer="restart_role", allocation=2, history=History(attempts=1), kept=kept)
    script.say(3, replace(A_DAMAGED_STATE, attempt=2))
    script.stopped(2)
    script.stopped(3)
    assert begins_with(script.claimed()) == {"node2": None, "node3": None}
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    assert begins_with(script.claimed()) == {"node0": seven, "node1": seven}


def test_a_role_that_went_on_from_disk_does_not_go_back_to_a_kept_state_with_which_another_one_runs() -> None:
    places = frozenset({shared_place(TRAINER), shared_place(READER)})
    kept = [KeptState(ended=1, version=StateVersion(attempt=1, step=7), places=places)]
    script = two_roles(trainer="restart_role", allocation=2, history=History(attempts=1), kept=kept)
    for message, begins in (("no", {(1, 7)}), ("no", {None}), ("another", {None})):  # the same again: from disk
        attempt = script.attempts[2]
        script.report(2, a_failure(4, attempt=attempt, node="node2", role=READER, message=message))
        script.stopped(2)
        script.stopped(3)
        assert {state and (state.attempt, state.step) for state in begins_with(script.claimed()).values()} == begins


def test_two_roles_that_fail_alike_before_the_next_attempt_both_begin_with_their_states_in_memory() -> None:
    """The second failure is no repetition of the first: neither has come after the next attempt began."""
    script = two_roles(trainer="restart_role", restart=a_restart_plan(9, first_s=5))
    for messages in ({TRAINER: "no room", READER: "no data"}, {TRAINER: "disk full", READER: "disk full"}):
        for node, role in ((0, TRAINER), (2, READER)):  # in the pause after the first one's stop
            attempt = script.attempts[node]
            failure = a_failure(2 * node, attempt=attempt, node=f"node{node}", role=role, message=messages[role])
            script.report(node, failure)
            for each in (node, node + 1):
                script.stopped(each, held=holds(role, (1, 7)))
            assert script.head.phase is HeadPhase.PAUSING
        claim = the_claim(script.pass_time(100)).claim
        script.claimed()
    begun = {state.roles: (state.attempt, state.step) for state in claim.states}
    assert begun == {(TRAINER,): (1, 7), (READER,): (1, 7)}


def test_roles_that_fail_alike_before_the_next_attempt_have_not_failed_again_and_again() -> None:
    """Each costs a restart; but no attempt has come between them, in which there could have been progress."""
    limit = a_restart_plan(9, first_s=5, no_progress_limit=2)
    script = two_roles(trainer="restart_role", restart=limit)
    for same, progress in ((1, "further"), (1, "further still"), (2, "further still")):
        script.head.progress_seen(progress)
        for node in (0, 2):
            script.fail(node)
            script.stopped(node)
            actions = script.stopped(node + 1)
        if same == 2:
            assert the_cause(actions + script.stopped(2) + script.stopped(3)) == ("no_progress", ExitCode.NO_PROGRESS)
            return
        claim = the_claim(script.pass_time(100)).claim
        assert (claim.same_failures, claim.failure_signature is not None) == (same, True)
        script.claimed()


def test_a_node_that_is_lost_after_a_failure_leaves_that_failure_on_record() -> None:
    script = HeadScript(3, min_nodes=2, restart=a_restart_plan(first_s=5))
    script.run()
    script.fail(0)
    for node in range(3):
        script.stopped(node)
    script.lose(2)
    claim = the_claim(script.pass_time(700)).claim
    assert (claim.spend.restarts, claim.same_failures) == (1, 1)
    assert claim.failure_signature == "exception/1/ValueError: no"


def test_a_role_that_fails_as_another_one_while_that_ones_restart_is_claimed_begins_with_its_state_in_memory() -> None:
    script = two_roles(trainer="restart_role")
    script.fail(2)
    for node in (2, 3):
        script.stopped(node, held=holds(READER, (1, 7)))
    script.fail(0)  # its message is the same, and the claim is under way
    script.claimed()
    script.stopped(0, held=holds(TRAINER, (1, 7)))
    claim = the_claim(script.stopped(1, held=holds(TRAINER, (1, 7)))).claim
    begun = {state.roles: (state.attempt, state.step) for state in claim.states}
    assert begun == {(TRAINER,): (1, 7), (READER,): (1, 7)}


def test_only_the_role_that_fails_as_before_distrusts_what_it_had_loaded() -> None:
    script = two_roles(trainer="restart_role", restart=a_restart_plan(first_s=5))
    for node, role in ((0, TRAINER), (2, READER), (2, READER)):
        message = {TRAINER: "no room", READER: "no data"}[role]
        failure = a_failure(2 * node, attempt=script.attempts[node], node=f"node{node}", role=role, message=message)
        script.report(node, failure)
        for each in (node, node + 1):
            script.stopped(each, held=holds(role, (1, 7)))
        actions = script.pass_time(30)
        script.claimed()
    assert the_claim(actions).claim.states == (ChosenState(roles=(TRAINER,), attempt=1, step=7),)


def test_all_roles_distrust_what_they_had_loaded_if_one_that_restarts_all_fails_as_before() -> None:
    script = two_roles()
    for _ in range(2):
        script.fail(0)
        for node in range(3):
            script.stopped(node, held=holds(script.role_of(node), (1, 7)))
        claim = the_claim(script.stopped(3, held=holds(READER, (1, 7)))).claim
        script.claimed()
    assert (claim.attempt, claim.states) == (3, ())


def test_the_budget_is_one_for_all_roles() -> None:
    script = two_roles(trainer="restart_role", restart=a_restart_plan(1))
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    script.claimed()
    assert list(sent(script.fail(0), Stop)) == ["node0", "node1", "node2", "node3"]
    for node in range(3):
        script.stopped(node)
    assert the_cause(script.stopped(3)) == ("restarts_used_up", ExitCode.WORKERS_FAILED)


def test_the_failures_of_a_role_are_forgotten_when_it_starts_again_and_others_are_kept() -> None:
    script = two_roles(reader="ignore", trainer="restart_role", restart=a_restart_plan(1))
    script.fail(3)
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    script.fail(1)
    for node in range(3):
        script.stopped(node)
    assert list(the_result(script.stopped(3)).failures) == ["2", "6"]


def test_a_node_lost_while_its_role_restarts_ends_the_run() -> None:
    script = two_roles(restart=a_restart_plan(first_s=5))
    script.fail(2)
    script.stopped(2)
    script.stopped(3)
    assert list(sent(script.lose(3), Stop)) == ["node0", "node1"]
    script.stopped(0)
    assert the_cause(script.stopped(1)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_role_restarts_alone_on_its_nodes_although_nodes_with_lower_ids_came_late() -> None:
    script = HeadScript(
        4,
        min_nodes=2,
        max_nodes=2,
        roles={0: TRAINER, 1: TRAINER, 2: TRAINER, 3: READER},
        restarts={READER: "restart_role"},
        node="node2",
    )
    script.join(2, 3)
    script.pass_time(600)
    script.claimed()
    script.join(0, 1)
    script.fail(3)
    claim = the_claim(script.stopped(3)).claim
    assert (claim.members, claim.roles) == (("node2", "node3"), (READER,))


def test_a_role_has_its_own_least_number_of_nodes() -> None:
    script = HeadScript(3, min_nodes=2, roles={0: TRAINER, 1: TRAINER, 2: READER}, role_nodes={TRAINER: 1, READER: 1})
    script.join(0, 1)
    result = the_result(script.pass_time(601))
    assert result.reason == "nodes_missing"
    assert result.cause.startswith(
        "2 of at least 2 nodes joined within 600 s, too few for the role reader; missing: node2"
    )


def test_a_role_that_nobody_is_left_for_is_not_said_to_have_been_waited_for() -> None:
    script = HeadScript(3, min_nodes=2, roles={0: TRAINER, 1: TRAINER, 2: READER}, role_nodes={TRAINER: 1, READER: 1})
    missing = MissingNode(node="node2", cause=RendezvousCause.OTHER_VERSION, detail="has another version")
    script.head.gathering.diagnosed([Diagnosis(missing=missing, gave_up=True)], 0)
    script.join(0)
    cause = the_result(script.join(1)).cause
    assert cause.startswith(
        "2 of at least 2 nodes joined, and no other can, too few for the role reader; missing: node2"
    )


# What a world waits for together.


def test_says_when_every_rank_has_its_process() -> None:
    script = HeadScript(2)
    script.run()
    script.now += 0.25
    assert script.start(0) == []
    (note,) = script.start(1)
    assert isinstance(note, Note)
    assert (note.name, "0.25 s" in note.message) == ("attempt.started", True)


def test_says_every_30_seconds_who_has_not_started() -> None:
    script = HeadScript(2)
    script.run()
    script.start(0)
    said = [action.text for action in of_kind(script.pass_time(61), Log)]
    assert said == ["waiting 30 s for node1 to start its workers", "waiting 60 s for node1 to start its workers"]


@pytest.mark.long
def test_names_a_few_of_many_nodes_and_counts_the_others() -> None:
    script = HeadScript(1000)
    script.run()
    (said,) = of_kind(script.pass_time(31), Log)
    named = ", ".join(f"node{number}" for number in range(8))
    assert said.text == f"waiting 30 s for {named} and 992 more to start its workers"


def test_nobody_waits_for_a_start_that_failed_in_a_role_that_is_ignored() -> None:
    script = two_roles(reader="ignore")
    for node in range(3):
        assert script.start(node) == []
    script.fail(3)
    assert script.say(3, Finished(attempt=1)) == []  # none of its workers could be started
    assert not of_kind(script.pass_time(100), Log)


def test_says_every_30_seconds_for_whom_the_finished_ranks_wait() -> None:
    script = HeadScript(2)
    script.run()
    script.start(0)
    script.start(1)
    assert not of_kind(script.pass_time(100), Log), "nobody has ended, so nobody waits"
    script.end(0)
    said = [action.text for action in of_kind(script.pass_time(61), Log)]
    assert said == ["waiting 30 s for node0, node1 to end its part", "waiting 60 s for node0, node1 to end its part"]
    script.finish(0)
    assert [action.text for action in of_kind(script.pass_time(30), Log)] == ["waiting 90 s for node1 to end its part"]


def test_the_wait_for_the_last_ranks_is_bounded_by_exit_timeout() -> None:
    script = HeadScript(2, exit_timeout_s=50)
    script.run()
    script.start(0)
    script.start(1)
    script.finish(0)
    assert not sent(script.pass_time(49), Stop)
    assert list(sent(script.pass_time(2), Stop)) == ["node0", "node1"]
    script.stopped(0)
    result = the_result(script.stopped(1))
    assert (result.reason, result.exit_code) == ("exit_timeout", int(ExitCode.STALLED))
    assert "node1" in result.cause


def test_a_run_succeeds_after_exit_timeout_if_it_is_to_and_names_who_was_stopped() -> None:
    script = HeadScript(2, exit_timeout_s=50, after_exit_timeout="succeed")
    script.run()
    script.start(0)
    script.start(1)
    script.finish(0)
    stops = sent(script.pass_time(51), Stop)
    assert {node: stop.manner for node, stop in stops.items()} == dict.fromkeys(("node0", "node1"), StopManner.GRACE)
    script.stopped(0)
    result = the_result(script.stopped(1))
    assert (result.state, result.exit_code, result.reason) == (RunState.SUCCEEDED, 0, "exit_timeout")
    within = "every rank exited 0 within elastic.exit_timeout"
    assert result.cause == f"{within}, but for those that still ran on node1, which is ignored"


@pytest.mark.parametrize("after", ["fail", "succeed"])
def test_the_run_has_succeeded_if_every_rank_had_exited_0_when_exit_timeout_stopped_the_last(
    after: Literal["fail", "succeed"],
) -> None:
    """A node says that its workers have exited when its record of it is on disk, which may take a while."""
    script = HeadScript(2, exit_timeout_s=50, after_exit_timeout=after)
    script.run()
    script.start(0)
    script.start(1)
    script.finish(0)
    assert sent(script.pass_time(51), Stop)
    script.stopped(0, succeeded="0-1")
    result = the_result(script.stopped(1, succeeded="2-3"))
    assert (result.state, result.reason, result.cause) == (RunState.SUCCEEDED, "succeeded", "every rank exited 0")
    assert result.root_cause is None


def test_the_run_has_succeeded_though_a_role_was_to_restart_by_itself_whose_ranks_had_all_exited_0() -> None:
    """Nothing that its ranks need is broken any more, and the records of all nodes say that they have succeeded."""
    script = HeadScript(2, roles={1: "reader"}, restarts={"default": "restart_role", "reader": "restart_role"})
    script.run()
    script.start(0)
    script.start(1)
    script.finish(1)
    script.say(0, Broken(attempt=1, reason="the store host died"))
    stops = sent(script.stopped(0, succeeded="0-1"), Stop)
    result = the_result([*script.stopped(0, succeeded="0-1"), *script.stopped(1, succeeded="2-3")])
    assert list(stops) == ["node1"], "what its ranks have left behind ends, too"
    assert (result.state, result.reason, result.restarts) == (RunState.SUCCEEDED, "succeeded", 0)


def test_a_role_restarts_by_itself_whose_ranks_had_all_exited_0_while_ranks_of_another_run() -> None:
    script = HeadScript(2, roles={1: "reader"}, restarts={"default": "restart_role", "reader": "restart_role"})
    script.run()
    script.start(0)
    script.start(1)
    script.say(0, Broken(attempt=1, reason="the store host died"))
    assert the_claim(script.stopped(0, succeeded="0-1")).claim.roles == ("default",)


def test_a_rank_that_had_not_exited_when_exit_timeout_stopped_it_ends_the_run() -> None:
    script = HeadScript(2, exit_timeout_s=50)
    script.run()
    script.start(0)
    script.start(1)
    script.finish(0)
    script.pass_time(51)
    script.stopped(0, succeeded="0-1")
    result = the_result(script.stopped(1, succeeded="2"))
    assert (result.state, result.reason) == (RunState.FAILED, "exit_timeout")
    assert result.root_cause is not None
    assert result.root_cause.silent == "3"


def test_a_failure_while_the_last_ranks_have_time_restarts_them_also_if_the_run_is_to_succeed() -> None:
    script = HeadScript(2, exit_timeout_s=50, after_exit_timeout="succeed")
    script.run()
    script.start(0)
    script.start(1)
    script.finish(0)
    stops = sent(script.fail(1), Stop)
    assert {stop.manner for stop in stops.values()} == {StopManner.RESTART}


def test_a_worker_that_failed_in_a_role_that_is_ignored_does_not_start_exit_timeout() -> None:
    script = two_roles(reader="ignore", exit_timeout_s=50)
    script.fail(2)
    script.say(2, Finished(attempt=1))  # none of its workers runs any more, and none exited 0
    assert not sent(script.pass_time(100), Stop)
    script.end(0)
    assert not sent(script.pass_time(49), Stop)
    assert sent(script.pass_time(2), Stop)


def test_the_end_of_a_role_that_is_ignored_sets_no_bound_to_the_others() -> None:
    script = two_roles(reader="ignore", exit_timeout_s=50)
    for node in range(4):
        script.start(node)
    script.finish(2)
    script.finish(3)
    assert script.pass_time(1000) == [], "neither stopped nor said to be waited for"
    script.finish(0)
    assert list(sent(script.pass_time(51), Stop)) == ["node0", "node1", "node2", "node3"]


def test_the_cause_of_a_success_has_what_was_ignored() -> None:
    script = two_roles(reader="ignore", exit_timeout_s=50)
    script.fail(2)
    script.say(2, Finished(attempt=1))
    script.finish(0)
    script.finish(1)
    script.pass_time(51)
    for node in range(3):
        script.stopped(node)
    said = the_result(script.stopped(3)).cause
    assert said == "every rank exited 0, but for 1 rank that failed and those that still ran on node3, which is ignored"


def test_ranks_of_an_ignored_role_that_outlast_exit_timeout_have_their_grace_before_the_result_is_written() -> None:
    """The batch script ends the job soon after it, and they may save."""
    script = two_roles(reader="ignore", exit_timeout_s=50)
    script.finish(0)
    script.finish(1)
    actions = script.pass_time(51)
    assert {stop.manner for stop in sent(actions, Stop).values()} == {StopManner.GRACE}
    assert not of_kind(actions, WriteResult)
    for node in range(3):
        assert not of_kind(script.stopped(node), WriteResult)
    assert the_cause(script.stopped(3)) == ("succeeded", ExitCode.SUCCESS)


def test_exit_timeout_counts_anew_after_a_restart() -> None:
    script = HeadScript(2, exit_timeout_s=50)
    script.run()
    script.end(0)
    script.pass_time(40)
    script.fail(1)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    script.start(0)
    script.start(1)
    assert not sent(script.pass_time(100), Stop)


def test_exit_timeout_counts_on_for_a_role_that_runs_on_while_another_one_restarts() -> None:
    script = two_roles(trainer="restart_role", exit_timeout_s=50)
    script.end(2)
    script.pass_time(40)
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    assert not sent(script.pass_time(9), Stop)
    assert sent(script.pass_time(2), Stop)
    for node in range(3):
        script.stopped(node)
    result = the_result(script.stopped(3))
    assert result.reason == "exit_timeout"
    assert "node2, node3 still ran" in result.cause, "the trainers have not had their time"


def test_ranks_that_start_again_have_exit_timeout_from_then_on() -> None:
    script = two_roles(trainer="restart_role", exit_timeout_s=50)
    script.finish(2)
    script.finish(3)
    script.pass_time(40)
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    assert not sent(script.pass_time(49), Stop)
    assert sent(script.pass_time(2), Stop)


def test_a_run_that_succeeds_after_exit_timeout_waits_for_roles_that_still_have_time() -> None:
    script = two_roles(trainer="restart_role", exit_timeout_s=50, after_exit_timeout="succeed")
    script.end(2)
    script.pass_time(40)
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    script.claimed()
    assert not sent(script.pass_time(49), Stop), "the reader on node3 is late, and the trainers are not"
    assert set(sent(script.pass_time(2), Stop)) >= {"node0", "node1", "node3"}


def test_ranks_that_run_on_in_a_role_that_is_ignored_are_no_cause_of_exit_timeout() -> None:
    script = two_roles(reader="ignore", exit_timeout_s=50)
    script.finish(0)
    script.pass_time(51)
    for node in range(3):
        script.stopped(node)
    cause = the_result(script.stopped(3)).root_cause
    assert cause is not None
    assert (cause.node, cause.nodes) == ("node1", ())


def test_a_role_that_is_ignored_does_not_outlast_exit_timeout_and_the_run_succeeds() -> None:
    script = two_roles(reader="ignore", exit_timeout_s=50)
    for node in range(4):
        script.start(node)
    script.finish(0)
    script.finish(1)
    assert list(sent(script.pass_time(51), Stop)) == ["node0", "node1", "node2", "node3"]
    for node in range(3):
        script.stopped(node)
    assert the_result(script.stopped(3)).state.value == "SUCCEEDED"


@pytest.mark.parametrize(("late", "is_stopped"), [(1, True), (4, False)], ids=["a trainer", "one reader too many"])
def test_nobody_is_stopped_for_a_newcomer_of_a_role_that_is_full(late: int, is_stopped: bool) -> None:
    script = HeadScript(
        5,
        min_nodes=3,
        max_nodes=4,
        roles={0: TRAINER, 1: TRAINER, 2: READER, 3: READER, 4: READER},
        role_nodes={TRAINER: 1, READER: 2},
        role_max_nodes={TRAINER: 2, READER: 2},
        rejoin="immediately",
    )
    script.join(0, 2, 3)
    script.pass_time(601)
    script.claimed()
    assert bool(sent(script.join(late), Stop)) is is_stopped


# A spare of any role takes the place of a lost node of any role.


def with_spares(**settings: Any) -> HeadScript:
    """Two trainers, two readers and a spare, which the last role has."""
    roles = {0: TRAINER, 1: TRAINER, 2: READER, 3: READER, 4: READER}
    least, most = settings.pop("least", {TRAINER: 2, READER: 1}), {TRAINER: 2, READER: 2}
    script = HeadScript(5, min_nodes=3, max_nodes=4, roles=roles, role_nodes=least, role_max_nodes=most, **settings)
    script.run()
    return script


def lose(script: HeadScript, *lost: int) -> list[Action]:
    """Nodes are lost, and all others stop."""
    for node in lost:
        script.lose(node)
    members = [node for node in range(4) if node not in lost]
    return [action for node in members for action in script.stopped(node)]


def places(actions: list[Action]) -> dict[str, str]:
    return {node.node: node.role for node in the_claim(actions).world.nodes}


def test_a_spare_of_another_role_takes_the_place_of_a_lost_node() -> None:
    script = with_spares()
    actions = lose(script, 1)
    assert places(actions) == {"node0": TRAINER, "node4": TRAINER, "node2": READER, "node3": READER}
    assign = sent(script.claimed(), Assign)["node4"]
    assert (assign.role, assign.first_rank, assign.role_world_size) == (TRAINER, 2, 4)


def test_a_spare_keeps_the_place_of_an_attempt_that_ended_before_it_was_told_of_it() -> None:
    script = with_spares(least={TRAINER: 2, READER: 1})
    assert places(lose(script, 1))["node4"] == TRAINER
    script.lose(3)  # while the claim is written
    assert places(script.claimed()) == {"node0": TRAINER, "node4": TRAINER, "node2": READER}


def test_a_spare_in_the_place_of_another_role_goes_back_to_its_own_where_that_one_lacks_nodes() -> None:
    script = with_spares(least={TRAINER: 1, READER: 2})
    assert places(lose(script, 1))["node4"] == TRAINER
    script.lose(3)  # while the claim is written
    world = the_claim(script.claimed()).world
    assert [(node.node, node.role) for node in world.nodes] == [
        ("node0", TRAINER),
        ("node2", READER),
        ("node4", READER),
    ]
    assert {rank.role_rank for rank in world.ranks if rank.role == READER} == {0, 1, 2, 3}


def test_no_more_nodes_leave_the_places_of_another_role_than_it_can_spare() -> None:
    script = with_spares(least={TRAINER: 2, READER: 2})
    assert places(lose(script, 1))["node4"] == TRAINER
    script.claimed()
    stops = sent(script.lose(3), Stop)
    assert {stop.reason for stop in stops.values()} == {
        "node1, node3 were lost: the connection closed; too few nodes are left to go on"
    }


def test_a_spare_of_another_role_takes_the_place_of_a_node_that_is_blamed() -> None:
    script = with_spares()
    script.head.drain_requested("node1", "ada@login1", script.now)
    for node in range(3):
        script.stopped(node)
    assert places(script.stopped(3)) == {"node0": TRAINER, "node4": TRAINER, "node2": READER, "node3": READER}


def test_a_drain_while_one_role_restarts_stops_all_and_the_next_attempt_is_without_the_node() -> None:
    script = with_spares(restarts={TRAINER: "restart_all", READER: "restart_role"})
    assert list(sent(script.fail(2), Stop)) == ["node2", "node3"]
    stops = sent(script.head.drain_requested("node1", "ada@login1", script.now), Stop)
    assert list(stops) == ["node0", "node1", "node2", "node3"]
    for node in range(3):
        script.stopped(node)
    assert places(script.stopped(3)) == {"node0": TRAINER, "node4": TRAINER, "node2": READER, "node3": READER}


def test_one_spare_does_not_stand_in_for_two_nodes_of_two_roles() -> None:
    script = with_spares(least={TRAINER: 2, READER: 2})
    script.head.drain_requested("node1", "ada@login1", script.now)
    actions = script.head.drain_requested("node3", "ada@login1", script.now)
    assert [log.text for log in of_kind(actions, Log)] == [
        "ada@login1 asked to drain node3, but too few other nodes are here; nothing was done"
    ]


def test_a_blamed_node_is_used_in_the_first_attempt_of_a_start_if_only_a_spare_of_another_role_is_left() -> None:
    blamed = SetAside(node="node1", why="rank 2 on node1: Xid 79", allocation=1)
    roles = {0: TRAINER, 1: TRAINER, 2: READER, 3: READER, 4: READER}
    script = HeadScript(
        5,
        min_nodes=3,
        max_nodes=4,
        roles=roles,
        role_nodes={TRAINER: 2, READER: 1},
        role_max_nodes={TRAINER: 2, READER: 2},
        history=History(attempts=1, set_aside=(blamed,)),
        allocation=2,
    )
    actions = [action for node in range(5) for action in script.join(node)]
    assert places(actions)["node1"] == TRAINER


def test_a_spare_of_another_role_runs_as_many_workers_as_the_node_in_whose_place_it_is() -> None:
    seats = [
        replace(a_seat(node), role=TRAINER if node < 2 else READER, workers=4 if node < 2 else 1) for node in range(4)
    ]
    limits = NodeLimits(all_nodes=3, of_role={TRAINER: 2, READER: 1}, least_of_role={TRAINER: 2, READER: 1})
    settings: Any = {"run": "run", "allocation": 1, "head": "node0", "restarts": {}, "limits": limits}
    before = assign_worker_ranks(seats, attempt=1, **settings)
    world = assign_worker_ranks([seat for seat in seats if seat.node != "node1"], attempt=2, before=before, **settings)
    assert [(node.node, node.role, node.workers) for node in world.nodes] == [
        ("node0", TRAINER, 4),
        ("node3", TRAINER, 4),
        ("node2", READER, 1),
    ]
    assert find_swaps(before, world) == [("node3", "node1")]


def test_a_spare_replaces_a_node_of_its_own_role_first() -> None:
    assert places(lose(with_spares(), 3)) == {
        "node0": TRAINER,
        "node1": TRAINER,
        "node2": READER,
        "node4": READER,
    }


def test_a_spare_that_has_changed_its_role_keeps_it() -> None:
    script = with_spares()
    lose(script, 1)
    script.claimed()
    assert sent(script.fail(0), Stop).keys() == {"node0", "node2", "node3", "node4"}
    for node in (0, 2, 3):
        script.stopped(node)
    assert places(script.stopped(4)) == {"node0": TRAINER, "node4": TRAINER, "node2": READER, "node3": READER}


def test_no_node_that_has_a_place_is_moved_to_another_role() -> None:
    roles = {0: TRAINER, 1: READER, 2: READER}
    script = HeadScript(
        3,
        min_nodes=2,
        roles=roles,
        role_nodes={TRAINER: 1, READER: 1},
        role_max_nodes={TRAINER: 1, READER: 2},
        node="node1",
    )
    script.run()
    script.lose(0)
    script.stopped(1)
    assert the_cause(script.stopped(2)) == ("node_lost", ExitCode.NODE_LOST)


def test_a_spare_that_did_not_hear_of_its_new_role_keeps_the_place_when_it_is_back() -> None:
    script = with_spares()
    lose(script, 1)
    script.claimed()
    script.lose(4)
    script.join(4)  # as the reader that it was
    for node in (0, 2):
        script.stopped(node)
    actions = script.stopped(3)
    assert places(actions)["node4"] == TRAINER


def test_a_role_starts_again_by_itself_although_a_node_that_is_needed_has_become_unhealthy() -> None:
    """It is at work, and keeps its place as long as not all roles start again; the run ended for too few nodes."""
    script = two_roles()
    script.say(0, Health(problem="its disk is full"))
    script.fail(2)
    script.stopped(2)
    assert the_claim(script.stopped(3)).claim.roles == (READER,)


def time_out(script: HeadScript, *nodes: int) -> list[Action]:
    """The first rank of each node has waited in a collective for too long."""
    actions: list[Action] = []
    for node in nodes:
        failure = a_failure(2 * node, attempt=script.attempts[node], node=f"node{node}", role=script.role_of(node))
        actions += script.report(node, replace(failure, failure_class="collective_timeout"))
    return actions


def test_a_time_out_is_not_forgotten_for_the_failure_of_another_role() -> None:
    """It is held for a moment, in which the ranks that were waited for may fail."""
    script = two_roles(trainer="restart_role")
    assert not sent(time_out(script, 0, 1), Stop)
    assert set(sent(script.fail(2), Stop)) == {"node0", "node1", "node2", "node3"}


def test_time_outs_of_two_roles_restart_both() -> None:
    script = two_roles(trainer="restart_role")
    assert not sent(time_out(script, 0, 2), Stop)
    assert set(sent(script.pass_time(3), Stop)) == {"node0", "node1", "node2", "node3"}


def test_a_time_out_names_no_ranks_that_meet_in_another_store() -> None:
    """The readers have one of their own, in which nobody waited for them."""
    script = two_roles()
    time_out(script, 0)
    time_out(script, 1)
    script.pass_time(3)
    for node in range(3):
        script.stopped(node)
    cause = the_claim(script.stopped(3)).claim.root_cause
    assert cause is not None
    assert cause.silent == "1,3", "the other ranks of the trainers, which have not timed out"
