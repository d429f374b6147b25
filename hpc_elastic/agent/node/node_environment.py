"""Computes the environment and directory that all workers of this node share, in every world and rank; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_elastic.agent.node.environment import NodeFacts, worker_directory, worker_environment, world_variables
from hpc_elastic.membership.messages import Assign
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation

NOWHERE = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """The variables that are the same for every worker, the names of those that vary, and the workers' directory.

    The variables that make a worker part of its world are in neither. A `directory` that depends on the rank is
    `NOWHERE`.
    """

    variables: Mapping[str, str]
    varying: frozenset[str]
    directory: str


def node_environment(
    base: Mapping[str, str], plan: LaunchPlan, allocation: Allocation, *, threads: int | None = None
) -> NodeEnvironment:
    """Compare the environments of two imagined workers whose worlds have no number in common.

    Args:
        base: the agent's environment, after the job's setup lines.
        plan: the launch plan.
        allocation: this node's place.
        threads: the number of threads of each worker, None if that is torch's own.

    Raises:
        AllocationError: `env` or `workdir` names a variable that is not set.
    """
    role = plan.role_on(allocation.node_id, len(allocation.nodes))
    facts = NodeFacts(node=allocation.node, role=role, gloo_interface=None, threads=threads)
    first, second = rehearse(plan, allocation, attempt=1), rehearse(plan, allocation, attempt=2)
    last = second.workers - 1
    one = worker_environment(base, plan, first, facts, 0)
    other = worker_environment(base, plan, second, facts, last)
    directories = {worker_directory(plan, one), worker_directory(plan, other)}
    world = world_variables(plan, first, facts, 0)
    names = {*one, *other} - {*world}
    return NodeEnvironment(
        variables={name: one[name] for name in one if name in names and one[name] == other.get(name)},
        varying=frozenset(name for name in names if one.get(name) != other.get(name)),
        directory=directories.pop() if len(directories) == 1 else NOWHERE,
    )


def rehearse(plan: LaunchPlan, allocation: Allocation, *, attempt: int = 1) -> Assign:
    """Return an imagined part of this node in a world, to try things out; each number differs between attempts."""
    role = plan.role_on(allocation.node_id, len(allocation.nodes))
    workers = plan.workers_on(allocation.node_id, len(allocation.nodes))
    return Assign(
        attempt=attempt,
        group_rank=attempt - 1,
        group_world_size=attempt,
        first_rank=workers * (attempt - 1),
        workers=workers,
        world_size=workers * attempt,
        role=role.name,
        first_role_rank=workers * (attempt - 1),
        role_world_size=workers * attempt,
        master=Endpoint(address=f"127.0.0.{attempt}", port=attempt),
        serves_store=False,
        is_failure_ignored=role.restart == "ignore",
        world_digest="",
        head=allocation.node,
    )
