"""What an agent ends with: the first word counts, and an error that nobody has handled is one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from hpc_elastic.membership.actions import Leave


class Departure:
    """Awaited, it gives how this agent leaves, or raises what its event loop could not handle.

    Args:
        loop: the agent's, whose exception handler this becomes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leave: asyncio.Future[Leave] = loop.create_future()
        loop.set_exception_handler(self._crashed)

    def __await__(self) -> Generator[Any, None, Leave]:
        return self._leave.__await__()

    def leaves(self, leave: Leave) -> None:
        """The agent is to leave so, unless that is settled."""
        if not self._leave.done():
            self._leave.set_result(leave)

    def _crashed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            error = RuntimeError(str(context.get("message")))
        if not self._leave.done():
            self._leave.set_exception(error)
