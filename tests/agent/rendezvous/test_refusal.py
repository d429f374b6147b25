"""The refusal of all other agents by one that could not claim the allocation."""

from __future__ import annotations

import asyncio

import pytest

from hpc_elastic.agent.rendezvous import refusal
from hpc_elastic.errors import RunDirectoryError


def test_an_agent_whose_others_do_not_come_waits_no_longer_and_leaves_no_task_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusal, "OTHERS_COME_WITHIN_S", 0.01)

    async def refuse() -> set[asyncio.Task[object]]:
        await refusal.Refuser(RunDirectoryError("the run is over"), others=1).wait()
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(refuse()) == set()
