"""Taking the place of a first head that most nodes cannot reach, over a real run directory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.net.reach import Explainer, Finding
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.candidacy import Candidacy
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.rendezvous.relief import HeadRelief, Relief
from hpc_elastic.agent.rendezvous.search_times import SearchTimes
from hpc_elastic.errors import RendezvousCause, RendezvousTimeoutError, RunDirectoryError
from hpc_elastic.membership.messages import Welcome
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.rundir.records import Endpoint
from tests.agent.rendezvous.scene import ENDPOINT, Scene, open_attempt, play, retrying


async def no_route(*_: object, **__: object) -> Finding:
    """What explains that a machine cannot be reached, which no address of this machine is."""
    return Finding(cause=RendezvousCause.CANNOT_ROUTE, detail="cannot route to local0", head="local0", port=1)


def reporting(made: Scene, *node_ids: int, head: str = "local0") -> None:
    """These nodes have given a head up, for they cannot route to it."""
    for node_id in node_ids:
        finding = Finding(cause=RendezvousCause.CANNOT_ROUTE, detail=f"cannot route to {head}", head=head)
        Findings(made.plan, made.place(node_id)).write(finding, tries=1, gave_up=True, versions={})


async def has_given_up(made: Scene) -> None:
    while not Path(made.layout.rendezvous("local1")).exists() or not made.record()["gave_up"]:
        await asyncio.sleep(0.001)


def relieving(**more: float) -> SearchTimes:
    times = replace(retrying(persists_s=0.01), head_reacts_within_s=0.02, relieved_within_s=0.5, counts_every_s=0.01)
    return replace(times, **more)  # type: ignore[arg-type]


def out_of_reach(made: Scene, monkeypatch: pytest.MonkeyPatch, *, min_nodes: int = 2, relieves: str = "") -> None:
    """Four nodes, of which the first is the head, to which this one cannot route."""
    monkeypatch.setattr(Explainer, "explain", no_route)
    made.nodes = ("local0", "local1", "local2", "local3")
    made.plan = replace(made.plan, nodes=NodesPlan(min=min_nodes, max=4))
    made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
    if relieves:
        made.journal(0).claim_next_allocation(Endpoint(address="127.0.0.2", port=1), 1, relieves=relieves)


def test_a_head_that_half_of_all_nodes_cannot_reach_is_relieved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(made: Scene) -> None:
        out_of_reach(made, monkeypatch)
        reporting(made, 2)
        search = made.search(1)
        assert not await search.find(made.join(1), made.member, lambda text, _: made.said.append(text))
        assert str(search.relieved) == "local0 was the head, and cannot be reached: local1 cannot route to local0"
        claim = made.journal(0).find_allocation()
        assert claim is not None
        assert (claim.allocation, claim.node, claim.relieves) == (2, "local1", "local0")
        assert made.said[-1] == (
            "local0 has opened no attempt and cannot be reached by most nodes, so this node is the head now"
        )
        await made.disk.call(lambda: None)
        assert not Path(made.layout.rendezvous("local1")).exists()

    play(tmp_path, scene, times=relieving())


@pytest.mark.parametrize(
    "why", ["only this node cannot", "too few for a world", "none has its role", "it has relieved another"]
)
def test_a_head_that_others_may_reach_is_not_relieved(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(made: Scene) -> None:
        relieves = "local3" if why == "it has relieved another" else ""
        out_of_reach(made, monkeypatch, min_nodes=3 if why == "too few for a world" else 1, relieves=relieves)
        if why == "none has its role":
            (role,), one, rest = made.plan.roles, NodesPlan(min=1, max=1), NodesPlan(min=0, max=3)
            roles = replace(role, name="trainer", nodes=one), replace(role, name="actor", nodes=rest)
            made.plan = replace(made.plan, roles=roles)
        reporting(made, *{"only this node cannot": (), "too few for a world": (2,)}.get(why, (2, 3)))
        with pytest.raises(RendezvousTimeoutError) as caught:
            await made.find(1)
        assert [missing.cause for missing in caught.value.missing] == [RendezvousCause.CANNOT_ROUTE]
        assert (made.record()["gave_up"], made.record()["awaits_other"]) == (True, False)

    play(tmp_path, scene, times=relieving(relieved_within_s=0.1))


def test_a_node_that_would_relieve_a_head_leaves_as_one_that_found_none_if_the_run_ends_right_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_over(*_: object, **__: object) -> bool:
        raise RunDirectoryError("the run is over")

    async def scene(made: Scene) -> None:
        out_of_reach(made, monkeypatch)
        reporting(made, 2)
        monkeypatch.setattr(Journal, "claim_next_allocation", is_over)
        with pytest.raises(RendezvousTimeoutError):
            await made.find(1)

    play(tmp_path, scene, times=relieving())


def test_a_head_that_goes_on_without_a_node_is_not_relieved_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(made: Scene) -> None:
        out_of_reach(made, monkeypatch)
        reporting(made, 2, 3)
        looking = asyncio.ensure_future(made.find(1))
        await has_given_up(made)
        open_attempt(made, Endpoint(address="127.0.0.2", port=1), "local0")
        with pytest.raises(RendezvousTimeoutError):
            await looking

    play(tmp_path, scene, times=relieving(head_reacts_within_s=10.0, relieved_within_s=20.0))


def test_a_node_that_has_given_up_the_first_head_joins_the_one_that_relieves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(made: Scene) -> None:
        out_of_reach(made, monkeypatch)
        looking = asyncio.ensure_future(made.find(1))
        await has_given_up(made)
        head, endpoint = await made.listen(Welcome(allocation=2, head="local2"), port=0)
        assert made.journal(2).claim_next_allocation(endpoint, 1)
        assert await looking
        assert head.joins == [made.join(1)]
        await made.disk.call(lambda: None)
        assert not Path(made.layout.rendezvous("local1")).exists()

    play(tmp_path, scene, times=relieving(head_reacts_within_s=10.0, relieved_within_s=20.0))


# The relief alone, with no search around it.


def crowd(made: Scene, number: int) -> None:
    """So many nodes, of which the first is the head."""
    made.nodes = tuple(f"local{node_id}" for node_id in range(number))
    made.plan = replace(made.plan, nodes=NodesPlan(min=2, max=number))
    made.journal(0).claim_allocation(ENDPOINT)


def relief_by(made: Scene, node_id: int) -> HeadRelief:
    place, own = made.place(node_id), Endpoint(address=f"127.0.0.{node_id + 2}", port=1)
    journal = made.journal(node_id)
    candidacy = Candidacy(place, own, journal, made.disk, made.times)
    return HeadRelief(made.plan, place, journal.find_allocation(), candidacy, made.disk, made.times)


async def outcome_of(made: Scene, relief: HeadRelief) -> Relief:
    return await relief.seek(lambda text, _: made.said.append(text))


@pytest.mark.parametrize(("node_id", "expected"), [(15, Relief.OWN), (17, Relief.NONE), (18, Relief.OWN)])
def test_the_first_nodes_may_relieve_a_head_and_as_many_spread_over_the_job(
    tmp_path: Path, node_id: int, expected: Relief
) -> None:
    async def scene(made: Scene) -> None:
        crowd(made, 33)
        reporting(made, *range(1, 20))
        assert await outcome_of(made, relief_by(made, node_id)) is expected

    play(tmp_path, scene, times=relieving(relieved_within_s=0.2))


def test_a_head_that_has_opened_an_attempt_is_not_waited_for(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        crowd(made, 4)
        reporting(made, 1, 2)
        open_attempt(made, ENDPOINT, "local0", "local3")
        assert await outcome_of(made, relief_by(made, 1)) is Relief.NONE

    play(tmp_path, scene, times=relieving(relieved_within_s=600.0))


def test_another_node_that_has_taken_the_place_is_known_then(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        crowd(made, 4)
        reporting(made, 1, 2)
        relief = relief_by(made, 1)
        assert made.journal(2).claim_next_allocation(Endpoint(address="127.0.0.4", port=1), 1, relieves="local0")
        assert await outcome_of(made, relief) is Relief.ANOTHER
        assert relief.successor is not None
        assert (relief.successor.node, relief.successor.relieves) == ("local2", "local0")

    play(tmp_path, scene, times=relieving())
