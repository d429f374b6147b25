"""The driver of a member: what signals of a person do to an agent that leaves."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.membership.actions import WriteNodeResult
from hpc_elastic.rundir.records import NodeResult
from hpc_elastic.rundir.states import WorkerState
from tests.agent.stations import Scene, play


def test_a_second_stop_of_a_person_hurries_an_agent_that_leaves(tmp_path: Path) -> None:
    """It may write a training state, and the first stop came as a request, without a signal."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0)
        agent = made[0]
        agent.member.leaves(10, "cancelled")
        await made.until(lambda: agent.left is not None, "it leaves")
        assert agent.workers.hurries == 0
        agent.member.got_signal("SIGTERM", False)
        assert agent.workers.hurries == 1

    play(scene, tmp_path, 1)


def test_a_late_record_of_an_attempt_that_was_stopped_looks_at_no_state_of_the_next_one(tmp_path: Path) -> None:
    """Its ranks may be saving: what is read meanwhile would count as damaged, and be forgotten."""

    async def scene(made: Scene) -> None:
        made.start()
        await made.until_at_work(1, 0)
        agent = made[0]
        before = NodeResult(
            run="r",
            attempt=0,
            node="local0",
            state=WorkerState.STOPPED,
            role="default",
            ranks=(0,),
            pids={},
            reason="",
            failures={},
            return_values={},
            unkillable=(),
            started="",
            ended="",
        )
        await agent.member._write_node_result(WriteNodeResult(result=before))
        assert agent.workers.looks == 0

    play(scene, tmp_path, 1)
