"""Agents whose head is gone before the first attempt: one claims the allocation, and the others join it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from hpc_elastic.agent.rendezvous.search import HeadSearch
from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.membership.actions import ClaimAttempt, DiscoverHead
from hpc_elastic.membership.discovery import MOST_CLAIMS, ClaimAllocation, Dial, DiscoveryAction
from hpc_elastic.membership.succession import Records
from tests.simulation.draws.general import draw
from tests.simulation.draws.unopened import draw_unopened
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.wiring import SimulatedJournal
from tests.simulation.world import SimulatedRun

# All give the dead head up in the same second, on a file server that takes as long for each answer; and one of them
# sees its machine without power, as if there were no route to it.
AT_ONCE = {"agent killed": 73, "machine without power": 373}


@pytest.mark.long
@pytest.mark.parametrize("seed", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_agents_that_give_a_dead_head_up_together_join_the_one_that_claims_first(seed: int) -> None:
    run = SimulatedRun(draw_unopened(seed))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]


@pytest.mark.long
def test_agents_whose_head_did_not_live_to_tell_them_of_the_first_attempt_go_on_without_it() -> None:
    drawn = draw(21044560)  # the head loses power while its first words to them are on their way
    roles = tuple(replace(role, nodes_min=1, work_s=10.0) for role in drawn.roles)
    run = SimulatedRun(replace(drawn, roles=roles, join_timeout_s=60))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert [claim.head for claim in run.disk.claims.values()] == ["node0", "node1"]


def test_an_agent_that_gives_a_silent_head_up_while_that_goes_on_without_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has read of the first attempt, whose member it is, and has not heard; meanwhile the second one is opened."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(1,), work_s=30.0)
    cut = Fault(what="partition", side=(1,), phase="claiming", lasts_s=15.0)
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=2, delays_s=(0.1,), rejoin="immediately", faults=(cut,)),
    )
    read = SimulatedJournal.read_records

    def read_slowly(journal: SimulatedJournal, *, needs_world: bool) -> Records:
        records = read(journal, needs_world=needs_world)
        if journal.agent is run.agents[1]:
            journal.agent.disk.sleep(1.0)
        return records

    monkeypatch.setattr(SimulatedJournal, "read_records", read_slowly)
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    both = ("node0", "node1")
    assert [claim.members for claim in run.disk.claims.values()] == [both, ("node0",), both]
    lost = [what.lost for _, who, what in run.events if who == "node1" and isinstance(what, DiscoverHead)]
    assert "has opened an attempt with this node, and does not answer" in lost[0].why


@pytest.mark.long
def test_a_run_that_ends_for_want_of_nodes_that_are_there_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async def finds_none(search: HeadSearch, say: object) -> bool:
        return False

    monkeypatch.setattr(HeadSearch, "_has_successor", finds_none)
    with pytest.raises(BrokenRuleError, match=r"ends for want of nodes, and .* have been there"):
        SimulatedRun(draw_unopened(AT_ONCE["agent killed"])).play()


# Placed by hand: the head is killed while it waits for a node that never comes. The other agents lose it in the same
# moment, and node1, node3 and node2 may claim the next allocation, in this order of succession.

KILLED_AT = 4.0
TURNS = ("node1", "node3", "node2")


def who_claim(
    *faults: Fault, killed: int = 1, disk_s: float = 0.01, join_timeout_s: float = 60.0
) -> tuple[SimulatedRun, dict[str, float]]:
    """A run that has been played, and when each agent has first tried to claim the next allocation.

    `killed`: how many, the head and then those whose turn comes first.
    """
    numbers = [0, *(int(name.removeprefix("node")) for name in TURNS)][:killed]
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=5, workers=(1,), work_s=5.0)
    run = SimulatedRun(
        Scenario(
            seed=1,
            roles=(role,),
            nodes=5,
            lease_s=3.0,
            join_timeout_s=join_timeout_s,
            disk_s=(disk_s,),
            faults=(
                Fault(what="never_starts", node=4),
                *(Fault(what="kill_agent", node=number, at=KILLED_AT) for number in numbers),
                *faults,
            ),
        )
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    claimed: dict[str, float] = {}
    for at, who, what in run.events:
        if isinstance(what, ClaimAllocation):
            claimed.setdefault(who, at)
    return run, claimed


def stalled(node: int, lasts_s: float, at: float = KILLED_AT) -> Fault:
    return Fault(what="stall_disk", node=node, at=at, lasts_s=lasts_s)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_an_agent_claims_half_a_second_later_for_each_one_before_it(gone: int) -> None:
    """On a quick disk: however little a look at the claims takes, and whatever the others do that are gone, too.

    The head itself is asked first: its connection may have been reset, and it lives.
    """
    _, claimed = who_claim(killed=1 + gone)
    assert next(iter(claimed)) == TURNS[gone]
    assert 0.5 * (1 + gone) <= claimed[TURNS[gone]] - KILLED_AT < 0.5 * (1 + gone) + 0.1


def test_where_a_look_takes_long_the_others_see_the_claim_of_the_first_before_their_turn() -> None:
    """Else all would claim on a slow disk before they see each other's claims."""
    run, claimed = who_claim(Fault(what="stall_disks", at=KILLED_AT, lasts_s=2.0))
    assert list(claimed) == ["node1"]
    assert run.disk.claims[1].members == ("node1", "node2", "node3")


def test_one_whose_disk_is_a_little_slower_than_those_of_the_others_still_claims_first() -> None:
    """Their next look is a quick one: it halves the time for which they wait, and does not end it."""
    run, claimed = who_claim(stalled(1, 10.1), stalled(2, 9.0), stalled(3, 9.0), join_timeout_s=20.0)
    assert list(claimed) == ["node1"]
    assert run.disk.claims[1].members == ("node1", "node2", "node3")


def test_one_slow_look_delays_a_claim_by_no_more_than_it_took() -> None:
    """The disk is a quick one again, and nobody is left before this agent."""
    lasts_s = 2.0
    _, claimed = who_claim(Fault(what="stall_disks", at=KILLED_AT, lasts_s=lasts_s), killed=3)
    assert list(claimed) == ["node2"]
    assert KILLED_AT + lasts_s < claimed["node2"] < KILLED_AT + 2 * lasts_s + 0.1


def test_an_agent_whose_disk_stands_still_claims_after_the_half_of_join_timeout() -> None:
    """Two looks of nine seconds are longer than that; then it would have given up before its turn."""
    first, again = (
        Fault(what="stall_disks", at=at, lasts_s=lasts_s) for at, lasts_s in ((KILLED_AT, 9.0), (13.5, 15.0))
    )
    _, claimed = who_claim(first, again, killed=3, join_timeout_s=20.0)
    assert list(claimed) == ["node2"]
    assert claimed["node2"] == pytest.approx(KILLED_AT + 9.0 + 10.0 + 0.5, abs=0.1)  # the head is asked once more


@pytest.mark.long
@pytest.mark.parametrize(
    ("sides", "disk_s"),
    [pytest.param(((0,), (1,), (2,), (3,)), 0.5, id="alone"), pytest.param(((0, 1),), 0.01, id="two and two")],
)
def test_sides_of_a_cut_network_that_all_lack_nodes_claim_eight_times_and_no_more(
    sides: tuple[tuple[int, ...], ...], disk_s: float
) -> None:
    """Each would take the claim of another side for the reason to go on, and nobody would end the run."""
    role = Role(name="trainer", restart="restart_all", nodes_min=4, nodes_max=4, workers=(1,), work_s=5.0)
    late = Fault(what="starts_late", node=3, lasts_s=5.0)
    cuts = [Fault(what="partition", side=side, at=KILLED_AT, lasts_s=10_000.0) for side in sides]
    run = SimulatedRun(
        Scenario(
            seed=22,
            roles=(role,),
            nodes=4,
            lease_s=3.0,
            join_timeout_s=10.0,
            disk_s=(disk_s,),
            faults=(late, *cuts),
        )
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["nodes_missing"]
    tries = Counter(who for _, who, what in run.events if isinstance(what, ClaimAllocation))
    assert max(tries.values()) == MOST_CLAIMS


def test_an_agent_that_was_answered_while_it_claimed_in_vain_joins_the_one_that_has_claimed() -> None:
    """Its disk stands still as it claims. The silent head answers it meanwhile, too late, and node2 is quicker."""
    role = Role(name="trainer", restart="restart_all", nodes_min=4, nodes_max=4, workers=(1,), work_s=5.0)
    late = Fault(what="starts_late", node=3, lasts_s=12.0)  # so that no attempt is opened before
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=4, lease_s=3.0, join_timeout_s=60.0, faults=(late,)))
    act = Successor._act

    def cut(other: int, until: float) -> None:
        run.network.close(0, other, until)
        run.network.close(other, 0, until)

    def stall_in_claim(self: Successor, action: DiscoveryAction) -> None:
        if self._discovery._settings.node == "node1" and isinstance(action, ClaimAllocation):
            run.agents[1].disk.stalled_until = run.clock.now + 2.0
            run.network.heal()
            cut(2, 8.5)
        act(self, action)

    run.clock.at(KILLED_AT, lambda: cut(1, 30.0))
    run.clock.at(KILLED_AT, lambda: cut(2, 30.0))
    with mock.patch.object(Successor, "_act", stall_in_claim):
        run.play()
    assert [allocation.node for allocation in run.disk.allocations] == ["node0", "node2"]
    asked = [what.node for _, who, what in run.events if who == "node1" and isinstance(what, Dial)]
    assert list(dict.fromkeys(asked)) == ["node0", "node2"]
    assert (run.disk.claims[1].head, run.disk.results[0].reason) == ("node2", "succeeded")


# Placed by hand: the head is lost while it waits for node3, which comes 8 s after the others.

LATE = Fault(what="starts_late", node=3, lasts_s=8.0)
TWO_LEASES_S = 20.0


def without_first_head(*faults: Fault, nodes_min: int) -> SimulatedRun:
    """A run that has been played."""
    role = Role(name="trainer", restart="restart_all", nodes_min=nodes_min, nodes_max=4, workers=(1,), work_s=20.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=4, lease_s=TWO_LEASES_S / 2, faults=(LATE, *faults)))
    run.play()
    return run


def opened_at(run: SimulatedRun) -> float:
    return next(at for at, _, what in run.events if isinstance(what, ClaimAttempt))


def test_nobody_waits_for_the_node_of_a_dead_first_head() -> None:
    run = without_first_head(Fault(what="kill_agent", node=0, at=5.0), nodes_min=2)
    assert run.disk.claims[1].members == ("node1", "node2", "node3")
    assert opened_at(run) < 5.0 + 8.0


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((Fault(what="kill_agent", at=0.5),), id="that no member has had"),
        pytest.param((Fault(what="kill_agent", at=5.0), Fault(what="kill_agent", node=1, at=7.0)), id="and the next"),
        pytest.param((Fault(what="partition", side=(0,), at=5.0, lasts_s=1000.0),), id="that is cut off"),
    ],
)
def test_a_first_head_that_may_live_is_waited_for_two_leases(faults: tuple[Fault, ...]) -> None:
    run = without_first_head(*faults, nodes_min=2)
    claimed = max(at for at, who, what in run.events if isinstance(what, ClaimAllocation) and who != "node0")
    assert opened_at(run) < claimed + TWO_LEASES_S + 1.0
    assert "node0" not in run.disk.claims[1].members


def test_a_first_head_that_was_cut_off_and_comes_back_in_time_has_its_part() -> None:
    run = without_first_head(Fault(what="partition", side=(0,), at=5.0, lasts_s=18.0), nodes_min=4)
    assert run.disk.claims[1].members == ("node0", "node1", "node2", "node3")


def test_a_run_that_needs_its_dead_first_head_says_that_it_was_lost() -> None:
    run = without_first_head(Fault(what="kill_agent", node=0, at=5.0), nodes_min=4)
    (result,) = run.disk.results
    assert (result.reason, "was the head, and was lost" in result.cause) == ("nodes_missing", True)
    assert result.cause.startswith("at most 3 of at least 4 nodes can join; missing: node0 was the head")
    assert run.clock.now < 5.0 + TWO_LEASES_S + 10.0
