"""The workers of torch's agent, as membership sees them: started and stopped by what the handler answers."""

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
from hpc_elastic.integrations.torchrun.exchange import Exchange, Failure, Round, Stage
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan

RESTARTS = "a worker failed, and its torchrun restarts"


@dataclass(frozen=True, slots=True, kw_only=True)
class StockOutputs:
    """What the agent does about what torch's agent does.

    Args:
        finished: all workers of this attempt exited 0.
        restarts: torch's agent asks for the next round of its own accord, and why.
        failed: it gave up, for this failure.
        useless: it is asked to start workers, and cannot any more.
        kill: kills the workers of this node.
    """

    finished: Callable[[int], None]
    restarts: Callable[[str], None]
    failed: Callable[[int, Failure], None]
    useless: Callable[[], None]
    kill: Callable[[], None]


class StockWorkers:
    """One node's, for `agent.drivers.local_member`.

    Args:
        exchange: with torch's agent.
        plan: the run's.
        key: what makes this node's ports its own.
        address: where it is reached.
        outputs: who is told.
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
        self._stage = Stage.IDLE  # as far as it was heard
        self._is_stopping = False
        self._is_closed = False
        self._listener = self._next_listener()
        self.started = 0.0
        self.start_method = "torchrun"
        exchange.listen(self._hear)

    @property
    def store_port(self) -> int:
        """Of agent.workers.node_workers.NodeWorkers."""
        return int(self._listener.getsockname()[1])

    async def initialize_workers(self, assign: Assign) -> None:
        """Lets `next_rendezvous` return; over when it has, or is not to any more."""
        self._attempt, self._rank = assign.attempt, assign.first_rank
        self.started, self._is_stopping = time.time(), False
        failure = self._exchange.failure
        if failure is not None:
            self._outputs.failed(self._attempt, failure)  # the head did not hear of it: another restart was under way
        elif self._exchange.stage is Stage.FINISHED:
            self._outputs.useless()
        else:
            listener = None
            if assign.serves_store:
                listener, self._listener = self._listener, self._next_listener()
            self._exchange.offer(Round(assign=assign, listener=listener))
            await self._until(lambda: self._is_stopping or self._exchange.stage is not Stage.IDLE)

    async def stop_workers(self, manner: StopManner, *, is_terminated: bool) -> tuple[int, ...]:  # noqa: ARG002
        """Lets `num_nodes_waiting` answer 1, until torch's agent has stopped its workers and is back."""
        self._is_stopping = True
        self._moved.set()
        self._stop(manner)
        await self._until(lambda: self._exchange.stage is not Stage.AT_WORK)
        self._exchange.withdraw()
        return ()

    async def wait_until_gone(self, within_s: float) -> None:
        """Waits so long at most until torch's agent has stopped its workers, as it says."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(lambda: self._exchange.stage is not Stage.AT_WORK), within_s)

    def hurry(self) -> None:
        """Kills what torch's agent gives 30 s to end by itself."""
        self._stop(StopManner.FENCE)

    def pids(self) -> dict[str, int]:
        """The process of torchrun: it starts its workers after this, and stands for all of them."""
        return {str(self._rank): os.getpid()}

    def orders(self) -> list[WorkerOrder]:
        """None: they are torchrun's."""
        return []

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        """What is known of the worker for whose failure torch's agent has given up."""
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
        """Nothing more is served, and nobody is told anything."""
        self._is_closed = True
        self._listener.close()

    # Steps.

    def _hear(self, stage: Stage) -> None:
        """In the thread of torch's agent."""
        self._loop.call_soon_threadsafe(self._heard, stage)

    def _heard(self, stage: Stage) -> None:
        """Torch's agent has moved on."""
        before, self._stage = self._stage, stage
        self._moved.set()
        if self._is_closed:
            return
        if stage is Stage.IDLE and before is Stage.AT_WORK and not self._is_stopping:
            self._outputs.restarts(self._exchange.why or RESTARTS)
        elif stage is Stage.FINISHED:
            self._outputs.finished(self._attempt)
        elif stage is Stage.GONE:
            failure = self._exchange.failure
            if failure is None or before is Stage.IDLE:
                self._outputs.useless()
            else:
                self._outputs.failed(self._attempt, failure)

    def _stop(self, manner: StopManner) -> None:
        is_told = self._exchange.stop(manner)
        if manner is StopManner.FENCE and is_told and self._exchange.stage is Stage.AT_WORK:
            self._outputs.kill()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._moved.clear()
            if not is_so():
                await self._moved.wait()

    def _next_listener(self) -> socket.socket:
        """A socket for the store of the attempt after this one."""
        key = f"{self._key}/store/{self._attempt}"
        ports = port_sequence(self._plan.run, key, self._plan.network.port_range)
        return listen_on_first(self._address, ports)
