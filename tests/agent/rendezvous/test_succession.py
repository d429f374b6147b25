"""Agents that lose their head, over real sockets and a real run directory."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.membership.authentication import Side
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Dropped
from hpc_elastic.rundir.records import WorkerState
from hpc_elastic.rundir.store import claim, read_json, write_json
from tests.agent.records.runs import a_result
from tests.agent.stations import Scene, play


def test_the_others_go_on_at_once_when_the_agent_of_their_head_dies(tmp_path: Path) -> None:
    """No lease has to run out: its kernel says that it is dead, and everybody else is there."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)
        began = time.monotonic()
        await made.kill(0)
        await made.until_at_work(2, 1, 2)
        assert time.monotonic() - began < 10  # half a lease
        record = read_json(made.layout.claim(2))
        assert (record["predecessor"], record["head"], record["members"]) == (1, "local1", ["local1", "local2"])
        assert record["spend"]["node_losses"] == 1
        assert [station.workers.told for station in made.stations[1:]] == [["start 1", "fence 1", "start 2"]] * 2

    play(scene, tmp_path, 3)


@pytest.mark.long
def test_one_head_after_the_other_may_die(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2, 3)
        await made.kill(0)
        await made.until_at_work(2, 1, 2, 3)
        await made.kill(1)
        await made.until_at_work(3, 2, 3)
        await made.kill(2)
        await made.until_at_work(4, 3)
        heads = [read_json(made.layout.claim(attempt))["head"] for attempt in (1, 2, 3, 4)]
        assert heads == ["local0", "local1", "local2", "local3"]
        assert read_json(made.layout.claim(4))["spend"]["node_losses"] == 3

    play(scene, tmp_path, 4)


@pytest.mark.long
def test_a_head_that_dies_before_its_first_attempt_is_followed_in_the_same_start(tmp_path: Path) -> None:
    """There is no world to carry on: the next node claims an allocation of its own."""

    async def scene(made: Scene) -> None:
        made[0].start()
        await made.until(lambda: made[0].is_head, "local0 is head")
        made[1].start()
        await made.until(lambda: made[1].journal.allocation == 1, "local1 has joined")
        await made.kill(0)
        await made.until(lambda: os.path.exists(made.layout.allocation(2)), "the next allocation is claimed")
        assert read_json(made.layout.allocation(2))["node"] == "local1"
        made[2].start()
        await made.until(lambda: made[2].journal.allocation == 2, "local2 has joined there")

    play(scene, tmp_path, 3)


def test_a_member_that_searches_starts_nothing_while_the_file_system_hangs(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)
        works_again = threading.Event()
        for station in made.stations[1:]:
            station.disk.best_effort(works_again.wait)
        await made.kill(0)
        # The workers are gone although nothing can be written.
        await made.until(lambda: made.at_work() == {}, "the others have fenced")
        beaten = made[1].member._member.next_tick()
        assert beaten == float("inf")  # there is nobody to beat to, and no timer that waits for the disk
        assert not any(station.is_head for station in made.stations[1:])
        works_again.set()
        await made.until_at_work(2, 1, 2)

    play(scene, tmp_path, 3)


@pytest.mark.long
def test_who_gathers_gives_way_to_a_node_before_it(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)
        works_again = threading.Event()
        made[1].disk.best_effort(works_again.wait)
        await made.kill(0)
        await made.until(lambda: made[2].is_head, "local2 gathers, for local1 cannot read what there is to carry on")
        assert not made[2].journal.is_head  # it has claimed nothing: people hear of it when it has
        works_again.set()
        await made.until_at_work(2, 1, 2)
        assert read_json(made.layout.claim(2))["head"] == "local1"
        assert not made[2].is_head
        assert made[2].workers.told == ["start 1", "fence 1", "start 2"]

    play(scene, tmp_path, 3)


def test_an_agent_that_is_cut_off_joins_the_head_again(tmp_path: Path) -> None:
    """The same agent comes again before its old connection was noticed to be dead."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)
        lost, old = made[2], made[2].heads._connection
        assert old is not None
        lost.heads._connection = None  # a connection over which nothing comes any more
        lost.member.disconnected("no answer for 2 s", is_dead=False)
        await made.until(lambda: lost.heads._connection not in (None, old), "it has joined again")
        await made.until_at_work(2, 0, 1, 2)
        assert read_json(made.layout.claim(2))["head"] == "local0"
        assert lost.workers.told == ["start 1", "fence 1", "start 2"]
        assert made[1].workers.told in (
            ["start 1", "restart 1", "start 2"],
            ["start 1", "fence 1", "start 2"],
        )

    play(scene, tmp_path, 3)


@pytest.mark.long
def test_a_head_that_was_superseded_is_a_member_again(tmp_path: Path) -> None:
    """It was paused, say, and the others have gone on without it."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)
        first = read_json(made.layout.claim(1))
        world = read_json(made.layout.world(1))
        write_json(made.layout.world(2), {**world, "attempt": 2, "head": "local1"})
        assert claim(made.layout.claim(2), {**first, "attempt": 2, "head": "local1", "predecessor": 1})
        await made.until(lambda: "fence 1" in made[0].workers.told, "it has fenced")
        assert any("local1 has opened attempt 2" in line for line in made[0].said)
        # Its members are told why, not only hung up on.
        await made.until(lambda: any("head: local1 has opened" in line for line in made[2].said), "local2 hears it")
        await made.until(lambda: not made[0].journal.is_head, "it is no head any more")
        # local1 never was: whoever is in that world carries on from it.
        await made.until(lambda: set(made.at_work().values()) == {3}, "attempt 3")

    play(scene, tmp_path, 3, lease_s=3)


def test_the_result_is_found_by_whoever_comes_too_late(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1)
        made[1].journal.write_result(replace(a_result(), attempts=9))  # first, or it could write one itself
        await made.kill(0)
        await made.until(lambda: made[1].left is not None, "it leaves")
        assert made[1].left is not None
        assert (made[1].left.exit_code, made[1].left.cause) == (0, "every rank exited 0")

    play(scene, tmp_path, 2, least=2)


def test_a_successor_writes_the_result_of_a_run_that_is_finished(tmp_path: Path) -> None:
    """The head died when every node had told that its workers were done."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1, 2)

        def records_say_so() -> bool:
            paths = [made.layout.node_result(1, station.place.node) for station in made.stations]
            return all(os.path.exists(path) for path in paths)

        await made.until(records_say_so, "every node has its record")
        for station in made.stations:
            path = made.layout.node_result(1, station.place.node)
            write_json(path, {**json.loads(Path(path).read_text()), "state": WorkerState.SUCCEEDED.value})
        for station in made.stations[1:]:  # they have told, and stand by their records
            station.member._member._is_finished = True
        await made.kill(0)
        await made.until(lambda: os.path.exists(made.layout.result), "there is a result")
        result = read_json(made.layout.result)
        assert (result["state"], result["exit_code"], result["attempts"]) == ("SUCCEEDED", 0, 1)
        await made.until(lambda: all(station.left for station in made.stations[1:]), "everybody leaves")
        assert not os.path.exists(made.layout.claim(2))

    play(scene, tmp_path, 3)


def test_what_an_old_head_still_says_is_passed_over(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1)
        stale = made[1].heads._make(Side.DIALLING, made[1].heads)
        made[1].heads.head_said(stale, Dropped(reason="somebody else's word"))
        made[1].heads.head_lost(stale, "closed")
        assert made[1].member._member.phase is MemberPhase.WORKING

    play(scene, tmp_path, 2)


@pytest.mark.long
def test_an_agent_that_was_paused_fences_before_it_hears_anything(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0, 1)
        time.sleep(2.2)  # two thirds of the lease and more: the whole process stands still
        made[1].member.worker_exited(1, 0, 0)
        assert made[1].workers.attempt == 1  # told, and done in a moment
        assert made[1].member._member.phase is MemberPhase.STOPPING
        await made.until(lambda: "fence 1" in made[1].workers.told, "it fences")

    play(scene, tmp_path, 2, lease_s=3)
