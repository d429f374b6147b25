"""What the head does about training states at the end of an allocation, and at the begin of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpc_elastic.membership.actions import Action, KeepStates, Log
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.held_states import part_of, rank_places
from hpc_elastic.membership.messages import Assign, Broken, End, Finished, Stop, Terminated
from hpc_elastic.membership.ranks import assign_worker_ranks
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.rundir.records import World
from hpc_elastic.rundir.state_records import ChosenState, Flush, HeldState, KeptState, StateVersion
from tests.membership.script import HeadScript, a_seat, an_assign, of_kind, sent, the_claim, the_result

SEVEN = StateVersion(attempt=3, step=7)
CHOSEN = (ChosenState(roles=("default",), attempt=3, step=7),)


def kept(*, ended: int = 3, nodes: Sequence[int] = (0, 1)) -> tuple[KeptState, ...]:
    """What both nodes have written after attempt 3."""
    places = frozenset(place for node in nodes for place in rank_places(an_assign(group_rank=node)))
    return (KeptState(ended=ended, version=SEVEN, places=places),)


def next_allocation(*, attempts: int = 3, states: Sequence[KeptState] | None = None) -> HeadScript:
    history = History(attempts=attempts)
    return HeadScript(2, allocation=2, history=history, kept=kept() if states is None else states)


def holds(node: int, *versions: tuple[int, int]) -> tuple[HeldState, ...]:
    part = part_of(an_assign(group_rank=node))
    return tuple(HeldState(attempt=attempt, step=step, part=part) for attempt, step in versions)


def ends(script: HeadScript, *held: tuple[HeldState, ...]) -> list[Action]:
    """The scheduler ends the allocation; these are the states that the nodes report."""
    script.say(0, Terminated(signal_name="SIGTERM"))
    actions = [action for node, states in enumerate(held) for action in script.stopped(node, held=states)]
    the_result(actions)
    return script.head.result_written(75, "the job is started again", script.now)


def flushes(actions: Sequence[Action]) -> dict[str, Flush | None]:
    return {node: end.flush for node, end in sent(actions, End).items()}


def begins_with(actions: Sequence[Action]) -> set[StateVersion | None]:
    return {part.state for part in sent(actions, Assign).values()}


def test_the_first_attempt_of_an_allocation_begins_with_what_was_kept_after_the_latest_one() -> None:
    script = next_allocation()
    script.join(0)
    assert the_claim(script.join(1)).claim.states == CHOSEN
    assert begins_with(script.claimed()) == {SEVEN}


def test_it_does_not_if_another_attempt_came_after_it() -> None:
    assert begins_with(next_allocation(attempts=4).run()) == {None}


def test_a_node_that_cannot_load_it_has_all_load_from_disk_and_no_restart_is_spent() -> None:
    script = next_allocation()
    script.run()
    broken = Broken(attempt=4, reason="00003.state is damaged", state=SEVEN)
    assert set(sent(script.say(1, broken), Stop)) == {"node0", "node1"}
    script.stopped(0, held=holds(0, (3, 7)))
    claim = the_claim(script.stopped(1)).claim
    assert (claim.spend.restarts, claim.states, claim.root_cause) == (0, (), None)
    assert claim.reason == "node1: 00003.state is damaged"
    assert begins_with(script.claimed()) == {None}


def test_it_is_used_again_until_a_node_holds_a_newer_state() -> None:
    script = next_allocation()
    script.run()
    script.fail(0)
    script.stopped(0, held=holds(0, (3, 7)))
    script.stopped(1)  # it was stopped before it had loaded it
    assert begins_with(script.claimed()) == {SEVEN}
    script.fail(0)
    script.stopped(0, held=holds(0, (5, 8)))
    script.stopped(1)
    assert begins_with(script.claimed()) == {None}


def succeeds(world: World, *, begun: Sequence[ChosenState] = CHOSEN, nodes: int = 2) -> HeadScript:
    """Node 1 takes the place of node 0, which was the head of attempt 4 and died."""
    lost = LostHead(node="node0", contact=0.0, is_dead=True, why="its agent has ended")
    given = Succession(lost=lost, world=world, is_finished=False, is_spare=True)
    history = History(attempts=4, states=tuple(begun))
    return HeadScript(nodes, min_nodes=2, node="node1", allocation=2, history=history, kept=kept(), succession=given)


def world_of(nodes: int) -> World:
    seats = [a_seat(node) for node in range(nodes)]
    return assign_worker_ranks(seats, run="run", attempt=4, allocation=2, head="node0", restarts={})


def test_a_successor_begins_with_it_as_the_lost_head_if_no_node_holds_a_newer_state() -> None:
    script = succeeds(world_of(2))
    script.join(0, 1)
    assert begins_with(script.claimed()) == {SEVEN}


def test_a_successor_does_not_begin_with_it_if_the_lost_heads_attempt_did_not() -> None:
    script = succeeds(world_of(2), begun=())
    script.join(0, 1)
    assert begins_with(script.claimed()) == {None}


def test_a_successor_does_not_begin_with_it_if_nobody_is_left_who_knows_what_was_saved_since() -> None:
    lost = succeeds(world_of(1), nodes=3)  # nodes 1 and 2 were spares
    lost.join(1, 2)
    lost.pass_time(600)
    assert begins_with(lost.claimed()) == {None}


def test_members_are_told_to_write_the_newest_state_that_all_of_them_hold() -> None:
    script = HeadScript(2)
    script.run()
    told = flushes(ends(script, holds(0, (1, 7), (1, 8)), holds(1, (1, 8), (1, 9))))
    eight = Flush(ended=1, state=StateVersion(attempt=1, step=8))
    assert told == {"node0": eight, "node1": eight}


def test_a_line_says_why_no_state_is_written_although_nodes_hold_some() -> None:
    script = HeadScript(2)
    script.run()
    actions = ends(script, holds(0, (1, 6), (1, 7)), holds(1, (1, 8), (1, 9)))
    assert set(flushes(actions).values()) == {None}
    line = "no state is kept for the next allocation: no step is in the memory of all of them"
    assert line in [log.text for log in of_kind(actions, Log)]


def test_where_a_nodes_ranks_have_no_step_in_common_the_line_says_that_and_nothing_is_written() -> None:
    script = HeadScript(2)
    script.run()
    partial = HeldState(attempt=1, step=9, part=part_of(an_assign(group_rank=1)), is_partial=True)
    actions = ends(script, holds(0, (1, 8), (1, 9)), (partial,))
    assert set(flushes(actions).values()) == {None}
    line = "no state is kept for the next allocation: no step is in the memory of all ranks of node1"
    assert line in [log.text for log in of_kind(actions, Log)]


def test_nothing_is_said_of_states_where_nobody_has_saved_any_or_files_stay() -> None:
    script = HeadScript(2)
    script.run()
    again = next_allocation()
    again.run()
    for actions in (ends(script, (), ()), ends(again, holds(0, (3, 7)), ())):
        assert not [log.text for log in of_kind(actions, Log) if "state" in log.text]


def test_what_was_loaded_is_not_written_again_if_nobody_has_saved_since() -> None:
    """Its files are there, and a writing that is broken off must not cost them."""
    script = next_allocation()
    script.run()
    actions = ends(script, holds(0, (3, 7)), holds(1, (3, 7)))
    assert set(flushes(actions).values()) == {None}
    assert of_kind(actions, KeepStates) == [KeepStates(ended=3, latest=4)]


def test_what_was_loaded_is_written_again_if_one_node_has_saved_since() -> None:
    script = next_allocation()
    script.run()
    actions = ends(script, holds(0, (4, 8), (3, 7)), holds(1, (3, 7)))
    assert set(flushes(actions).values()) == {Flush(ended=4, state=SEVEN)}
    assert not of_kind(actions, KeepStates)


def test_nothing_stays_after_a_success_that_has_saved_nothing() -> None:
    script = next_allocation()
    script.run()
    for node in (0, 1):
        script.say(node, Finished(attempt=4))
    actions = script.head.result_written(0, "every rank exited 0", script.now)
    assert set(flushes(actions).values()) == {None}
    assert not of_kind(actions, KeepStates)


def test_what_another_run_has_kept_is_written_in_this_one() -> None:
    eight = StateVersion(attempt=0, step=8)
    script = next_allocation(attempts=0, states=[replace(kept()[0], ended=0, version=eight)])
    script.run()
    actions = ends(script, holds(0, (0, 8)), holds(1, (0, 8)))
    assert set(flushes(actions).values()) == {Flush(ended=1, state=eight)}
    assert not of_kind(actions, KeepStates)


def test_what_not_all_had_loaded_yet_stays_for_the_allocation_after_this_one() -> None:
    script = next_allocation()
    script.run()
    actions = ends(script, holds(0, (3, 7)), ())
    assert set(flushes(actions).values()) == {None}
    assert of_kind(actions, KeepStates) == [KeepStates(ended=3, latest=4)]


def test_it_does_not_stay_where_a_node_has_gone_beyond_it() -> None:
    script = next_allocation()
    script.run()
    actions = ends(script, holds(0, (4, 8)), ())
    assert set(flushes(actions).values()) == {None}
    assert not of_kind(actions, KeepStates)


def test_nothing_is_done_about_it_where_no_attempt_was_opened() -> None:
    script = next_allocation()
    script.join(0)
    script.say(0, Terminated(signal_name="SIGTERM"))
    actions = script.head.result_written(75, "the job is started again", script.now)
    assert flushes(actions) == {"node0": None}
    assert not of_kind(actions, KeepStates)


def test_a_success_writes_nothing() -> None:
    script = HeadScript(2)
    script.run()
    for node in (0, 1):
        script.say(node, Finished(attempt=1, held=holds(node, (1, 9))))
    assert set(flushes(script.head.result_written(0, "every rank exited 0", script.now)).values()) == {None}


def test_ranks_that_exit_75_after_a_notice_are_written_for() -> None:
    script = HeadScript(2)
    script.run()
    for node, again in enumerate(("0-1", "2-3")):
        script.say(node, Finished(attempt=1, again=again, held=holds(node, (1, 9))))
    told = flushes(script.head.result_written(75, "the job is started again", script.now))
    assert set(told.values()) == {Flush(ended=1, state=StateVersion(attempt=1, step=9))}


def test_no_state_is_written_where_the_run_directory_cannot_be() -> None:
    script = HeadScript(2)
    script.run()
    script.fail(0)
    script.stopped(0, held=holds(0, (1, 7)))
    script.stopped(1, held=holds(1, (1, 7)))
    assert set(flushes(script.head.disk_failed("no space", script.now)).values()) == {None}


def test_members_are_told_how_long_they_may_write() -> None:
    script = next_allocation()
    script.run()
    script.say(0, Terminated(signal_name="SIGTERM"))
    for node in (0, 1):
        script.stopped(node, held=holds(node, (4, 9)))
    actions = script.head.result_written(75, "the job is started again", script.now, flushes_within_s=20.0)
    flush = Flush(ended=4, state=StateVersion(attempt=4, step=9), within_s=20.0)
    assert flushes(actions) == {"node0": flush, "node1": flush}
