"""Callbacks with which a head on this node informs the agent around it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hpc_elastic.membership.actions import HeadOver
from hpc_elastic.membership.messages import Message
from hpc_elastic.rundir.records import Endpoint


def _ignore(*_: object) -> None:
    """Does nothing: the default of a callback that is not needed."""


async def _reaches_nobody(_: Endpoint) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOutputs:
    """The callbacks of a head on this node, for what is not sent to members over connections.

    Args:
        to_own_member: delivers a message to this node's member, which is reached without a connection.
        claiming: is called when the head claims an attempt, or ends the run.
        superseded: is called with the reason when another head has taken its place, after its other members were told.
        over: is called when this head has ended the run, with who sees to the end of the Slurm job.
        moved: is called when the time until which this node's workers may run may have changed.
        reaches: finds out whether the agent at an address answers.
    """

    to_own_member: Callable[[Message], None]
    claiming: Callable[[], None] = _ignore
    superseded: Callable[[str], None] = _ignore
    over: Callable[[HeadOver], None] = _ignore
    moved: Callable[[], None] = _ignore
    reaches: Callable[[Endpoint], Coroutine[Any, Any, bool]] = _reaches_nobody
