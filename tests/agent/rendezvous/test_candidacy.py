"""An agent without a head finds the claims of others, and makes one of its own, in a real run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpc_elastic.agent.rendezvous.candidacy import Candidacy
from hpc_elastic.membership.actions import Level
from hpc_elastic.rundir.records import AllocationClaim, Endpoint
from tests.agent.rendezvous.scene import ENDPOINT, Scene, open_attempt, play


def candidacy_of(made: Scene, node_id: int = 1) -> Candidacy:
    own = Endpoint(address=f"127.0.0.{node_id + 2}", port=1)
    return Candidacy(made.place(node_id), own, made.journal(node_id), made.disk, made.times)


def say_to(made: Scene) -> Callable[[str, Level], None]:
    return lambda text, _: made.said.append(text)


def the_latest(made: Scene) -> AllocationClaim:
    claim = made.journal(0).find_allocation()
    assert claim is not None
    return claim


def test_the_first_claim_is_this_agents_and_the_second_one_finds_it(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        assert await candidacy_of(made, 0).claim(say_to(made)) is None
        found = await candidacy_of(made, 1).claim(say_to(made))
        assert found is not None
        assert (found.node, found.allocation) == ("local0", 1)

    play(tmp_path, scene)


def test_a_silent_head_is_succeeded(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(ENDPOINT)
        assert await candidacy_of(made).succeed(the_latest(made), say_to(made))
        assert (the_latest(made).allocation, the_latest(made).node, the_latest(made).relieves) == (2, "local1", "")
        assert made.said == ["local0 has opened no attempt and does not answer, so this node is the head now"]

    play(tmp_path, scene)


def test_a_head_that_is_not_known_is_not_succeeded(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(ENDPOINT)
        assert not await candidacy_of(made).succeed(None, say_to(made))

    play(tmp_path, scene)


def test_a_head_that_has_opened_an_attempt_is_not_succeeded(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(ENDPOINT)
        open_attempt(made, ENDPOINT, "local0")
        assert not await candidacy_of(made).succeed(the_latest(made), say_to(made))
        assert the_latest(made).allocation == 1

    play(tmp_path, scene)


def test_a_head_that_has_failed_or_is_out_of_reach_is_only_succeeded_while_its_claim_is_the_latest(
    tmp_path: Path,
) -> None:
    async def scene(made: Scene) -> None:
        made.nodes = ("local0", "local1", "local2")
        made.journal(0).claim_allocation(ENDPOINT)
        first, candidacy = the_latest(made), candidacy_of(made)
        assert made.journal(2).claim_next_allocation(Endpoint(address="127.0.0.4", port=1), 1)
        assert not await candidacy.succeed_failed(first, say_to(made))
        assert not await candidacy.relieve(first, say_to(made))
        assert await candidacy.succeed(first, say_to(made))

    play(tmp_path, scene)


def test_a_claim_that_relieves_a_head_names_it(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(ENDPOINT)
        assert await candidacy_of(made).relieve(the_latest(made), say_to(made))
        assert the_latest(made).relieves == "local0"

    play(tmp_path, scene)


def test_who_has_claimed_after_the_head_that_was_asked_is_its_successor(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        candidacy, say = candidacy_of(made), say_to(made)
        assert await candidacy.find_successor(None, say) is None
        made.journal(0).claim_allocation(ENDPOINT)
        first = the_latest(made)
        assert await candidacy.find_successor(first, say) is None
        assert await candidacy.find_successor(None, say) is None  # the agent of the first node was asked
        assert made.journal(1).claim_next_allocation(Endpoint(address="127.0.0.3", port=1), 1)
        assert await candidacy.find_successor(first, say) == the_latest(made)
        assert await candidacy.find_successor(None, say) == the_latest(made)

    play(tmp_path, scene)
