"""An agent's side of its head: none begins here while the agent leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.rendezvous.successor import Successor
from hpc_elastic.membership.succession import LostHead, Succession
from tests.agent.stations import Scene, play


class SlowSearch:
    """Stands in for a search whose end takes until all that was under way beside it has come to its own end."""

    def __init__(self, side: HeadSide) -> None:
        self._side = side
        self.has_ended = False

    async def close(self) -> None:
        while tasks := tuple(self._side._tasks._tasks):
            await asyncio.gather(*tasks)
        self.has_ended = True

    def stop(self) -> None:
        """Do nothing: `close` ends it."""

    def superseded(self) -> None:
        raise AssertionError("the search goes on although this agent leaves")


def claim(side: HeadSide) -> None:
    side.claim_allocation(0, LostHead(node="node0", contact=0.0, is_dead=True, why="reset"))


def gather(side: HeadSide) -> None:
    side.gather(cast("Succession", None))  # a first head's, which follows nobody


@pytest.mark.parametrize("begin", [claim, gather])
@pytest.mark.parametrize("leave", [HeadSide.close, HeadSide.abandon])
def test_no_head_begins_on_a_node_whose_agent_leaves(
    begin: Callable[[HeadSide], None], leave: Callable[[HeadSide], Coroutine[Any, Any, None]], tmp_path: Path
) -> None:
    async def scene(made: Scene) -> None:
        side = made[1].heads
        search = SlowSearch(side)
        side._successor = cast("Successor", search)
        leaving = asyncio.create_task(leave(side))
        begin(side)  # its first step comes after that of the leaving
        await made.until(lambda: search.has_ended or made[1].is_head, "the search has ended")
        assert not made[1].is_head
        await leaving
        side._successor = None

    play(scene, tmp_path, 2)


@pytest.mark.parametrize("begin", [claim, gather])
def test_a_head_begins_on_a_node_whose_agent_stays(begin: Callable[[HeadSide], None], tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        begin(made[1].heads)
        await made.until(lambda: made[1].is_head, "it is head")

    play(scene, tmp_path, 2)
