"""Presents the workers of torch's agent to membership; the handler's answers start and stop them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.agent.node.network import listen_on_first
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.integrations.torchrun.exchange import Exchange, Failure, Round, TorchAgentStage
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.state_records import HeldState

RESTARTS = "a worker failed, and its torchrun restarts"


@dataclass(frozen=True, slots=True, kw_only=True)
class StockOutputs:
    """The callbacks that tell this package's agent what torch's agent does.

    Args:
        finished: is called when all workers of this attempt have exited 0.
        restarts: is called with the reason when torch's agent asks for the next round of its own accord.
        failed: is called when torch's agent gives up because of this failure.
        useless: is called when torch's agent can start no more workers.
        kill: kills the workers of this node.
    """

    finished: Callable[[int], None]
    restarts: Callable[[str], None]
    failed: Callable[[int, Failure], object]
    useless: Callable[[], None]
    kill: Callable[[], None]


class StockWorkers:
    """The workers of one node, for `agent.drivers.local_member`.

    Args:
        exchange: the exchange with torch's agent.
        plan: the run's plan.
        key: a text that only this node has, from which its port sequence follows.
        address: this node's address.
        outputs: the callbacks to the agent.
    """

    def __init__(self, exchange: Exchange, plan: LaunchPlan, *, key: str, address: str, outputs: StockOutputs) -> None:
        self._exchange = exchange
        self._plan = plan
        self._key = key
        self._address = address
        self._outputs = outputs
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._attempt = 0
        self._rank = 0
        self._stage = TorchAgentStage.IDLE  # the latest stage that reached this thread
        self._is_stopping = False
        self._is_closed = False
        self._listener = self._next_listener()
        self.started = 0.0
        self.start_method = "torchrun"
        exchange.listen(self._hear)

    @property
    def store_port(self) -> int:
        """The port of the next attempt's store, as in agent.workers.node_workers.NodeWorkers."""
        return int(self._listener.getsockname()[1])

    async def initialize_workers(self, assign: Assign) -> None:
        """Let `next_rendezvous` return, and wait until it has or the workers are being stopped."""
        self._attempt, self._rank = assign.attempt, assign.first_rank
        self.started, self._is_stopping = time.time(), False
        failure = self._exchange.failure
        if failure is not None:
            self._outputs.failed(self._attempt, failure)  # the head has not heard of it: it was restarting
        elif self._exchange.stage is TorchAgentStage.FINISHED:
            self._outputs.useless()
        else:
            listener = None
            if assign.serves_store:
                listener, self._listener = self._listener, self._next_listener()
            self._exchange.offer(Round(assign=assign, listener=listener))
            await self._until(lambda: self._is_stopping or self._exchange.stage is not TorchAgentStage.IDLE)

    async def stop_workers(
        self,
        manner: StopManner,
        *,
        is_terminated: bool,  # noqa: ARG002
        takes_stacks: bool = False,  # noqa: ARG002
    ) -> tuple[int, ...]:
        """Let `num_nodes_waiting` return 1, and wait until torch's agent has stopped its workers."""
        self._is_stopping = True
        self._moved.set()
        self._stop(StopManner.FENCE if manner is StopManner.LOSS else manner)  # none of its workers says that it saves
        await self._until(lambda: self._exchange.stage is not TorchAgentStage.AT_WORK)
        self._exchange.withdraw()
        return ()

    async def wait_until_gone(self, within_s: float) -> None:
        """Wait until torch's agent says that it has stopped its workers, for `within_s` seconds at most."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(lambda: self._exchange.stage is not TorchAgentStage.AT_WORK), within_s)

    def hurry(self, *, spares_savers: bool = False) -> None:  # noqa: ARG002
        """Kill the workers that torch's agent is stopping, to which it gives 30 s to end by themselves."""
        self._stop(StopManner.FENCE)

    async def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> NoticeCounts:  # noqa: ARG002
        """Return that nobody has asked for a notice: torchrun's workers have no memory in which to hear of one."""
        return NoticeCounts(polls=0, beats=0)

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        """Do nothing: no call waits."""

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:  # noqa: ARG002
        """Return nothing: torchrun starts the workers, and gives them no memory of ours."""
        return ()

    def pids(self) -> dict[str, int]:
        """Return the process id of torchrun, which stands for its workers: they start only after this call."""
        return {str(self._rank): os.getpid()}

    def orders(self) -> list[WorkerOrder]:
        """Return no orders, because torchrun starts the workers."""
        return []

    def ended_by_stop(self) -> list[WorkerOrder]:
        """Return no orders: torch's agent stops the workers."""
        return []

    def failing_word(self, _local_rank: int) -> None:
        """Return None: torch's agent reports what its workers failed of."""
        return

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        """Return what is known of the worker whose failure made torch's agent give up, and its process id."""
        failure = self._exchange.failure or Failure(rank=0, local_rank=local_rank, pid=0, exitcode=1)
        entrypoint = self._plan.roles[0].entrypoint
        order = WorkerOrder(
            rank=failure.rank,
            local_rank=failure.local_rank,
            attempt=self._attempt,
            kind="module",
            target=entrypoint.target,
            arguments=entrypoint.args,
            environment={},
            directory=self._plan.workdir,
        )
        return order, failure.pid

    def close(self) -> None:
        """Close the listener and make no more callbacks."""
        self._is_closed = True
        self._listener.close()

    # Steps.

    def _hear(self, stage: TorchAgentStage) -> None:
        """Pass a new stage on to the event loop; is called in the thread of torch's agent."""
        self._loop.call_soon_threadsafe(self._heard, stage)

    def _heard(self, stage: TorchAgentStage) -> None:
        """Handle a new stage of torch's agent, in the event loop's thread."""
        before, self._stage = self._stage, stage
        self._moved.set()
        if self._is_closed:
            return
        if stage is TorchAgentStage.IDLE and before is TorchAgentStage.AT_WORK and not self._is_stopping:
            self._outputs.restarts(self._exchange.why or RESTARTS)
        elif stage is TorchAgentStage.FINISHED:
            self._outputs.finished(self._attempt)
        elif stage is TorchAgentStage.GONE:
            failure = self._exchange.failure
            if failure is None or before is TorchAgentStage.IDLE:
                self._outputs.useless()
            else:
                self._outputs.failed(self._attempt, failure)

    def _stop(self, manner: StopManner) -> None:
        is_told = self._exchange.stop(manner)
        if manner is StopManner.FENCE and is_told and self._exchange.stage is TorchAgentStage.AT_WORK:
            self._outputs.kill()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._moved.clear()
            if not is_so():
                await self._moved.wait()

    def _next_listener(self) -> socket.socket:
        """Open a listening socket for the store of the attempt after this one."""
        key = f"{self._key}/store/{self._attempt}"
        ports = port_sequence(self._plan.run, key, self._plan.network.port_range)
        return listen_on_first(self._address, ports)
