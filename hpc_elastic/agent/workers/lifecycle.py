"""The worker processes of this node: started, watched by pidfd, stopped until none is left.

Theory of operation. Everything that may block (opening logs, starting processes, reading /proc)
runs in a thread of its own, one thing after the other, so a stop always comes after the start that
it stops. A worker's end makes its pidfd readable; nothing polls. A stop is TERM to the workers and
all they started, a wait until nothing is left, and KILL to what is, repeated within a bound.

A worker that says its last word (`hpc_elastic.last_word`) has failed in that moment, though it lives on
while its threads are joined and its atexit functions run. It gets no TERM, nor does what it has started, until
it is over; only the KILL at the end of the grace is for it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, WorkerSearch, signal_all
from hpc_elastic.agent.workers.spawn import SpawnedWorker
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.processes import Process, with_descendants

KILL_BOUND_S = 10.0
KILL_AGAIN_S = 0.2
LAST_WORD_EXITCODE = 1  # Python's after an uncaught exception


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
            whether a stop explains it. After a last word, once more only if that was not the exit code.
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
        self._search = WorkerSearch(marks, ancestor=os.getpid())
        self._times = times
        self._spared = spared
        self._on_exit = on_exit
        self._alive: dict[int, SpawnedWorker] = {}
        self._has_failed = False
        self._sent: signal.Signals | None = None  # the last signal of a stop
        self._none_alive = asyncio.Event()
        self._none_alive.set()
        self._hurry = asyncio.Event()
        self._ending: set[int] = set()  # process ids of those that have said their last word
        self._has_ended = asyncio.Event()  # one of them has
        self._early: set[tuple[int, int]] | None = None  # last words that came while the workers were being started

    async def start_workers(self, spawn: Callable[[], list[SpawnedWorker]]) -> list[SpawnedWorker]:
        """Starts an attempt's workers and watches them.

        Args:
            spawn: starts all of them or none; runs in the thread.
        """
        self._has_failed = False
        self._sent = None
        early = self._early = set()
        try:
            spawned = await self._thread.call(spawn)
        finally:
            self._early = None
        for worker in spawned:
            self._alive[worker.pid] = worker
            self._none_alive.clear()
        self._monitor_workers(spawned)
        for pid, attempt in early:  # in a moment, as other exits: who asked for the start hears of that first
            asyncio.get_running_loop().call_soon(self.said_last_word, pid, attempt)
        return spawned

    def _monitor_workers(self, spawned: Iterable[SpawnedWorker]) -> None:
        """From now on each worker's end is told, at once: a pidfd is readable when its process is gone."""
        for worker in spawned:
            asyncio.get_running_loop().add_reader(worker.pidfd, self._exited, worker)

    def said_last_word(self, pid: int, attempt: int) -> None:
        """A worker says that an uncaught exception ends it; what it still does then, nobody waits for but a stop."""
        worker = self._alive.get(pid)
        if worker is None and self._early is not None:
            self._early.add((pid, attempt))  # the first of a node may have raised before the last is started
        if worker is None or worker.order.attempt != attempt or self._sent is not None or pid in self._ending:
            return
        self._ending.add(pid)
        self._has_failed = True
        self._on_exit(worker, LAST_WORD_EXITCODE, False)

    async def stop_workers(self, manner: StopManner, *, is_terminated: bool) -> tuple[int, ...]:
        """Ends every worker and all they started.

        Args:
            manner: how long they have.
            is_terminated: they have got their TERM already.

        Returns:
            The process ids that survived KILL.
        """
        try:
            return () if await self._stop_gently(manner, is_terminated) else await self._kill()
        finally:
            self._hurry.clear()  # not at a start: a hurry may come while what it is about still starts

    async def _stop_gently(self, manner: StopManner, is_terminated: bool) -> bool:
        """Whether nothing is left."""
        if manner is StopManner.RESTART:
            return await self._terminate(is_terminated, self._times.restart_grace_s)
        if manner is StopManner.GRACE and not self._alive and not self._has_failed:
            # After success, what a worker left behind may finish first: an upload, say.
            is_gone = await self._wait_until_gone(self._times.grace_s)
            return is_gone or await self._terminate(False, self._times.restart_grace_s)
        if manner is StopManner.GRACE:
            return await self._terminate(is_terminated, self._times.grace_s)
        return False

    def hurry(self) -> None:
        """Cuts the grace of a stop under way short."""
        self._hurry.set()

    async def _terminate(self, is_terminated: bool, grace_s: float) -> bool:
        self._sent = signal.SIGTERM
        if is_terminated:
            return await self._wait_until_gone(grace_s)
        told = {worker.pid for worker in self._alive.values() if worker.pid not in self._ending}
        for pid in told:  # at once: to find what they have started takes its time
            self._signal(self._alive[pid], signal.SIGTERM)
        return await self._wait_until_gone(grace_s, told)

    async def _wait_until_gone(self, bound_s: float, told: set[int] | None = None) -> bool:
        """Waits until no worker and nothing they started is left, the bound is over, or there is a hurry.

        Args:
            bound_s: how long at most.
            told: those that have got their TERM, if the others are to get one.

        Returns:
            Whether nothing is left.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + bound_s
        while not self._hurry.is_set() and (left := deadline - loop.time()) > 0:
            self._has_ended.clear()
            found = await self._find()
            if not found and not self._alive:
                return True
            if told is not None:
                self._terminate_others(found, told)
            gone = asyncio.gather(_all_gone(found), self._none_alive.wait())
            await self._wait_any(gone, self._has_ended.wait(), timeout_s=left)
        return False

    def _terminate_others(self, found: Mapping[int, Process], told: set[int]) -> None:
        """TERM to what workers have started, but not while such a worker is ending by itself."""
        endings = [found[pid] for pid in self._ending if pid in found]
        left_alone = {process.pid for process in with_descendants(endings, found.values())}
        signal_all((found[pid] for pid in found.keys() - left_alone - told), signal.SIGTERM)
        told |= found.keys() - left_alone

    async def _kill(self) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_BOUND_S
        self._sent = signal.SIGKILL
        for worker in self._alive.values():  # at once: to find what they have started takes its time
            self._signal(worker, signal.SIGKILL)
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

    def _signal(self, worker: SpawnedWorker, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(worker.pidfd, number)

    async def _wait_any(self, *awaitables: Awaitable[object], timeout_s: float) -> None:
        tasks = [asyncio.ensure_future(awaitable) for awaitable in (*awaitables, self._hurry.wait())]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self) -> dict[int, Process]:
        alive = set(self._alive)
        return await self._thread.call(lambda: self._search.find(spared=self._spared(), known=alive))

    def _exited(self, worker: SpawnedWorker) -> None:
        asyncio.get_running_loop().remove_reader(worker.pidfd)
        exitcode = worker.collect()
        del self._alive[worker.pid]
        self._has_failed = self._has_failed or exitcode != 0
        if not self._alive:
            self._none_alive.set()
        if worker.pid in self._ending:
            self._ending.remove(worker.pid)
            self._has_ended.set()
            if exitcode in (0, LAST_WORD_EXITCODE) or self._sent is signal.SIGKILL:
                return  # as it was told
            is_stopped = False
        else:
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
