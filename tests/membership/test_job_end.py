"""Whether a successor takes the node of the batch script for lost, so that an agent ends the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.membership.job_end import JobEnd
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import World, WorldSpare
from tests.membership.script import a_join
from tests.membership.test_survival import the_world

LOST = LostHead(node="node1", contact=0.0, is_dead=True, why="the other side closed the connection")


def beside(node: str) -> World:
    """A world that `node1` leads, of `node1` and those after it, with this spare."""
    world = replace(the_world(4), head="node1", launch_node="node0")
    first = world.nodes[0]
    assert first.node == "node0"
    spare = WorldSpare(node=node, node_id=first.node_id, agent=first.agent)
    return replace(world, nodes=world.nodes[1:], spares=(spare,))


@pytest.mark.parametrize(
    "world", [replace(the_world(4), head="node1", launch_node="node0"), beside("node0")], ids=["a member", "a spare"]
)
def test_a_successor_takes_the_batch_host_for_lost_until_it_joins(world: World) -> None:
    """The head that has died may have known that its machine was off, and no record says so."""
    job_end = JobEnd(world, LOST)
    assert job_end.is_ours(is_settled=True)
    job_end.joined(a_join(0))
    assert not job_end.is_ours(is_settled=True)


def test_a_successor_leaves_the_job_to_a_script_whose_agent_was_known_to_be_dead_as_the_world_was_opened() -> None:
    assert not JobEnd(beside("node4"), LOST).is_ours(is_settled=True)


def test_a_successor_takes_the_batch_host_for_lost_if_the_world_says_so() -> None:
    assert JobEnd(replace(beside("node4"), is_launch_node_lost=True), LOST).is_ours(is_settled=True)


def test_a_successor_leaves_the_job_to_a_script_that_runs_on_no_node_of_the_step() -> None:
    assert not JobEnd(replace(the_world(4), head="node1"), LOST).is_ours(is_settled=True)


def test_a_successor_does_not_end_the_job_of_a_script_that_it_has_not_seen_go_while_others_may_go_on() -> None:
    """Its disk fails, and behind a cut the batch host may be at work with the others."""
    assert not JobEnd(replace(the_world(4), head="node1", launch_node="node0"), LOST).is_ours(is_settled=False)
    assert JobEnd(replace(beside("node4"), is_launch_node_lost=True), LOST).is_ours(is_settled=False)
