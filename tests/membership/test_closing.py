"""Who ends the Slurm job if the node that would have done so is lost just as the run ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpc_elastic.membership.actions import Action, HeadOver
from hpc_elastic.membership.closing import Closing
from hpc_elastic.membership.messages import Beat, Dropped, End
from hpc_elastic.membership.timing import CLOSING_BOUND_S, MANY, Timing
from tests.membership.script import HeadParts, HeadScript, a_join, of_kind, sent

SILENT_S = 4.0  # for a lease of 9 s


def at_work(*, lost: tuple[int, ...] = ()) -> HeadScript:
    """Four nodes led by the second one, the first one with the batch script; those in `lost` have fallen silent."""
    script = HeadScript(4, min_nodes=2, node="node1")
    for node_id in range(4):
        join = replace(a_join(node_id), can_end_job=node_id > 1, is_launch_host=node_id == 0)
        script.head.joined(join, script.now)
    script.claimed()
    for node_id in lost:
        script.lose(node_id, is_gone=False)
    return script


def told_to_end_the_job(script: HeadScript) -> list[str]:
    """Who is told so when the run is over."""
    ends = sent(script.head.result_written(0, "it is over", script.now), End)
    return [node for node, message in ends.items() if message.ends_job]


def those_that_stand_by(script: HeadScript) -> list[str]:
    """Who is told so when the run is over, in their order."""
    ends = sent(script.head.result_written(0, "it is over", script.now), End)
    turns = {message.stands_by: node for node, message in ends.items() if message.stands_by}
    assert list(range(1, len(turns) + 1)) == sorted(turns)
    return [turns[turn] for turn in sorted(turns)]


def has_to_look_for_the_script(script: HeadScript) -> bool:
    """Whether the head's own agent looks whether the script is there, once all have left."""
    script.head.result_written(0, "it is over", script.now)
    overs = [over for node_id in range(4) for over in of_kind(script.lose(node_id), HeadOver)]
    return [over.looks_for_script for over in overs] == [True]


def has_to_end_the_job(actions: Sequence[Action]) -> bool:
    """Whether the head's own agent ends the job, once the head is over."""
    (over,) = of_kind(actions, HeadOver)
    return over.ends_job


@pytest.mark.parametrize("is_gone", [False, True], ids=["by its lease", "its machine resets the connection"])
def test_the_heads_agent_ends_the_job_if_the_one_that_was_told_to_falls_silent(*, is_gone: bool) -> None:
    script = at_work(lost=(0,))
    assert told_to_end_the_job(script) == ["node2"]
    script.lose(1)
    script.lose(3)
    script.now += SILENT_S
    assert has_to_end_the_job(script.lose(2, is_gone=is_gone))


def test_the_heads_agent_ends_the_job_if_the_one_that_was_told_to_gives_the_head_up_before_it_listens() -> None:
    """It stood still for longer than its lease."""
    script = at_work(lost=(0,))
    assert told_to_end_the_job(script) == ["node2"]
    script.lose(1)
    script.lose(3)
    assert has_to_end_the_job(script.say(2, Dropped(reason="no answer for 6 s")))


def test_the_heads_agent_ends_the_job_if_the_one_that_was_told_to_is_silent_until_all_should_have_left() -> None:
    script = at_work(lost=(0,))
    assert told_to_end_the_job(script) == ["node2"]
    script.lose(1)
    script.lose(3)
    script.now += CLOSING_BOUND_S
    assert has_to_end_the_job(script.head.tick(script.now))


def test_few_agents_stand_by_to_end_the_job_the_heads_own_first() -> None:
    """The one that was told to may die before it has, and closes its connection then as if it had left."""
    script = HeadScript(9, min_nodes=2, node="node5")
    for node_id in range(9):
        join = replace(a_join(node_id), can_end_job=node_id in (2, 3), is_launch_host=node_id == 0)
        script.head.joined(join, script.now)
    script.claimed()
    script.lose(0, is_gone=False)
    assert those_that_stand_by(script) == ["node5", "node3", "node8"]  # `node2` ends it


def test_nobody_stands_by_where_the_script_ends_the_job() -> None:
    assert those_that_stand_by(at_work()) == []


@pytest.mark.parametrize("is_gone", [True, False], ids=["its agent died", "it fell silent"])
def test_the_heads_agent_looks_for_a_script_whose_agent_was_gone_before_the_end(*, is_gone: bool) -> None:
    """Its machine may have been shut down, which ends the agent first."""
    script = at_work()
    script.lose(0, is_gone=is_gone)
    assert has_to_look_for_the_script(script) is is_gone  # of one that fell silent it knows that the script is lost


def test_the_heads_agent_looks_for_a_script_whose_agent_has_never_been_there() -> None:
    """Another one has found out on which node it runs."""
    script = HeadScript(4, min_nodes=2, node="node1", join_timeout_s=20)
    for node_id in (1, 2, 3):
        script.head.joined(replace(a_join(node_id), launch_node="node0" if node_id == 2 else ""), script.now)
    script.beating = {1, 2, 3}
    script.pass_time(21)
    script.claimed()
    assert has_to_look_for_the_script(script)


def test_nobody_looks_for_a_script_that_runs_on_no_node_of_the_step() -> None:
    script = HeadScript(4, min_nodes=4, node="node1")
    script.run()
    assert not has_to_look_for_the_script(script)


def test_nobody_looks_for_a_script_whose_agent_is_here_at_the_end() -> None:
    assert not has_to_look_for_the_script(at_work())


def test_nobody_looks_for_the_script_while_others_may_go_on_with_the_run() -> None:
    """This head's disk fails, and behind a cut the script's node may be at work with the others."""
    script = at_work()
    script.lose(0)
    script.head.disk_failed("no", script.now)
    overs = [over for node_id in range(4) for over in of_kind(script.lose(node_id), HeadOver)]
    assert [over.looks_for_script for over in overs] == [False]


def test_nobody_else_ends_the_job_if_the_one_that_was_told_to_has_left() -> None:
    script = at_work(lost=(0,))
    assert told_to_end_the_job(script) == ["node2"]
    script.lose(1)
    script.lose(2)
    assert not has_to_end_the_job(script.lose(3))


def test_the_heads_agent_ends_the_job_if_the_node_of_the_batch_script_falls_silent_as_the_run_ends() -> None:
    script = at_work()
    assert told_to_end_the_job(script) == []
    for node_id in (1, 2, 3):
        script.lose(node_id)
    script.now += CLOSING_BOUND_S
    assert has_to_end_the_job(script.head.tick(script.now))


def test_nobody_ends_the_job_while_the_node_of_the_batch_script_uses_its_grace() -> None:
    script = at_work()
    assert told_to_end_the_job(script) == []
    for node_id in (1, 2, 3):
        script.lose(node_id)
    script.beating = {0}
    assert not has_to_end_the_job(script.pass_time(CLOSING_BOUND_S + 0.1))


@pytest.mark.parametrize("nodes", [4, 1025])
def test_nobody_ends_the_job_while_the_node_of_its_script_uses_its_grace_and_its_next_beat_is_on_its_way(
    nodes: int,
) -> None:
    """In a world of more than 1,024 nodes a member beats half as often."""
    parts = HeadParts(1, node="node1", lease_s=30)
    timing, roster = parts.settings.timing, parts.members.roster
    parts.join(replace(a_join(0), is_launch_host=True))
    for member in roster:
        member.lease.nodes = nodes
    closing = Closing(parts.settings, parts.members, parts.judge)
    closing.begin(0, "it is over", 0.0)
    assert closing.next_tick == timing.closes_within_s(nodes)
    for member in roster:
        member.lease.beat(Beat(number=1), closing.next_tick - 1.2 * timing.beats_every_s(nodes))
    closing.tick(closing.next_tick)
    assert not has_to_end_the_job(closing.left())


def test_the_job_is_ended_though_the_last_beat_of_its_scripts_node_came_as_the_members_were_told_to_leave() -> None:
    """A spare's, which beats half as often: its power has gone before it got the news."""
    parts = HeadParts(1, node="node1", lease_s=30)
    parts.join(replace(a_join(0), is_launch_host=True))
    for member in parts.members.roster:
        member.lease.nodes = MANY
    closing = Closing(parts.settings, parts.members, parts.judge)
    closing.begin(0, "it is over", 0.0)
    for member in parts.members.roster:
        member.lease.beat(Beat(number=1), 0.4)
    closing.tick(closing.next_tick)
    assert has_to_end_the_job(closing.left())


@pytest.mark.parametrize("lease_s", [3, 10, 60])
def test_a_head_waits_until_it_knows_who_is_silent_as_the_run_ends(lease_s: float) -> None:
    timing = Timing(lease_s=lease_s)
    for nodes in (1024, 1025, MANY):
        assert timing.closes_within_s(nodes) >= timing.silent_before_restart_s(nodes) > timing.beats_every_s(nodes)
        assert timing.head_closes_within_s > timing.closes_within_s(nodes)
