"""Reads the roster of an attempt: on which node each rank ran, and in which attempt it was started."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpc_elastic.codec import objects_in
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank, its node, and the attempt in which it was started: an older one if its role ran on."""

    rank: int
    node: str
    attempt: int


def read_roster(layout: RunLayout, attempt: int) -> Mapping[int, RankPlace]:
    """Return the places of an attempt's ranks, by rank; none for a roster that is missing or is none.

    Entries that are not whole are left out: a damaged record is no reason to hide what the others' ranks wrote.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    world: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # nested too deep, or a number of thousands of digits
        world = store.read_json(layout.world(attempt))
    started = {
        role["role"]: role["attempt"]
        for role in objects_in(world, "roles")
        if isinstance(role.get("role"), str) and type(role.get("attempt")) is int
    }
    places = {}
    for entry in objects_in(world, "ranks"):
        rank, node, role = entry.get("rank"), entry.get("node"), entry.get("role")
        if type(rank) is int and rank >= 0 and isinstance(node, str):
            since = started.get(role, attempt) if isinstance(role, str) else attempt
            places[rank] = RankPlace(rank, node, since or attempt)
    return places
