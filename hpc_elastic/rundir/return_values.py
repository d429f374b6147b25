"""Adds to the records the paths of the return values of a run's function, which the workers have written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NodeResult, RunResultRecord, RunState, WorkerState, World


def with_nodes_values(plan: LaunchPlan, layout: RunLayout, result: NodeResult) -> NodeResult:
    """Return a node's record with the paths of its ranks' return values, if the node succeeded.

    A rank that ended its process itself, by `os._exit`, has no value.
    """
    if result.state is not WorkerState.SUCCEEDED or result.role not in _function_roles(plan):
        return result
    files = {str(rank): layout.return_value(result.attempt, rank) for rank in result.ranks}
    found = {rank: layout.relative(file) for rank, file in files.items() if os.path.exists(file)}
    return replace(result, return_values=found)


def with_runs_values(
    plan: LaunchPlan, layout: RunLayout, result: RunResultRecord, read_world: Callable[[], World | None]
) -> RunResultRecord:
    """Return the run's result with the paths of the values of all ranks of its last world, if the run succeeded.

    It does not check that the files exist, so that a successor of the head computes the same paths, and thousands of
    ranks take no time.
    """
    roles = _function_roles(plan)
    world = read_world() if roles and result.state is RunState.SUCCEEDED else None
    if world is None:
        return result
    attempts = {role.role: role.attempt for role in world.roles}
    values = {
        str(rank.rank): layout.relative(layout.return_value(attempts[rank.role], rank.rank))
        for rank in world.ranks
        if rank.role in roles
    }
    return replace(result, return_values=values)


def _function_roles(plan: LaunchPlan) -> frozenset[str]:
    return frozenset(role.name for role in plan.roles if role.entrypoint.kind == "function")
