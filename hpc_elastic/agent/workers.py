"""The worker processes of this node: started, watched by pidfd, stopped until none is left.

Theory of operation. Everything that may block (opening logs, starting processes, reading /proc)
runs in a thread of its own, one thing after the other, so a stop always comes after the start that
it stops. A worker's end makes its pidfd readable; nothing polls. A stop is TERM to the workers and
all they started, a wait until nothing is left, and KILL to what is, repeated within a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from hpc_elastic.agent.background import BackgroundThread
from hpc_elastic.agent.processes import Marks, find_workers, reap_orphans, signal_all
from hpc_elastic.agent.spawn import SpawnedWorker
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.processes import Process

KILL_BOUND_S = 10.0
KILL_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """Seconds between TERM and KILL."""

    grace_s: float
    restart_grace_s: float


class Workers:
    """The workers of one attempt after the other.

    Args:
        thread: where blocking work is done.
        marks: what the run's processes on this node carry.
        times: how long stops may take.
        spared: process ids of the agent's own children that no stop may reach; called in the thread.
        on_exit: told of each worker's end: the worker, its exit code (negative for a signal), and
            whether a stop explains it.
    """

    def __init__(
        self,
        thread: BackgroundThread,
        *,
        marks: Marks,
        times: StopTimes,
        spared: Callable[[], Collection[int]],
        on_exit: Callable[[SpawnedWorker, int, bool], None],
    ) -> None:
        self._thread = thread
        self._marks = marks
        self._times = times
        self._spared = spared
        self._on_exit = on_exit
        self._alive: dict[int, SpawnedWorker] = {}
        self._has_failed = False
        self._sent: signal.Signals | None = None  # the last signal of a stop
        self._none_alive = asyncio.Event()
        self._none_alive.set()
        self._hurry = asyncio.Event()

    async def start_workers(self, spawn: Callable[[], list[SpawnedWorker]]) -> list[SpawnedWorker]:
        """Starts an attempt's workers and watches them.

        Args:
            spawn: starts all of them or none; runs in the thread.
        """
        self._has_failed = False
        self._sent = None
        spawned = await self._thread.call(spawn)
        for worker in spawned:
            self._alive[worker.pid] = worker
            self._none_alive.clear()
        self._monitor_workers(spawned)
        return spawned

    def _monitor_workers(self, spawned: Iterable[SpawnedWorker]) -> None:
        """From now on each worker's end is told, at once: a pidfd is readable when its process is gone."""
        for worker in spawned:
            asyncio.get_running_loop().add_reader(worker.pidfd, self._exited, worker)

    async def stop_workers(self, manner: StopManner, *, is_terminated: bool) -> tuple[int, ...]:
        """Ends every worker and all they started.

        Args:
            manner: how long they have.
            is_terminated: they have got their TERM already.

        Returns:
            The process ids that survived KILL.
        """
        try:
            await self._stop_gently(manner, is_terminated)
            return await self._kill()
        finally:
            self._hurry.clear()  # not at a start: a hurry may come while what it is about still starts

    async def _stop_gently(self, manner: StopManner, is_terminated: bool) -> None:
        if manner is StopManner.RESTART:
            await self._terminate(is_terminated, self._times.restart_grace_s)
        elif manner is StopManner.GRACE and not self._alive and not self._has_failed:
            # After success, what a worker left behind may finish first: an upload, say.
            await self._wait_until_gone(self._times.grace_s)
            await self._terminate(False, self._times.restart_grace_s)
        elif manner is StopManner.GRACE:
            await self._terminate(is_terminated, self._times.grace_s)

    def hurry(self) -> None:
        """Cuts the grace of a stop under way short."""
        self._hurry.set()

    async def _terminate(self, is_terminated: bool, grace_s: float) -> None:
        if is_terminated:
            self._sent = signal.SIGTERM
        else:
            found = await self._find()
            self._sent = signal.SIGTERM
            signal_all(found.values(), signal.SIGTERM)
        await self._wait_until_gone(grace_s)

    async def _wait_until_gone(self, bound_s: float) -> None:
        """Returns when no worker and nothing they started is left, the bound is over, or there is a hurry."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + bound_s
        await self._wait_any(self._none_alive.wait(), timeout_s=bound_s)
        while not self._hurry.is_set() and (left := deadline - loop.time()) > 0:
            found = await self._find()
            if not found:
                return
            await self._wait_any(_all_gone(found), timeout_s=left)

    async def _kill(self) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_BOUND_S
        self._sent = signal.SIGKILL
        for worker in self._alive.values():  # at once: to find what they have started takes its time
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        while True:
            found = await self._find()
            if not found and not self._alive:
                return ()
            if loop.time() > deadline:
                return tuple(sorted({*found, *self._alive}))
            signal_all(found.values(), signal.SIGKILL)
            waiting = asyncio.gather(_all_gone(found), self._none_alive.wait())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, KILL_AGAIN_S)

    async def _wait_any(self, awaitable: Awaitable[object], *, timeout_s: float) -> None:
        tasks = [asyncio.ensure_future(awaitable), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self) -> dict[int, Process]:
        alive = set(self._alive)

        def find() -> dict[int, Process]:
            spared = set(self._spared())
            reap_orphans(spared | alive)
            return find_workers(self._marks, ancestor=os.getpid(), spared=spared)

        return await self._thread.call(find)

    def _exited(self, worker: SpawnedWorker) -> None:
        asyncio.get_running_loop().remove_reader(worker.pidfd)
        exitcode = worker.collect()
        del self._alive[worker.pid]
        self._has_failed = self._has_failed or exitcode != 0
        if not self._alive:
            self._none_alive.set()
        # After a TERM of ours only a KILL of somebody else's is no work of the stop.
        is_stopped = self._sent is signal.SIGKILL or (self._sent is not None and exitcode != -signal.SIGKILL)
        self._on_exit(worker, exitcode, is_stopped)


async def _all_gone(pids: Iterable[int]) -> None:
    """Returns when none of these processes runs any more."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        gone = asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
