"""A stop while a node gets the state of its ranks from another one: it waits for nothing of that."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from hpc_elastic.agent.keeper.channel import Channel, ChannelError
from hpc_elastic.agent.keeper.link import KeptAttempt
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import Flush, HeldState, StateVersion
from tests.agent.workers.test_group import Scene, play
from tests.membership.script import an_assign

OTHER = Endpoint(address="node3", port=7)
COPIED = "0+2/4 0/4 default"


class SilentKeeper:
    """Stands in for a KeeperLink whose first dial waits for a machine that says nothing."""

    port = 1

    def __init__(self) -> None:
        self.is_dialling, self.answer = threading.Event(), threading.Event()
        self.dialled: list[str] = []
        self.dialling = threading.current_thread()

    def dial(self, address: str, port: int) -> Channel:
        self.dialled.append(address)
        if len(self.dialled) == 1:
            self.dialling = threading.current_thread()
            self.is_dialling.set()
            self.answer.wait(30)
        raise ChannelError("no answer in time")

    def pids(self) -> list[int]:
        return []

    def bytes_taken(self) -> int:
        return 0

    async def begin(self, attempt: KeptAttempt, memories: list[int]) -> None:
        """Nothing is copied here."""

    async def copies(self) -> tuple[HeldState, ...]:
        return ()

    async def close(self) -> None:
        self.answer.set()


def test_what_follows_a_stop_does_not_wait_for_a_state_that_was_being_fetched(tmp_path: Path) -> None:
    keeper = SilentKeeper()
    version = StateVersion(attempt=1, step=4)

    async def scene(made: Scene) -> None:
        order = replace(an_assign(attempt=2), state=version, state_from=(OTHER, OTHER))
        starting = asyncio.ensure_future(made.workers.initialize_workers(order))
        assert await asyncio.to_thread(keeper.is_dialling.wait, 10)
        assert await made.workers.stop_workers(StopManner.FENCE, is_terminated=False) == ()
        await starting
        assert made.workers.pids() == {}
        # The copy of a lost node is asked for, to be written as the allocation ends, and the other still waits.
        line = await asyncio.wait_for(made.workers.flush_state(Flush(ended=2, state=version, copies=(COPIED,))), 10)
        assert not keeper.answer.is_set()
        assert (line, keeper.dialled) == ("", ["node3", "127.0.0.2"])
        keeper.answer.set()
        await asyncio.to_thread(keeper.dialling.join, 10)
        assert not keeper.dialling.is_alive()
        assert keeper.dialled == ["node3", "127.0.0.2"]  # the next one is not asked any more

    play(tmp_path, scene, keeper=keeper)
