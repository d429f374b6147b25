"""Holds the outcome with which an agent ends: its first `Leave` or its first unhandled error, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from hpc_elastic.membership.actions import Leave


class Departure:
    """The outcome of an agent: awaiting it returns the `Leave`, or raises the error that nothing handled.

    Args:
        loop: the agent's event loop; `Departure` sets its exception handler.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leave: asyncio.Future[Leave] = loop.create_future()
        loop.set_exception_handler(self._crashed)

    def __await__(self) -> Generator[Any, None, Leave]:
        return self._leave.__await__()

    def leaves(self, leave: Leave) -> None:
        """Set how the agent leaves, unless the outcome is already set."""
        if not self._leave.done():
            self._leave.set_result(leave)

    def _crashed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            error = RuntimeError(str(context.get("message")))
        if not self._leave.done():
            self._leave.set_exception(error)
