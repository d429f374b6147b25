"""Two thousand random runs, none of which may break a rule, and some that are not random."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpc_elastic.membership.member import Member, MemberPhase
from hpc_elastic.plan.roles import RestartPolicy
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import RunResultRecord, RunState, WorkerState
from tests.simulation.disk import LAYOUT
from tests.simulation.draws.bad_nodes import draw_bad_nodes
from tests.simulation.draws.cut_saves import draw_cut_saves
from tests.simulation.draws.general import draw
from tests.simulation.draws.kinds import KINDS
from tests.simulation.draws.machines import draw_machines
from tests.simulation.draws.relayed import draw_relayed
from tests.simulation.draws.states import draw_states
from tests.simulation.plant import Plant
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEAD, PHASES, SECOND, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun, play
from tests.tiers import longer, variants

SEEDS = range(2000)


@pytest.mark.long
def test_a_seed_plays_the_same_run_again() -> None:
    for seed in range(5):
        assert play(seed).trace_hash == play(seed).trace_hash


@pytest.mark.long
def test_a_seed_plays_the_same_run_in_another_process() -> None:
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "87"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert f"trace {play(87).trace_hash}" in output


@pytest.mark.variant(of="test_no_rule_is_broken_and_costs_are_as_recorded")
@pytest.mark.long
def test_the_seeds_reach_every_way_to_end_and_every_phase() -> None:
    missed = {
        *("succeeded", "restarts_used_up", "no_progress", "start_failed", "exit_timeout", "unkillable"),
        *("stop_requested", "terminated", "node_lost", "node_losses_used_up", "setup_failed", "nodes_missing"),
        *PHASES,
    }
    for seed in SEEDS:
        run = play(seed)
        missed -= {result.reason for result in run.disk.results} | set(run.phases)
        if not missed:
            return
    pytest.fail(f"none of {len(SEEDS)} seeds reaches {sorted(missed)}")


@pytest.mark.long
def test_the_seeds_strike_in_every_phase_of_another_roles_restart() -> None:
    met: set[tuple[str, str]] = set()
    for seed in SEEDS:
        scenario = draw(seed)
        if len(scenario.roles) > 1 and any(role.restart == "restart_role" for role in scenario.roles):
            met.update((fault.phase, fault.what) for fault in scenario.faults)
    assert {(phase, "kill_worker") for phase in PHASES if phase != "awaiting_quorum"} <= met


# Runs that are not random.


def a_role(name: str, restart: RestartPolicy = "restart_all", *, nodes: int = 2, work_s: float = 10.0) -> Role:
    return Role(name=name, restart=restart, nodes_min=nodes, nodes_max=nodes, workers=(2, 1), work_s=work_s)


def a_scenario(*roles: Role, faults: tuple[Fault, ...] = (), **changes: object) -> Scenario:
    roles = roles or (a_role("trainer", nodes=3),)
    scenario = Scenario(seed=1, roles=roles, nodes=sum(role.nodes_max for role in roles), faults=faults)
    return replace(scenario, **changes)  # type: ignore[arg-type]


def the_result(scenario: Scenario) -> tuple[RunResultRecord, SimulatedRun]:
    run = SimulatedRun(scenario)
    run.play()
    (result,) = run.disk.results
    return result, run


def test_a_killed_worker_costs_one_restart() -> None:
    result, _ = the_result(a_scenario(faults=(Fault(what="kill_worker", node=1, at=6.0),)))
    assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 2, 1)


def test_a_term_that_comes_when_a_stop_has_begun_is_that_of_the_stop() -> None:
    """The stop looks for the node's processes before it sends its own: nobody can tell the two."""
    faults = Fault(what="exit_worker", node=0, at=6.0), Fault(what="term_worker", node=0, phase="stopping")
    result, run = the_result(a_scenario(a_role("trainer", nodes=1), faults=faults))
    cause = run.disk.claims[2].root_cause
    assert cause is not None
    assert (result.state, len(parse_ranks(cause.failed))) == (RunState.SUCCEEDED, 1)


def test_a_lost_head_ends_the_run_with_a_result() -> None:
    result, run = the_result(a_scenario(faults=(Fault(what="kill_agent", node=0, at=6.0),)))
    assert (result.reason, result.exit_code) == ("node_lost", 7)
    assert {agent.exit_code for agent in run.agents[1:]} == {7}


def test_another_node_becomes_the_head_if_the_first_never_starts() -> None:
    roles = (Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=1.0),)
    result, run = the_result(a_scenario(*roles, faults=(Fault(what="never_starts", node=0),)))
    assert (result.state, run.disk.head) == (RunState.SUCCEEDED, "node1")


def test_a_role_restarts_alone_and_the_other_runs_on() -> None:
    fault = Fault(what="kill_worker", node=2, at=6.0)
    result, run = the_result(a_scenario(a_role("trainer"), a_role("reader", "restart_role"), faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert run.disk.claims[2].roles == ("reader",)
    assert set(run.witness.ended_well) == {("trainer", 1), ("reader", 2)}


def test_an_ignored_role_that_fails_whole_ends_nothing() -> None:
    faults = (Fault(what="fail_together", node=2, at=3.0), Fault(what="fail_together", node=3, at=3.0))
    roles = a_role("trainer", work_s=60.0), a_role("watcher", "ignore")
    result, _ = the_result(a_scenario(*roles, faults=faults, exit_timeout_s=20.0))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("what", ["pause", "stall_link"])
@pytest.mark.parametrize("node", [0, 1])
def test_what_is_shorter_than_a_beat_disturbs_nobody(what: str, node: int) -> None:
    fault = Fault(what=what, node=node, at=6.0, lasts_s=2.9)
    result, _ = the_result(a_scenario(faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("what", ["pause", "stall_link"])
@pytest.mark.parametrize("lasts_s", [12.0, 20.0])
def test_a_pause_is_survived_though_every_node_is_needed(what: str, lasts_s: float) -> None:
    fault = Fault(what=what, node=1, at=6.0, lasts_s=lasts_s)
    result, _ = the_result(a_scenario(a_role("trainer", nodes=3, work_s=100.0), faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)


@pytest.mark.parametrize("what", ["pause", "stall_link", "power_off", "reset", "kill_agent"])
def test_what_is_much_longer_than_a_lease_ends_the_run(what: str) -> None:
    fault = Fault(what=what, node=1, at=6.0, lasts_s=60.0)
    result, _ = the_result(a_scenario(a_role("trainer", nodes=3, work_s=100.0), faults=(fault,)))
    assert result.reason == "node_lost"


def test_a_stalled_file_system_costs_no_lease() -> None:
    fault = Fault(what="stall_disks", at=1.0, lasts_s=50.0)
    result, _ = the_result(a_scenario(faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("after", ["fail", "succeed"])
def test_a_run_succeeds_whose_last_ranks_end_in_time_though_a_disk_is_too_slow_to_tell(after: str) -> None:
    fault = Fault(what="disk_holds", node=1, at=7.0, lasts_s=30.0)
    scenario = a_scenario(a_role("trainer"), faults=(fault,), exit_timeout_s=6.0, after_exit_timeout=after)
    result, run = the_result(scenario)
    assert (result.state, result.reason) == (RunState.SUCCEEDED, "succeeded")
    assert run.disk.ended_at < 30.0, "nor does it wait for that disk"


def test_a_run_that_is_to_succeed_after_exit_timeout_waits_for_a_role_that_started_later_until_that_ends() -> None:
    """By then the time of the reader, which runs on, has been over for a while."""
    roles = a_role("trainer", work_s=1.5), a_role("reader", "restart_role", nodes=1, work_s=60.0)
    late = a_role("watcher", "restart_role", nodes=1, work_s=6.0)
    faults = (Fault(what="exit_worker", node=3, at=7.0),)
    result, run = the_result(a_scenario(*roles, late, faults=faults, exit_timeout_s=8.0, after_exit_timeout="succeed"))
    assert (result.state, result.reason) == (RunState.SUCCEEDED, "exit_timeout")
    assert "still ran on node2" in result.cause
    first, last = min(run.witness.ended_at.values()), max(run.witness.ended_at.values())
    assert last > first + 8.0


# All nodes are needed, and the head says which is lost: the others name the wrong ones.

DEAF = Fault(what="one_way", side=(1,), way="in", at=10.0, lasts_s=10_000.0)  # its goodbye arrives
PAUSED = Fault(what="pause", node=0, at=12.0, lasts_s=9.0), Fault(what="kill_agent", node=1, at=12.0)
GOODBYES = [pytest.param((DEAF,), id="deaf"), pytest.param(PAUSED, id="dead while the head is paused")]


@pytest.mark.parametrize("faults", GOODBYES)
def test_a_needed_node_that_says_goodbye_and_is_not_back_ends_the_run_by_its_head(faults: tuple[Fault, ...]) -> None:
    result, run = the_result(elastic(3, 3, *faults, work_s=100.0))
    assert (result.reason, result.exit_code, result.written_by) == ("node_lost", 7, "node0")
    assert result.cause == "node1 was lost: no return in time; too few nodes are left to go on"
    assert run.disk.ended_at < 45.0


@pytest.mark.parametrize("faults", GOODBYES)
def test_the_job_starts_again_without_a_needed_node_that_says_goodbye(faults: tuple[Fault, ...]) -> None:
    goes_on = {"requeue_max": 1, "requeue_on": ("node_loss",), "time_left_s": 1000.0, "knows_time": True}
    run = SimulatedRun(elastic(3, 3, *faults, work_s=100.0, **goes_on))
    run.play()
    told = [json.loads(line) for line in run.files.content[LAYOUT.requests][0].splitlines()]
    first = next(line for line in told if line["kind"] == "requeue")
    assert (first["by"], first["reason"], first["nodes"]) == ("node0", "node_lost", ["node1"])


# Losses that are survived.


def elastic(nodes: int, least: int, *faults: Fault, work_s: float = 60.0, **changes: object) -> Scenario:
    """One role that goes on with fewer nodes."""
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=nodes, workers=(2,), work_s=work_s)
    return replace(Scenario(seed=1, roles=(role,), nodes=nodes, faults=faults), **changes)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("what", ["power_off", "kill_agent"])
@pytest.mark.parametrize("node", [0, 2])
def test_a_lost_node_costs_an_attempt_and_no_restart(what: str, node: int) -> None:
    result, run = the_result(elastic(4, 2, Fault(what=what, node=node, at=10.0)))
    assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 2, 0)
    assert run.disk.claims[2].spend.node_losses == 1
    assert run.disk.claims[2].head == ("node1" if node == 0 else "node0")


def switched_off(nodes: int, at: float, lasts_s: float) -> list[Fault]:
    """The switch between all of them starts again."""
    return [Fault(what="partition", side=(node,), at=at, lasts_s=lasts_s) for node in range(nodes)]


@pytest.mark.parametrize("lease_s", [10.0, pytest.param(30.0, marks=pytest.mark.long)])
def test_a_network_that_is_down_for_all_costs_an_attempt_one_loss_and_no_node(lease_s: float) -> None:
    result, run = the_result(elastic(8, 4, *switched_off(8, 10.0, 1.2 * lease_s), lease_s=lease_s))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert len(run.disk.claims[2].members) == 8
    assert run.disk.claims[2].spend.node_losses == 1


@pytest.mark.long
@pytest.mark.parametrize("least", [8, 4])
def test_a_network_that_is_down_again_and_again_does_not_use_the_losses_up(least: int) -> None:
    times = 10.0, 60.0, 110.0
    faults = [fault for at in times for fault in switched_off(8, at, 12.0)]
    result, run = the_result(elastic(8, least, *faults, work_s=100.0, max_node_losses=8))
    assert result.state is RunState.SUCCEEDED
    assert [claim.spend.node_losses for claim in run.disk.claims.values()] == [0, 1, 2, 3]
    assert [len(claim.members) for claim in run.disk.claims.values()] == [8, 8, 8, 8]


@pytest.mark.parametrize(("lasts_s", "losses"), [(18.0, 1), (22.0, 2)])
def test_a_successor_that_nobody_reaches_for_a_while_does_not_use_the_losses_up(lasts_s: float, losses: int) -> None:
    """It begins alone, and the other four that it lacks are back when the switch is; only the head's machine is not.

    Those that are back before its round is closed have not been lost.
    """
    fault = Fault(what="power_off", node=0, at=10.0)
    result, run = the_result(elastic(6, 4, *switched_off(6, 10.0, lasts_s), fault, max_node_losses=2))
    assert (result.state, len(run.disk.claims[2].members)) == (RunState.SUCCEEDED, 5)
    assert run.disk.claims[2].spend.node_losses == losses


@pytest.mark.long
@pytest.mark.parametrize(("delay_s", "losses"), [(0.12, 1), (0.2, 2)])
def test_a_head_whose_answer_takes_longer_than_a_search_waits_at_first_is_joined(delay_s: float, losses: int) -> None:
    """Else each search gives up just after its join was counted: the node is lost again, and all restart for it.

    Where the connection itself takes that long too, one that comes to the head in a later round may come too late.
    """
    for seed in range(4):
        fault = Fault(what="power_off", node=0, at=4.0)
        result, run = the_result(elastic(4, 2, fault, seed=seed, lease_s=3.0, delays_s=(delay_s,)))
        assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 2, 0)
        assert run.disk.claims[2].spend.node_losses <= losses


def test_two_halves_that_may_both_go_on_make_one_world() -> None:
    fault = Fault(what="partition", side=(0, 1), at=10.0, lasts_s=10_000.0)
    result, run = the_result(elastic(4, 2, fault))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert len(run.disk.claims[2].members) == 2


def test_a_cut_that_heals_brings_the_node_back_in_the_next_attempt() -> None:
    faults = Fault(what="partition", side=(3,), at=10.0, lasts_s=25.0), Fault(what="kill_worker", node=1, at=50.0)
    result, run = the_result(elastic(4, 2, *faults))
    assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 3, 1)
    assert "node3" not in run.disk.claims[2].members
    assert "node3" in run.disk.claims[3].members


@pytest.mark.long
def test_a_head_and_its_successor_are_lost_and_the_third_goes_on() -> None:
    faults = Fault(what="power_off", node=HEAD, at=10.0), Fault(what="power_off", node=SECOND, at=18.0)
    result, run = the_result(elastic(4, 2, *faults))
    assert (result.state, run.disk.claims[max(run.disk.claims)].spend.node_losses) == (RunState.SUCCEEDED, 2)


@pytest.mark.long
def test_work_that_is_done_is_not_done_again_by_a_successor() -> None:
    for at in range(100):  # between the last node's record and the result
        result, run = the_result(elastic(2, 1, Fault(what="kill_agent", node=0, phase="closing", at=at / 1e4)))
        assert (result.state, len(run.disk.claims)) == (RunState.SUCCEEDED, 1)


EXIT_AS_A_STOP_COMES = elastic(3, 2, Fault(what="stop", node=2, at=13.0), work_s=10.0, disk_s=(0.5,))


class _StopsWhatIsOver(Plant):
    """The bug that a stop which comes before a node's record is on disk makes one of stopped workers of it."""

    def places(self) -> list[tuple[Any, str, Any]]:
        check = Member._check_all_over
        at_work = MemberPhase.WORKING
        return [(Member, check.__name__, lambda member, *more: check(member, *more) if member.phase is at_work else [])]


def test_a_node_whose_workers_had_all_exited_0_when_a_stop_came_has_succeeded() -> None:
    """Its record, and that of the others, is not on disk yet."""
    run = SimulatedRun(EXIT_AS_A_STOP_COMES)
    run.play()
    assert run.disk.node_results[1, "node0"].state is WorkerState.SUCCEEDED


def test_a_success_of_a_node_that_a_stop_overwrites_is_found() -> None:
    with pytest.raises(BrokenRuleError, match=r"record of node0 in attempt 1 .* was of a success"):
        SimulatedRun(EXIT_AS_A_STOP_COMES, _StopsWhatIsOver()).play()


# What the simulation has found, with the schedule that showed it; each was a bug.

FOUND = {
    "agents that hang up on a paused head are not dead": elastic(
        5, 4, Fault(what="pause", node=HEAD, at=24.667, lasts_s=1.8), lease_s=3, disk_s=(0.001, 0.01, 0.5)
    ),
    "an agent that stops waiting for an answer is not dead": elastic(
        3, 2, Fault(what="kill_agent", node=HEAD, at=49.33), lease_s=3, delays_s=(0.001, 0.2), disk_s=(0.01, 0.05)
    ),
    "whoever leaves a round again ends no run": elastic(
        5, 4, Fault(what="pause", node=HEAD, at=45.163, lasts_s=5.1), lease_s=3, delays_s=(0.001, 0.1), disk_s=(0.001,)
    ),
    "an assignment that waited in the network starts nobody": elastic(
        *(4, 1, Fault(what="one_way", side=(0,), way="out", phase="claiming", lasts_s=17.0)),
        rejoin="immediately",
        disk_s=(0.001, 0.01, 0.5),
    ),
    "a head that was paused opens no attempt without itself": elastic(
        *(3, 1, Fault(what="pause", node=HEAD, phase="running", at=0.996, lasts_s=1.8)),
        lease_s=3,
        delays_s=(0.0, 0.001, 0.02),
        disk_s=(0.01, 0.05),
    ),
    "a successor whose contact is old waits for itself": elastic(
        *(3, 1, Fault(what="pause", node=HEAD, at=4.256, lasts_s=12.0)),
        Fault(what="stall_disks", at=4.256, lasts_s=30.0),
        disk_s=(0.01, 0.05),
    ),
    "of two questions of an agent the later one counts": elastic(
        *(3, 1, Fault(what="partition", side=(0,), at=8.4, lasts_s=12.0)),
        delays_s=(0.001, 0.2),
        disk_s=(0.01, 0.05),
        rejoin="immediately",
    ),
    "a head that went on without a node whose connection was reset keeps its place": elastic(
        *(2, 1, Fault(what="reset", node=1, at=10.0)), delays_s=(0.001, 0.2), disk_s=(0.01,), work_s=30.0
    ),
    "a node of the batch script that starts again has lost its script": elastic(
        *(2, 1, Fault(what="power_off", node=0, at=10.0), Fault(what="reset", node=1, at=14.5)),
    ),
    "a node that was lost long ago may return when it is needed": elastic(
        *(4, 2, Fault(what="power_off", node=2, at=10.0), Fault(what="partition", side=(3,), at=14.0, lasts_s=15.0)),
        Fault(what="kill_agent", node=1, at=28.7),
        lease_s=3,
    ),
}


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("seed", [0, *longer(1), *variants(*range(2, 20), of="test_what_was_found_stays_mended")])
def test_what_was_found_stays_mended(found: str, seed: int) -> None:
    result, _ = the_result(replace(FOUND[found], seed=seed))
    assert result.state is RunState.SUCCEEDED


@pytest.mark.parametrize(
    "seed",
    [
        *(0, 1, *longer(2, 3)),
        *variants(*range(4, 20), of="test_a_pause_of_the_head_beside_a_killed_agent_is_one_loss_and_not_all_of_them"),
    ],
)
def test_a_pause_of_the_head_beside_a_killed_agent_is_one_loss_and_not_all_of_them(seed: int) -> None:
    faults = Fault(what="pause", node=HEAD, at=6.0, lasts_s=10.0), Fault(what="kill_agent", node=SECOND, at=6.3)
    result, run = the_result(elastic(3, 2, *faults, seed=seed, max_node_losses=1, join_timeout_s=5.0))
    assert (result.reason, result.attempts) == ("succeeded", 2)
    assert run.disk.claims[2].spend.node_losses == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(102469, id="who claims the allocation again finds that an attempt was opened meanwhile"),
        pytest.param(104804, id="a successor that was paused for long gives the others a lease"),
        pytest.param(224673, id="the member of a head that is superseded while it searches for another one leaves"),
        pytest.param(235337, id="the death of a store host is judged by the progress of now"),
        pytest.param(232738, id="enough nodes that are back before the workers are stopped save the run"),
        pytest.param(221294, id="a node whose connection the network has reset may live"),
        pytest.param(408227, id="who got a TERM and was paused beyond its lease leaves as one that was stopped"),
        pytest.param(452098, id="a fence that comes right before the TERM of a stop is none of patience"),
        pytest.param(427318, id="a store host of a role whose failures are ignored ends what others share it"),
        pytest.param(910503, id="a role that waited to start as another one failed starts with that"),
        pytest.param(912104, id="ranks that run on wait for the end of those that have started again since"),
        pytest.param(912546, id="a reset in the name of a machine that has just gone down is not that of a machine"),
        pytest.param(21112, id="where messages are slow for the lease more nodes than the lost one come too late"),
        pytest.param(24000942, id="who is taken in while its slow disk is asked leaves as the result says"),
        pytest.param(25019388, id="the cause of a run that never began names a node that had joined and was lost"),
        pytest.param(25005503, id="who gives up the first node joins the one that has claimed in its place"),
        pytest.param(21052497, id="a head whose first attempt starts no workers looks for no other head"),
        pytest.param(21141163, id="nodes that are back were lost, and their agents have not ended"),
        pytest.param(25003441, id="ranks may save where a node that may live cannot go on with others"),
        pytest.param(
            21022183, id="a member whose lease is over is not waited for at the end, though it was heard since"
        ),
        pytest.param(21208894, id="a member whose connection a router ends has left, for all that its head knows"),
        pytest.param(21014896, id="the roles beside one that is restarted are at work while its attempt is claimed"),
        pytest.param(21154305, id="nodes lost before their head stood still are a cause"),
        pytest.param(21216790, id="a claim that comes too late names no cause"),
        pytest.param(21161814, id="who has read that the run is over asks on as before"),
        pytest.param(21138130, id="nodes that fell silent and are back are waited for no longer"),
        pytest.param(21074548, id="a spare in the place of another role goes back to its own, which lacks nodes"),
        pytest.param(30049066, id="a spare goes back to the role that it came with, though it has another one since"),
        pytest.param(30041917, id="an agent that gathers nodes again and again reads a claim each time"),
        pytest.param(21057135, id="workers that begin as their head has heard of a loss have their guard told at once"),
        pytest.param(21104804, id="the result of a head that has failed may come after the claim of its successor"),
        pytest.param(21109957, id="a node that has told how its ranks ended, and is lost then, has told it"),
        pytest.param(21174070, id="those who are back one after the other are all there once the last of them is"),
        pytest.param(21181806, id="a spare that a slow file server tells late of a new head comes after its attempt"),
        pytest.param(21038845, id="nobody takes the place of a lost head while the file server answers nobody"),
        pytest.param(21089798, id="workers that the guard has killed start again though no lease was over"),
        pytest.param(11000251, id="a run that cannot begin names the unfit nodes that it had left out before too"),
        pytest.param(32585, id="who is refused by a head of another version leaves for that"),
        pytest.param(31343, id="a store host that ends as the next attempt starts is that one's, too"),
        pytest.param(241373, id="a head that closes a connection for a newer one of the same agent is not dead"),
        pytest.param(30017695, id="successors that need a second to answer find each other within a lease of 3 s"),
        pytest.param(
            30025027, id="who has not found a successor that stood still is lost, once it had a moment for it"
        ),
        pytest.param(18003958, id="a stop that is found only as the run ends for want of nodes cancels it"),
        pytest.param(40012519, id="an agent leaves as soon as its file server has taken what it refused before"),
        pytest.param(
            50001111, id="a node whose file server has failed it for half a minute has started without a record"
        ),
        pytest.param(44005605, id="an agent waits for its next try when its head is over a moment after the refusals"),
        pytest.param(
            54000046, id="the time for the last ranks counts from the first end, however long they take to start"
        ),
        pytest.param(7001083, id="ranks whose time is over while another role waits end the run once it has started"),
        pytest.param(90034171, id="ranks whose time is over end the run though another head claims before the result"),
        pytest.param(90077733, id="agents whose workers still start are asked again and again by who has lost a head"),
        pytest.param(91016686, id="an attempt may begin as a member whose connection was reset kills its workers"),
        pytest.param(100715519, id="an agent whose join is answered too late is lost to the head that has let it in"),
        pytest.param(107009046, id="a head that answered nobody for join_timeout comes after another one's attempt"),
        pytest.param(107009268, id="a second head that a third one follows comes after the attempt of that one"),
        pytest.param(100712222, id="a rank whose time is over may exit 0 as its node begins to stop it"),
        pytest.param(117043523, id="who was forgiven while too few were here counts when a spare has its place"),
        pytest.param(129021430, id="a node whose time to join is over as it has joined is lost, and may be named"),
        pytest.param(126000293, id="ranks that exit 0 just before a TERM of the whole job need not have succeeded"),
        pytest.param(122029335, id="a node that the scheduler gives up as the run ends is not lost any more"),
        pytest.param(119047333, id="a run does not end while nodes come back one after the other"),
    ],
)
def test_a_schedule_that_broke_a_rule_breaks_none_any_more(seed: int) -> None:
    play(seed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param("late-others", 149057, id="a spare that was refused is not told of a new head"),
        pytest.param("health", 149052, id="a file server may stall while an agent is examined"),
        pytest.param("spares", 149270, id="a wait that ends with a join has no end that could be said"),
    ],
)
def test_a_schedule_of_a_kind_that_broke_a_rule_breaks_none_any_more(kind: str, seed: int) -> None:
    SimulatedRun(KINDS[kind](seed)).play()


@pytest.mark.long
def test_a_head_that_cannot_claim_leaves_no_worker_behind_that_others_do_not_know_of() -> None:
    """Those who cannot hear its end go on; the workers of those who can must not take the time of their grace."""
    roles = [
        Role(name=name, restart="restart_role", nodes_min=1, nodes_max=2, workers=(1,), work_s=100.0, patience_s=90.0)
        for name in ("trainer", "reader")
    ]
    faults = (
        Fault(what="partition", side=(0, 2), phase="claiming", nth=2, lasts_s=300.0),
        Fault(what="exit_worker", node=2, at=6.0),
        Fault(what="disk_fails", node=0, phase="claiming", nth=2, lasts_s=60.0),
    )
    for seed in range(8):  # how long workers take to save is drawn from it
        run = SimulatedRun(Scenario(seed=seed, roles=tuple(roles), nodes=4, faults=faults))
        run.play()
        assert run.disk.claims[2].members == ("node1", "node3")


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "least", "stall_s"),
    [
        (20, 2, 7.5),
        *variants(
            (20, 2, 8.5), (40, 20, 8.0), of="test_a_stall_of_the_head_within_its_lease_costs_an_attempt_and_no_node"
        ),
    ],
)
def test_a_stall_of_the_head_within_its_lease_costs_an_attempt_and_no_node(
    nodes: int, least: int, stall_s: float
) -> None:
    """The others have fenced by then, said goodbye and gone to look for a head; it is the same one."""
    for at in (10.0, 10.7, 11.4):
        fault = Fault(what="pause", node=HEAD, at=at, lasts_s=stall_s)
        result, run = the_result(elastic(nodes, least, fault, lease_s=10.0))
        assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
        assert (len(run.disk.claims[2].members), run.disk.claims[2].spend.node_losses) == (nodes, 0)


@pytest.mark.long
@pytest.mark.parametrize("term", [0, 1])
def test_a_goodbye_of_those_who_hear_nothing_does_not_free_the_head_of_its_lease(term: int) -> None:
    """The head hears them and they do not hear it; they go on, while its workers have their grace after a TERM."""
    role = Role(
        name="trainer", restart="restart_all", nodes_min=1, nodes_max=3, workers=(2,), work_s=200.0, patience_s=30.0
    )
    faults = (
        Fault(what="one_way", side=(0,), way="out", at=10.0, lasts_s=10_000.0),
        Fault(what="term", node=term, at=10.5),
    )
    for seed in range(12):
        SimulatedRun(Scenario(seed=seed, roles=(role,), nodes=3, lease_s=3.0, faults=faults)).play()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_head_that_dies_before_anybody_has_joined_it_is_succeeded(seed: int) -> None:
    """The others have never had a head: they wait for as long as it might take, and then take its place."""
    scenario = elastic(4, 2, Fault(what="kill_agent", node=0, at=0.05), seed=seed, join_timeout_s=20.0)
    result, run = the_result(scenario)
    assert result.reason == "succeeded", result.cause
    assert "node0" not in run.disk.claims[1].members


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(Fault(what="kill_worker", node=2, at=45.0), "restarts_used_up"), (Fault(what="stop", at=50.0), "stop_requested")],
)
def test_a_run_ends_although_another_node_claimed_a_later_allocation_in_vain(fault: Fault, reason: str) -> None:
    """It was cut off from all others before the first attempt, for which these waited for a late node."""
    late, cut = Fault(what="starts_late", node=2, lasts_s=18.0), Fault(what="partition", side=(3,), at=4.0, lasts_s=1e6)
    scenario = elastic(4, 2, late, cut, fault, seed=0, join_timeout_s=30.0)
    result, run = the_result(replace(scenario, max_restarts=0))
    assert len(run.disk.allocations) > run.disk.claims[1].allocation
    assert (result.reason, list(run.disk.claims)) == (reason, [1])


@pytest.mark.parametrize(("lasts_s", "head"), [(2.2, "node0"), (5.0, "node1"), (20.0, "node1")])
@pytest.mark.parametrize("seed", [0, *longer(*range(1, 8))])
def test_a_first_head_that_stood_still_while_a_node_was_awaited_yields_to_who_took_its_place(
    seed: int, lasts_s: float, head: str
) -> None:
    """Each of the two would wait for the other's nodes, until the run ended for lack of them.

    Nobody takes the place of one that answers again soon.
    """
    role = Role(name="trainer", restart="restart_all", nodes_min=3, nodes_max=3, workers=(1,), work_s=10.0)
    faults = (
        Fault(what="starts_late", node=2, lasts_s=25.0),
        Fault(what="pause", node=0, at=4.0, lasts_s=lasts_s),
    )
    result, run = the_result(Scenario(seed=seed, roles=(role,), nodes=3, lease_s=3.0, faults=faults))
    assert (result.reason, run.disk.claims[1].head) == ("succeeded", head)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        *range(2),
        *variants(
            *range(2, 6), of="test_two_heads_that_cannot_reach_each_other_yield_and_wait_for_their_nodes_all_the_same"
        ),
    ],
)
def test_two_heads_that_cannot_reach_each_other_yield_and_wait_for_their_nodes_all_the_same(seed: int) -> None:
    role = Role(name="trainer", restart="restart_all", nodes_min=4, nodes_max=4, workers=(1,), work_s=10.0)
    faults = (
        Fault(what="never_starts", node=3),
        Fault(what="partition", side=(1, 2), at=4.0, lasts_s=10_000.0),
    )
    result, run = the_result(Scenario(seed=seed, roles=(role,), nodes=4, lease_s=3.0, faults=faults))
    assert (result.reason, result.exit_code) == ("nodes_missing", 6)
    first = min(agent.left_at for agent in run.agents[:3])
    assert first > 2 * 60.0, "they took each other's claims for news until they had been head too often"


def test_a_head_is_not_superseded_by_its_own_claim_if_the_answer_to_it_was_lost() -> None:
    """It looks into the run directory between two tries, and finds the claim there."""
    fault = Fault(what="disk_loses_answers", node=0, phase="claiming", at=0.003, lasts_s=4.0)
    result, run = the_result(a_scenario(faults=(fault,)))
    assert result.reason == "succeeded"
    assert [claim.head for claim in run.disk.claims.values()] == ["node0"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "make"),
    [
        pytest.param(3048795, draw, id="a TERM from outside that the agent sees after it has begun to stop"),
        pytest.param(3040277, draw, id="a node that dialled and was cut off before it said what for"),
        pytest.param(3052349, draw, id="a node that the claim of a head counts as lost, and that had not come to it"),
        pytest.param(3020941, draw, id="a store host that ends as the next attempt begins"),
        pytest.param(9515307, draw, id="a head that stood still claims nothing with nodes it loses as it wakes up"),
        pytest.param(9800011, draw_machines, id="several nodes are silent at once, and are asked again one by one"),
        pytest.param(9800036, draw_cut_saves, id="a damaged state, after a restart that was asked for"),
        pytest.param(9546398, draw, id="a head that stands still as it claims looks for rivals when it wakes up"),
        pytest.param(9700078, draw_machines, id="a head that stands still for the half of a member's patience"),
        pytest.param(1607101, draw_states, id="a head that stands still between its decision and its claim"),
        pytest.param(28000035, draw_bad_nodes, id="a drain before a spare has the place of a blamed node"),
        pytest.param(28000061, draw_relayed, id="a TERM to a node that is cut off leaves its states to no head"),
    ],
)
def test_rules_know_of_things_that_meet_in_one_moment(seed: int, make: Callable[[int], Scenario]) -> None:
    SimulatedRun(make(seed)).play()
