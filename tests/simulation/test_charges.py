"""What an allocation that ends for lost nodes has charged to the run, by which the next start of the job goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.scenario import Fault
from tests.simulation.test_waits import FOR_EVER, GOES_ON, a_run, cut, killed, requeues
from tests.tiers import variants

AGAIN = Fault(what="requeue", at=170.0)  # Slurm waits two minutes by default
TWICE = {**GOES_ON, "requeue_max": 3}


@pytest.mark.long
@pytest.mark.parametrize(
    ("node", "lasts_s"),
    [
        (3, 60.0),
        *variants(
            (1, 40.0),
            (2, 80.0),
            of="test_a_needed_node_that_was_cut_off_charges_nothing_after_its_head_has_left_for_the_next_start",
        ),
    ],
)
def test_a_needed_node_that_was_cut_off_charges_nothing_after_its_head_has_left_for_the_next_start(
    node: int, lasts_s: float
) -> None:
    """All four are needed; the head has lost one, said so, and left with the others at 47 s."""
    run = a_run(4, 4, cut(node, 20.0, lasts_s), AGAIN, **TWICE)
    claim = run.disk.claims[2]
    assert claim.spend.node_losses == 1
    assert [each.node for each in claim.lost_nodes] == [f"node{node}"]


@pytest.mark.parametrize("node", [1, 3])
def test_a_needed_node_that_was_cut_off_asks_for_no_start_without_the_healthy_nodes(node: int) -> None:
    run = a_run(4, 4, cut(node, 20.0), **TWICE)
    assert [(line["by"], line["nodes"]) for line in requeues(run)] == [("node0", [f"node{node}"])]


@pytest.mark.long
def test_the_most_nodes_charge_what_they_lost_though_the_first_head_was_cut_off_and_has_left_before() -> None:
    run = a_run(4, 4, cut(0, 20.0, 60.0), AGAIN, **TWICE)
    assert [line["by"] for line in requeues(run)] == ["node0", "node1"]
    claim = run.disk.claims[2]
    assert claim.spend.node_losses == 1
    assert [each.node for each in claim.lost_nodes] == ["node0"]


@pytest.mark.long
def test_a_restart_that_the_head_has_charged_is_not_forgotten_for_the_word_of_a_lone_node() -> None:
    """A worker fails on node2 at 20 s, and node1 is cut off while the workers stop."""
    faults = Fault(what="kill_worker", node=2, at=20.0), cut(1, 23.0, 60.0)
    run = a_run(4, 4, *faults, AGAIN, backoff_first_s=20.0, **TWICE)
    first: Any = requeues(run)[0]
    assert run.disk.claims[2].spend.restarts == first["charged"]["spend"]["restarts"] == 1


@pytest.mark.long
def test_a_second_cut_of_a_run_of_many_nodes_does_not_use_up_what_it_may_lose() -> None:
    """All 20 are needed."""
    run = a_run(20, 20, cut(5, 20.0, 60.0), AGAIN, **TWICE)
    assert run.disk.claims[2].spend.node_losses == 1


@pytest.mark.parametrize(
    "at", [20.0, *variants(19.95, 21.0, 21.8, of="test_a_loss_is_charged_where_an_unhealthy_node_leaves_too_few")]
)
def test_a_loss_is_charged_where_an_unhealthy_node_leaves_too_few(at: float) -> None:
    """The GPU or memory of node2 fails, and its checks find it, while the agent of node3 is killed."""
    faults = (
        Fault(what="unhealthy", node=2, at=10.0, lasts_s=FOR_EVER),
        Fault(what="bus_worker", node=2, at=19.9),
        killed(3, at),
    )
    (line,) = requeues(a_run(4, 3, *faults, **GOES_ON))
    charged: Any = line["charged"]
    assert line["nodes"] == ["node2", "node3"]
    assert charged["spend"]["node_losses"] == 1
    assert [each["node"] for each in charged["lost_nodes"]] == ["node3"]
