"""Notices an import in the fork server that reads a variable which only workers have, such as RANK.

A module that keeps the value, as `RANK = int(os.environ.get("RANK", 0))` does, would make every fork rank 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Each worker, or each attempt, has its own values of these variables.
OWN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "HPC_ELASTIC_ATTEMPT"),
    }
)
# These modules read one as well, and keep its value as `rank_zero_only.rank` of a module: lightning 2, torchmetrics 1.
_ANSWERED = {
    "lightning.fabric.utilities.rank_zero": ("lightning_utilities.core.rank_zero", "RANK"),
    "lightning_fabric.utilities.rank_zero": ("lightning_utilities.core.rank_zero", "RANK"),
    "torchmetrics.utilities.prints": ("torchmetrics.utilities.prints", "LOCAL_RANK"),
}
_BETWEEN = frozenset({"os", "collections.abc"})  # their `get` and `getenv` read on behalf of another module


class _Watched(os._Environ):  # type: ignore[type-arg]  # it has arguments in the stubs only
    """An `os.environ` that records which variables are read."""

    reads: list[tuple[str, str]]
    own: Collection[str]

    def __getitem__(self, name: str) -> str:
        try:
            return str(super().__getitem__(name))
        except KeyError:
            if name in self.own and (module := _asker(sys._getframe(1))) not in _ANSWERED:
                self.reads.append((module, name))
            raise


@contextmanager
def watch_reads(own: Collection[str] = ()) -> Iterator[list[tuple[str, str]]]:
    """Collect the reads of variables of OWN that are not set: the name of the reading module, and the variable's.

    Args:
        own: the names of more variables, of which the job gives each worker its own value.
    """
    environ: Any = os.environ
    before = environ.__class__
    reads: list[tuple[str, str]] = []
    environ.reads, environ.own = reads, {*OWN, *own}
    environ.__class__ = _Watched
    try:
        yield reads
    finally:
        environ.__class__ = before
        del environ.reads, environ.own


def describe_reads(reads: Sequence[tuple[str, str]]) -> str | None:
    """Return why no fork may be made after these reads; None if there are none."""
    if not reads:
        return None
    module, name = reads[0]
    return f"an import ({module}) has read {name}, which only workers have"


def answer(environment: Mapping[str, str]) -> None:
    """Set the fork's own values in the modules of `_ANSWERED`, which are known to have read and kept them."""
    for module, name in _ANSWERED.values():
        rank_zero_only: Any = getattr(sys.modules.get(module), "rank_zero_only", None)
        value = environment.get(name, "")
        if hasattr(rank_zero_only, "rank") and value.isdigit():
            rank_zero_only.rank = int(value)


def _asker(frame: FrameType | None) -> str:
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "?"
