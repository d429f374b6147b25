"""The training states in memory, as messages and claims name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StateVersion:
    """Which state: the attempt in which it was saved, and the step that was done. A later attempt's is newer."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """A state that a node holds for all its ranks, complete and undamaged.

    `part` is the node's part in the world, to which the state belongs; None for one that is the same on all ranks.
    """

    attempt: int
    step: int
    part: str | None = None

    @property
    def version(self) -> StateVersion:
        """Return which state it is."""
        return StateVersion(attempt=self.attempt, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenState:
    """The state with which all ranks of these roles begin an attempt."""

    roles: tuple[str, ...]
    attempt: int
    step: int

    @property
    def version(self) -> StateVersion:
        """Return which state it is."""
        return StateVersion(attempt=self.attempt, step=self.step)
