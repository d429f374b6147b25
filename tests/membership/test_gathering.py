"""What the head makes of nodes that do not join: what it says, whom it does not wait for, how it gives up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode, MissingNode, RendezvousCause, RendezvousTimeoutError
from hpc_elastic.membership.actions import Action, ClaimAttempt, Drop, Log, Note, Superseded, WriteResult
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.messages import Dropped, Join, Refused
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.membership.timing import AWAITS_RELIEF_S, SPARES_COME_WITHIN_S
from tests.membership.script import HeadScript, a_join, of_kind, the_claim, the_result

LEASE_S = 9.0
VERSIONS = {"python": "3.11.2", "hpc_elastic": "0.1.0", "torch": "2.13.0+cpu"}


def a_diagnosis(
    node_id: int,
    cause: RendezvousCause = RendezvousCause.CANNOT_ROUTE,
    *,
    gave_up: bool = False,
    ended: bool = False,
) -> Diagnosis:
    words = cause.value.replace("_", " ")
    missing = MissingNode(node=f"node{node_id}", cause=cause, detail=f"{words}: x")
    return Diagnosis(missing=missing, gave_up=gave_up or ended, ended=ended)


def diagnose(script: HeadScript, *diagnoses: Diagnosis) -> list[Action]:
    """As the coordinator does it."""
    return script.head.gathering.diagnosed(diagnoses, 0) + script.head.tick(script.now)


def texts(actions: Sequence[Action]) -> list[str]:
    return [say.text for say in of_kind(actions, Log)]


def a_join_with(node_id: int, **versions: str) -> Join:
    return replace(a_join(node_id), versions={**VERSIONS, **versions})


def a_head_with_versions(nodes: int, *, min_nodes: int | None = None) -> HeadScript:
    script = HeadScript(nodes, min_nodes=min_nodes)
    settings = script.head.gathering._settings
    script.head.gathering._settings = replace(settings, versions=VERSIONS)
    return script


def test_a_new_finding_is_said_at_once_and_once() -> None:
    script = HeadScript(3)
    script.join(0)
    assert texts(diagnose(script, a_diagnosis(1))) == ["node1 cannot route: x"]
    assert texts(diagnose(script, a_diagnosis(1))) == []
    assert texts(diagnose(script, a_diagnosis(1, RendezvousCause.REFUSED))) == ["node1 refused: x"]


def test_a_node_that_may_only_be_slow_is_named_in_the_reminder_alone() -> None:
    script = HeadScript(3)
    script.join(0)
    assert texts(diagnose(script, a_diagnosis(1, RendezvousCause.NEVER_STARTED), a_diagnosis(2))) == [
        "node2 cannot route: x"
    ]
    assert texts(script.pass_time(31)) == [
        "waiting for node1 (never started), node2 (cannot route) to join; 570 s left"
    ]


def test_a_finding_about_a_node_that_has_joined_meanwhile_is_no_news() -> None:
    script = HeadScript(3)
    script.join(0, 1)
    assert texts(diagnose(script, a_diagnosis(1))) == []


def test_the_verdict_says_each_missing_node_with_its_cause_and_holds_them_as_fields() -> None:
    script = HeadScript(4)
    script.join(0)
    diagnose(script, a_diagnosis(1), a_diagnosis(3, RendezvousCause.WRONG_SECRET))
    actions = script.pass_time(601)
    cause = "1 of at least 4 nodes joined within 600 s; missing: node1 (cannot route), node2 (never started), "
    cause += "node3 (wrong secret)"
    assert (the_result(actions).cause, the_result(actions).exit_code) == (cause, ExitCode.NODES_MISSING)
    errors = [say.text for say in of_kind(actions, Log) if say.level == "error"]
    assert errors == ["node1 cannot route: x", "node2 has given no sign of its agent", "node3 wrong secret: x"]
    assert list(left_out(actions)) == ["node1", "node2", "node3"]
    (note,) = [note for note in of_kind(actions, Note) if note.name == "rendezvous.timeout"]
    assert [(missing["node"], missing["cause"]) for missing in note.metadata["missing"]] == [
        ("node1", "cannot_route"),
        ("node2", "never_started"),
        ("node3", "wrong_secret"),
    ]


def test_the_verdict_about_one_missing_node_says_all_that_is_known() -> None:
    script = HeadScript(2)
    script.join(0)
    diagnose(script, a_diagnosis(1))
    cause = "1 of at least 2 nodes joined within 600 s; missing: node1 cannot route: x"
    assert the_result(script.pass_time(601)).cause == cause


def test_the_verdict_about_very_many_nodes_stays_one_short_line() -> None:
    script = HeadScript(1000)
    script.join(0)
    cause = the_result(script.pass_time(601)).cause
    assert cause.endswith("node7, node8 and 991 more (never started)")
    assert len(cause) < 200


def test_the_verdict_is_an_error_with_the_missing_nodes_as_fields() -> None:
    script = HeadScript(2)
    script.join(0)
    script.head.gathering.diagnosed([a_diagnosis(1)], 0)
    error = script.head.gathering.too_few(script.now)
    assert isinstance(error, RendezvousTimeoutError)
    assert error.exit_code is ExitCode.NODES_MISSING
    assert [(missing.node, missing.cause) for missing in error.missing] == [("node1", RendezvousCause.CANNOT_ROUTE)]


def test_a_round_that_goes_on_says_without_whom() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 2)
    diagnose(script, a_diagnosis(1))
    actions = script.pass_time(601)
    assert "node1 cannot route: x; going on without it" in texts(actions)
    assert the_claim(actions).claim.members == ("node0", "node2")
    assert left_out(actions) == {"node1": "cannot route: x"}


def left_out(actions: Sequence[Action]) -> dict[str, str]:
    """The reasons of the events of nodes that the others go on without."""
    notes = [note.metadata for note in of_kind(actions, Note) if note.name == "node.left_out"]
    return {str(each["node"]): str(each["reason"]) for each in notes}


def test_a_node_whose_agent_has_ended_is_noted_once_and_at_once() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0)
    assert left_out(diagnose(script, a_diagnosis(1, RendezvousCause.NEVER_STARTED, ended=True))) == {
        "node1": "never started: x"
    }
    actions = script.join(2)
    assert the_claim(actions).claim.members == ("node0", "node2")
    assert left_out(actions) == {}


def test_who_gave_up_is_not_waited_for() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 2)
    actions = diagnose(script, a_diagnosis(1, gave_up=True))
    assert "node1 has given up; the others do not wait for it" in texts(actions)
    assert the_claim(actions).claim.members == ("node0", "node2")


def test_the_run_ends_at_once_if_too_many_gave_up() -> None:
    script = HeadScript(2)
    script.join(0)
    result = the_result(diagnose(script, a_diagnosis(1, gave_up=True)))
    assert (result.reason, result.exit_code) == ("nodes_missing", ExitCode.NODES_MISSING)
    assert result.cause == "at most 1 of at least 2 nodes can join; missing: node1 cannot route: x"


WAS_HEAD = MissingNode(
    node="node3", cause=RendezvousCause.CANNOT_ROUTE, detail="was the head, and cannot be reached: node0 cannot route"
)
GONE = tuple(a_diagnosis(number, RendezvousCause.NEVER_STARTED, ended=True) for number in (3, 4))
OUT_OF_REACH = tuple(a_diagnosis(number, gave_up=True) for number in (1, 2))


def test_a_first_head_that_most_nodes_cannot_reach_lets_another_one_take_its_place() -> None:
    script = HeadScript(4, min_nodes=2)
    script.join(0)
    actions = diagnose(script, *OUT_OF_REACH, a_diagnosis(3, gave_up=True))
    assert not of_kind(actions, WriteResult)
    assert script.head.next_tick() <= AWAITS_RELIEF_S
    assert of_kind(script.head.yields("node1", 2, script.now, relieves="node0"), Superseded)


def test_a_head_that_nodes_may_still_make_enough_is_not_relieved_until_their_time_is_almost_over() -> None:
    script = HeadScript(4, min_nodes=2, join_timeout_s=100)
    script.join(0)
    diagnose(script, *OUT_OF_REACH)
    script.pass_time(89)
    assert not script.head.yields("node1", 2, script.now, relieves="node0")
    script.pass_time(2)
    assert of_kind(script.head.yields("node1", 2, script.now, relieves="node0"), Superseded)


def test_a_node_that_has_joined_another_head_since_is_not_said_to_have_never_started() -> None:
    script = HeadScript(3, min_nodes=2, join_timeout_s=100)
    script.join(0, 1)
    diagnose(script, a_diagnosis(2))
    diagnose(script, a_diagnosis(2, RendezvousCause.NEVER_STARTED))  # its file is gone
    assert "node2 cannot route: x; going on without it" in texts(script.pass_time(101))


def test_a_first_head_that_nobody_relieves_ends_the_run() -> None:
    script = HeadScript(4, min_nodes=2)
    script.join(0)
    diagnose(script, *OUT_OF_REACH, a_diagnosis(3, gave_up=True))
    assert not of_kind(script.pass_time(AWAITS_RELIEF_S - 0.1), WriteResult)
    result = the_result(script.pass_time(0.2))
    assert result.cause == "at most 1 of at least 2 nodes can join; missing: node1, node2, node3 (cannot route)"


@pytest.mark.parametrize(
    ("nodes", "min_nodes", "others"),
    [
        pytest.param(4, 3, (a_diagnosis(3, RendezvousCause.BLOCKED_PORT, gave_up=True),), id="others cannot join it"),
        pytest.param(5, 3, GONE, id="they are too few"),
    ],
)
def test_a_head_that_nobody_could_relieve_ends_the_run_at_once(
    nodes: int, min_nodes: int, others: tuple[Diagnosis, ...]
) -> None:
    script = HeadScript(nodes, min_nodes=min_nodes)
    script.join(0)
    assert the_result(diagnose(script, *OUT_OF_REACH, *others)).reason == "nodes_missing"


def test_a_head_whose_role_the_others_lack_ends_the_run_at_once() -> None:
    roles = {0: "trainer", 1: "actor", 2: "actor", 3: "actor"}
    script = HeadScript(4, min_nodes=3, roles=roles, role_nodes={"trainer": 1, "actor": 2})
    script.join(0)
    assert the_result(diagnose(script, *OUT_OF_REACH, a_diagnosis(3, gave_up=True))).reason == "nodes_missing"


def test_a_head_that_relieves_another_ends_the_run_if_no_node_reaches_it_either() -> None:
    script = HeadScript(4, min_nodes=2)
    script.head.gathering.relieves(WAS_HEAD)
    script.join(0)
    result = the_result(diagnose(script, *OUT_OF_REACH))
    assert result.cause == "at most 1 of at least 2 nodes can join; missing: node1, node2, node3 (cannot route)"


def test_a_head_that_relieves_another_goes_on_without_that_one_which_may_not_join() -> None:
    script = HeadScript(4, min_nodes=2)
    script.head.gathering.relieves(WAS_HEAD)
    script.join(0, 1)
    refusal = script.head.refusal(a_join(3))
    assert refusal == Refused(reason=str(WAS_HEAD), exit_code=int(ExitCode.NODES_MISSING))
    actions = script.join(2)
    assert the_claim(actions).claim.members == ("node0", "node1", "node2")
    assert texts(actions).count(f"{WAS_HEAD}; going on without it") == 1
    assert left_out(actions) == {"node3": WAS_HEAD.detail}


def after_head(*, is_dead: bool, was_silent: bool = False, min_nodes: int = 2, nodes: int = 3) -> HeadScript:
    """Node 0 claims the next allocation in the place of the last node, which has opened no attempt."""
    script = HeadScript(nodes, min_nodes=min_nodes)
    first = f"node{nodes - 1}"
    lost = LostHead(node=first, contact=0.0, is_dead=is_dead, why="it was closed", was_silent=was_silent)
    script.head.gathering.follows((first,), lost, script.now)
    return script


def test_a_dead_head_before_the_first_attempt_is_not_waited_for_if_enough_are_here() -> None:
    script = after_head(is_dead=True)
    assert not of_kind(script.join(0), ClaimAttempt)
    actions = script.join(1)
    assert the_claim(actions).claim.members == ("node0", "node1")
    assert left_out(actions) == {"node2": "was the head, and was lost: it was closed"}


def test_a_head_that_counts_as_dead_and_comes_back_has_its_part() -> None:
    script = after_head(is_dead=True)
    script.join(0)
    assert script.head.refusal(a_join(2)) is None
    script.join(2)
    assert the_claim(script.join(1)).claim.members == ("node0", "node1", "node2")


def test_a_head_that_came_back_and_says_goodbye_is_waited_for_like_any_other_node() -> None:
    script = after_head(is_dead=True, min_nodes=2)
    script.join(0, 2)
    script.head.received("node2", Dropped(reason="no answer"), script.now)
    assert not of_kind(script.join(1), ClaimAttempt)


def test_a_dead_head_is_not_refused_after_the_attempt_that_began_without_it() -> None:
    script = after_head(is_dead=True)
    script.join(0, 1)
    script.claimed()
    assert script.head.refusal(a_join(2)) is None
    assert script.head.joined(a_join(2), script.now)
    assert script.head.gathering.missing() == ()


def test_a_run_that_needs_the_node_of_its_dead_head_ends_after_two_leases_and_says_so() -> None:
    script = after_head(is_dead=True, min_nodes=3)
    script.join(0, 1)
    diagnose(script, a_diagnosis(2, RendezvousCause.NEVER_STARTED))
    assert not of_kind(script.pass_time(2 * LEASE_S - 0.1), WriteResult)
    cause = "at most 2 of at least 3 nodes can join; missing: node2 was the head, and was lost: it was closed"
    assert the_result(script.pass_time(0.2)).cause == cause


@pytest.mark.parametrize(("is_dead", "was_silent"), [(False, False), (True, True)])
def test_a_silent_head_before_the_first_attempt_has_two_leases_to_come_back(*, is_dead: bool, was_silent: bool) -> None:
    script = after_head(is_dead=is_dead, was_silent=was_silent)
    script.join(0, 1)
    assert not of_kind(script.pass_time(2 * LEASE_S - 0.1), ClaimAttempt)
    assert script.head.next_tick() <= 2 * LEASE_S
    assert the_claim(script.pass_time(0.2)).claim.members == ("node0", "node1")


def test_a_head_that_stood_still_meanwhile_hears_the_one_before_it_first() -> None:
    script = after_head(is_dead=False)
    script.join(0, 1)
    woke_at = 2 * LEASE_S + 1.0
    script.head.gathering.woke(woke_at, 2 * LEASE_S)
    assert not script.head.gathering.is_closed(woke_at + LEASE_S / 2 - 0.1)
    assert script.head.gathering.is_closed(woke_at + LEASE_S / 2)


def test_a_silent_head_that_the_run_needs_may_come_until_join_timeout_is_over() -> None:
    script = after_head(is_dead=False, min_nodes=3)
    script.join(0, 1)
    assert not of_kind(script.pass_time(599), WriteResult)
    cause = "2 of at least 3 nodes joined within 600 s; missing: node2 was the head, and was lost: it was closed"
    assert the_result(script.pass_time(2)).cause == cause


def test_nodes_that_are_late_are_waited_for_though_the_head_before_is_dead() -> None:
    script = after_head(is_dead=True, nodes=4)
    script.join(0, 1)
    assert not of_kind(script.pass_time(4 * LEASE_S), ClaimAttempt)
    assert the_claim(script.join(2)).claim.members == ("node0", "node1", "node2")


def test_an_earlier_head_that_this_agent_has_never_had_counts_as_silent() -> None:
    script = HeadScript(3, min_nodes=2)
    script.head.gathering.follows(("node2",), None, script.now)
    script.join(0, 1)
    assert not of_kind(script.pass_time(2 * LEASE_S - 0.1), ClaimAttempt)
    assert left_out(script.pass_time(0.2)) == {"node2": "was the head, and was lost"}


def test_a_head_with_enough_nodes_does_not_wait_for_others_to_relieve_it() -> None:
    script = HeadScript(4, min_nodes=2)
    script.join(0, 3)
    assert the_claim(diagnose(script, *OUT_OF_REACH)).claim.members == ("node0", "node3")


@pytest.mark.parametrize(("nodes", "had"), [(1, "1 node (node0)"), (2, "2 nodes (node0, node1)")])
def test_a_job_of_fewer_nodes_than_the_run_needs_ends_at_once_and_is_what_the_cause_names(nodes: int, had: str) -> None:
    script = HeadScript(nodes, min_nodes=3)
    actions = script.join(*range(nodes))
    result = the_result(actions)
    assert (result.reason, result.exit_code) == ("nodes_missing", ExitCode.NODES_MISSING)
    assert result.cause == f"the job has {had}, and the run needs at least 3 (nodes.min)"
    assert not script.head.at_fault.are_why_too_few  # another start of the same job would have as few


def test_a_node_without_an_agent_is_named_once_with_its_reason_and_not_waited_for() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 2)
    actions = diagnose(script, a_diagnosis(1, RendezvousCause.NEVER_STARTED, ended=True))
    assert [text for text in texts(actions) if "node1" in text] == [
        "node1 never started: x; the others do not wait for it"
    ]
    assert the_claim(actions).claim.members == ("node0", "node2")
    assert script.head.at_fault.to_avoid == ("node1",)


@pytest.mark.parametrize(("ended", "is_short"), [((), False), ((3,), True), ((2, 3), True), ((1, 2, 3), False)])
def test_agents_are_at_fault_of_nodes_that_are_no_more_than_those_that_have_one(
    ended: tuple[int, ...], is_short: bool
) -> None:
    script = HeadScript(4)
    script.join(*(node for node in range(4) if node not in ended))
    if ended:
        actions = diagnose(script, *(a_diagnosis(node, RendezvousCause.NEVER_STARTED, ended=True) for node in ended))
        assert the_result(actions).reason == "nodes_missing"
    assert script.head.at_fault.are_why_too_few == is_short


@pytest.mark.parametrize(
    ("faulty", "is_fault"), [((), False), ((3,), True), ((0,), True), ((2, 3), True), ((1, 2, 3), False)]
)
@pytest.mark.parametrize("fault", ["unhealthy", "problem"])
def test_nodes_that_are_missing_by_their_own_fault_are_no_more_than_the_others(
    fault: str, faulty: tuple[int, ...], *, is_fault: bool
) -> None:
    script = HeadScript(4)
    actions: list[Action] = []
    for node in range(4):
        actions += script.join(node, **({fault: "/home is not mounted"} if node in faulty else {}))
    reasons = {"unhealthy": "nodes_missing", "problem": "setup_failed"}
    assert [each.result.reason for each in of_kind(actions, WriteResult)] == [reasons[fault]] * bool(faulty)
    assert script.head.at_fault.are_why_too_few == is_fault
    assert script.head.at_fault.to_avoid == tuple(f"node{node}" for node in faulty)


@pytest.mark.parametrize(("evaluators", "is_fault"), [((3,), False), ((2, 3), True), ((1, 2, 3), True)])
def test_what_most_nodes_of_a_role_lack_is_not_their_own_fault(evaluators: tuple[int, ...], *, is_fault: bool) -> None:
    """A typo in the script of a small role would cost all requeues, and as many nodes that nothing is wrong with."""
    needed = {"default": 4 - len(evaluators), "evaluator": len(evaluators)}
    script = HeadScript(4, roles=dict.fromkeys(evaluators, "evaluator"), role_nodes=needed, role_max_nodes=needed)
    script.join(0, 1, 2)
    assert the_result(script.join(3, problem="eval.py is not a file on this node")).reason == "setup_failed"
    assert script.head.at_fault.are_why_too_few == is_fault


def test_what_most_nodes_of_a_role_lack_is_not_their_own_fault_either_if_some_were_left_out_before() -> None:
    roles = dict.fromkeys(range(4, 8), "evaluator")
    script = HeadScript(8, min_nodes=4, roles=roles, role_nodes={"default": 2, "evaluator": 2})
    script.join(0, 1, 2, 3, 7)
    for node in (4, 5, 6):
        actions = script.join(node, problem="eval.py is not a file on this node")
    assert the_result(actions).cause == "node4, node5, node6: eval.py is not a file on this node"
    assert not script.head.at_fault.are_why_too_few


@pytest.mark.parametrize("last", ["gave up", "problem"])
def test_a_node_that_was_sent_away_is_at_fault_if_the_others_turn_out_to_be_too_few(last: str) -> None:
    """The order in which nodes turn out to be of no use must not decide whether the next start gets one of them."""
    script = HeadScript(4, min_nodes=3)
    script.join(0, 3)
    assert not of_kind(script.join(1, problem="/home is not mounted"), WriteResult)
    if last == "problem":
        the_result(script.join(2, problem="/home is not mounted"))
    else:
        the_result(diagnose(script, a_diagnosis(2, gave_up=True)))
    assert script.head.at_fault.are_why_too_few
    assert script.head.at_fault.to_avoid == (("node1", "node2") if last == "problem" else ("node1",))


def test_a_node_that_has_joined_after_all_has_an_agent() -> None:
    script = HeadScript(3, min_nodes=2)
    script.join(0, 2)
    diagnose(script, a_diagnosis(1, RendezvousCause.NEVER_STARTED, ended=True))
    script.join(1)
    assert not script.head.at_fault.are_why_too_few
    assert not script.head.at_fault.to_avoid


def test_a_node_that_was_sent_away_is_named_if_the_others_turn_out_to_be_too_few() -> None:
    """Whoever reads why the run ended mended the node that never came, and met this one's problem in the next run."""
    script = HeadScript(3, min_nodes=2)
    script.join(0)
    script.join(1, problem="/home is not mounted")
    result = the_result(diagnose(script, a_diagnosis(2, gave_up=True)))
    assert result.cause == (
        "at most 1 of at least 2 nodes can join; missing: node1 (unhealthy), node2 (cannot route); "
        "node1 cannot take part: /home is not mounted"
    )


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_a_node_of_another_version_is_refused_naming_both(name: str) -> None:
    script = a_head_with_versions(3)
    script.join(0)
    detail = f"node1 has another version: {name} is 9.9, on node0 {VERSIONS[name]}"
    detail += "; upgrade torch on node0 to 9.9" if name == "torch" else ""
    refusal = script.head.refusal(a_join_with(1, **{name: "9.9"}))
    assert refusal == Refused(reason=detail, exit_code=int(ExitCode.NODES_MISSING))
    result = the_result(script.head.tick(script.now))
    assert result.cause == f"at most 2 of at least 3 nodes can join; missing: {detail}"


def test_the_others_go_on_without_a_node_of_another_version_if_they_are_enough() -> None:
    script = a_head_with_versions(3, min_nodes=2)
    script.join(0)
    assert script.head.refusal(a_join_with(1, torch="2.12.0")) is not None
    assert not of_kind(script.head.tick(script.now), (ClaimAttempt))
    actions = script.join(2)
    assert the_claim(actions).claim.members == ("node0", "node2")
    assert not of_kind(actions, WriteResult)


def test_a_missing_spare_does_not_hold_up_the_first_attempt() -> None:
    script = HeadScript(4, min_nodes=2, max_nodes=3)
    assert not of_kind(script.join(0, 1, 2), ClaimAttempt)  # it may be on its way
    assert the_claim(script.pass_time(SPARES_COME_WITHIN_S)).claim.members == ("node0", "node1", "node2")


def test_a_node_that_is_no_spare_is_awaited_though_a_spare_has_come() -> None:
    script = HeadScript(4, min_nodes=2, max_nodes=3)
    assert not of_kind([*script.join(0, 1, 3), *script.pass_time(30)], ClaimAttempt)
    assert the_claim(script.join(2)).claim.members == ("node0", "node1", "node2")


def test_a_missing_spare_is_awaited_if_an_unhealthy_node_leaves_a_place_to_it() -> None:
    script = HeadScript(4, min_nodes=2, max_nodes=3)
    script.join(2, unhealthy="scratch: full")
    assert not of_kind([*script.join(0, 1), *script.pass_time(30)], ClaimAttempt)
    assert the_claim(script.join(3)).claim.members == ("node0", "node1", "node3")


def test_a_head_that_stood_still_claims_nothing_with_nodes_that_it_loses_as_it_wakes_up() -> None:
    """They have given it up, and may have another head: an attempt would be claimed in vain."""
    script = HeadScript(4, min_nodes=2, join_timeout_s=20)
    script.join(0, 1, 2)
    script.now += 30
    actions = script.head.tick(script.now)
    assert sorted(action.node for action in of_kind(actions, Drop)) == ["node1", "node2"]
    assert not of_kind(actions, ClaimAttempt)


def test_a_head_that_stood_still_until_join_timeout_was_over_hears_who_has_asked_it_meanwhile() -> None:
    script = HeadScript(3, min_nodes=2, join_timeout_s=20)
    script.join(0)
    script.now += 30
    assert not of_kind(script.head.tick(script.now), WriteResult)
    assert not of_kind(script.join(1), ClaimAttempt)  # node2 may have asked, too
    assert the_claim(script.pass_time(LEASE_S / 2)).claim.members == ("node0", "node1")


def test_a_head_that_stood_still_waits_half_a_lease_for_nodes_that_do_not_come() -> None:
    script = HeadScript(2, min_nodes=2, join_timeout_s=20)
    script.join(0)
    script.now += 30
    script.head.tick(script.now)
    assert not of_kind(script.pass_time(LEASE_S / 2 - 0.1), WriteResult)
    assert the_result(script.pass_time(0.2)).reason == "nodes_missing"


@pytest.mark.parametrize("has_world", [False, True])
def test_a_head_that_stands_still_again_and_again_does_not_wait_for_nodes_without_end(has_world: bool) -> None:
    script = HeadScript(3, min_nodes=3, join_timeout_s=20)
    script.join(0, 1)
    if has_world:
        script.join(2)
        script.claimed()
        script.beating.discard(2)
        script.say(2, Dropped(reason="this head was silent"))  # it may return
        script.stopped(0)
        script.stopped(1)
    assert script.head.phase is HeadPhase.GATHERING
    while script.head.phase is HeadPhase.GATHERING and script.now < 60:
        script.now += LEASE_S / 4
        script.head.tick(script.now)
        script.pass_time(LEASE_S / 6)
    assert script.now <= 20 + LEASE_S


def test_the_cause_of_a_run_that_never_began_names_the_nodes_that_had_joined_and_were_lost() -> None:
    script = HeadScript(4, min_nodes=3, join_timeout_s=20)
    script.join(0, 1)
    script.lose(1)
    result = the_result(script.pass_time(21))
    assert (
        result.cause == "1 of at least 3 nodes joined within 20 s; missing: node2, node3 (never started); lost: node1"
    )


def test_a_lost_node_that_said_goodbye_and_does_not_return_is_not_said_to_be_left_out() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.say(2, Dropped(reason="it is silent"))
    script.beating.discard(2)
    actions = script.stopped(0) + script.stopped(1) + script.pass_time(20)
    assert the_claim(actions).claim.members == ("node0", "node1")
    assert left_out(actions) == {}
    assert "node2 was lost and has not come back; going on without it" in texts(actions)


def test_a_lost_node_whose_agent_ends_then_is_not_said_to_be_left_out() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    script.say(2, Dropped(reason="it is silent"))
    script.beating.discard(2)
    script.stopped(0)
    script.stopped(1)
    actions = diagnose(script, a_diagnosis(2, RendezvousCause.NEVER_STARTED, ended=True))
    assert the_claim(actions).claim.members == ("node0", "node1")
    assert left_out(actions) == {}
    assert "node2 was lost and has not come back; the others do not wait for it" in texts(actions)


def test_a_node_that_is_only_slow_is_not_said_to_be_left_out_of_a_run_that_cannot_begin() -> None:
    script = HeadScript(3)
    script.join(0)
    actions = diagnose(script, a_diagnosis(1, RendezvousCause.NEVER_STARTED, ended=True))
    assert the_result(actions).exit_code == ExitCode.NODES_MISSING
    assert left_out(actions) == {"node1": "never started: x"}


def test_a_node_that_comes_late_in_another_version_is_left_out_for_that() -> None:
    script = a_head_with_versions(3, min_nodes=2)
    script.join(0, 1)
    assert left_out(script.pass_time(601)) == {"node2": "has given no sign of its agent"}
    script.claimed()
    assert script.head.refusal(a_join_with(2, hpc_elastic="9")) is not None
    expected = {"node2": "has another version: hpc_elastic is 9, on node0 0.1.0"}
    assert left_out(script.head.tick(script.now)) == expected
    assert script.head.refusal(a_join_with(2, hpc_elastic="9")) is not None, "its agent asks again"
    assert left_out(script.head.tick(script.now)) == {}


def test_a_node_of_another_version_that_comes_in_time_is_told_when_the_round_is_closed() -> None:
    script = a_head_with_versions(3, min_nodes=2)
    script.join(0)
    assert script.head.refusal(a_join_with(2, hpc_elastic="9")) is not None
    assert left_out(script.head.tick(script.now)) == {}
    assert list(left_out(script.join(1))) == ["node2"]
