"""The driver of a member: what signals of a person do to an agent that leaves."""

from __future__ import annotations

from pathlib import Path

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
