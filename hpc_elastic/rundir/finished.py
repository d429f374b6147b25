"""Tells by the records of its nodes whether a world's workers have all exited 0."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AttemptClaim, NodeResult, WorkerState, World
from hpc_elastic.rundir.store import find_json


def counting_parts(world: World) -> Iterator[tuple[int, str]]:
    """Yield attempt and node of each record that has to say SUCCEEDED, for the run to have succeeded; pure.

    The records of a role are those of the attempt in which it was started last. A role whose failures are ignored does
    not count, unless there is no other role.
    """
    attempts = {role.role: role.attempt for role in world.roles}
    ignored = {role.role for role in world.roles if role.restart == "ignore"}
    counting = [node for node in world.nodes if node.role not in ignored] or world.nodes
    return ((attempts[node.role], node.node) for node in counting)


def find_finished_world(layout: RunLayout, attempt: int) -> World | None:
    """Return the world of a run's latest attempt if its workers have all exited 0; None if not, or if it is unknown.

    Raises:
        RunDirectoryError: a record cannot be read.
    """
    try:
        world = _read_world(layout, attempt)
        if world is None:
            return None
        for number, node in counting_parts(world):
            data = find_json(layout.node_result(number, node))
            if data is None or from_json(NodeResult, data).state is not WorkerState.SUCCEEDED:
                return None
    except (DecodeError, KeyError):  # damaged, or of a newer version
        return None
    return world


def _read_world(layout: RunLayout, attempt: int) -> World | None:
    """Read a roster, also where its head died before it gave the file its final name."""
    data = find_json(layout.world(attempt))
    if data is None and (claim := find_json(layout.claim(attempt))) is not None:
        data = find_json(layout.proposed_world(attempt, from_json(AttemptClaim, claim).head))
    return None if data is None else from_json(World, data)
