"""The roles of a run: what each role runs, on how many nodes, and which node has which role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

RestartPolicy = Literal["restart_all", "restart_role", "ignore"]
EntrypointKind = Literal["script", "module", "command", "function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPlan:
    """The numbers of nodes that the world or a role may have, and the number of spares."""

    min: int
    max: int
    spares: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrypointPlan:
    """The program of a worker; `target` is a script's path, a module's name or a command's first word.

    For a function, `target` is its name for people, `module:name`; the function itself is in the run directory.
    `restart_args` are appended to `args` in every attempt but the first.
    """

    kind: EntrypointKind
    target: str
    args: tuple[str, ...] = ()
    restart_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """A role: workers that run the same program on nodes of their own.

    `workers_per_node` is a number, or one number for each node by its place among the role's nodes; the
    last one also holds for the nodes after it. `env` is merged over
    the plan's `env`; None removes one of its variables. `restart` is what a
    failure in this role does: restart every worker of the run, or this role's workers only, or nothing.
    """

    name: str
    entrypoint: EntrypointPlan
    nodes: NodesPlan
    workers_per_node: int | tuple[int, ...]
    restart: RestartPolicy = "restart_all"
    env: Mapping[str, str | None] = field(default_factory=dict)

    def workers_at(self, place: int) -> int:
        """Return the number of workers on the role's node with this place (0, 1, 2 ...) among its nodes."""
        if isinstance(self.workers_per_node, int):
            return self.workers_per_node
        return self.workers_per_node[min(place, len(self.workers_per_node) - 1)]

    @property
    def most_workers_on_a_node(self) -> int:
        """The largest number of workers of any of the role's nodes."""
        return self.workers_per_node if isinstance(self.workers_per_node, int) else max(self.workers_per_node)


def place_roles(roles: Sequence[RolePlan], count: int) -> tuple[RolePlan, ...]:
    """Give each of `count` nodes a role, the first role's nodes first.

    Every role gets its `min`, then the rest fills role by role up to `max`. Nodes beyond the sum of the
    `max` (spares) have the last role; with fewer nodes than the sum of the `min` the last roles get too few.

    Returns:
        The role of each node, by node id.
    """
    sizes = []
    left = count
    for role in roles:
        sizes.append(min(role.nodes.min, left))
        left -= sizes[-1]
    for index, role in enumerate(roles):
        more = min(role.nodes.max - sizes[index], left)
        sizes[index] += more
        left -= more
    sizes[-1] += left
    return tuple(role for role, size in zip(roles, sizes, strict=True) for _ in range(size))


def store_nodes(roles: Sequence[RolePlan], count: int) -> frozenset[int]:
    """Return the ids of the nodes that serve a store when all of `count` nodes take part.

    A role that restarts alone has a store on its own first node; all other roles share one.
    """
    first: dict[str | None, int] = {}
    for node_id, role in enumerate(place_roles(roles, count)):
        first.setdefault(role.name if role.restart == "restart_role" else None, node_id)
    return frozenset(first.values())
