"""The refusal of all other agents by one that could not claim the allocation."""

from __future__ import annotations

import asyncio

from hpc_elastic.agent.rendezvous.refusal import Refuser
from hpc_elastic.errors import RunDirectoryError


def test_an_agent_whose_others_do_not_come_waits_no_longer_and_leaves_no_task_behind() -> None:
    async def refuse() -> set[asyncio.Task[object]]:
        await Refuser(RunDirectoryError("the run is over"), others=1, within_s=0.01).wait()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(refuse()) == set()
