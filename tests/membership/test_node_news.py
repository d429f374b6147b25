"""What is told of odd nodes before their workers start: all of them in one line."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.errors import ExitCode
from hpc_elastic.hostlist import NODES_NAMED
from hpc_elastic.membership.actions import Action, ClaimAttempt, Log, Note, WriteResult
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.node_news import LATE, Arrivals
from tests.membership.script import HeadScript, a_join, of_kind, the_claim

BOUND = "the agent may use 2 of the 8 CPUs that its step has"


def logs(actions: list[Action]) -> list[str]:
    return [log.text for log in of_kind(actions, Log)]


def join(script: HeadScript, *joins: Join) -> list[Action]:
    return [action for each in joins for action in script.head.joined(each, script.now)]


def test_nodes_that_see_different_numbers_of_gpus_are_named_in_one_line_before_workers_start() -> None:
    script = HeadScript(4)
    counts = (4, 4, 3, None)
    actions = join(script, *(replace(a_join(number), gpus=count) for number, count in enumerate(counts)))
    text = "nodes see different numbers of GPUs: 4 on node0, node1, 3 on node2"
    assert text in logs(actions)
    kinds = [type(action) for action in actions]
    note = next(note for note in of_kind(actions, Note) if note.name == "nodes.gpus_differ")
    assert note.metadata == {"gpus": {"node0": 4, "node1": 4, "node2": 3}}
    assert actions.index(note) < kinds.index(ClaimAttempt)


def test_nodes_that_see_the_same_number_are_not_named() -> None:
    actions = join(HeadScript(2), replace(a_join(0), gpus=4), replace(a_join(1), gpus=4))
    assert not any("GPUs" in line for line in logs(actions))


def test_what_is_odd_about_many_nodes_is_one_line_and_told_once() -> None:
    script = HeadScript(3)
    joins = [replace(a_join(number), remarks=(BOUND,) if number else ()) for number in range(3)]
    assert f"node1, node2: {BOUND}" in logs(join(script, *joins))
    script.claimed()
    script.fail(0)
    script.stopped(0)
    script.stopped(1)
    again = script.stopped(2)
    assert the_claim(again).claim.attempt == 2
    assert not any(BOUND in line for line in logs(again))


def test_all_nodes_that_cannot_take_part_are_named_at_once() -> None:
    script = HeadScript(4)
    script.join(0)
    assert not of_kind(script.join(2, problem="the step sees 3 GPUs"), WriteResult)
    assert not of_kind(script.join(3, problem="the step sees 3 GPUs"), WriteResult)
    actions = script.join(1, problem="workdir /x is not a directory on this node")
    (result,) = (action.result for action in of_kind(actions, WriteResult))
    expected = "node1: workdir /x is not a directory on this node; node2, node3: the step sees 3 GPUs"
    assert (result.cause, result.exit_code) == (expected, ExitCode.SETUP)


def test_a_node_that_cannot_take_part_ends_the_run_soon_if_others_stay_away() -> None:
    script = HeadScript(4)
    script.join(0)
    script.join(2, problem="the step sees 3 GPUs")
    assert script.head.next_tick() <= script.now + 2
    (result,) = (action.result for action in of_kind(script.pass_time(2), WriteResult))
    assert result.cause == "node2: the step sees 3 GPUs"


def test_no_attempt_is_opened_while_nodes_say_that_they_cannot_take_part() -> None:
    script = HeadScript(3, min_nodes=3)
    script.join(1)
    script.join(2, problem="the step sees 3 GPUs")
    actions = script.join(0)
    assert not of_kind(actions, ClaimAttempt)
    assert of_kind(actions, WriteResult)


def test_many_nodes_that_are_back_at_once_are_told_in_one_line() -> None:
    script = HeadScript(40, min_nodes=1)
    script.join(*range(40))
    script.claimed()
    why = "it has lost this head: silent"
    for number in range(1, 40):  # while this head was stalled
        script.head.lost(f"node{number}", why, script.now, is_gone=True, may_return=True)
    actions = [*script.stopped(0), *script.join(*range(1, 40)), *script.pass_time(120)]
    the_claim(actions)
    back = [line for line in logs(actions) if line.endswith("back")]
    assert back[:3] == ["node1 is back", "node2 is back", "node3 is back"]
    named = ", ".join(f"node{number}" for number in range(4, 4 + NODES_NAMED))
    assert back[3:] == [f"{named} and {39 - 3 - NODES_NAMED} more are back"]
    assert len([note for note in of_kind(actions, Note) if note.name == "node.returned"]) == 39


def test_many_nodes_that_join_late_at_once_have_a_line_together_when_the_next_attempt_opens() -> None:
    script = HeadScript(40, min_nodes=2, max_nodes=40, join_timeout_s=10)
    actions = [*script.join(0, 1), *script.pass_time(20)]
    the_claim(actions)
    actions = [*script.claimed(), *script.join(*range(2, 40))]
    late = [f"node{number} joined late and waits for the next attempt" for number in (2, 3, 4)]
    assert [line for line in logs(actions) if "late" in line] == late
    assert len([note for note in of_kind(actions, Note) if note.name == "node.parked"]) == 38
    script.pass_time(10)
    script.lose(39)
    assert "node39 joined late and waits for the next attempt" in logs(script.join(39))
    script.fail(0)
    actions = [*script.stopped(0), *script.stopped(1), *script.pass_time(20)]
    named = ", ".join(f"node{number}" for number in range(5, 5 + NODES_NAMED))
    assert [line for line in logs(actions) if "late" in line] == [f"{named} and {35 - NODES_NAMED} more joined late"]


def test_a_node_that_comes_back_for_days_takes_no_more_memory_each_time() -> None:
    arrivals = Arrivals()
    for number in range(1000):
        arrivals.one("node7", LATE, number / 1000)
    assert [len(nodes) for nodes in arrivals._untold.values()] == [1]
    assert logs(arrivals.others()) == ["node7 joined late and waits for the next attempt"]
    assert arrivals.others() == []
