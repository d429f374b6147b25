"""An agent without a head, by scripts: whom it dials, when it gathers, when it gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave, Log
from hpc_elastic.membership.discovery import (
    ClaimAllocation,
    Dial,
    DiscoveryAction,
    DiscoveryPhase,
    DiscoverySettings,
    Gather,
    HeadDiscovery,
    ReadRecords,
    StepDown,
)
from hpc_elastic.membership.messages import Elsewhere
from hpc_elastic.membership.ranks import assign_worker_ranks
from hpc_elastic.membership.succession import LostHead, Records, order_of_succession, with_candidates
from hpc_elastic.membership.timing import GATHERS_AFTER_S, TURNS_TO_ASK
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Candidate,
    Endpoint,
    RunResultRecord,
    RunState,
    Spend,
    World,
    WorldSpare,
)
from tests.membership.script import a_seat

SETTINGS = DiscoverySettings(node="node1", join_timeout_s=60)
FIRST = AllocationClaim(
    run="run",
    allocation=1,
    job_id="1",
    restart_count=0,
    array_task=None,
    nodes=("node0", "node1", "node2", "node3"),
    node="node0",
    host="node0",
    head=Endpoint(address="10.0.0.0", port=1),
    time="",
)


def a_world(*node_ids: int, attempt: int = 1, head: str = "node0") -> World:
    seats = [a_seat(node_id) for node_id in node_ids]
    return assign_worker_ranks(seats, run="run", attempt=attempt, allocation=1, head=head, restarts={})


def records(world: World | None = None, result: RunResultRecord | None = None) -> Records:
    if world is None:
        return Records(result=result, first=FIRST, claim=None, world=None)
    claim = AttemptClaim(
        run="run",
        attempt=world.attempt,
        allocation=1,
        predecessor=None,
        head=world.head,
        members=tuple(node.node for node in world.nodes),
        roles=("default",),
        reason="",
        spend=Spend(),
        time="",
    )
    return Records(result=result, first=FIRST, claim=claim, world=world)


def a_result(written_by: str = "node1") -> RunResultRecord:
    return RunResultRecord(
        run="run",
        state=RunState.SUCCEEDED,
        exit_code=0,
        reason="succeeded",
        cause="every rank exited 0",
        attempts=1,
        restarts=0,
        failures={},
        return_values={},
        nodes=(),
        started=None,
        ended="",
        written_by=written_by,
    )


def with_beginning(world: World, result: RunResultRecord) -> Records:
    """Of a claim that has the beginning of the roster, as all have."""
    found = records(world, result)
    assert found.claim is not None
    return replace(found, claim=with_candidates(found.claim, world))


def without_roster(found: Records) -> Records:
    """What an agent reads that does not need the whole roster: nothing of it where the claim has its beginning."""
    has_beginning = found.claim is not None and found.claim.candidates is not None
    return replace(found, world=None, is_finished=False) if has_beginning else found


class Search:
    """A discovery, and what it meets: `found` is in the run directory, and who is in `answers` takes it in."""

    def __init__(
        self,
        node: str,
        found: Records,
        *,
        is_dead: bool = True,
        lost: str | None = "node0",
        elsewhere: Mapping[str, str] | None = None,
        silent: Sequence[str] = (),
        can_end_job: bool = False,
        told: Sequence[Candidate] = (),
    ) -> None:
        self.now = 0.0
        self.found = found
        self.answers: set[str] = set()
        self.elsewhere = dict(elsewhere or {})  # whom an agent names as its head
        self.silent = silent
        self.dialled: list[tuple[float, str]] = []
        self.actions: list[tuple[float, DiscoveryAction]] = []
        head = LostHead(node=lost, contact=-1.0, is_dead=is_dead, why="reset", attempt=1, spares=tuple(told))
        self.discovery = HeadDiscovery(replace(SETTINGS, node=node, can_end_job=can_end_job), head, self.now)
        self.take(self.discovery.tick(self.now))

    def take(self, actions: Sequence[DiscoveryAction]) -> None:
        for action in actions:
            self.actions.append((self.now, action))
            if isinstance(action, ReadRecords):
                found = self.found if action.needs_world else without_roster(self.found)
                self.take(self.discovery.read(found, self.now))
            elif isinstance(action, Dial):
                self.dialled.append((self.now, action.node))
                self.take(self.discovery.answered() if action.node in self.answers else self.refuse(action.node))

    def refuse(self, node: str) -> list[DiscoveryAction]:
        """It is no head; it may name its own."""
        named = self.elsewhere.get(node)
        agent = Endpoint(address="10.0.0.9", port=1)
        elsewhere = None if named is None else Elsewhere(node=named, agent=agent)
        is_silent = node in self.silent
        return self.discovery.not_answered(
            self.now, is_silent=is_silent, is_refused=not is_silent and named is None, elsewhere=elsewhere
        )

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.discovery.next_tick()) <= end:
            self.now = max(self.now, at)
            self.take(self.discovery.tick(self.now))
        self.now = end

    def asked_for(self, kind: type[DiscoveryAction]) -> list[tuple[float, DiscoveryAction]]:
        return [(at, action) for at, action in self.actions if isinstance(action, kind)]

    def names(self) -> set[str]:
        return {node for _, node in self.dialled}


def test_who_comes_when_the_head_has_left_for_another_start_of_the_job_leaves_with_it() -> None:
    search = Search("node1", replace(records(), left_for="node_lost"))
    leave = search.actions[-1][1]
    assert isinstance(leave, Leave)
    assert leave.exit_code == ExitCode.REQUEUE
    assert leave.cause == "the head has left: too few nodes were left; the job is started again"
    assert search.discovery.phase is DiscoveryPhase.OVER


def test_the_first_member_left_gathers_at_once() -> None:
    ((at, gather),) = Search("node1", records(a_world(0, 1, 2))).asked_for(Gather)
    assert at == 0
    assert isinstance(gather, Gather)
    assert (gather.succession.lost.node, gather.succession.world.attempt) == ("node0", 1)


def test_each_member_leaves_half_a_second_to_each_one_before_it_and_dials_them_meanwhile() -> None:
    search = Search("node2", records(a_world(0, 1, 2, 3)))
    search.pass_time(3)
    ((at, _),) = search.asked_for(Gather)
    assert at == 1.0
    assert search.dialled[:2] == [(0.0, "node1"), (0.0, "node3")]


def test_one_that_answers_is_joined() -> None:
    search = Search("node2", records(a_world(0, 1, 2)))
    search.answers = {"node1"}
    search.pass_time(5)
    assert search.discovery.phase is DiscoveryPhase.OVER
    assert search.discovery.next_tick() == float("inf")


def test_a_member_that_gathers_gives_way_to_one_of_lower_order() -> None:
    search = Search("node2", records(a_world(0, 1, 2)))
    search.pass_time(2)
    assert search.asked_for(Gather)
    search.answers = {"node1"}
    search.pass_time(2)
    assert search.asked_for(StepDown)
    assert search.discovery.phase is DiscoveryPhase.OVER


def test_who_claims_dials_nobody_any_more_and_joins_nobody() -> None:
    search = Search("node2", records(a_world(0, 1, 2)))
    search.pass_time(2)
    search.discovery.claiming()
    count = len(search.dialled)
    search.pass_time(30)
    assert len(search.dialled) == count
    assert search.discovery.answered() == []  # of one that was under way: the caller hangs up
    assert search.discovery.phase is DiscoveryPhase.CLAIMING


def test_a_lost_claim_has_the_records_read_again() -> None:
    search = Search("node1", records(a_world(0, 1, 2)))
    search.discovery.claiming()
    search.found = records(a_world(2, attempt=2, head="node2"))
    search.take(search.discovery.superseded(search.now))
    assert search.names() == {"node2"}
    assert len(search.asked_for(Gather)) == 1


def of_a_claim_with_candidates(world: World) -> Records:
    found = records(world)
    assert found.claim is not None
    return replace(found, claim=with_candidates(found.claim, world))


def test_a_member_reads_the_roster_only_when_its_turn_has_come() -> None:
    search = Search("node2", of_a_claim_with_candidates(a_world(0, 1, 2)))
    search.pass_time(3)
    ((at, gather),) = search.asked_for(Gather)
    assert at == 0.5
    assert isinstance(gather, Gather)
    assert gather.succession.world == search.found.world
    wholes = [at for at, action in search.asked_for(ReadRecords) if action == ReadRecords(needs_world=True)]
    assert wholes[0] == 0.5


def test_a_member_that_the_claim_does_not_name_reads_the_roster_after_the_turns_that_it_names() -> None:
    world = a_world(*range(200))
    turns = order_of_succession([f"node{number}" for number in range(1, 200)])
    search = Search(turns[100], of_a_claim_with_candidates(world))
    search.pass_time(31.9)
    assert ReadRecords(needs_world=True) not in [action for _, action in search.asked_for(ReadRecords)]
    search.pass_time(20)
    assert [at for at, _ in search.asked_for(Gather)] == [50.0], "at its own turn, which the roster says"


def test_a_roster_that_cannot_be_read_is_asked_for_once_a_second() -> None:
    found = without_roster(of_a_claim_with_candidates(a_world(0, 1, 2)))
    discovery = HeadDiscovery(SETTINGS, LostHead(node="node0", contact=0, is_dead=True, why="reset"), 0)
    assert discovery.tick(0) == [ReadRecords()]
    assert ReadRecords(needs_world=True) in discovery.read(found, 0.2)
    discovery.read_failed("no space left", 0.3)
    assert ReadRecords(needs_world=True) not in discovery.tick(1.2)
    assert ReadRecords(needs_world=True) in discovery.tick(1.3)
    discovery.read(found, 1.4)
    assert ReadRecords(needs_world=True) not in discovery.tick(2.3)


def with_spares(world: World, *node_ids: int) -> World:
    seats = [a_seat(node_id) for node_id in node_ids]
    spares = (WorldSpare(node=seat.node, node_id=seat.node_id, agent=seat.agent) for seat in seats)
    return replace(world, spares=tuple(spares))


def test_a_spare_of_a_dead_head_gathers_after_all_members_and_the_spares_before_it() -> None:
    world = with_spares(a_world(0, 1), 2, 3)
    for node, turn, asked in (("node2", 1.0, {"node1"}), ("node3", 1.5, {"node1", "node2"})):
        search = Search(node, records(world))
        search.pass_time(0.4)
        assert search.names() - {"node0"} == asked
        search.pass_time(1.5)
        ((at, gather),) = search.asked_for(Gather)
        assert at == turn
        assert isinstance(gather, Gather)
        assert gather.succession.is_spare
        assert gather.succession.lost.contact == 0.0, "members may have heard the head later than a spare did"


def test_a_spare_that_the_worlds_record_does_not_name_gathers_after_those_that_it_names() -> None:
    search = Search("node3", records(with_spares(a_world(0, 1), 2)))
    search.pass_time(5)
    assert [at for at, _ in search.asked_for(Gather)] == [1.5]
    assert search.names() == {"node0", "node1", "node2"}


def named(*node_ids: int) -> list[Candidate]:
    """The spares of which a head has told."""
    return [Candidate(node=f"node{node_id}", agent=a_seat(node_id).agent) for node_id in node_ids]


def test_spares_that_came_late_ask_each_other_where_their_head_has_named_them() -> None:
    world = a_world(0, 1)
    for node, turn, asked in (("node2", 1.0, {"node1"}), ("node3", 1.5, {"node1", "node2"})):
        search = Search(node, records(world), told=named(2, 3))
        search.pass_time(5)
        assert [at for at, _ in search.asked_for(Gather)] == [turn]
        assert search.names() - {"node0"} == asked
    search.answers = {"node2"}
    search.pass_time(2)
    assert search.asked_for(StepDown), "it gives way to the one before it"


def test_the_turn_of_a_spare_depends_on_no_word_of_the_head() -> None:
    """Else one that has missed the latest word and one that has heard it could each come before the other."""
    for told in ([], named(3), named(1, 2, 3)):
        search = Search("node3", records(with_spares(a_world(0), 2)), told=told)
        search.pass_time(5)
        assert [at for at, _ in search.asked_for(Gather)] == [1.5]


def test_a_spare_whose_head_is_only_silent_never_gathers_and_asks_all_others() -> None:
    search = Search("node2", records(with_spares(a_world(0, 1), 2, 3)), is_dead=False)
    search.pass_time(59.9)
    assert not search.asked_for(Gather)
    assert search.names() == {"node0", "node1", "node3"}


def test_a_spare_asks_a_silent_head_that_has_no_workers_once_a_round() -> None:
    search = Search(
        "node2", records(with_spares(a_world(1, head="node0"), 0, 2)), is_dead=False, silent=["node0", "node1"]
    )
    search.pass_time(30)
    asked = [dial.node for _, dial in search.asked_for(Dial) if isinstance(dial, Dial)]
    assert abs(asked.count("node0") - asked.count("node1")) <= 2, asked


def test_a_spare_whose_connection_was_closed_gathers_only_when_the_heads_machine_refuses_another_one() -> None:
    search = Search("node1", records(with_spares(a_world(0), 1)), silent=["node0"])
    search.pass_time(30)
    assert not search.asked_for(Gather), "an answer that is only late is none: the connection was reset, and it lives"
    search.silent = ()
    search.pass_time(1)
    assert len(search.asked_for(Gather)) == 1


def test_a_refusal_counts_for_no_later_attempt() -> None:
    search = Search("node3", records(with_spares(a_world(0, 1, 2), 3)))
    search.pass_time(0.9)
    assert "node0" in search.names()
    search.found, search.silent = records(with_spares(a_world(0, attempt=2), 3)), ("node0",)
    search.pass_time(20)
    assert not search.asked_for(Gather), "the head has opened an attempt since"


def test_a_spare_that_has_not_heard_the_latest_head_never_gathers() -> None:
    search = Search("node3", records(with_spares(a_world(1, 2, attempt=2, head="node1"), 3)))
    search.pass_time(59.9)
    assert not search.asked_for(Gather)


def test_a_spare_that_gathers_gives_way_to_a_member() -> None:
    search = Search("node3", records(with_spares(a_world(0, 1, 2), 3)))
    search.pass_time(5)
    assert search.asked_for(Gather)
    search.answers = {"node2"}
    search.pass_time(2)
    assert search.asked_for(StepDown)
    assert search.discovery.phase is DiscoveryPhase.OVER


def test_spares_of_a_large_world_do_not_wait_for_every_turn() -> None:
    world = with_spares(a_world(*range(500)), 500)
    found = records(world)
    found = replace(found, first=replace(FIRST, nodes=tuple(f"node{number}" for number in range(501))))
    search = Search("node500", found)
    search.pass_time(40)
    assert [at for at, _ in search.asked_for(Gather)] == [32.0]


def test_who_is_not_of_the_latest_world_never_gathers_and_waits_to_be_invited() -> None:
    search = Search("node3", records(a_world(0, 1, 2)), is_dead=False)
    search.pass_time(59.9)
    assert not search.asked_for(Gather)
    assert search.names() == {"node0", "node1", "node2"}
    search.pass_time(0.2)
    ((_, leave),) = search.asked_for(Leave)
    assert isinstance(leave, Leave)
    assert leave.exit_code == ExitCode.NODE_LOST


def test_a_head_that_fell_silent_is_asked_too_but_after_the_others() -> None:
    search = Search("node2", records(a_world(0, 1, 2)), is_dead=False)
    search.pass_time(3)
    assert search.dialled[0] == (0.0, "node1")
    assert search.names() == {"node0", "node1"}


def test_a_node_that_gave_no_answer_is_asked_again_though_one_of_an_earlier_world_gave_none_either() -> None:
    search = Search("node4", records(a_world(0, 1, 2)), is_dead=False, silent=["node1"])
    search.pass_time(2)
    search.found, search.silent = records(a_world(0, 2, 3, attempt=2)), ("node1", "node2")
    search.pass_time(2)
    search.dialled.clear()
    search.pass_time(10)
    assert {"node0", "node2", "node3"} <= search.names()


def test_a_head_that_counts_as_dead_is_asked_too_but_after_the_others() -> None:
    """Its connection may have been reset while it lives."""
    search = Search("node2", records(a_world(0, 1, 2)), is_dead=True)
    search.pass_time(5)
    assert search.dialled[0] == (0.0, "node1")
    assert search.names() == {"node0", "node1"}


def test_the_head_of_a_later_claim_is_asked_first() -> None:
    search = Search("node1", records(a_world(2, 3, attempt=2, head="node3")), is_dead=False)
    search.pass_time(1)
    assert search.dialled[0] == (0.0, "node3")


def test_a_claim_that_comes_while_it_gathers_ends_the_gathering() -> None:
    search = Search("node1", records(a_world(0, 1, 2)))
    search.found = records(a_world(2, 3, attempt=2, head="node2"))
    search.pass_time(2)
    assert search.asked_for(StepDown)
    assert next(node for _, node in search.dialled if node != "node0") == "node2"


def test_a_result_ends_the_search_with_its_exit_code() -> None:
    ((_, leave),) = Search("node2", records(a_world(0, 1, 2), a_result())).asked_for(Leave)
    assert leave == Leave(exit_code=0, cause="every rank exited 0")


@pytest.mark.parametrize(
    ("is_known", "written_by", "can_end_job", "ends_job"),
    [
        (True, "node1", True, True),
        (False, "node1", True, False),
        (True, "node0", True, False),
        (True, "node1", False, False),
    ],
    ids=["lost", "not known to be lost", "wrote the result", "this agent got no answer"],
)
def test_who_could_end_the_job_of_a_lost_batch_host_does_so_when_it_finds_the_result(
    *, is_known: bool, written_by: str, can_end_job: bool, ends_job: bool
) -> None:
    """The head that wrote it may be gone before it has told anybody."""
    world = replace(a_world(0, 1, 2, head="node1"), launch_node="node0", is_launch_node_lost=is_known)
    search = Search("node2", with_beginning(world, a_result(written_by)), lost="node1", can_end_job=can_end_job)
    ((_, leave),) = search.asked_for(Leave)
    assert isinstance(leave, Leave)
    assert leave.ends_job == ends_job


@pytest.mark.parametrize(("was_silent", "ends_job"), [(True, True), (False, False)])
def test_who_finds_the_result_takes_a_batch_host_for_lost_that_was_a_silent_head(
    *, was_silent: bool, ends_job: bool
) -> None:
    world = replace(a_world(0, 1, 2, head="node0"), launch_node="node0")
    search = Search("node2", with_beginning(world, a_result("node1")), is_dead=not was_silent, can_end_job=True)
    ((_, leave),) = search.asked_for(Leave)
    assert isinstance(leave, Leave)
    assert leave.ends_job == ends_job


def test_who_finds_the_result_and_cannot_read_the_roster_leaves_with_its_exit_code() -> None:
    settings = replace(SETTINGS, can_end_job=True)
    discovery = HeadDiscovery(settings, LostHead(node="node0", contact=0, is_dead=True, why="reset"), 0)
    found = with_beginning(a_world(0, 1, 2), a_result("node0"))
    assert discovery.tick(0) == [ReadRecords()]
    assert discovery.read(without_roster(found), 0) == [ReadRecords(needs_world=True)]
    assert discovery.read_failed("no space left", 1) == [Leave(exit_code=0, cause="every rank exited 0")]


def test_a_run_directory_that_cannot_be_read_is_asked_again() -> None:
    discovery = HeadDiscovery(SETTINGS, LostHead(node="node0", contact=0, is_dead=True, why="reset"), 0)
    assert discovery.tick(0) == [ReadRecords()]
    assert discovery.tick(5) == []  # it is still being read, however long that takes
    (said,) = discovery.read_failed("no space left", 10)
    assert isinstance(said, Log)
    assert ReadRecords() in discovery.tick(discovery.next_tick())
    assert discovery.phase is DiscoveryPhase.SEARCHING


def test_before_the_first_attempt_the_nodes_claim_the_next_allocation_in_their_order() -> None:
    for node, at in (("node1", 0.0), ("node3", 0.5)):
        search = Search(node, records(), lost=None)
        search.pass_time(3)
        assert search.asked_for(ClaimAllocation) == [(at, ClaimAllocation(after=1, lost=search.discovery._lost))]
        assert search.discovery.phase is DiscoveryPhase.CLAIMING


@pytest.mark.parametrize(
    ("node", "read_s", "waits_s"),
    [
        pytest.param("node3", 0.1, 0.5, id="quick"),
        pytest.param("node3", 2.0, 2.0, id="slow"),
        pytest.param("node2", 25.0, 30.0, id="slow, and its turn is late"),
    ],
)
def test_a_turn_to_claim_the_next_allocation_lasts_as_long_as_a_look_at_the_claims(
    node: str, read_s: float, waits_s: float
) -> None:
    """Else all nodes of a slow disk claim before they see each other's claims; half of join_timeout at most."""
    lost = LostHead(node=None, contact=-1.0, is_dead=True, why="reset")
    discovery = HeadDiscovery(replace(SETTINGS, node=node), lost, 0.0)
    assert discovery.tick(0.0) == [ReadRecords()]
    discovery.read(records(), read_s)
    early, due = (discovery.tick(read_s + waits_s + beside) for beside in (-0.01, 0.01))
    is_claimed = [any(isinstance(action, ClaimAllocation) for action in actions) for actions in (early, due)]
    assert is_claimed == [False, True]


@pytest.mark.parametrize(
    ("is_dead", "asks_s"), [pytest.param(True, 0.5, id="it was reset"), pytest.param(False, 5.0, id="it is silent")]
)
def test_a_head_that_was_lost_before_the_first_attempt_is_asked_again_before_its_place_is_taken(
    is_dead: bool, asks_s: float
) -> None:
    """Perhaps this node stood still, and no other: then that head answers, and two heads would wait for each other."""
    lost = LostHead(node="node0", contact=-1.0, is_dead=is_dead, why="reset")
    discovery = HeadDiscovery(replace(SETTINGS, node="node1", asks_again_s=5.0), lost, 0.0)
    discovery.tick(0.0)
    (dial,) = discovery.read(records(), 0.0)
    assert (isinstance(dial, Dial), dial.node) == (True, "node0")  # type: ignore[union-attr]
    early, due = (discovery.tick(asks_s + beside) for beside in (-0.01, 0.01))
    is_claimed = [any(isinstance(action, ClaimAllocation) for action in actions) for actions in (early, due)]
    assert is_claimed == [False, True]


def test_a_quick_look_at_the_claims_halves_what_a_slow_one_has_shown() -> None:
    lost = LostHead(node=None, contact=-1.0, is_dead=True, why="reset")
    discovery = HeadDiscovery(replace(SETTINGS, node="node3"), lost, 0.0)
    discovery.tick(0.0)
    discovery.read(records(), 8.0)
    discovery.tick(discovery.next_tick())
    later = next(at for at in (9.0, 9.5, 10.0) if ReadRecords() in discovery.tick(at))
    discovery.read(records(), later + 0.1)
    assert not any(isinstance(action, ClaimAllocation) for action in discovery.tick(11.9))
    assert any(isinstance(action, ClaimAllocation) for action in discovery.tick(12.1))


def test_a_claim_of_an_allocation_that_is_anothers_leads_to_its_head() -> None:
    search = Search("node2", records(), lost="node0")
    search.pass_time(1)
    search.found = replace(search.found, first=replace(FIRST, allocation=2, node="node1"))
    search.take(search.discovery.superseded(search.now))
    assert search.dialled[-1][1] == "node1"


def test_a_head_that_this_agent_has_never_heard_is_silent_from_the_moment_it_is_known() -> None:
    search = Search("node1", records(a_world(1, 2, attempt=2, head="node2")), is_dead=True)
    ((_, gather),) = search.asked_for(Gather)
    assert isinstance(gather, Gather)
    lost = gather.succession.lost
    assert (lost.node, lost.contact, lost.is_dead) == ("node2", 0.0, False)


def test_a_lost_head_that_went_on_with_this_node_counts_as_heard_when_its_claim_is_found() -> None:
    """It may have got an old question of this node, and count a lease from that."""
    again = Search("node1", records(a_world(0, 1, attempt=1)), is_dead=False)
    (_, first), *_ = again.asked_for(Gather)
    assert isinstance(first, Gather)
    assert first.succession.lost.contact == -1.0
    later = Search("node1", records(a_world(0, 1, attempt=2)), is_dead=False)
    (_, second), *_ = later.asked_for(Gather)
    assert isinstance(second, Gather)
    assert second.succession.lost.contact == 0.0


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 31, 63, 64, 100, 4095])
def test_turns_are_everybodys_once_and_the_next_node_comes_first(count: int) -> None:
    names = [f"node{number}" for number in range(count)]
    turns = order_of_succession(names)
    assert sorted(turns) == sorted(names)
    assert turns[0] == "node0"


@pytest.mark.parametrize("count", [16, 100, 1000, 4096])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75])
def test_of_nodes_in_a_row_that_are_lost_few_come_before_one_that_lives(count: int, share: float) -> None:
    names = list(map(str, range(count)))
    turns, lost = order_of_succession(names), int(share * count)
    for first in range(count - lost):
        rack = set(names[first : first + lost])
        assert next(number for number, node in enumerate(turns) if node not in rack) <= 4


def test_one_that_names_its_head_is_believed_at_once() -> None:
    search = Search("node4", records(a_world(*range(9))), elsewhere={"node1": "node7"})
    assert search.dialled[:2] == [(0.0, "node1"), (0.0, "node7")]
    assert search.dialled.count((0.0, "node7")) == 1, "not twice in one round"


def test_one_that_is_named_while_a_new_claim_is_read_has_half_a_second_to_answer() -> None:
    head = LostHead(node="node0", contact=-1.0, is_dead=True, why="reset", attempt=1)
    discovery = HeadDiscovery(replace(SETTINGS, node="node4"), head, 0.0)
    discovery.tick(0.0)
    discovery.read(records(a_world(*range(9))), 0.0)  # and dials
    later = records(a_world(2, 3, 4, attempt=2, head="node3"))
    assert not [each for each in discovery.read(later, 0.1) if isinstance(each, Dial)]
    named = Elsewhere(node="node3", agent=Endpoint(address="10.0.0.9", port=1))
    (dial,) = (each for each in discovery.not_answered(0.1, elsewhere=named) if isinstance(each, Dial))
    assert (dial.node, dial.within_s) == ("node3", 0.5)


@pytest.mark.parametrize(("round_trip_s", "within_s"), [(0.0, 0.5), (0.25, 0.5), (0.3, 1.0), (5.0, 1.0)])
def test_an_agent_has_more_time_to_answer_at_first_where_the_network_was_seen_to_need_it(
    round_trip_s: float, within_s: float
) -> None:
    """Half a second is too short for two round trips of 0.3 s; what stood still for seconds may be dead by now."""
    lost = LostHead(node="node0", contact=-1.0, is_dead=False, why="no answer", attempt=1, round_trip_s=round_trip_s)
    discovery = HeadDiscovery(replace(SETTINGS, node="node4"), lost, 0.0)
    discovery.tick(0.0)
    found = [each for each in discovery.read(records(a_world(*range(9))), 0.0) if isinstance(each, Dial)]
    assert [dial.within_s for dial in found] == [within_s]


def test_two_that_gather_do_not_leave_for_each_other() -> None:
    search = Search("node5", records(a_world(*range(9))))
    search.pass_time(4)
    assert search.discovery.phase is DiscoveryPhase.GATHERING
    search.elsewhere["node1"] = "node8"  # which comes after node5
    before = len(search.dialled)
    search.pass_time(2)
    assert "node8" not in [node for _, node in search.dialled[before:]]


def test_of_silent_agents_one_is_asked_in_each_round() -> None:
    silent = [f"node{number}" for number in range(1, 8)]
    search = Search("node8", records(a_world(*range(9))), is_dead=False, silent=silent)
    search.dialled.clear()
    search.pass_time(2)
    asked = [node for _, node in search.dialled]
    assert asked[0::2] == ["node0"] * len(asked[0::2]) or asked[1::2] == ["node0"] * len(asked[1::2])
    assert len(set(asked)) > 3, "each of them has its round"


def test_an_agent_asks_a_head_that_it_has_not_had_yet_before_it_claims_the_next_allocation() -> None:
    """Else agents that have superseded each other would do so for ever, before the first attempt."""
    search = Search("node1", records(), lost="node3", is_dead=False)
    search.pass_time(10)
    ((at, claim),) = search.asked_for(ClaimAllocation)
    assert (at, claim) == (GATHERS_AFTER_S * TURNS_TO_ASK, ClaimAllocation(after=1, lost=search.discovery._lost))
    assert len([node for moment, node in search.dialled if node == "node0" and moment < at]) >= 3


def test_an_agent_whose_claims_are_all_in_vain_leaves_and_says_so() -> None:
    """Two sides of a partition would else supersede each other for ever, and nobody would end the run."""
    lost = LostHead(node="node0", contact=0, is_dead=True, why="reset")
    discovery = HeadDiscovery(replace(SETTINGS, claims_left=2), lost, 0)
    now, claims, left = 0.0, 0, list[Leave]()
    for _ in range(50):
        waiting = discovery.tick(now)
        while waiting:
            action = waiting.pop(0)
            if isinstance(action, ReadRecords):
                waiting += discovery.read(records(), now)
            elif isinstance(action, ClaimAllocation):
                claims += 1
                waiting += discovery.superseded(now)
            elif isinstance(action, Leave):
                left.append(action)
        now += 0.5
    assert claims == 2
    (leave,) = left
    assert (leave.exit_code, "never did enough nodes join" in leave.cause) == (int(ExitCode.NODES_MISSING), True)
