"""Whom a head on this node tells what its members do not hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.membership.messages import Message


def _ignore(*_: object) -> None:
    """Whom nobody tells anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOutputs:
    """Whom a head on this node tells what its members do not hear.

    Args:
        to_own_member: delivers a message to this node's member, which is reached without a connection.
        claiming: it claims an attempt, or ends the run.
        superseded: another one has taken its place, and why; it has told its other members.
        moved: the moment may have moved until when this node's workers may run.
    """

    to_own_member: Callable[[Message], None]
    claiming: Callable[[], None] = _ignore
    superseded: Callable[[str], None] = _ignore
    moved: Callable[[], None] = _ignore
