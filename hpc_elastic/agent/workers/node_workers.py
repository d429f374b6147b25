"""The interface through which a member starts and stops the workers on its node."""

from __future__ import annotations

from typing import Protocol

from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.last_word import Word
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.rundir.state_records import HeldState


class NodeWorkers(Protocol):
    """One node's workers, attempt after attempt."""

    @property
    def started(self) -> float:
        """The time at which the latest attempt was started, in Unix seconds."""

    @property
    def store_port(self) -> int:
        """The port on which the next attempt's store will listen if it is on this node; a socket already does."""

    @property
    def start_method(self) -> str:
        """How the latest attempt's workers were started (fork or spawn), for the event about them."""

    async def initialize_workers(self, assign: Assign) -> None:
        """Start the workers of an attempt, and its store if that is assigned to this node.

        Raises:
            StartFailedError: a worker could not be started, and none runs.
            StateNotHereError: this node has not the training state with which they were to begin, and none runs.
        """

    async def stop_workers(
        self, manner: StopManner, *, is_terminated: bool, takes_stacks: bool = False
    ) -> tuple[int, ...]:
        """End the workers and start no more of this attempt; return the process ids that survived KILL.

        Args:
            manner: how they are stopped.
            is_terminated: whether they have got their TERM already.
            takes_stacks: whether their stacks are taken before, because ranks hang.
        """

    def hurry(self, *, spares_savers: bool = False) -> None:
        """End the grace period of a running stop early."""

    async def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> NoticeCounts:
        """Have the calls of an attempt's workers wait that ask for a notice; return how many they had made."""

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        """Let the waiting calls go on; those with these numbers and above hear of the notice."""

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:
        """Return the training states in memory that all ranks of this node hold undamaged; no worker may run.

        With `is_quick` damage is not looked for, which takes 0.35 s a GB.
        """

    def pids(self) -> dict[str, int]:
        """Return the process ids of the latest attempt's workers, by global rank."""

    def orders(self) -> list[WorkerOrder]:
        """Return the orders with which the workers of the latest attempt are started."""

    def ended_by_stop(self) -> list[WorkerOrder]:
        """Return the orders of the workers of the latest attempt that a stop has ended."""

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        """Return the order of a worker of the latest attempt, and its process id (0: never started)."""

    def failing_word(self, local_rank: int) -> Word | None:
        """Return what a failed worker of the latest attempt said of the exception that ended it, None if nothing."""


class TermWatch(Protocol):
    """The interface that tells whether the workers of this node got a TERM from outside."""

    async def is_term_here(self) -> bool:
        """Return whether the workers got a TERM from outside; an agent got one, so it may be about to arrive."""
