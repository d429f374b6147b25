"""Who ends the Slurm job if the node that would have done so is lost just as the run ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpc_elastic.membership.actions import Action, HeadOver
from hpc_elastic.membership.messages import Dropped, End
from hpc_elastic.membership.timing import CLOSING_BOUND_S, Timing
from tests.membership.script import HeadScript, a_join, of_kind, sent

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


@pytest.mark.parametrize("lease_s", [3, 10, 60])
def test_a_head_waits_until_it_knows_who_is_silent_as_the_run_ends(lease_s: float) -> None:
    timing = Timing(lease_s=lease_s)
    assert timing.closes_within_s >= timing.silent_before_restart_s > timing.beats_every_s(1024)
    assert timing.head_closes_within_s > timing.closes_within_s
