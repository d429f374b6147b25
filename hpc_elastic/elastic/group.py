"""A node's workers as one unit that changes state together: torch's Worker and WorkerGroup, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpc_elastic.elastic.spec import WorkerSpec
from hpc_elastic.errors import WorkerSpecError
from hpc_elastic.rundir.records import Endpoint, WorkerState


@dataclass(frozen=True, slots=True, repr=False)
class Worker:
    """One worker; ranks and sizes are -1 until the rendezvous, `id` is None until it has a process.

    Attributes:
        local_rank: its number on its node.
        global_rank: its number in the world; another attempt may give it another one.
        role_rank: its number among the workers of its role.
        world_size: how many workers there are.
        role_world_size: how many workers its role has.
        id: its process id.
    """

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    id: Any = None

    def __str__(self) -> str:
        return (
            f"local_rank={self.local_rank},global_rank={self.global_rank},role_rank={self.role_rank}"
            f",world_size={self.world_size},role_world_size={self.role_world_size}"
        )

    __repr__ = __str__


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """What a node is told of the world: its place among the nodes, and its first worker's ranks."""

    group_rank: int
    group_world_size: int
    first_global_rank: int
    world_size: int
    first_role_rank: int
    role_world_size: int


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers of one spec on one node; they are started, fail and are restarted as one.

    A group is a value: each step of its life returns the group that follows. `store` is where the
    workers' store listens, which torch calls `worker_group.store` as an object; `master_addr` and
    `master_port` are the same place, unless the spec fixes them.
    """

    spec: WorkerSpec
    workers: tuple[Worker, ...] = field(default=())
    store: Endpoint | None = None
    group_rank: int | None = None
    group_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    state: WorkerState = WorkerState.INIT

    def __post_init__(self) -> None:
        if not self.workers:
            workers = tuple(Worker(local_rank) for local_rank in range(self.spec.local_world_size))
            object.__setattr__(self, "workers", workers)

    def assigned(self, ranks: NodeRanks, store: Endpoint) -> WorkerGroup:
        """Return the group after a rendezvous: fresh workers with their ranks and sizes, and the store's place.

        Raises:
            WorkerSpecError: the ranks do not fit into the world, or into the role.
        """
        self._check(ranks)
        spec = self.spec
        workers = tuple(
            Worker(
                local_rank,
                global_rank=ranks.first_global_rank + local_rank,
                role_rank=ranks.first_role_rank + local_rank,
                world_size=ranks.world_size,
                role_world_size=ranks.role_world_size,
            )
            for local_rank in range(spec.local_world_size)
        )
        return replace(
            self,
            workers=workers,
            store=store,
            group_rank=ranks.group_rank,
            group_world_size=ranks.group_world_size,
            master_addr=spec.master_addr or store.address,
            master_port=spec.master_port or store.port,
            state=WorkerState.INIT,
        )

    def started(self, ids: Mapping[int, Any]) -> WorkerGroup:
        """Return the group once every worker runs: HEALTHY, each worker with its id.

        Args:
            ids: by local rank.

        Raises:
            WorkerSpecError: a worker has none: a group is started only if all of it is.
        """
        missing = [str(worker.local_rank) for worker in self.workers if ids.get(worker.local_rank) is None]
        if missing:
            raise WorkerSpecError(f"expected an id for every worker, found none for local rank {', '.join(missing)}")
        workers = tuple(replace(worker, id=ids[worker.local_rank]) for worker in self.workers)
        return replace(self, workers=workers, state=WorkerState.HEALTHY)

    def entered(self, state: WorkerState) -> WorkerGroup:
        """Return the group in another state."""
        return replace(self, state=state)

    def _check(self, ranks: NodeRanks) -> None:
        count = self.spec.local_world_size
        for name, first, size in (
            ("global", ranks.first_global_rank, ranks.world_size),
            ("role", ranks.first_role_rank, ranks.role_world_size),
        ):
            if first < 0 or first + count > size:
                found = f"{name} ranks {first} to {first + count - 1} of {size}"
                raise WorkerSpecError(f"expected ranks within the world, found {found}")
        if not 0 <= ranks.group_rank < ranks.group_world_size:
            found = f"group rank {ranks.group_rank} of {ranks.group_world_size}"
            raise WorkerSpecError(f"expected a group rank within the world, found {found}")
