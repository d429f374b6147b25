"""Keeps the training state of a library in memory after every so many steps, for the libraries' callbacks beside this.

Nothing here ends a training: what cannot be kept costs one line on standard error. `save` has its state made on every
rank alike, also where this rank keeps none, because to make one may take collectives of all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic import memory
from hpc_elastic.whole_lines import tell


class StepStates:
    """The states that one library's training keeps in the memory of this rank.

    Args:
        library: its name; a state that another library has saved is not taken for one of it.
        every: after how many steps one is kept; None: never, and there is none to load.
        replicated: whether all ranks have the same state, as for `memory.save`.
    """

    def __init__(self, library: str, every: int | None, *, replicated: bool) -> None:
        if every is not None and every < 1:
            raise ValueError(f"keep_every: found {every}, expected a number of steps from 1 on, or None")
        self._library = library
        self._every = every
        self._replicated = replicated
        self._last = 0
        self._random: Mapping[str, Any] | None = None
        self._has_given_up = False

    def load(self) -> tuple[Any, int] | tuple[None, None]:
        """Return the state with which this attempt goes on, and its step; (None, None) if there is none."""
        if self._every is None:
            return None, None
        try:
            found, step = memory.load()
        except memory.StateError as error:
            self.give_up(str(error))  # on this rank alone, perhaps: all have to load the same step, or none
            raise
        if found is None or step is None:
            return None, None
        if not isinstance(found, dict) or found.get("library") != self._library:
            self._say(f"step {step} was not saved by {self._library}'s callback; it is not loaded")
            return None, None
        if found["rank"] == _rank():
            self._random = found["random"]
        return found["state"], step

    def random_state(self) -> Mapping[str, Any] | None:
        """Return what `memory.random_state()` was on this rank at that step; None if another rank kept the state."""
        return self._random

    def begin(self, step: int) -> None:
        """Count from this step on."""
        self._last = step

    def is_due(self, step: int) -> bool:
        """Return whether the state of this step is to be kept; the same on every rank."""
        return self._every is not None and step - self._last >= self._every and "HPC_ELASTIC_ATTEMPT" in os.environ

    def save(self, step: int, make_state: Callable[[], object]) -> None:
        """Keep the state that `make_state` returns, if as many steps are done as make one due."""
        if not self.is_due(step):
            return
        self._last = step
        state = make_state()
        if self._has_given_up:
            return
        kept = {"library": self._library, "rank": _rank(), "random": memory.random_state(), "state": state}
        try:
            memory.save(step, kept, replicated=self._replicated)
        except (memory.StateError, ValueError) as error:  # a value that cannot be kept, or a second training
            self.give_up(str(error))

    def give_up(self, why: str) -> None:
        """Keep no more states, and say so once."""
        if not self._has_given_up:
            self._has_given_up = True
            self._say(f"{why}; training goes on without states in memory")

    def stop(self, why: str) -> None:
        """Make no more states, on all ranks alike, and say why if this is a run."""
        if self._every is not None and "HPC_ELASTIC_ATTEMPT" in os.environ:
            self.give_up(why)
        self._every = None

    def _say(self, text: str) -> None:
        tell(f"hpc-elastic: memory: {text}")


def _rank() -> list[int]:
    """Return this rank and the world's size: random states belong to one rank of one world."""
    return [int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))]
