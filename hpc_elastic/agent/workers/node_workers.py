"""What a member asks of the workers on its node, whoever starts and stops them."""

from __future__ import annotations

from typing import Protocol

from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.membership.messages import Assign, StopManner


class NodeWorkers(Protocol):
    """One node's workers, attempt after attempt."""

    @property
    def started(self) -> float:
        """When the latest attempt was started, in Unix seconds."""

    @property
    def store_port(self) -> int:
        """Where the next attempt's store will listen, if it is to be here; a socket does already."""

    @property
    def start_method(self) -> str:
        """How the latest attempt's workers were started, for the event about them."""

    async def initialize_workers(self, assign: Assign) -> None:
        """Starts the workers of an attempt, and its store if it is to be here.

        Raises:
            StartFailedError: one could not be started, and none runs.
        """

    async def stop_workers(self, manner: StopManner, *, is_terminated: bool) -> tuple[int, ...]:
        """Ends the workers and starts no more of this attempt; returns the process ids that survived KILL."""

    def hurry(self) -> None:
        """Cuts the grace of a stop under way short."""

    def pids(self) -> dict[str, int]:
        """The process ids of the latest attempt's workers, by global rank."""

    def orders(self) -> list[WorkerOrder]:
        """What the workers of the latest attempt are started with."""

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        """What a worker of the latest attempt was started with, and its process id (0: never started)."""


class TermWatch(Protocol):
    """Who knows whether the workers of this node got a TERM from outside."""

    async def is_term_here(self) -> bool:
        """Whether they have it; another node has, so it may come in this moment."""
