"""What an agent without a head reads in the run directory."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.records.chain import ClaimChain, head_of
from hpc_elastic.agent.records.journal import Journal, stamp
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings, open_attempt
from hpc_elastic.membership.succession import Records, with_candidates
from hpc_elastic.membership.timing import MOST_TURNS
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AttemptClaim, Endpoint, NodeResult, WorkerState, World
from hpc_elastic.rundir.store import claim, read_json, write_json
from tests.agent.answers import Answers
from tests.agent.records.runs import HEAD, a_place, a_result
from tests.plans import make_run_plan


class Run:
    """The run directory of a run on two nodes."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)

    def journal(self, node_id: int = 0, *, restart_count: int = 0) -> Journal:
        place = a_place(node_id=node_id, restart_count=restart_count)
        return Journal(self.layout, make_run_plan(self.layout.root), place, questions=Answers(is_over=lambda _: True))

    def chain(self, *, restart_count: int = 0) -> ClaimChain:
        return ClaimChain(self.layout, a_place(restart_count=restart_count))

    def open(
        self, attempt: int = 1, *, head: str = "node0", allocation: int = 1, **restarts: str
    ) -> tuple[AttemptClaim, World]:
        """A head opens an attempt; the role of each node is its name's where `restarts` says how that restarts."""
        settings = HeadSettings(
            run="run",
            node=head,
            allocation=allocation,
            expected=("node0", "node1"),
            min_nodes=1,
            max_nodes=2,
            join_timeout_s=1,
            lease_s=1,
            started="",
            restarts=restarts,
        )
        seats = [
            Seat(
                node=node,
                node_id=number,
                agent=Endpoint(address=f"10.0.0.{number + 1}", port=20000),
                store_port=1,
                workers=2,
                role=node if restarts else "default",
            )
            for number, node in enumerate(settings.expected)
        ]
        claim, world = open_attempt(settings, History(attempts=attempt - 1), seats, "first start")
        claim = stamp(claim)
        journal = self.journal()
        journal.allocation = claim.allocation
        assert journal.claim_attempt(claim, world)[0]
        return claim, world

    def ended(self, node: str, attempt: int, state: WorkerState) -> None:
        record = NodeResult(
            run="run",
            attempt=attempt,
            node=node,
            state=state,
            role="default",
            ranks=(0,),
            pids={},
            reason="",
            failures={},
            return_values={},
            started="",
            ended="",
        )
        write_json(self.layout.node_result(attempt, node), to_json(record))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_there_is_nothing_to_know_before_the_first_claim(run: Run) -> None:
    assert run.journal().read_records(needs_world=True) == Records(result=None, first=None, claim=None, world=None)
    assert run.journal().latest_attempt() is None


def test_the_records_are_the_latest_claims_of_this_allocation(run: Run) -> None:
    first = run.journal().claim_allocation(HEAD).claim
    assert run.journal(1).read_records(needs_world=True) == Records(result=None, first=first, claim=None, world=None)
    run.open(1)
    _, world = run.open(2, head="node1")
    records = run.journal(1).read_records(needs_world=True)
    assert (records.result, records.first, records.world, records.is_finished) == (None, first, world, False)
    assert records.claim is not None
    assert (records.claim.attempt, records.claim.head, records.claim.time != "") == (2, "node1", True)


def test_an_attempt_of_an_earlier_allocation_has_no_world_to_go_on_with(run: Run) -> None:
    run.journal().claim_allocation(HEAD)
    run.open(1)
    requeued = run.journal(restart_count=1)
    claim = requeued.claim_allocation(HEAD).claim
    assert requeued.read_records(needs_world=True) == Records(result=None, first=claim, claim=None, world=None)
    latest = requeued.latest_attempt()
    assert latest is not None
    assert latest.attempt == 1


def test_an_attempt_of_the_head_before_counts_though_this_start_has_claimed_again(run: Run) -> None:
    """The first head was only paused, and opened its attempt when another node had claimed in its place."""
    first = run.journal().claim_allocation(HEAD).claim
    write_json(run.layout.allocation(2), to_json(replace(first, allocation=2, node="node1")))
    run.open(1, allocation=1)
    claim = run.journal().read_records(needs_world=True).claim
    assert claim is not None
    assert (claim.attempt, claim.allocation) == (1, 1)


def test_an_agent_of_an_earlier_allocation_has_no_part_in_the_run_any_more(run: Run) -> None:
    run.journal().claim_allocation(HEAD)
    run.open(1)
    run.journal(restart_count=1).claim_allocation(HEAD)
    run.open(2, allocation=2)
    assert run.journal().read_records(needs_world=True) == Records(
        result=None, first=None, claim=None, world=None, started_again=2
    )


def test_the_result_is_among_the_records(run: Run) -> None:
    run.journal().claim_allocation(HEAD)
    run.open(1)
    run.journal().write_result(a_result())
    result = run.journal(1).read_records(needs_world=True).result
    assert result is not None
    assert result.cause == "every rank exited 0"


def test_only_a_later_attempt_is_above_this_one(run: Run) -> None:
    run.open(1)
    run.open(2, head="node1")
    journal = run.journal()
    assert [claim and claim.attempt for claim in (journal.latest_attempt(above=n) for n in range(4))] == [
        2,
        2,
        None,
        None,
    ]


def test_a_claim_that_is_only_being_made_is_passed_over(run: Run) -> None:
    """A folder comes before its claim, and where there are no hard links a claim before its content."""
    run.open(1)
    os.makedirs(run.layout.attempt(2))
    Path(run.layout.claim(2)).write_text("")
    latest = run.journal().latest_attempt()
    assert latest is not None
    assert latest.attempt == 1


def test_a_claim_that_cannot_be_read_is_an_error(run: Run) -> None:
    run.journal().claim_allocation(HEAD)
    write_json(run.layout.claim(2), {"attempt": "two"})
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        run.journal().read_records(needs_world=True)


def test_the_roster_is_known_although_its_head_died_right_after_its_claim(run: Run) -> None:
    run.journal().claim_allocation(HEAD)
    claimed, world = run.open(1)
    os.rename(run.layout.world(1), run.layout.proposed_world(1, claimed.head))
    assert run.journal(1).read_records(needs_world=True).world == world


def test_a_roster_is_read_once_for_each_attempt(run: Run) -> None:
    """Thousands of agents that look for a head once a second would read megabytes each."""
    run.journal().claim_allocation(HEAD)
    _, first = run.open(1)
    journal = run.journal(1)
    assert journal.read_records(needs_world=True).world == first
    os.unlink(run.layout.world(1))
    assert journal.read_records(needs_world=True).world == first
    _, second = run.open(2, head="node1")
    assert journal.read_records(needs_world=True).world == second


def test_the_claim_of_an_allocation_is_read_once_whichever_was_read_last(run: Run) -> None:
    """A requeued run whose earlier start has claimed: agents without a head need both claims in each look."""
    run.journal().claim_allocation(HEAD)
    first = run.chain().latest_allocation()
    run.open(1)
    run.journal(restart_count=1).claim_allocation(HEAD)
    chain = run.chain(restart_count=1)
    latest = chain.latest_allocation()
    assert latest is not None
    assert chain.predecessor() == 1
    for number in (1, 2):
        write_json(run.layout.allocation(number), {})  # what cannot be read
    assert chain.latest_allocation() == chain.first_of_this_start() == chain.find_allocation(2) == latest
    assert chain.find_allocation(1) == first
    assert chain.predecessor() == 1
    assert chain.latest_attempt_here() is None


def test_the_claims_of_this_start_are_read_once_for_the_last_attempt_before_it(run: Run) -> None:
    """An agent asks for that each time that it takes over, and there may be hundreds of large claims by then."""
    run.journal().claim_allocation(HEAD)
    run.open(1)
    run.open(2)
    chain = run.chain()
    assert chain.last_before_this_start() == 0
    for number in (1, 2):
        write_json(run.layout.claim(number), {})  # what cannot be read
    assert chain.last_before_this_start() == 0


def test_the_roster_of_a_claim_that_failed_is_gone(run: Run) -> None:
    claimed, world = run.open(1)
    lost = replace(claimed, head="node1")
    assert run.journal(1).claim_attempt(lost, replace(world, head="node1")) == (False, "")
    assert sorted(os.listdir(run.layout.attempt(1))) == ["claim.json", "world.json"]
    assert read_json(run.layout.world(1))["head"] == "node0"


def test_an_attempt_that_is_claimed_after_the_end_of_the_run_is_not_to_be_started(run: Run) -> None:
    """The result came while this head was on its way to the claim."""
    run.open(1)
    run.journal().write_result(a_result())
    claimed, world = run.chain().latest_attempt(), run.chain().world
    assert claimed is not None
    roster = world(claimed)
    assert roster is not None
    is_ours, _ = run.journal(1).claim_attempt(replace(claimed, attempt=2), replace(roster, attempt=2))
    assert not is_ours


# Whether the work is done.


def test_a_world_is_finished_when_the_record_of_each_node_says_so(run: Run) -> None:
    _, world = run.open(3)
    assert not run.chain().is_finished(world)
    run.ended("node0", 3, WorkerState.SUCCEEDED)
    run.ended("node1", 2, WorkerState.SUCCEEDED)
    assert not run.chain().is_finished(world)
    run.ended("node1", 3, WorkerState.HEALTHY)
    assert not run.chain().is_finished(world)
    run.ended("node1", 3, WorkerState.SUCCEEDED)
    assert run.chain().is_finished(world)


def test_a_role_is_finished_in_the_attempt_in_which_it_was_started_last(run: Run) -> None:
    _, world = run.open(3, node0="restart_role", node1="restart_role")
    roles = tuple(replace(role, attempt=2) if role.role == "node1" else role for role in world.roles)
    world = replace(world, roles=roles)
    run.ended("node0", 3, WorkerState.SUCCEEDED)
    run.ended("node1", 3, WorkerState.SUCCEEDED)
    assert not run.chain().is_finished(world)
    run.ended("node1", 2, WorkerState.SUCCEEDED)
    assert run.chain().is_finished(world)


def test_a_role_whose_failures_are_ignored_is_not_waited_for(run: Run) -> None:
    _, world = run.open(1, node0="restart_all", node1="ignore")
    run.ended("node1", 1, WorkerState.SUCCEEDED)
    assert not run.chain().is_finished(world)
    run.ended("node1", 1, WorkerState.FAILED)
    run.ended("node0", 1, WorkerState.SUCCEEDED)
    assert run.chain().is_finished(world)


def test_roles_that_are_all_ignored_are_not_finished_before_they_began(run: Run) -> None:
    _, world = run.open(1, node0="ignore", node1="ignore")
    assert not run.chain().is_finished(world)


# Where the head is.


def test_the_head_is_the_one_that_opened_the_latest_attempt(run: Run) -> None:
    assert run.journal().claim_allocation(HEAD).is_ours
    run.open(1)
    run.open(2, head="node1")
    found = run.journal().find_allocation()
    assert found is not None
    assert (found.allocation, found.node, found.head) == (1, "node1", Endpoint(address="10.0.0.2", port=20000))
    again = run.journal(1).claim_allocation(HEAD)
    assert (again.is_ours, again.claim) == (False, found)


def test_a_head_that_is_no_node_of_its_world_is_where_the_allocation_was_claimed(run: Run) -> None:
    mine = run.journal().claim_allocation(HEAD).claim
    _, world = run.open(1, head="node7")
    assert head_of(world) is None
    assert run.journal().find_allocation() == mine


# Results of a head that was superseded.


def test_a_result_is_not_written_if_a_later_attempt_is_claimed(run: Run) -> None:
    run.open(1)
    later, _ = run.open(2, head="node1")
    answer = run.journal().write_result(a_result(7, "node1 was lost"))
    assert isinstance(answer, AttemptClaim)
    assert (answer.attempt, answer.head) == (later.attempt, "node1")
    assert not os.path.exists(run.layout.result)
    assert not os.path.exists(run.layout.exit_code)


def test_a_result_stands_whatever_was_claimed_after_it(run: Run) -> None:
    run.open(1)
    assert run.journal().write_result(a_result(7, "node1 was lost")) == (7, "node1 was lost")
    claim(run.layout.claim(2), {"attempt": 2})
    assert run.journal().write_result(a_result()) == (7, "node1 was lost")


def a_large_run(run: Run, nodes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Journal, list[str], list[int]]:
    """A run of many nodes, the view of an agent whose turn comes late, and the names and sizes of what it reads."""
    names = tuple(f"node{number:05}" for number in range(nodes))
    place = replace(a_place(), nodes=names, node_id=nodes - 1)
    plan = make_run_plan(run.layout.root)
    journal = Journal(run.layout, plan, place, questions=Answers(is_over=lambda _: True))
    journal.claim_allocation(HEAD)
    settings = HeadSettings(
        run="run",
        node=names[0],
        allocation=1,
        expected=names,
        min_nodes=1,
        max_nodes=nodes,
        join_timeout_s=1,
        lease_s=1,
        started="",
    )
    seats = [
        Seat(
            node=name,
            node_id=number,
            agent=Endpoint(address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", port=20000),
            store_port=1,
            workers=4,
            role="default",
        )
        for number, name in enumerate(names)
    ]
    claim, world = open_attempt(settings, History(), seats, "first start")
    assert journal.claim_attempt(stamp(with_candidates(claim, world)), world)[0]
    opened: list[str] = []
    sizes: list[int] = []

    def count(path: str, mode: str, **_: object) -> io.BytesIO:
        content = Path(path).read_bytes()
        opened.append(os.path.basename(path))
        sizes.append(len(content))
        return io.BytesIO(content)

    monkeypatch.setattr(store, "open", count, raising=False)
    searching = Journal(run.layout, plan, place, questions=Answers(is_over=lambda _: True))
    return searching, opened, sizes


@pytest.mark.long
def test_a_search_of_4096_agents_reads_no_more_than_a_gigabyte(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the claims once, however often it looks, and none the roster."""
    journal, opened, sizes = a_large_run(run, 4096, monkeypatch)
    for _ in range(60):  # a minute of looks
        records = journal.read_records(needs_world=False)
    assert records.claim is not None
    assert records.claim.candidates is not None
    assert len(records.claim.candidates.turns) == MOST_TURNS
    assert sorted(opened) == ["0001.json", "claim.json"]
    assert 4096 * sum(sizes) <= 1e9
    assert os.path.getsize(run.layout.world(1)) > 10 * sum(sizes)


def test_the_nodes_records_of_a_finished_world_are_read_only_by_who_reads_the_roster(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, opened, _ = a_large_run(run, 50, monkeypatch)
    for number in range(50):
        run.ended(f"node{number:05}", 1, WorkerState.SUCCEEDED)
    assert not journal.read_records(needs_world=False).is_finished
    assert sorted(opened) == ["0001.json", "claim.json"]
    for _ in range(3):
        assert journal.read_records(needs_world=True).is_finished
    assert len(opened) == 2 + 1 + 50, "the roster and each record once"
