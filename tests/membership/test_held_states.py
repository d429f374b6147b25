"""Which state in memory an attempt begins with."""

from __future__ import annotations

import pytest

from hpc_elastic.membership.held_states import choose_states, part_of, state_for
from hpc_elastic.membership.ranks import Seat, assign_worker_ranks
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.rundir.records import Endpoint, World
from hpc_elastic.rundir.state_records import HeldState, StateVersion


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


def replicated(*steps: list[int]) -> dict[str, tuple[HeldState, ...]]:
    return {
        f"node{number}": tuple(HeldState(attempt=1, step=step) for step in each) for number, each in enumerate(steps)
    }


TWO = world_of("default", "default")


def test_the_newest_that_all_nodes_hold_is_chosen() -> None:
    choice = choose_states(TWO, ["default"], held(TWO, [9, 10], [10, 11]))
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=10)
    assert choice.lines == ("all ranks can go on at step 10, which is in memory",)


def test_a_later_attempt_is_newer_than_a_later_step() -> None:
    states = (HeldState(attempt=1, step=100), HeldState(attempt=2, step=60))
    choice = choose_states(TWO, ["default"], {"node0": states, "node1": states})
    assert state_for(choice.states, "default") == StateVersion(attempt=2, step=60)


def test_the_same_step_of_two_attempts_is_not_the_same_state() -> None:
    states = {"node0": (HeldState(attempt=1, step=7),), "node1": (HeldState(attempt=2, step=7),)}
    assert choose_states(TWO, ["default"], states).states == ()


def test_nothing_is_said_if_nobody_holds_anything() -> None:
    choice = choose_states(TWO, ["default"], {"node0": (), "node1": ()})
    assert (choice.states, choice.lines) == ((), ())


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (([5], []), "node1 holds no state in memory"),
        (([5], [6]), "no step is in the memory of all of them"),
    ],
)
def test_all_load_from_disk_if_one_node_lacks_the_state(steps: tuple[list[int], list[int]], why: str) -> None:
    choice = choose_states(TWO, ["default"], held(TWO, *steps))
    assert (choice.states, choice.lines) == ((), (f"all ranks load from disk: {why}",))


def test_a_state_of_other_ranks_does_not_fit_a_world_of_another_size() -> None:
    three = world_of("default", "default", "default")
    choice = choose_states(TWO, ["default"], held(three, [5], [5]))
    assert choice.lines == ("all ranks load from disk: the states in memory belong to other ranks than node0 has now",)


def test_a_state_that_all_ranks_share_fits_a_world_of_another_size() -> None:
    choice = choose_states(TWO, ["default"], replicated([5], [5], [5]))
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=5)


def test_a_state_after_which_the_same_failure_came_is_not_loaded_again() -> None:
    choice = choose_states(TWO, ["default"], replicated([5], [5]), distrusted=[StateVersion(attempt=1, step=5)])
    assert choice.states == ()
    assert "the same failure came again after step 5" in choice.lines[0]


def test_a_newer_state_than_the_distrusted_one_is_loaded() -> None:
    choice = choose_states(TWO, ["default"], replicated([5, 6], [5, 6]), distrusted=[StateVersion(attempt=1, step=5)])
    assert state_for(choice.states, "default") == StateVersion(attempt=1, step=6)


def test_roles_that_restart_together_begin_with_the_same_step() -> None:
    world = world_of("trainer", "reader")
    choice = choose_states(world, ["trainer", "reader"], held(world, [4, 5], [3, 4]))
    assert [(state.roles, state.step) for state in choice.states] == [(("trainer", "reader"), 4)]
    assert choose_states(world, ["trainer", "reader"], held(world, [4], [])).states == ()


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
