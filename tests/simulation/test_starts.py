"""Two starts of one job: what the scheduler has given up may live, and work on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from tests.simulation.disk import LAYOUT
from tests.simulation.draws.starts import draw_second_start
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun


def a_run(*faults: Fault, nodes: int = 3, least: int = 1) -> SimulatedRun:
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=nodes, workers=(2,), work_s=60.0)
    return SimulatedRun(Scenario(seed=1, roles=(role,), nodes=nodes, faults=faults))


def test_agents_of_the_old_start_leave_when_the_job_has_started_again() -> None:
    run = a_run(Fault(what="requeue", side=(0, 1), at=10.0))
    run.play()
    assert [agent.exit_code for agent in run.earlier if agent.number in (0, 1)] == [75, 75]
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert run.disk.claims[max(run.disk.claims)].allocation == 2


@pytest.mark.long
def test_a_new_start_waits_a_lease_for_agents_that_may_live() -> None:
    run = a_run(Fault(what="requeue", at=10.0))
    run.play()
    assert 10.0 + 10.0 <= run.disk.asked_at[2] <= 10.0 + 10.0 + 3.0


def test_a_new_start_waits_for_nobody_if_all_have_left() -> None:
    """As after a preemption: every process gets a TERM first."""
    faults = Fault(what="term_all", at=10.0), Fault(what="requeue", at=15.0)
    role = Role(name="trainer", restart="restart_all", nodes_min=3, nodes_max=3, workers=(2,), work_s=60.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=3, faults=faults, is_requeued=True))
    run.play()
    assert run.disk.asked_at[2] < 15.0 + 2.0
    assert [result.reason for result in run.disk.results] == ["succeeded"]


def test_a_start_whose_first_node_is_gone_before_it_has_claimed_waits_for_the_turn_of_the_next() -> None:
    """Nobody knows of that node but that no head shows."""
    faults = Fault(what="requeue", side=(2,), at=10.0), Fault(what="kill_agent", node=0, at=10.2)
    run = SimulatedRun(replace(a_run(*faults, least=2).scenario, lease_s=3.0, disk_s=(0.1,)))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert [each.node for each in run.disk.allocations] == ["node0", "node1"]
    assert run.disk.allocations[1].restart_count == 1


def test_an_old_head_that_fails_after_the_new_start_does_not_end_the_run() -> None:
    faults = Fault(what="requeue", side=(0, 1, 2), at=10.0), Fault(what="kill_worker", node=0, at=10.6)
    role = Role(name="trainer", restart="restart_all", nodes_min=3, nodes_max=3, workers=(2,), work_s=60.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=3, faults=faults, max_restarts=0))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]


@pytest.mark.parametrize("node", [pytest.param(0, id="the head lives"), pytest.param(1, id="another member lives")])
def test_an_old_start_does_not_end_the_run_for_want_of_nodes_when_slurm_has_requeued_the_job(node: int) -> None:
    """Nobody of the new start is there yet, so no claim tells of it; and Slurm itself has killed who is lost."""
    run = a_run(Fault(what="requeue", side=(node,), at=10.0), nodes=2, least=2)
    run.play()
    old, first = run.earlier[node], min(agent.started_at for agent in run.agents)
    assert old.left_at < first
    assert old.exit_code == ExitCode.REQUEUE
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert run.disk.claims[2].spend.node_losses == 0


@pytest.mark.parametrize("node", [pytest.param(0, id="the head lives"), pytest.param(1, id="another member lives")])
def test_an_old_start_does_not_end_the_run_for_more_losses_than_expected_when_slurm_has_requeued_the_job(
    node: int,
) -> None:
    run = SimulatedRun(
        replace(a_run(Fault(what="requeue", side=(node,), at=10.0), nodes=2).scenario, max_node_losses=0)
    )
    run.play()
    assert run.earlier[node].left_at < min(agent.started_at for agent in run.agents)
    assert run.earlier[node].exit_code == ExitCode.REQUEUE
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert run.disk.claims[2].spend.node_losses == 0


@pytest.mark.parametrize("node", [pytest.param(0, id="the head lives"), pytest.param(1, id="another member lives")])
def test_what_a_requeue_kills_is_no_loss_where_the_old_start_would_ask_for_another_one(node: int) -> None:
    """Those nodes are not to be avoided either."""
    scenario = a_run(Fault(what="requeue", side=(node,), at=10.0), nodes=2, least=2).scenario
    run = SimulatedRun(replace(scenario, requeue_max=3, requeue_on=("node_loss",)))
    run.play()
    assert run.earlier[node].left_at < min(agent.started_at for agent in run.agents)
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert (run.disk.claims[2].spend.node_losses, run.disk.claims[2].lost_nodes) == (0, ())
    told = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines()]
    assert [(line["reason"], line["nodes"]) for line in told if line["kind"] == "requeue"] == [("requeued", [])]


def test_an_old_start_that_has_opened_no_attempt_does_not_end_the_run_when_slurm_has_requeued_the_job() -> None:
    """Its head has waited `join_timeout` for a node that came with the new start."""
    run = a_run(Fault(what="never_starts", node=1), Fault(what="requeue", side=(0,), at=59.99), nodes=2, least=2)
    run.play()
    old, first = run.earlier[0], min(agent.started_at for agent in run.agents)
    assert old.left_at < first
    assert old.exit_code == ExitCode.REQUEUE
    assert [result.reason for result in run.disk.results] == ["succeeded"]


def test_a_run_ends_for_want_of_nodes_if_the_scheduler_does_not_say_that_the_job_starts_again() -> None:
    run = SimulatedRun(replace(a_run(Fault(what="kill_agent", at=10.0), nodes=2, least=2).scenario, is_requeued=None))
    run.play()
    assert [result.reason for result in run.disk.results] == ["node_lost"]


@pytest.mark.parametrize("seed", range(6))
def test_a_successor_that_ends_before_it_has_gathered_all_vouches_for_nobody(seed: int) -> None:
    """The head that it has lost may live and go on, where the network was cut."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(2,), work_s=60.0)
    faults = (
        Fault(what="partition", side=(0,), at=3.0, lasts_s=14.0),
        Fault(what="term", node=1, at=12.0),
        Fault(what="requeue", side=(0,), at=18.0),
    )
    run = SimulatedRun(Scenario(seed=seed, roles=(role,), nodes=2, faults=faults, is_requeued=True))
    run.play()
    first = min(number for number, claim in run.disk.claims.items() if claim.allocation > 1)
    assert run.disk.asked_at[first] >= 18.0 + 10.0


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_the_losses_of_an_old_head_are_of_the_agents_that_it_had(seed: int) -> None:
    """A node's new agent is there when the claim of the old head, which has not seen the new start, is on disk."""
    faults = (
        Fault(what="starts_late", node=2, lasts_s=4.0),
        Fault(what="stall_disk", node=0, at=11.0, lasts_s=6.0),
        Fault(what="requeue", side=(0, 1), at=14.0),
    )
    run = SimulatedRun(replace(a_run(*faults).scenario, seed=seed))
    run.play()
    old = [claim for claim in run.disk.claims.values() if claim.allocation == 1]
    assert [claim.spend.node_losses for claim in old] == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(52000010, id="an old agent leaves when the new head has looked whether all have left"),
        pytest.param(910712, id="each of two nodes is head, as the first one stood still when both were gathered"),
        pytest.param(10005049, id="a head steps down just as one that had joined it gives it up"),
        pytest.param(10000537, id="the first node finds the run over and waits to tell one that was killed"),
        pytest.param(12040006, id="a head of an earlier claim of the start takes over from that of a later one"),
        pytest.param(12006368, id="an agent loses two heads and its own lead while its questions are under way"),
        pytest.param(10120529, id="a new start comes when the old one's result is on its way"),
        pytest.param(10124161, id="two nodes of a start claim an allocation, and a third one goes on"),
        pytest.param(10107424, id="a member of the new start stands still while the head waits for the old one"),
        pytest.param(10103342, id="an old head's result is long on its way when the new start comes"),
        pytest.param(107900133, id="nodes of a new start find after most of join_timeout that none reaches its head"),
    ],
)
def test_a_schedule_that_broke_a_rule_breaks_none_any_more(seed: int) -> None:
    SimulatedRun(draw_second_start(seed)).play()
