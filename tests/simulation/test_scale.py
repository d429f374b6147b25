"""Worlds of many nodes that lose the nodes of whole racks with their head, or whose head stands still."""

from __future__ import annotations

import os
from collections import Counter
from unittest import mock

import pytest

from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.membership.discovery import Dial
from tests.simulation.file_system import DiskThread
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import variants

AT = 20.0
LONG = pytest.mark.long


def a_large_run(nodes: int, least: int, *faults: Fault, lease_s: float = 10.0) -> SimulatedRun:
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=nodes, workers=(1,), work_s=120.0)
    scenario = Scenario(
        seed=1,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        faults=faults,
        disk_s=(0.01, 0.05),
        spawn_s=(0.1,),
        max_node_losses=nodes,
    )
    return SimulatedRun(scenario)


def play_with_all_who_live(run: SimulatedRun, lost: int) -> float:
    """Everybody who lives is in the next world, and nobody else is lost; when it was opened."""
    run.play()
    (result,) = run.disk.results
    assert (result.reason, result.attempts) == ("succeeded", 2)
    claim = run.disk.claims[2]
    assert (len(claim.members), claim.spend.node_losses) == (run.scenario.nodes - lost, lost)
    return run.disk.asked_at[2]


@pytest.mark.long
@pytest.mark.parametrize("what", ["power_off", "kill_agent"])
@pytest.mark.parametrize(
    ("nodes", "least", "lost", "lease_s"),
    [
        (32, 4, 10, 3.0),
        *variants(
            (64, 8, 28, 10.0),
            (64, 8, 1, 10.0),
            (64, 8, 56, 10.0),
            (64, 8, 28, 30.0),
            (128, 64, 32, 10.0),
            (256, 64, 128, 10.0),
            of="test_a_lost_rack_with_the_head_in_it_costs_its_own_nodes_and_no_others",
        ),
    ],
)
def test_a_lost_rack_with_the_head_in_it_costs_its_own_nodes_and_no_others(
    nodes: int, least: int, lost: int, lease_s: float, what: str
) -> None:
    faults = [Fault(what=what, node=number, at=AT) for number in range(lost)]
    opened_at = play_with_all_who_live(a_large_run(nodes, least, *faults, lease_s=lease_s), lost)
    assert opened_at <= AT + 2 * lease_s + 5


@pytest.mark.long
def test_racks_that_are_lost_one_after_the_other_cost_their_own_nodes_and_no_others() -> None:
    faults = [Fault(what="power_off", node=number, at=AT + 0.2 * number) for number in range(20)]
    play_with_all_who_live(a_large_run(64, 8, *faults), 20)


@LONG
@pytest.mark.parametrize(
    "stall",
    [
        0.75,
        *variants(
            0.2, 0.5, 0.7, 0.8, 0.9, 1.0, of="test_a_head_of_many_that_stands_still_within_its_lease_loses_nobody"
        ),
    ],
)
def test_a_head_of_many_that_stands_still_within_its_lease_loses_nobody(stall: float) -> None:
    run = a_large_run(64, 32, Fault(what="pause", node=0, at=AT, lasts_s=10.0 * stall))
    run.play()
    (result,) = run.disk.results
    assert result.reason == "succeeded"
    claim = run.disk.claims[max(run.disk.claims)]
    assert (len(claim.members), claim.spend.node_losses) == (64, 0)


@pytest.mark.variant(of="test_a_lost_rack_with_the_head_in_it_costs_its_own_nodes_and_no_others")
@pytest.mark.long
@pytest.mark.parametrize("stall", [1.1, 1.3, 1.6, 2.0])
def test_a_head_of_many_that_stands_still_beyond_its_lease_is_the_only_one_that_is_lost(stall: float) -> None:
    play_with_all_who_live(a_large_run(64, 32, Fault(what="pause", node=0, at=AT, lasts_s=10.0 * stall)), 1)


@LONG
@pytest.mark.parametrize("lost", [28, *variants(1, of="test_who_has_lost_its_head_asks_few_others")])
def test_who_has_lost_its_head_asks_few_others(lost: int) -> None:
    """An agent that has found the one who gathers says so to those who ask it."""
    dials: Counter[str] = Counter()
    dial = Successor._dial

    async def count(self: Successor, action: Dial) -> None:
        dials[self._discovery._settings.node] += 1
        await dial(self, action)

    faults = [Fault(what="power_off", node=number, at=AT) for number in range(lost)]
    with mock.patch.object(Successor, "_dial", count):
        a_large_run(64, 8, *faults).play()
    gathering = max(dials, key=lambda node: dials[node])
    others = [number for node, number in dials.items() if node != gathering]
    assert sum(others) / len(others) <= 10, sorted(dials.items())


@LONG
@pytest.mark.parametrize(
    "lost",
    [
        32,
        *variants(1, of="test_many_who_have_lost_their_head_read_the_claims_once_and_ask_few_until_the_next_attempt"),
    ],
)
def test_many_who_have_lost_their_head_read_the_claims_once_and_ask_few_until_the_next_attempt(lost: int) -> None:
    """Each costs the file server the same, and all others the same, however many agents look for a head."""
    dials: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    dial, look = Successor._dial, DiskThread.look
    run = a_large_run(128, 8, *(Fault(what="kill_agent", node=number, at=AT) for number in range(lost)))

    async def count(self: Successor, action: Dial) -> None:
        dials[self._discovery._settings.node] += 2 not in run.disk.asked_at
        await dial(self, action)

    def count_read(self: DiskThread, path: str) -> bytes | None:
        content = look(self, path)
        if content is not None and run.clock.now >= AT and 2 not in run.disk.asked_at:
            opened[os.path.basename(path)] += 1
        return content

    with mock.patch.object(Successor, "_dial", count), mock.patch.object(DiskThread, "look", count_read):
        run.play()
    assert run.disk.results[0].reason == "succeeded"
    assert sum(dials.values()) / len(dials) <= 10, sorted(dials.items())
    assert opened["world.json"] <= 4
    assert max(opened["claim.json"], opened["0001.json"]) <= 128 + 4, "each of the others, and the head's own look"
