"""Which state in memory an attempt begins with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpc_elastic.membership.held_states import (
    choose_states,
    part_of,
    rank_places,
    shared_place,
    state_for,
    states_to_flush,
    why_not_flushed,
)
from hpc_elastic.membership.ranks import Seat, assign_worker_ranks
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.rundir.records import Endpoint, World
from hpc_elastic.rundir.state_records import ChosenState, Flush, HeldState, KeptState, StateVersion


def world_of(*roles: str, workers: int = 2, restarts: dict[str, str] | None = None) -> World:
    seats = [
        Seat(
            node=f"node{number}",
            node_id=number,
            agent=Endpoint(address="10.0.0.1", port=number),
            store_port=1,
            workers=workers,
            role=role,
        )
        for number, role in enumerate(roles)
    ]
    return assign_worker_ranks(seats, run="r", attempt=2, allocation=1, head="node0", restarts=restarts or {})


def held(world: World, *steps: list[int]) -> dict[str, tuple[HeldState, ...]]:
    """What each node holds for its own part in this world, saved in attempt 1."""
    parts = {node: part_of(assign) for node, assign in assignments(world, "").items()}
    return {
        f"node{number}": tuple(HeldState(attempt=1, step=step, part=parts[f"node{number}"]) for step in each)
        for number, each in enumerate(steps)
    }


def replicated(*steps: list[int], roles: Sequence[str] = ("default",)) -> dict[str, tuple[HeldState, ...]]:
    """What each node holds that is the same on all ranks of its role (`roles`, the last for the rest)."""
    whose = [shared_place(roles[min(number, len(roles) - 1)]) for number in range(len(steps))]
    return {
        f"node{number}": tuple(HeldState(attempt=1, step=step, part=whose[number]) for step in each)
        for number, each in enumerate(steps)
    }


TWO = world_of("default", "default")
FIVE = ChosenState(roles=("default",), attempt=1, step=5)


def test_the_newest_that_all_nodes_hold_is_chosen() -> None:
    choice = choose_states(TWO, ["default"], held(TWO, [9, 10], [10, 11]))
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=10)
    assert choice.lines == ("all ranks can go on at step 10, which is in memory",)


def test_a_later_attempt_is_newer_than_a_later_step() -> None:
    states = (
        HeldState(attempt=1, step=100, part=shared_place("default")),
        HeldState(attempt=2, step=60, part=shared_place("default")),
    )
    choice = choose_states(TWO, ["default"], {"node0": states, "node1": states})
    assert state_for(choice.states, "default") == StateVersion(attempt=2, step=60)


def test_the_same_step_of_two_attempts_is_not_the_same_state() -> None:
    states = {
        "node0": (HeldState(attempt=1, step=7, part=shared_place("default")),),
        "node1": (HeldState(attempt=2, step=7, part=shared_place("default")),),
    }
    assert choose_states(TWO, ["default"], states).states == ()


def test_nothing_is_said_if_nobody_holds_anything() -> None:
    choice = choose_states(TWO, ["default"], {"node0": (), "node1": ()})
    assert (choice.states, choice.lines) == ((), ())


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (([5], []), "node1 holds no state of its ranks in memory"),
        (([5], [6]), "no step is in the memory of all of them"),
    ],
)
def test_all_load_from_disk_if_one_node_lacks_the_state(steps: tuple[list[int], list[int]], why: str) -> None:
    choice = choose_states(TWO, ["default"], held(TWO, *steps))
    assert (choice.states, choice.lines) == ((), (f"all ranks load from disk: {why}",))


def test_a_node_whose_ranks_have_saved_different_steps_is_not_said_to_hold_nothing() -> None:
    why = "no step is in the memory of all ranks of node1"
    for steps in ([5], []):
        choice = choose_states(TWO, ["default"], held(TWO, steps, []), at_odds=["node1"])
        assert (choice.states, choice.lines) == ((), (f"all ranks load from disk: {why}",))
        (line,) = why_not_flushed(TWO, held(TWO, steps, []), at_odds=["node1"])
        assert line == f"no state is kept for the next allocation: {why}"
    assert (
        "node1 and 1 more"
        in choose_states(world_of(*["default"] * 3), ["default"], {}, at_odds=["node1", "node2"]).lines[0]
    )


def test_a_state_of_other_ranks_does_not_fit_a_world_of_another_size() -> None:
    three = world_of("default", "default", "default")
    choice = choose_states(TWO, ["default"], held(three, [5], [5]))
    assert choice.lines == ("all ranks load from disk: the states in memory belong to other ranks than node0 has now",)


def test_a_state_that_all_ranks_share_fits_a_world_of_another_size() -> None:
    choice = choose_states(TWO, ["default"], replicated([5], [5], [5]))
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=5)


def test_a_state_after_which_the_same_failure_came_is_not_loaded_again() -> None:
    choice = choose_states(TWO, ["default"], replicated([5], [5]), distrusted=[FIVE])
    assert choice.states == ()
    assert "the same failure came again after step 5" in choice.lines[0]


def test_a_newer_state_than_the_distrusted_one_is_loaded() -> None:
    choice = choose_states(TWO, ["default"], replicated([5, 6], [5, 6]), distrusted=[FIVE])
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=6)


def test_roles_that_restart_together_begin_with_the_same_step() -> None:
    world = world_of("trainer", "reader")
    choice = choose_states(world, ["trainer", "reader"], held(world, [4, 5], [3, 4]))
    assert [(state.roles, state.step) for state in choice.states] == [(("trainer", "reader"), 4)]
    assert choose_states(world, ["trainer", "reader"], held(world, [4], [])).states == ()


def test_a_state_that_all_ranks_share_fits_only_the_role_that_has_saved_it() -> None:
    world = world_of("trainer", "reader")  # node0 had the place of a reader when it saved
    roles = ["trainer", "reader"]
    choice = choose_states(world, roles, replicated([5], [5], roles=["reader"]))
    assert not choice.states
    assert choice.lines[0].endswith("load from disk: the states in memory belong to other ranks than node0 has now")
    assert choose_states(world, roles, replicated([5], [5], roles=roles)).states
    apart = world_of("trainer", "reader", restarts=dict.fromkeys(roles, "restart_role"))
    alone = choose_states(apart, ["trainer"], replicated([5], [9], roles=["reader"]), keepers=["node0", "node1"])
    assert (alone.states, alone.sources) == ((), {})


def test_one_that_holds_the_state_of_its_former_role_gets_that_of_its_role_from_another_node() -> None:
    world = world_of("trainer", "trainer", "reader")
    states = replicated([5], [5], [5], roles=["reader", "trainer", "reader"])
    choice = choose_states(world, ["trainer", "reader"], states, keepers=list(states))
    assert state_for(choice.states, "trainer") == StateVersion(attempt=1, step=5)
    assert choice.sources == {"node0": ("node1",)}


def test_a_state_of_another_role_is_not_written_for_the_next_allocation() -> None:
    apart = world_of("trainer", "reader", restarts={"reader": "restart_role", "trainer": "restart_role"})
    assert states_to_flush(apart, replicated([9], [6], roles=["reader"]), 3).keys() == {"node1"}


def test_a_role_that_restarts_alone_is_chosen_for_by_itself() -> None:
    world = world_of("trainer", "reader", restarts={"reader": "restart_role"})
    both = choose_states(world, ["trainer", "reader"], held(world, [4], [9]))
    assert {role: state.step for state in both.states for role in state.roles} == {"trainer": 4, "reader": 9}
    alone = choose_states(world, ["reader"], held(world, [4], [9]))
    assert [(state.roles, state.step) for state in alone.states] == [(("reader",), 9)]


def test_head_and_agent_name_a_part_alike() -> None:
    world = world_of("trainer", "reader", "trainer", workers=3)
    choice = choose_states(world, ["trainer", "reader"], held(world, [1], [1], [1]))
    assert state_for(choice.states, "reader") == StateVersion(attempt=1, step=1)


def kept(world: World, *nodes: int, step: int = 7) -> KeptState:
    """A state that was written by these nodes, in attempt 1."""
    parts = assignments(world, "")
    places = frozenset(place for node in nodes for place in rank_places(parts[f"node{node}"]))
    return KeptState(ended=1, version=StateVersion(attempt=1, step=step), places=places)


NOTHING_HELD: dict[str, tuple[HeldState, ...]] = {}
FROM_FILES = "all ranks can go on at step 7, which was kept when the last allocation ended"
NOT_ALL = (
    "all ranks load from disk: what was kept when the last allocation ended is not all there, or is that of other ranks"
)


def test_a_state_of_which_files_have_all_parts_is_chosen() -> None:
    choice = choose_states(TWO, ["default"], NOTHING_HELD, kept=[kept(TWO, 0, 1)])
    assert (choice.states[0].step, choice.lines) == (7, (FROM_FILES,))


@pytest.mark.parametrize(
    "found", [kept(TWO, 0), kept(world_of("default", "default", "default"), 0, 1), kept(world_of("x", "x"), 0, 1)]
)
def test_a_state_of_which_a_part_is_missing_or_of_another_world_is_not(found: KeptState) -> None:
    choice = choose_states(TWO, ["default"], NOTHING_HELD, kept=[found])
    assert (choice.states, choice.lines) == ((), (NOT_ALL,))


def test_ranks_may_be_on_other_nodes_than_those_that_wrote_their_states() -> None:
    four = world_of(*["default"] * 4, workers=1)
    choice = choose_states(TWO, ["default"], NOTHING_HELD, kept=[kept(four, 0, 1, 2, 3)])
    assert choice.lines == (FROM_FILES,)


def test_a_state_that_all_ranks_share_fits_a_world_of_any_size() -> None:
    places = frozenset([shared_place("default")])
    shared = KeptState(ended=1, version=StateVersion(attempt=1, step=7), places=places)
    assert choose_states(world_of("default"), ["default"], NOTHING_HELD, kept=[shared]).lines == (FROM_FILES,)
    assert not choose_states(world_of("other"), ["other"], NOTHING_HELD, kept=[shared]).states


def test_a_spare_takes_from_a_file_what_the_others_have_in_memory() -> None:
    choice = choose_states(TWO, ["default"], held(TWO, [7], []), kept=[kept(TWO, 0, 1)])
    assert choice.lines == (FROM_FILES,)


def test_each_node_writes_its_part_of_the_newest_state_that_all_of_them_hold() -> None:
    seven = Flush(ended=3, state=StateVersion(attempt=1, step=7))
    assert states_to_flush(TWO, held(TWO, [6, 7], [7, 8]), 3) == {"node0": seven, "node1": seven}
    assert states_to_flush(TWO, held(TWO, [6, 7], [8, 9]), 3) == {}
    assert states_to_flush(TWO, held(TWO, [6, 7], []), 3) == {}


def test_why_no_node_writes_its_part_is_said_of_each_group_of_roles() -> None:
    none = "no state is kept for the next allocation: "
    assert why_not_flushed(TWO, held(TWO, [6, 7], [7, 8])) == ()
    assert why_not_flushed(TWO, held(TWO, [6, 7], [8, 9])) == (f"{none}no step is in the memory of all of them",)
    assert why_not_flushed(TWO, held(TWO, [6, 7], [])) == (f"{none}node1 holds no state of its ranks in memory",)
    assert why_not_flushed(TWO, NOTHING_HELD) == ()
    apart = world_of("trainer", "reader", "reader", restarts={"reader": "restart_role", "trainer": "restart_role"})
    (line,) = why_not_flushed(apart, held(apart, [6], [7], []))
    assert line == "no state of reader is kept for the next allocation: node2 holds no state of its ranks in memory"


def test_one_node_writes_the_newest_state_that_is_the_same_on_all_ranks_although_others_are_lost() -> None:
    eight = Flush(ended=3, state=StateVersion(attempt=1, step=8))
    assert states_to_flush(TWO, replicated([6, 7], [7, 8]), 3) == {"node1": eight}
    assert states_to_flush(TWO, {"node1": replicated([], [7, 8])["node1"]}, 3) == {"node1": eight}


def test_roles_that_restart_together_write_the_same_step_and_one_that_does_not_its_own() -> None:
    together, roles = world_of("trainer", "reader"), ("trainer", "reader")
    held = replicated([7, 8], [6, 7], roles=roles)
    assert states_to_flush(together, held, 3).keys() == {"node0", "node1"}
    assert {flush.state.step for flush in states_to_flush(together, held, 3).values()} == {7}
    apart = world_of("trainer", "reader", restarts={"reader": "restart_role", "trainer": "restart_role"})
    steps = {node: flush.state.step for node, flush in states_to_flush(apart, held, 3).items()}
    assert steps == {"node0": 8, "node1": 7}
