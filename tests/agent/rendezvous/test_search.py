"""Finding the head, or becoming it, over real sockets and a real run directory."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.net.reach import Finding
from hpc_elastic.agent.net.transport import Connection, connection_factory
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.candidacy import Candidacy, HeadLeftError
from hpc_elastic.agent.rendezvous.search import HeadLostError
from hpc_elastic.agent.rendezvous.trouble import ReportTimes, Trouble
from hpc_elastic.errors import RendezvousCause, RendezvousTimeoutError, RunDirectoryError
from hpc_elastic.membership.messages import Beat, Message, Refused, Welcome
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.store import write_json
from tests.agent.answers import Answers
from tests.agent.rendezvous.scene import (
    ENDPOINT,
    IN_NO_TIME,
    SCOPE,
    Answering,
    Scene,
    open_attempt,
    play,
    retrying,
    without_clock,
)


def test_node_0_claims_the_allocation_and_is_the_head(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        assert not await made.find(0)
        claim = made.journal(1).find_allocation()
        assert claim is not None
        assert (claim.node, claim.head) == ("local0", Endpoint(address="127.0.0.2", port=1))

    play(tmp_path, scene)


def test_another_node_joins_along_the_ports_that_all_derive(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        head, _ = await made.listen(Welcome(allocation=1, head="node0"))
        assert await made.find()
        assert head.joins == [made.join(1)]
        assert made.member.heard == [Welcome(allocation=1, head="node0")]

    play(tmp_path, scene)


def test_strangers_on_the_first_ports_are_passed_by(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        stranger, _ = await made.listen(Welcome(allocation=9, head="node0"), make=connection_factory(b"x" * 32, SCOPE))
        with socket.create_server(("127.0.0.2", made.ports[1])):  # says nothing; a bound cuts it off elsewhere
            head, _ = await made.listen(Welcome(allocation=1, head="node0"), port=made.ports[2])
            made.ports = [made.ports[0], made.ports[2]]
            assert await made.find()
        assert stranger.joins == []
        assert head.joins

    play(tmp_path, scene)


def test_a_head_elsewhere_is_found_by_its_claim(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        head, endpoint = await made.listen(Welcome(allocation=1, head="node0"), port=0)
        made.journal(0).claim_allocation(endpoint)
        assert await made.find()
        assert head.joins

    play(tmp_path, scene)


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.listen(Refused(reason="the run is over", exit_code=0))
        assert await made.find()
        assert made.member.heard == [Refused(reason="the run is over", exit_code=0)]

    play(tmp_path, scene)


@pytest.mark.parametrize("answer", [None, Beat(number=1)], ids=["not the head yet", "nonsense"])
def test_an_agent_that_is_no_head_is_asked_again(tmp_path: Path, answer: Message | None) -> None:
    async def scene(made: Scene) -> None:
        agent, _ = await made.listen(answer)
        looking = asyncio.ensure_future(made.find())
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not looking.done()
        agent.answer = Welcome(allocation=1, head="node0")
        assert await looking
        assert made.member.losses == []

    play(tmp_path, scene)


def test_the_end_of_the_connection_is_told_once_it_is_the_heads(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        await made.listen(Welcome(allocation=1, head="node0"))
        assert await made.find()
        assert made.member.connection is not None
        made.member.connection.abort("cut")
        while not made.member.losses:
            await asyncio.sleep(0.001)
        assert made.member.losses == ["cut"]

    play(tmp_path, scene)


def test_another_node_becomes_the_head_if_none_shows(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        assert not await made.find(1)
        claim = made.journal(0).find_allocation()
        assert claim is not None
        assert claim.node == "local1"
        assert made.said == ["no head showed, so this node is the head now"]

    play(tmp_path, scene, times=replace(IN_NO_TIME, claim_after_s=0.01, claim_step_s=0.01))


def test_a_head_whose_agent_has_recorded_that_it_failed_is_succeeded_at_once(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.allow(join_retries=7)
        gone = made.journal(0)
        gone.claim_allocation(Endpoint(address="127.0.0.2", port=1))
        gone.note_failure()
        assert not await made.find(1)
        claim = made.journal(0).find_allocation()
        assert claim is not None
        assert (claim.allocation, claim.node) == (2, "local1")
        assert made.said[-1] == "local0 has opened no attempt and has failed, so this node is the head now"
        assert not any("trying again" in line for line in made.said)

    play(tmp_path, scene, times=retrying())


def test_a_head_that_another_agent_has_succeeded_is_not_succeeded_again(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.nodes = ("local0", "local1", "local2")
        gone = made.journal(0)
        gone.claim_allocation(Endpoint(address="127.0.0.2", port=1))
        gone.note_failure()
        head, endpoint = await made.listen(Welcome(allocation=2, head="local2"), port=0)
        assert made.journal(2).claim_next_allocation(endpoint, 1)
        assert await made.find(1)
        assert head.joins == [made.join(1)]

    play(tmp_path, scene, times=retrying())


def test_a_late_starter_asks_the_head_of_the_latest_attempt(tmp_path: Path) -> None:
    """The one that claimed the allocation is gone, and another node goes on."""

    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
        head, endpoint = await made.listen(Welcome(allocation=1, head="node0", is_late=True), port=0)
        open_attempt(made, endpoint, "local0")
        assert await made.find()
        assert head.joins == [made.join(1)]

    play(tmp_path, scene)


def test_gives_up_naming_the_cause_if_every_try_was_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_taken(*_: object) -> bool:
        return False  # another agent was faster to take that head's place

    monkeypatch.setattr(Candidacy, "succeed", is_taken)

    async def scene(made: Scene) -> None:
        made.allow(join_retries=2)
        made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
        with pytest.raises(RendezvousTimeoutError, match=r"no head was joined, after 3 tries in \d+ s") as caught:
            await made.find(1)
        (missing,) = caught.value.missing
        assert (missing.node, missing.cause) == ("local1", RendezvousCause.REFUSED)
        assert missing.detail == "was refused by local0 (127.0.0.2) on port 1: nobody listens there"
        pauses = [line.partition("; ")[2] for line in made.said if "trying again" in line]
        assert pauses == ["trying again in 0.001 s (try 2 of 3)", "trying again in 0.002 s (try 3 of 3)"]
        record = made.record()
        assert (record["cause"], record["gave_up"], record["tries"]) == ("refused", True, 3)
        assert (record["head"], record["address"], record["port"]) == ("local0", "127.0.0.2", 1)

    play(tmp_path, scene, times=retrying(answers_within_s=0.01))


def test_a_file_system_that_hangs_does_not_keep_an_agent_that_gives_up(tmp_path: Path) -> None:
    hangs = threading.Event()

    async def scene(made: Scene) -> None:
        trouble = Trouble(
            made.plan,
            made.place(1),
            disk=made.disk,
            say=lambda *_: None,
            versions={},
            began=0.0,
            times=ReportTimes(last_word_within_s=0.05),
        )
        made.disk.best_effort(hangs.wait)
        try:
            missing = await trouble.give_up(1)
        finally:
            hangs.set()
        assert (missing.node, missing.cause) == ("local1", RendezvousCause.SILENT)

    play(tmp_path, scene)


def test_silence_counts_from_the_begin_of_the_search_and_what_is_found_from_when_it_was(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        trouble = Trouble(
            made.plan, made.place(1), disk=made.disk, say=lambda *_: None, versions={}, began=7.0, times=ReportTimes()
        )
        trouble.met(Finding(cause=RendezvousCause.SILENT, detail="got no answer"), 9.0)
        assert trouble.since == 7.0
        for now in (11.0, 12.0):
            trouble.met(Finding(cause=RendezvousCause.REFUSED, detail="was refused", port=1), now)
            assert trouble.since == 11.0

    play(tmp_path, scene)


def test_no_try_begins_after_join_timeout(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.allow(join_retries=1000, join_timeout_s=0.05)
        _, endpoint = await made.listen(Welcome(allocation=9, head="node0"), make=connection_factory(b"x" * 32, SCOPE))
        made.journal(0).claim_allocation(endpoint)
        with pytest.raises(RendezvousTimeoutError, match="after 1 try"):
            await made.find(1)

    play(tmp_path, scene, times=retrying())


@pytest.mark.long
def test_the_head_that_claimed_and_is_gone_when_join_timeout_is_over_is_succeeded(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.allow(join_retries=3, join_timeout_s=0.5)
        made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
        assert not await made.find(1)
        assert made.said[-1] == "local0 has opened no attempt and does not answer, so this node is the head now"

    play(tmp_path, scene)


def test_an_agent_that_has_only_dialled_the_first_node_asks_the_one_that_has_claimed_before_it_gives_up(
    tmp_path: Path,
) -> None:
    async def scene(made: Scene) -> None:
        made.nodes = ("local0", "local1", "local2")
        made.allow(join_timeout_s=0.5)
        await made.listen_as(Slow())
        head, endpoint = await made.listen(Welcome(allocation=2, head="local2"), port=0)
        made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
        assert made.journal(2).claim_next_allocation(endpoint, 1)
        assert await made.find(1)
        assert head.joins == [made.join(1)]

    play(tmp_path, scene, times=replace(IN_NO_TIME, silent_after_s=0.01))


def test_a_try_with_a_cause_that_stays_is_over_sooner(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        _, endpoint = await made.listen(Welcome(allocation=9, head="node0"), make=connection_factory(b"x" * 32, SCOPE))
        made.journal(0).claim_allocation(endpoint)
        with pytest.raises(RendezvousTimeoutError) as caught:
            await made.find(1)
        assert [missing.cause for missing in caught.value.missing] == [RendezvousCause.WRONG_SECRET]

    play(tmp_path, scene, times=retrying(persists_s=0.01))


def test_a_trouble_is_told_once_and_taken_back_when_the_head_is_found(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        looking = asyncio.ensure_future(made.find())
        while not Path(made.layout.rendezvous("local1")).exists():
            await asyncio.sleep(0.001)
        assert made.record()["cause"] == "refused"
        assert not made.record()["gave_up"]
        for _ in range(50):
            await asyncio.sleep(0.001)
        await made.listen(Welcome(allocation=1, head="node0"), port=made.ports[0])
        assert await looking
        await made.disk.call(lambda: None)
        assert not Path(made.layout.rendezvous("local1")).exists()
        refused = f"was refused by local0 (127.0.0.2) on port {made.ports[0]}: nobody listens there"
        assert made.said == [refused]

    play(tmp_path, scene, times=retrying())


class Slow(Answering):
    """A head that is busy: it keeps the connection and says nothing yet."""

    def __init__(self) -> None:
        super().__init__(Welcome(allocation=1, head="node0"))

    def received(self, connection: Connection, message: Message) -> None:
        self.joins.append(without_clock(message))


def test_a_head_that_answers_late_is_waited_for_on_the_same_connection(tmp_path: Path) -> None:
    """Whoever hangs up is taken for lost, and refused when he calls again."""

    async def scene(made: Scene) -> None:
        head = Slow()
        await made.listen_as(head)
        looking = asyncio.ensure_future(made.find())
        while not Path(made.layout.rendezvous("local1")).exists():
            await asyncio.sleep(0.001)
        assert made.record()["cause"] == "silent"
        (connection,) = head.connections
        connection.send(Welcome(allocation=1, head="node0"))
        assert await looking
        assert (head.joins, made.member.heard) == ([made.join(1)], [Welcome(allocation=1, head="node0")])

    play(tmp_path, scene, times=replace(retrying(answers_within_s=0.0, persists_s=0.0), silent_after_s=0.01))


def test_a_head_that_answers_while_a_slow_file_system_is_asked_about_it_is_joined_though_the_run_is_over_by_then(
    tmp_path: Path,
) -> None:
    """The agent has been a member since, and leaves with the result; it left as one that had come too late."""

    async def scene(made: Scene) -> None:
        made.allow(lease_s=0.0)
        head, answers = Slow(), threading.Event()
        await made.listen_as(head)
        held = asyncio.ensure_future(made.disk.call(answers.wait))
        looking = asyncio.ensure_future(made.find())
        while not made.said:
            await asyncio.sleep(0.001)
        (connection,) = head.connections
        connection.send(Welcome(allocation=1, head="node0"))
        while not made.member.heard:
            await asyncio.sleep(0.001)
        write_json(made.layout.result, {"state": "SUCCEEDED"})
        answers.set()
        assert await looking
        await held

    play(tmp_path, scene, times=replace(retrying(answers_within_s=0.0, persists_s=0.0), silent_after_s=0.01))


@pytest.mark.long
def test_a_head_that_never_answers_is_given_up_at_join_timeout(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.allow(join_timeout_s=1.0)
        await made.listen_as(Slow())
        with pytest.raises(RendezvousTimeoutError) as caught:
            await made.find()
        assert [missing.cause for missing in caught.value.missing] == [RendezvousCause.SILENT]

    play(tmp_path, scene, times=replace(retrying(), silent_after_s=0.01))


@pytest.mark.long
@pytest.mark.parametrize("is_listening", [True, False], ids=["silent", "refused"])
def test_a_head_that_has_opened_an_attempt_with_this_node_and_does_not_tell_it_is_lost_after_a_lease(
    tmp_path: Path, is_listening: bool
) -> None:
    async def scene(made: Scene) -> None:
        made.allow(lease_s=0.2)
        head = await made.listen_as(Slow()) if is_listening else Endpoint(address="127.0.0.2", port=1)
        made.journal(0).claim_allocation(head)
        open_attempt(made, head, "local0", "local1")
        with pytest.raises(HeadLostError, match=r"^local0 has opened an attempt with this node") as caught:
            await made.find()
        assert caught.value.allocation == 1
        while Path(made.layout.rendezvous("local1")).exists():  # it is no trouble for the next head
            await asyncio.sleep(0.001)

    play(tmp_path, scene, times=replace(retrying(), silent_after_s=0.01))


@pytest.mark.long
def test_a_head_that_does_not_answer_and_has_opened_an_attempt_without_this_node_is_waited_for(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.allow(join_timeout_s=0.5, lease_s=0.2)
        head = await made.listen_as(Slow())
        made.journal(0).claim_allocation(head)
        open_attempt(made, head, "local0")
        with pytest.raises(RendezvousTimeoutError):
            await made.find()

    play(tmp_path, scene, times=replace(retrying(), silent_after_s=0.01))


def test_a_name_that_means_nothing_is_told_and_the_claim_is_used(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.nodes = ("no-such-node.invalid", "local1")
        looking = asyncio.ensure_future(made.find())
        while not made.said:
            await asyncio.sleep(0.001)
        (line,) = made.said
        assert line.startswith("cannot resolve no-such-node.invalid: ")
        assert len(line) > len("cannot resolve no-such-node.invalid: ")
        _, endpoint = await made.listen(Welcome(allocation=1, head="node0"), port=0)
        made.journal(0).claim_allocation(endpoint)
        assert await looking

    play(tmp_path, scene, times=retrying())


@pytest.mark.parametrize(("node_id", "nodes"), [(1, 4), (3, 4), (99, 100)])
def test_somebody_becomes_the_head_before_the_others_give_up(tmp_path: Path, node_id: int, nodes: int) -> None:
    async def scene(made: Scene) -> None:
        made.nodes = tuple(f"node{number}" for number in range(nodes))
        for join_timeout_s in (10.0, 600.0, 100000.0):
            made.allow(join_timeout_s=join_timeout_s)
            after_s = made.search(node_id)._claim_after_s()
            assert after_s <= 0.75 * join_timeout_s
            assert after_s <= 20 + 5 * node_id

    play(tmp_path, scene)


def test_a_late_agent_of_a_run_that_is_over_does_not_wait_for_a_head(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.journal(0).claim_allocation(Endpoint(address="127.0.0.2", port=1))
        write_json(made.layout.result, {"state": "SUCCEEDED"})
        with pytest.raises(RunDirectoryError, match="is over"):
            await made.find(1)

    play(tmp_path, scene)


def test_a_late_agent_does_not_wait_for_a_head_that_has_left_for_another_start_of_the_job(tmp_path: Path) -> None:
    """It held the job up for minutes, became the head itself, and ended the run."""

    async def scene(made: Scene) -> None:
        head = made.journal(0)
        head.claim_allocation(Endpoint(address="127.0.0.2", port=1))
        head.next_start.note("node_lost", ["local1"])
        with pytest.raises(HeadLeftError, match="the job is started again"):
            await made.find(1)
        assert not Path(made.layout.allocation(2)).exists()

    play(tmp_path, scene)


@pytest.mark.parametrize("is_over", [True, None], ids=["it answers later", "it never answers"])
def test_whether_an_earlier_allocation_is_over_is_asked_until_the_scheduler_says_it(
    tmp_path: Path, is_over: bool | None
) -> None:
    async def scene(made: Scene) -> None:
        other = replace(made.place(0), job_id="41")
        Journal(made.layout, made.plan, other, questions=Answers()).claim_allocation(ENDPOINT)
        asked: list[str] = []

        def answer(job_id: str) -> bool | None:
            asked.append(job_id)
            return None if len(asked) < 4 else is_over

        made.answers = Answers(is_over=answer)
        if is_over:
            assert await made.find(0) is False  # it is the head
            assert json.loads(Path(made.layout.allocation(2)).read_text())["job_id"] == "local-1"
            assert asked == ["41"] * 4
        else:
            with pytest.raises(RunDirectoryError, match="cannot be asked about"):
                await made.find(0)
            assert len(asked) > 1
            assert not Path(made.layout.allocation(2)).exists()

    within_s = 600.0 if is_over else 0.3
    play(tmp_path, scene, times=replace(IN_NO_TIME, scheduler_answers_within_s=within_s, asks_again_after_s=0.01))
