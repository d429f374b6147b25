"""How long nodes that are not here are waited for, who ends the run then, and whom the result names.

Each schedule is one of a cluster, made by hand: two faults within a lease, a switch that starts again, a node that
never comes. None of them had been drawn in some hundred thousand seeds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.disk import LAYOUT
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import longer

FOR_EVER = 10_000.0
GOES_ON: dict[str, Any] = {
    "requeue_max": 1,
    "requeue_on": ("node_loss", "preempted"),
    "time_left_s": 5000.0,
    "knows_time": True,
}


def a_role(name: str, least: int, most: int, work_s: float) -> Role:
    return Role(name=name, restart="restart_all", nodes_min=least, nodes_max=most, workers=(2,), work_s=work_s)


def a_run(
    nodes: int,
    least: int,
    *faults: Fault,
    most: int | None = None,
    work_s: float = 60.0,
    seed: int = 1,
    **changes: Any,
) -> SimulatedRun:
    """A run that has been played."""
    role = a_role("trainer", least, most or nodes, work_s)
    run = SimulatedRun(Scenario(seed=seed, roles=(role,), nodes=nodes, faults=faults, **changes))
    run.play()
    return run


def result_of(run: SimulatedRun) -> RunResultRecord:
    (result,) = run.disk.results
    return result


def requeues(run: SimulatedRun) -> list[dict[str, object]]:
    told = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines()]
    return [line for line in told if line["kind"] == "requeue"]


def cut(node: int, at: float, lasts_s: float = FOR_EVER) -> Fault:
    return Fault(what="partition", side=(node,), at=at, lasts_s=lasts_s)


def deaf(node: int, at: float, lasts_s: float = FOR_EVER) -> Fault:
    return Fault(what="one_way", side=(node,), way="in", at=at, lasts_s=lasts_s)


def off(node: int, at: float) -> Fault:
    return Fault(what="power_off", node=node, at=at)


def killed(node: int, at: float) -> Fault:
    return Fault(what="kill_agent", node=node, at=at)


def late(node: int, by_s: float) -> Fault:
    return Fault(what="starts_late", node=node, lasts_s=by_s)


# A spare that never starts: nobody waits for it longer than for a silent node.

NEVER_STARTS = Fault(what="never_starts", node=3)


@pytest.mark.parametrize("loss", [pytest.param(cut(2, 20.0), id="cut off"), pytest.param(deaf(2, 20.0), id="deaf")])
def test_a_head_ends_the_run_before_a_needed_node_that_is_silent_though_a_spare_has_never_started(loss: Fault) -> None:
    run = a_run(4, 3, NEVER_STARTS, loss, most=3, work_s=100.0, join_timeout_s=600.0)
    result = result_of(run)
    assert (result.reason, result.written_by) == ("node_lost", "node0")
    assert "node2" in result.cause
    assert not {"node0", "node1"} & set(result.cause.replace(",", "").split())


def test_a_job_does_not_wait_ten_minutes_to_start_again_without_the_broken_node() -> None:
    """Nor does node2 ask for a start without the two healthy nodes."""
    run = a_run(4, 3, NEVER_STARTS, cut(2, 20.0), most=3, work_s=100.0, join_timeout_s=600.0, **GOES_ON)
    assert [(line["by"], line["nodes"]) for line in requeues(run)][:1] == [("node0", ["node2"])]
    assert run.clock.now < 120.0


def test_the_loss_of_a_needed_node_ends_the_run_as_such_though_a_spare_has_never_started() -> None:
    """And not as one that nodes are missing of, after which nothing starts again though node_loss is in `on`."""
    run = a_run(4, 3, NEVER_STARTS, off(2, 20.0), most=3, work_s=100.0, join_timeout_s=600.0, **GOES_ON)
    assert [line["reason"] for line in requeues(run)] == ["node_lost"]


def test_nobody_waits_for_a_node_of_another_role_in_the_place_of_a_dead_one() -> None:
    """node1 could not be the reader if it came: the trainers would not be more than their most."""
    roles = a_role("trainer", 1, 2, 100.0), a_role("reader", 1, 1, 100.0)
    faults = Fault(what="never_starts", node=1), killed(2, 90.0)
    run = SimulatedRun(Scenario(seed=1, roles=roles, nodes=3, faults=faults))
    run.play()
    result = result_of(run)
    assert (result.reason, result.exit_code) == ("node_lost", 7)
    assert run.disk.ended_at < 95.0


def test_a_job_does_not_wait_ten_minutes_for_the_only_node_of_a_role_that_has_said_goodbye() -> None:
    """node3 hears nothing any more, and says so. The other role has more nodes than the run needs in all."""
    roles = a_role("trainer", 1, 3, 100.0), a_role("reader", 1, 1, 100.0)
    run = SimulatedRun(Scenario(seed=1, roles=roles, nodes=4, join_timeout_s=600.0, faults=(deaf(3, 20.0),)))
    run.play()
    result = result_of(run)
    assert (result.reason, result.root_cause is not None) == ("node_lost", True)
    assert "node3" in result.cause
    assert run.disk.ended_at < 50.0


# Before the first attempt: who loses the head for a moment asks it once more, and does not claim at once.

MOMENTS = [
    pytest.param(Fault(what="pause", node=1, at=4.0, lasts_s=8.0), id="it stands still"),
    pytest.param(Fault(what="reset", node=1, at=4.0), id="its connection is reset"),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_node_that_has_lost_the_first_head_for_a_moment_has_its_part_in_the_first_attempt(moment: Fault) -> None:
    """node1 is here again from 12 s, and node3, for which the round waits, from 30 s."""
    run = a_run(4, 2, late(3, 30.0), moment, work_s=20.0, join_timeout_s=600.0)
    assert run.disk.claims[1].members == ("node0", "node1", "node2", "node3")
    assert run.disk.asked_at[1] < 45.0


@pytest.mark.parametrize("what", ["pause", "stall_link"])
def test_a_new_start_does_not_wait_join_timeout_for_a_node_that_stood_still_for_a_moment(what: str) -> None:
    """All are there at 21 s, and the new start waits a lease for the old one: in that time node1 loses its head."""
    faults = Fault(what="requeue", side=(0, 1, 2, 3), at=20.0), Fault(what=what, node=1, at=22.0, lasts_s=8.0)
    run = a_run(4, 2, *faults, work_s=40.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"
    assert run.disk.claims[2].members == ("node0", "node1", "node2", "node3")
    assert run.disk.asked_at[2] < 50.0


# Before the first attempt: two heads, which cannot reach each other for a while, or for good.


def test_a_first_head_that_was_cut_off_for_twenty_seconds_costs_no_join_timeout() -> None:
    """At 30 s all four nodes are there, and reach each other."""
    run = a_run(4, 3, late(3, 30.0), cut(0, 2.5, 20.0), work_s=20.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"
    assert run.disk.asked_at[1] < 30.0 + 2 * 10.0 + 15.0


@pytest.mark.parametrize(("nodes", "least"), [(4, 2), (6, 2), (4, 1)])
def test_two_first_heads_that_both_have_enough_nodes_do_not_wait_for_each_others(nodes: int, least: int) -> None:
    """The first one was cut off for a moment, and the late node has joined the head with the latest claim."""
    run = a_run(nodes, least, late(nodes - 1, 30.0), cut(0, 2.5, 20.0), work_s=20.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"
    assert run.disk.asked_at[1] < 30.0 + 2 * 10.0 + 15.0


def test_a_node_takes_the_place_of_a_silent_first_head_before_its_search_is_over() -> None:
    """Also with a `join_timeout` of half a lease."""
    run = a_run(4, 2, NEVER_STARTS, off(0, 5.0), work_s=20.0, lease_s=60.0, join_timeout_s=25.0)
    assert result_of(run).reason == "succeeded"
    assert run.disk.claims[1].members == ("node1", "node2")


def test_a_late_node_takes_the_place_of_a_first_head_that_has_written_down_that_it_failed() -> None:
    """Where it was only killed, the same takes a minute more."""
    fails = Fault(what="fail_agent", node=0, at=4.0)
    run = a_run(3, 1, late(1, 8.0), late(2, 11.0), fails, work_s=20.0)
    assert result_of(run).reason == "succeeded"
    assert [claim.node for claim in run.disk.allocations] == ["node0", "node1"]
    assert run.disk.claims[1].members == ("node1", "node2")
    assert run.disk.asked_at[1] < 45.0


def test_a_node_takes_the_place_of_a_head_that_died_before_it_could_tell_it_of_the_first_attempt() -> None:
    """node1 has asked to join, hears nothing, and dials in vain when the connection is given up after 20 s."""
    dies = Fault(what="kill_agent", node=0, phase="running")
    changes: dict[str, Any] = {"lease_s": 24.0, "delays_s": (0.3,), "join_timeout_s": 600.0}
    run = a_run(2, 1, deaf(1, 2.5, 40.0), dies, work_s=20.0, **changes)
    assert [claim.members for claim in run.disk.claims.values()] == [("node0", "node1"), ("node1",)]
    assert result_of(run).reason == "succeeded"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_only_one_node_claims_in_the_place_of_a_first_head_without_power_whose_lease_is_long(seed: int) -> None:
    """node0's machine is off, and node4 comes late."""
    faults = late(4, 240.0), off(0, 5.0)
    run = a_run(5, 2, *faults, work_s=20.0, lease_s=60.0, join_timeout_s=600.0, seed=seed)
    assert [claim.node for claim in run.disk.allocations] == ["node0", "node3"]
    assert run.disk.claims[1].members == ("node1", "node2", "node3", "node4")
    assert run.disk.asked_at[1] < 260.0


def test_a_new_start_whose_first_head_loses_its_power_begins_with_all_others_though_the_lease_is_long() -> None:
    """Nobody is late: all are there at 20 s, and the first head is lost at 30 s."""
    faults = Fault(what="requeue", side=(0, 1, 2, 3), at=20.0), off(0, 30.0)
    run = a_run(4, 2, *faults, work_s=20.0, lease_s=60.0, join_timeout_s=600.0)
    assert run.disk.claims[2].members == ("node1", "node2", "node3")
    assert run.disk.asked_at[2] < 260.0


@pytest.mark.parametrize("lasts_s", [3.0, 5.0])
def test_a_head_that_stood_still_waits_no_shorter_for_one_before_it_that_was_cut_off(lasts_s: float) -> None:
    """Enough are there at 16 s, and the first head is cut off for 28 s, of which the others wait two leases."""
    pause = Fault(what="pause", node=1, at=14.0, lasts_s=lasts_s)
    run = a_run(4, 2, late(3, 16.0), cut(0, 2.5, 28.0), pause, work_s=20.0, join_timeout_s=600.0)
    assert [claim.members for claim in run.disk.claims.values()] == [("node0", "node1", "node2", "node3")]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_late_node_at_a_head_that_was_cut_off_does_not_keep_the_others_which_are_just_enough(seed: int) -> None:
    """Four are needed, and four have node1, 2 or 3 as their head. At 45 s all six are there and reach each other."""
    run = a_run(6, 4, late(5, 45.0), cut(0, 5.0, 30.0), work_s=20.0, join_timeout_s=600.0, seed=seed)
    assert run.disk.asked_at[1] < 45.0 + 2 * 10.0 + 15.0


def test_two_heads_with_too_few_nodes_each_that_reach_each_other_again_find_to_one() -> None:
    """node1 was cut off until 22.5 s, and both heads have claimed in turn."""
    run = a_run(4, 3, late(3, 30.0), cut(1, 2.5, 20.0), work_s=20.0, join_timeout_s=600.0)
    assert run.disk.asked_at[1] < 30.0 + 2 * 10.0 + 15.0


def test_a_late_node_finds_those_who_wait_for_it_after_the_head_of_the_first_attempt_is_dead() -> None:
    """node1 and node2 wait for a third node; node3 is there from 32 s, and reaches them and the disk."""
    run = a_run(4, 3, late(3, 32.0), killed(0, 30.0), most=3, work_s=60.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"


def test_all_nodes_that_reach_each_other_again_before_the_first_attempt_find_one_head() -> None:
    """All four are needed, and there, from 28 s, of which three have claimed."""
    faults = late(3, 25.0), cut(0, 9.0, 8.0), deaf(2, 13.0, 15.0)
    run = a_run(4, 4, *faults, work_s=30.0, join_timeout_s=600.0, seed=207)
    assert result_of(run).reason == "succeeded"


def test_a_node_that_comes_while_a_result_is_still_to_be_written_does_not_leave_as_if_it_were() -> None:
    """A head that wants to end the run finds in that moment that it goes on under node2, which needs node7."""
    run = a_run(8, 8, late(7, 30.0), cut(2, 5.0, 8.0), work_s=20.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"


def test_a_late_node_finds_the_head_that_it_can_reach_though_one_that_is_cut_off_has_the_latest_claim() -> None:
    """Three nodes are enough, live, and reach each other and the disk."""
    run = a_run(4, 3, late(3, 30.0), cut(0, 2.5), work_s=20.0, join_timeout_s=600.0)
    assert result_of(run).reason == "succeeded"
    assert run.disk.claims[1].members == ("node1", "node2", "node3")


def test_a_late_node_has_its_part_though_the_first_head_was_cut_off_and_has_claimed_again() -> None:
    """The others are enough, and need not wait until it has given up."""
    run = a_run(6, 3, late(5, 15.0), cut(0, 2.5), work_s=20.0, join_timeout_s=600.0)
    assert run.disk.claims[1].members == ("node1", "node2", "node3", "node4", "node5")
    assert run.disk.asked_at[1] < 45.0


# A lone silent node: it does not end the run of a head that is there, and says so on disk.


@pytest.mark.parametrize("least", [3, 4])
def test_a_head_ends_the_run_before_the_silent_node_that_it_has_lost_first(least: int) -> None:
    run = a_run(4, least, cut(1, 20.0), off(2, 25.0), work_s=100.0)
    result = result_of(run)
    assert (result.written_by, result.root_cause is not None) == ("node0", True)
    assert result.cause.startswith("node1, node2 were lost")


def test_a_lone_silent_node_does_not_end_a_run_whose_head_has_enough_nodes_back_within_two_leases() -> None:
    run = a_run(4, 3, cut(1, 20.0), cut(2, 27.0, 25.0), work_s=100.0)
    assert result_of(run).reason == "succeeded"


def test_a_head_that_stood_still_ends_the_run_before_a_silent_node() -> None:
    run = a_run(3, 3, cut(1, 20.0), Fault(what="pause", node=0, at=20.0, lasts_s=14.0), work_s=100.0)
    result = result_of(run)
    assert result.written_by == "node0"
    assert "node2" not in result.cause


@pytest.mark.parametrize(
    ("lease_s", "backoff_s"), [pytest.param(3.0, 12.0, id="3 s"), pytest.param(10.0, 35.0, id="10 s")]
)
def test_a_silent_node_does_not_end_a_run_whose_head_has_enough_nodes_and_pauses_before_a_restart(
    lease_s: float, backoff_s: float
) -> None:
    """As where a broken network card fails a worker first. Two nodes are enough, and three reach each other."""
    faults = Fault(what="kill_worker", node=2, at=20.0), cut(1, 21.0)
    run = a_run(4, 2, *faults, lease_s=lease_s, backoff_first_s=backoff_s)
    assert result_of(run).reason == "succeeded"
    assert run.disk.claims[2].members == ("node0", "node2", "node3")


def test_a_term_that_only_a_lone_silent_node_gets_does_not_end_the_run_of_a_head_that_is_there() -> None:
    """As where an administrator starts the machine again whose network card has died."""
    faults = Fault(what="kill_worker", node=2, at=20.0), cut(1, 21.0), Fault(what="term", node=1, at=48.0)
    run = a_run(4, 2, *faults, backoff_first_s=35.0)
    assert result_of(run).reason == "succeeded"


# An outage of the network for all nodes, after which the old head and successors of it find each other.


@pytest.mark.parametrize(
    ("nodes", "least", "lasts_s", "seed"),
    [
        (6, 2, 21.7, 1),
        (8, 4, 25.3, 1),
        *longer((6, 2, 25.3, 1), (8, 2, 29.8, 2), (16, 4, 25.3, 1), (16, 8, 29.8, 2)),
    ],
)
def test_heads_that_find_each_other_after_an_outage_do_not_part_the_nodes(
    nodes: int, least: int, lasts_s: float, seed: int
) -> None:
    """Who was asking a silent agent as the network came back finds the old head up to 4 s later."""
    outage = [cut(node, 20.0, lasts_s) for node in range(nodes)]
    run = a_run(nodes, least, *outage, work_s=30.0, join_timeout_s=120.0, seed=seed)
    claim = run.disk.claims[max(run.disk.claims)]
    assert (result_of(run).reason, len(claim.members), claim.spend.node_losses) == ("succeeded", nodes, 1)


def test_a_successor_whose_round_ends_as_the_network_is_back_waits_a_moment_for_the_others() -> None:
    outage = [cut(node, 20.0 + 0.7 * (node % 2), 18.0) for node in range(6)]
    run = a_run(6, 2, *outage, work_s=40.0, join_timeout_s=120.0)
    assert len(run.disk.claims[2].members) >= 5


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((off(0, 20.0), Fault(what="reset", node=2, at=51.0)), id="the first head is off, a reset"),
        pytest.param((cut(0, 20.0), Fault(what="reset", node=2, at=51.0)), id="the first head is silent, a reset"),
        pytest.param((cut(0, 20.0, 36.0), killed(2, 51.0)), id="the first head comes back, the other one dies"),
    ],
)
def test_a_successor_that_had_too_few_and_goes_on_does_not_end_the_run_at_the_next_loss(
    faults: tuple[Fault, ...],
) -> None:
    """node1 awaits a quorum, node2 is back at 48 s, and its connection ends before the next attempt has begun."""
    run = a_run(3, 2, *faults, cut(2, 20.0, 28.0))
    assert result_of(run).exit_code == 0


def test_a_node_that_the_run_has_long_done_without_is_not_waited_for_as_another_one_is_back() -> None:
    """node0 is cut off for good; node2 is away from 60 s to 69 s, and nobody else was lost with it."""
    run = a_run(4, 3, cut(0, 20.0), cut(2, 60.0, 9.0))
    assert [len(run.disk.claims[attempt].members) for attempt in (2, 3)] == [3, 3]
    assert run.disk.ended_at < 139.0


# The end for want of nodes: who is named, and who is counted.


def test_two_agents_that_are_dead_are_lost_agents_though_a_spare_has_never_started() -> None:
    """Else each of the two nodes, which live, has a problem of its own for `nodes`: node_lost needs only one run."""
    faults = NEVER_STARTS, killed(0, 20.0), killed(2, 60.0)
    result = result_of(a_run(4, 2, *faults, most=3, work_s=200.0, join_timeout_s=600.0))
    assert result.root_cause is not None
    assert result.root_cause.nodes == ("node0", "node2")
    assert result.root_cause.failure_class == "agent_lost"


def test_a_node_that_is_back_is_not_named_among_those_for_which_the_run_ends() -> None:
    """A switch starts again, and one node has lost its power."""
    outage = [cut(node, 20.0, 12.0) for node in range(4)]
    result = result_of(a_run(4, 4, *outage, off(1, 20.0)))
    assert result.cause == "node1 was lost: no answer for 10 s; too few nodes are left to go on"
    assert result.root_cause is not None
    assert (result.root_cause.node, result.root_cause.nodes) == ("node1", ())


def test_a_dead_node_counts_as_lost_though_another_one_has_just_said_goodbye() -> None:
    """The reset could be that of a live agent."""
    faults = deaf(1, 20.0, 8.0), killed(2, 28.0)
    role = a_role("trainer", 4, 4, 60.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=4, faults=faults, **GOES_ON))
    run.play()
    (asked,) = requeues(run)
    assert asked["charged"]["spend"]["node_losses"] == 1  # type: ignore[index]


def test_a_run_ends_as_soon_as_all_that_are_not_here_are_dead() -> None:
    """node2, for which the head waited, is back at 32 s; node1 is dead since 20 s, and three nodes are needed."""
    run = a_run(3, 3, killed(1, 20.0), cut(2, 20.0, 12.0))
    assert result_of(run).cause.startswith("node1 was lost")
    assert run.disk.ended_at < 36.0


# A TERM while the head awaits a quorum.


def test_a_job_that_a_person_cancels_while_its_head_awaits_a_quorum_is_not_started_again() -> None:
    run = a_run(4, 4, off(1, 20.0), Fault(what="scancel", at=35.0), **GOES_ON)
    assert not requeues(run)
    assert result_of(run).exit_code == 10


def test_a_preemption_while_the_head_awaits_a_quorum_does_not_end_the_run() -> None:
    """node1 would be back in three seconds, and Slurm starts the job again."""
    goes_on = {**GOES_ON, "requeue_on": ("preempted",)}
    run = a_run(4, 4, cut(1, 20.0, 14.0), Fault(what="preempt", at=31.0, lasts_s=30.0), **goes_on)
    assert not run.disk.results
