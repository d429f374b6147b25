"""Unhealthy nodes, by scripts: they join without a seat, the head's own too, and get one when they are well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, Log, Note, SendToHead
from hpc_elastic.membership.admission import clock_news
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, Health, Refused, Stop, Welcome
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.succession import candidates_of
from hpc_elastic.membership.timing import Timing
from tests.membership.script import HeadScript, a_join, of_kind, sent, the_cause, the_claim, the_result

FULL = "scratch: /tmp has 0 MiB free"
TRAINER, READER = "trainer", "reader"


def running(nodes: int = 3, **settings: Any) -> HeadScript:
    script = HeadScript(nodes, **settings)
    script.run()
    return script


def names(actions: list[Action]) -> list[str]:
    return [note.name for note in of_kind(actions, Note)]


def restart(script: HeadScript, failing: int, *others: int, unhealthy: int | None = None) -> list[Action]:
    """A worker of a node fails, and all nodes stop; one of them finds that it is unhealthy before it says so."""
    script.fail(failing)
    actions: list[Action] = []
    for node in (failing, *others):
        if node == unhealthy:
            actions += script.say(node, Health(problem=FULL))
        actions += script.stopped(node)
    return actions


@pytest.mark.parametrize("unhealthy", [0, 1, 2])
def test_an_unhealthy_node_joins_and_gets_no_seat_also_if_it_is_the_heads_own(unhealthy: int) -> None:
    script = HeadScript(3, min_nodes=2)
    others = [node for node in range(3) if node != unhealthy]
    actions = script.join(unhealthy, unhealthy=FULL)
    assert sent(actions, Welcome).keys() == {f"node{unhealthy}"}
    assert names(actions) == ["node.joined", "node.unhealthy"]
    (said,) = of_kind(actions, Log)
    assert (said.level, said.text) == (
        "warning",
        f"node{unhealthy} is unhealthy: {FULL}; no attempt starts workers on it",
    )
    claim = the_claim(script.join(*others))
    assert claim.claim.members == tuple(f"node{node}" for node in others)
    assert claim.claim.head == "node0"
    assert sent(script.claimed(), Assign).keys() == {f"node{node}" for node in others}


def test_the_members_know_where_a_head_without_workers_is() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, unhealthy=FULL)
    world = the_claim(script.join(1, 2)).world
    assert candidates_of(world).head == a_join(0).agent


def test_too_few_healthy_nodes_end_the_run_at_once_with_code_6_and_all_reasons() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0)
    script.join(1, unhealthy=FULL)
    actions = script.join(2, unhealthy="gpus: no answer within 30 s")
    assert the_cause(actions) == ("nodes_missing", ExitCode.NODES_MISSING)
    assert the_result(actions).cause == (
        "at most 1 of at least 2 nodes can take part; missing: node1, node2 (unhealthy); "
        f"node1 is unhealthy: {FULL}; node2 is unhealthy: gpus: no answer within 30 s"
    )


def test_a_role_without_a_healthy_node_ends_the_run() -> None:
    roles = {0: TRAINER, 1: TRAINER, 2: READER}
    script = HeadScript(3, min_nodes=2, roles=roles, role_nodes={TRAINER: 1, READER: 1})
    script.join(0, 1)
    assert the_cause(script.join(2, unhealthy=FULL)) == ("nodes_missing", ExitCode.NODES_MISSING)


def test_an_unhealthy_node_that_is_awaited_by_nobody_holds_up_nothing() -> None:
    script = HeadScript(3, min_nodes=1, max_nodes=2)
    script.join(2, unhealthy=FULL)
    script.join(0)
    assert the_claim(script.join(1)).claim.members == ("node0", "node1")


def test_a_node_found_unhealthy_after_a_failure_is_left_out_of_the_next_attempt_which_is_paid_for() -> None:
    script = running(3, min_nodes=2)
    claim = the_claim(restart(script, 2, 0, 1, unhealthy=2)).claim
    assert (claim.members, claim.spend.restarts, claim.spend.node_losses) == (("node0", "node1"), 1, 0)


def test_a_spare_takes_the_place_of_a_node_found_unhealthy() -> None:
    script = running(3, min_nodes=2, max_nodes=2)
    claim = the_claim(restart(script, 0, 1, unhealthy=0))
    assert claim.claim.members == ("node2", "node1")


def test_a_node_found_unhealthy_ends_the_run_if_too_few_are_left() -> None:
    script = running(2, min_nodes=2)
    result = the_result(restart(script, 1, 0, unhealthy=1))
    assert (result.exit_code, result.reason) == (6, "nodes_missing")
    assert f"node1 is unhealthy: {FULL}" in result.cause


def test_a_running_world_is_not_disturbed_by_a_node_found_unhealthy() -> None:
    script = running(3, min_nodes=2)
    actions = script.say(1, Health(problem=FULL))
    assert (names(actions), sent(actions, Stop)) == (["node.unhealthy"], {})
    assert script.head.phase is HeadPhase.RUNNING
    assert script.say(1, Health(problem=FULL)) == []  # no news
    assert the_claim(restart(script, 0, 1, 2)).claim.members == ("node0", "node2")


def test_a_restart_of_one_role_becomes_one_of_all_if_a_node_of_it_is_unhealthy() -> None:
    roles = {0: TRAINER, 1: TRAINER, 2: READER, 3: READER}
    script = running(4, min_nodes=3, roles=roles, role_nodes={TRAINER: 2, READER: 1}, restarts={READER: "restart_role"})
    assert sent(script.fail(2), Stop).keys() == {"node2", "node3"}
    assert sent(script.say(2, Health(problem=FULL)), Stop).keys() == {"node0", "node1", "node2", "node3"}
    for node in (0, 1, 2):
        assert script.stopped(node) == []
    claim = the_claim(script.stopped(3)).claim
    assert (claim.members, claim.roles, claim.spend.restarts) == (("node0", "node1", "node3"), (TRAINER, READER), 1)


def test_an_unhealthy_node_of_another_role_keeps_its_place_while_one_role_restarts() -> None:
    roles = {0: TRAINER, 1: TRAINER, 2: READER}
    script = running(3, min_nodes=2, roles=roles, restarts={READER: "restart_role"})
    script.say(1, Health(problem=FULL))
    script.fail(2)
    claim = the_claim(script.stopped(2)).claim
    assert (claim.members, claim.roles) == (("node0", "node1", "node2"), (READER,))


def with_a_spare_reader(nodes: int = 5) -> HeadScript:
    """Two trainers, and two readers that start again by themselves; the readers that are left are spares."""
    roles = {node: TRAINER if node < 2 else READER for node in range(nodes)}
    least = {TRAINER: 2, READER: 2}
    return running(nodes, min_nodes=4, max_nodes=4, roles=roles, role_nodes=least, restarts={READER: "restart_role"})


def test_a_role_does_not_start_again_on_a_node_that_became_unhealthy_while_it_ran() -> None:
    script = with_a_spare_reader()
    script.say(2, Health(problem=FULL))
    assert sent(script.fail(3), Stop).keys() == {"node0", "node1", "node2", "node3"}
    for node in (0, 1, 2):
        assert script.stopped(node) == []
    claim = the_claim(script.stopped(3)).claim
    assert (claim.members, claim.spend.restarts) == (("node0", "node1", "node4", "node3"), 1)


def test_a_role_whose_node_became_unhealthy_while_it_ran_ends_the_run_if_no_spare_is_there() -> None:
    """As a restart of all roles does: the node counts for no minimum."""
    script = with_a_spare_reader(4)
    script.say(2, Health(problem=FULL))
    script.fail(3)
    for node in (0, 1, 2):
        assert script.stopped(node) == []
    assert the_cause(script.stopped(3)) == ("nodes_missing", ExitCode.NODES_MISSING)


def test_a_node_that_is_healthy_again_is_taken_in_at_the_next_restart() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(2, unhealthy=FULL)
    script.join(0, 1)
    script.claimed()
    assert names(script.say(2, Health())) == ["node.healthy"]
    assert script.head.phase is HeadPhase.RUNNING
    assert the_claim(restart(script, 0, 1)).claim.members == ("node0", "node1", "node2")


def test_a_node_that_is_healthy_again_is_taken_in_at_once_where_newcomers_are() -> None:
    script = HeadScript(3, min_nodes=2, rejoin="immediately")
    script.join(2, unhealthy=FULL)
    script.join(0, 1)
    script.claimed()
    assert sent(script.say(2, Health()), Stop).keys() == {"node0", "node1"}


def test_a_node_that_was_unhealthy_is_asked_last() -> None:
    script = HeadScript(4, min_nodes=2, max_nodes=2)
    script.join(1, unhealthy=FULL)
    script.join(0, 2, 3)
    script.claimed()
    script.say(1, Health())
    script.lose(2)
    assert the_claim(script.stopped(0)).claim.members == ("node0", "node3")


def test_an_unhealthy_node_that_is_lost_ends_nothing() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(2, unhealthy=FULL)
    script.join(0, 1)
    script.claimed()
    script.lose(2)
    assert script.head.phase is HeadPhase.RUNNING


def test_an_unhealthy_node_that_cannot_take_part_either_is_sent_away() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 1)
    actions = script.join(2, unhealthy=FULL, problem="/home is not mounted")
    assert sent(actions, Refused).keys() == {"node2"}
    assert the_claim(actions).claim.members == ("node0", "node1")


# The member.


def told(actions: list[Action]) -> list[object]:
    return [action.message for action in of_kind(actions, SendToHead)]


def a_member() -> Member:
    return Member(a_join(1), run="run", timing=Timing(lease_s=9.0))


def test_a_member_tells_its_head_what_its_checks_found_once() -> None:
    member = a_member()
    member.connected(0, is_joined=True)
    member.received(Welcome(allocation=1, head="node0"), 0)
    assert told(member.examined(None)) == []
    assert told(member.examined(FULL)) == [Health(problem=FULL)]
    assert told(member.examined(FULL)) == []
    assert member.asks().unhealthy == FULL
    assert told(member.examined(None)) == [Health(problem=None)]


def test_a_member_that_waits_for_its_welcome_tells_what_its_join_did_not_say() -> None:
    member = a_member()
    member.asks()
    member.connected(0, is_joined=True)
    assert told(member.examined(FULL)) == []
    assert told(member.received(Welcome(allocation=1, head="node0"), 0)) == [Health(problem=FULL)]
    member.asks()
    assert told(member.received(Welcome(allocation=1, head="node0"), 0)) == []


@pytest.mark.parametrize(("offset_s", "words"), [(3600.0, "3600 s ahead of"), (-2.5, "2 s behind")])
def test_a_clock_that_differs_from_the_heads_is_reported(offset_s: float, words: str) -> None:
    now_ns = 1_795_000_000_000_000_000
    join = replace(a_join(2), clock_ns=now_ns + int(offset_s * 1e9))
    log, note = clock_news(join, now_ns, 3)
    assert isinstance(log, Log)
    assert isinstance(note, Note)
    assert f"the clock of {join.node} is {words} that of the head" in log.text
    assert (note.name, note.attempt, note.metadata) == (
        "node.clock_differs", 3, {"node": join.node, "offset_s": offset_s},
    )  # fmt: skip


@pytest.mark.parametrize("offset_s", [0.0, 1.9, -1.9])
def test_a_clock_that_hardly_differs_or_is_not_told_is_no_news(offset_s: float) -> None:
    now_ns = 1_795_000_000_000_000_000
    assert clock_news(replace(a_join(2), clock_ns=now_ns + int(offset_s * 1e9)), now_ns, 1) == []
    assert clock_news(a_join(2), now_ns, 1) == []
