"""Which state an attempt begins with where nodes copy theirs to each other, who copies to whom, and who writes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from hpc_elastic.membership.copy_ledger import CopyLedger
from hpc_elastic.membership.held_states import (
    Held,
    StateChoice,
    choose_states,
    copy_targets,
    part_of,
    rank_places,
    ranks_of,
    shared_place,
    state_for,
    states_to_flush,
)
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.rundir.records import Endpoint, World
from hpc_elastic.rundir.state_records import Flush, HeldState, StateVersion
from tests.membership.script import HeadScript, a_join, sent
from tests.membership.test_held_states import world_of

THREE = world_of("default", "default", "default")
PARTS = {node: part_of(assign) for node, assign in assignments(THREE, "").items()}


def own(node: str, *steps: int) -> tuple[HeldState, ...]:
    return tuple(HeldState(attempt=1, step=step, part=PARTS[node]) for step in steps)


def copies(node: str, *steps: int) -> tuple[HeldState, ...]:
    return tuple(HeldState(attempt=1, step=step, part=PARTS[node], is_copy=True) for step in steps)


def shared(*steps: int, role: str = "default") -> tuple[HeldState, ...]:
    return tuple(HeldState(attempt=1, step=step, part=shared_place(role)) for step in steps)


def choose(held: Held, world: World = THREE, keepers: Collection[str] | None = None) -> StateChoice:
    return choose_states(world, [role.role for role in world.roles], held, keepers=held if keepers is None else keepers)


def step(choice: StateChoice) -> int | None:
    found = state_for(choice.states, "default")
    return None if found is None else found.step


def test_a_node_without_a_state_gets_that_of_its_part_from_the_node_that_has_a_copy() -> None:
    choice = choose({"node0": own("node0", 9, 10) + copies("node2", 8, 9), "node1": own("node1", 9, 10)})
    assert step(choice) == 9
    assert choice.sources == {"node2": ("node0",)}
    assert choice.lines == ("all ranks can go on at step 9, which is in memory; node2 gets it from node0",)


def test_a_copy_of_another_part_or_of_another_world_does_not_count() -> None:
    held = {"node0": own("node0", 9) + copies("node1", 9), "node1": own("node1", 9)}
    assert step(choose(held)) is None
    stranger = HeldState(attempt=1, step=9, part=PARTS["node2"].replace("/6", "/8"), is_copy=True)
    assert step(choose({**held, "node0": (*held["node0"], stranger)})) is None


def test_copies_go_to_the_node_of_another_switch_where_nodes_tell_theirs() -> None:
    script = HeadScript(4)
    switches = ("top.leaf1", "top.leaf1", "top.leaf2", "top.leaf2")
    for number, switch in enumerate(switches):
        script.head.joined(replace(a_join(number), keeper_port=9000 + number, switch=switch), script.now)
    parts = sent(script.claimed(), Assign)
    targets = [target.address for part in parts.values() if (target := part.copies_to) is not None]
    assert targets == ["10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0"]


def test_a_copy_from_a_node_without_a_keeper_does_not_count() -> None:
    held = {"node0": own("node0", 9) + copies("node2", 9), "node1": own("node1", 9)}
    assert step(choose(held, keepers=())) is None


def test_a_spare_holds_copies_for_others_from_when_it_was_in_the_world() -> None:
    held = {"node0": own("node0", 9), "node1": own("node1", 9), "spare": copies("node2", 9)}
    choice = choose(held)
    assert (step(choice), choice.sources) == (9, {"node2": ("spare",)})


def test_a_node_that_takes_a_place_of_which_it_has_the_copy_gets_it_from_its_own_keeper() -> None:
    held = {"node0": own("node0", 9), "node1": own("node1", 9), "node2": copies("node2", 9)}
    choice = choose(held)
    assert choice.sources == {"node2": ("node2",)}
    assert choice.lines == ("all ranks can go on at step 9, which is in memory; node2 has a copy of it",)


def test_a_node_asks_its_own_keeper_before_those_of_others_and_none_twice() -> None:
    """One that has had the part before holds what its ranks had saved, and maybe a copy of it as well."""
    both = own("node2", 9) + copies("node2", 9)
    held = {"node0": own("node0", 9) + both, "node1": own("node1", 9), "node2": copies("node2", 9)}
    assert choose(held).sources == {"node2": ("node2", "node0")}
    del held["node2"]
    assert choose(held).sources == {"node2": ("node0",)}


def test_a_node_that_is_drained_gives_what_its_ranks_had_saved_last() -> None:
    """It is there still, without a place in the world."""
    held = {"node0": own("node0", 9, 10), "node1": own("node1", 9, 10), "drained": own("node2", 9, 10)}
    choice = choose(held)
    assert (step(choice), choice.sources) == (10, {"node2": ("drained",)})


def test_two_neighbours_that_are_lost_at_once_send_all_to_disk() -> None:
    choice = choose({"node0": own("node0", 9, 10)})  # node1 had the copy of node2's
    assert choice.states == ()
    assert choice.lines == ("all ranks load from disk: node1 and 1 more hold no state of their ranks in memory",)


def test_where_the_copies_lag_behind_a_node_is_not_said_to_hold_nothing() -> None:
    """A spare takes the place of a lost node, of whose states others have copies that are older than all of theirs."""
    choice = choose({"node0": own("node0", 9, 10), "node1": own("node1", 9, 10) + copies("node2", 7, 8)})
    why = "what node2 needs is only in others' memory, at step 8 at the newest"
    assert choice.states == ()
    assert choice.lines == (f"all ranks load from disk: no step is in the memory of all of them: {why}",)


def test_a_node_that_has_only_copies_of_others_holds_nothing_of_its_ranks() -> None:
    choice = choose({"node0": own("node0", 9), "node1": copies("node2", 9)})
    assert choice.lines == ("all ranks load from disk: node1 holds no state of its ranks in memory",)


def test_a_state_that_is_the_same_on_all_ranks_is_had_from_any_node() -> None:
    choice = choose({"node0": shared(9, 10), "node1": shared(10, 11)})
    assert step(choice) == 11
    assert choice.sources == {"node0": ("node1",), "node2": ("node1",)}
    assert choice.lines == ("all ranks can go on at step 11, which is in memory; 2 nodes get it from others",)


def test_a_state_of_another_role_is_not_had() -> None:
    world = world_of("reader", "learner")
    held = {"node0": shared(9, role="reader")}
    assert choose(held, world).states == ()
    assert choose(held, world, ["node0", "node1"]).states == ()


def test_who_asks_for_what_many_have_asks_different_nodes() -> None:
    world = world_of(*["default"] * 8, workers=1)
    held = {f"node{number}": shared(5) for number in range(6)}
    sources = choose(held, world).sources
    assert set(sources) == {"node6", "node7"}
    assert sources["node6"][0] != sources["node7"][0]
    assert all(len(each) == 3 for each in sources.values())


def test_an_assignment_says_from_where_a_state_comes_and_where_copies_go() -> None:
    keepers = {node: Endpoint(address=node, port=7) for node in PARTS}
    parts = assignments(THREE, "", sources={"node2": ("node0",)}, keepers=keepers)
    assert [part.copies_to for part in parts.values()] == [keepers["node1"], keepers["node2"], keepers["node0"]]
    assert [part.state_from for part in parts.values()] == [(), (), (keepers["node0"],)]
    assert [part.is_source for part in parts.values()] == [True, False, False]


def test_copies_go_to_the_next_node_that_starts_together_with_this_one() -> None:
    world = world_of("a", "a", "b", "b", "c", restarts={"b": "restart_role", "c": "restart_role"})
    assert copy_targets(world, [f"node{number}" for number in range(5)], {}) == {
        "node0": "node1",
        "node1": "node0",
        "node2": "node3",
        "node3": "node2",
    }


def test_nodes_without_a_keeper_are_left_out_of_the_ring() -> None:
    assert copy_targets(THREE, ["node0", "node2"], {}) == {"node0": "node2", "node2": "node0"}
    assert copy_targets(THREE, ["node0"], {}) == {}


@pytest.mark.parametrize(
    "racks", ["aabb", "aaabbb", "aabbcc", "abcabc", "aaaabbcc", "aabbb"], ids=lambda racks: str(racks)
)
def test_copies_go_to_another_rack_as_far_as_there_is_one(racks: str) -> None:
    world = world_of(*["default"] * len(racks), workers=1)
    domains = {f"node{number}": rack for number, rack in enumerate(racks)}
    targets = copy_targets(world, domains, domains)
    assert sorted(targets) == sorted(targets.values()) == sorted(domains)
    same = sum(domains[node] == domains[target] for node, target in targets.items())
    assert same == max(0, 2 * max(racks.count(rack) for rack in racks) - len(racks))


def test_the_copy_of_a_lost_nodes_state_is_written_by_the_node_that_has_it() -> None:
    held = {"node0": own("node0", 9, 10), "node1": own("node1", 9, 10) + copies("node2", 9)}
    nine = StateVersion(attempt=1, step=9)
    assert states_to_flush(THREE, held, 4) == {
        "node0": Flush(ended=4, state=nine),
        "node1": Flush(ended=4, state=nine, copies=(PARTS["node2"],)),
    }
    assert states_to_flush(THREE, {"node0": held["node0"], "node1": own("node1", 9)}, 4) == {}


def test_a_parts_ranks_are_those_of_its_assignment() -> None:
    world = world_of("a role", "another", "another")
    for assign in assignments(world, "").values():
        ranks = range(assign.first_rank, assign.first_rank + assign.workers)
        assert ranks_of(part_of(assign)) == list(zip(ranks, rank_places(assign), strict=True))


def test_a_ledger_keeps_two_versions_of_a_part_and_the_older_one_goes() -> None:
    ledger = CopyLedger()
    ledger.begin(2, (1, 5))
    for version in ((1, 5), (2, 6), (2, 7)):
        ledger.finish("part", ledger.start("part"), version)
    assert sorted(ledger.held()) == [("part", (2, 6)), ("part", (2, 7))]
    ledger.start("part")
    assert list(ledger.held()) == [("part", (2, 7))]
