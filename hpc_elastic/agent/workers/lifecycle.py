"""Starts the worker processes of this node, watches them by pidfd, and stops them until none is left.

Theory of operation. Everything that may block (opening logs, starting processes, reading /proc)
runs in a thread of its own, one thing after the other, so a stop always comes after the start that
it stops. A worker's end makes its pidfd readable; nothing polls. A stop is TERM to the workers and
all that they started, a wait until no process is left, and KILL to those that are, repeated within a bound.

A worker that says its last word (`hpc_elastic.last_word`) counts as failed from then on, although it goes on running
while its threads are joined and its atexit functions run. Until it has ended, neither it nor the processes that it
started get a TERM; only the KILL at the end of the grace reaches them too.

A worker with an exception in flight that is about to close its connections says so first: its peers fail of the closed
connections, and the stop that answers them may kill it before its own failure is complete. What it said becomes its
failure unless it succeeds, or goes on and opens connections anew; it does so too if it still closes them after a bound.

A worker that saves (`worker.saves`) gets its TERM only when it has saved, or when the grace is nearly over: that of a
stop at the end, which a stop because of a failure elsewhere then waits for as well. The other workers and what they
have started are stopped meanwhile as ever. A fence waits for nobody.

A TERM from outside reaches the processes that are there when its sender looks, and a worker that has just been forked
ignores it until it has the handlers of a new process. So workers that were started just before, or since, get one from
here, too: what takes a second one for an order to end at once has nothing to save yet.

Before the TERM of a stop each worker is looked at: one that has ended, or is ending in the kernel, did so by itself. An
end after the TERM is the stop's, unless the worker said why it fails or has left an error file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, WorkerSearch, find_below, signal_all
from hpc_elastic.agent.workers.spawn import SpawnedWorker
from hpc_elastic.last_word import Word, WordKind
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.processes import Process, is_ending, is_paused, with_descendants

KILL_BOUND_S = 10.0
KILL_AGAIN_S = 0.2
SAVED_EVERY_S = 0.05  # how often a stop looks whether a worker has saved, which changes a number in memory only
CLOSING_BOUND_S = 30.0  # a worker that closes its connections for longer, with an exception in flight, hangs
MISSES_TERM_S = 0.5  # a worker that ran for less when a TERM came from outside may not have got it
LAST_WORD_EXITCODE = 1  # Python's after an uncaught exception
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


class Explained(Enum):
    """How far a stop explains the end of a worker."""

    NO = "it ended by itself"
    PERHAPS = "it ended after the TERM; it has failed by itself if its error file says so"
    YES = "the stop ended it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """The end of a worker: its exit code, negative for a signal, and whether a stop explains it.

    `failing` is what the worker said of the exception that ends it, None if nothing.
    """

    exitcode: int
    explained: Explained = Explained.NO
    failing: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """The seconds between TERM and KILL, for a stop at the end and for one before a restart."""

    grace_s: float
    restart_grace_s: float


class Workers:
    """The workers of one attempt after the other.

    Args:
        thread: the thread for blocking work.
        marks: what the run's processes on this node carry in their environments.
        times: how long stops may take.
        spared: returns the process ids of the agent's own children that no stop may reach; called in the thread.
        on_exit: called at each worker's end. It is called at a last word already, and for a worker that hangs while it
            closes its connections, and then at the end only if the exit code is not the one that was reported.
        closing_bound_s: how long a worker may close its connections with an exception in flight.
        saving: returns the global ranks that are saving.
    """

    def __init__(
        self,
        thread: BackgroundThread,
        *,
        marks: Marks,
        times: StopTimes,
        spared: Callable[[], Collection[int]],
        on_exit: Callable[[SpawnedWorker, WorkerExit], None],
        closing_bound_s: float = CLOSING_BOUND_S,
        saving: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._saving = saving
        self._killed: set[int] = set()  # process ids of workers that got a KILL while others saved
        self._thread = thread
        self._marks = marks
        self._search = WorkerSearch(marks, ancestor=os.getpid())
        self._times = times
        self._spared = spared
        self._on_exit = on_exit
        self._closing_bound_s = closing_bound_s
        self._alive: dict[int, SpawnedWorker] = {}
        self._has_failed = False
        self._sent: signal.Signals | None = None  # the last signal of a stop
        self._none_alive = asyncio.Event()
        self._none_alive.set()
        self._hurry = asyncio.Event()
        self._spares_savers = False  # of a stop that would else kill all workers at once
        self._ending: set[int] = set()  # process ids of the workers that have said their last word
        self._has_ended = asyncio.Event()  # set when one of these workers has ended
        self._early: list[Word] | None = None  # words that came while the workers were being started
        self._failing: dict[int, Word] = {}  # by process id: what workers said of exceptions that may end them
        self._closing: dict[int, asyncio.TimerHandle] = {}  # by process id: when a worker that closes counts as failed
        self._hanging: set[int] = set()  # process ids of workers that hang while they close, reported as failed
        self._was_ending: set[int] = set()  # process ids of workers that were ending when the TERM was sent

    def running(self) -> dict[int, int]:
        """Return the process ids of the workers that run and have not said their last word, by global rank."""
        return {worker.order.rank: pid for pid, worker in self._alive.items() if pid not in self._ending}

    def paused(self) -> frozenset[int]:
        """Return the global ranks of the workers that a signal or a debugger has stopped."""
        return frozenset(rank for rank, pid in self.running().items() if is_paused(pid))

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to the worker of a global rank, if it runs, and to no process that it has started."""
        for worker in self._alive.values():
            if worker.order.rank == rank:
                self._signal(worker, number)

    async def start_workers(self, spawn: Callable[[], list[SpawnedWorker]]) -> list[SpawnedWorker]:
        """Start an attempt's workers and watch them.

        Args:
            spawn: starts all of them or none; runs in the thread.
        """
        self._has_failed = False
        self._sent = None
        self._hanging.clear()
        self._was_ending.clear()
        self._killed.clear()
        self._failing.clear()
        early: list[Word] = []
        self._early = early
        try:
            spawned = await self._thread.call(spawn)
        finally:
            self._early = None
        for worker in spawned:
            self._alive[worker.pid] = worker
            self._none_alive.clear()
        self._monitor_workers(spawned)
        for word in early:  # not now: the caller first gets the start's result
            asyncio.get_running_loop().call_soon(self.hear, word)
        return spawned

    def _monitor_workers(self, spawned: Iterable[SpawnedWorker]) -> None:
        """Watch the workers' pidfds, so that each worker's end is reported at once: then its pidfd is readable."""
        for worker in spawned:
            asyncio.get_running_loop().add_reader(worker.pidfd, self._exited, worker)

    def hear(self, word: Word) -> None:
        """Take in what a worker says of an exception that ends it, or may end it."""
        worker = self._alive.get(word.pid)
        if worker is None and self._early is not None:
            self._early.append(word)  # the first of a node may have raised before the last is started
        if worker is None or worker.order.attempt != word.attempt:
            return
        if word.kind is WordKind.LAST:
            self._said_last_word(worker)
            return
        if (timer := self._closing.pop(word.pid, None)) is not None:
            timer.cancel()
        if word.kind is WordKind.HANDLED:
            self._failing.pop(word.pid, None)
        elif word.kind is not WordKind.CLOSED:
            self._failing[word.pid] = word
        if word.kind is WordKind.CLOSING:
            loop = asyncio.get_running_loop()
            self._closing[word.pid] = loop.call_later(self._closing_bound_s, self._hangs, worker)

    def _said_last_word(self, worker: SpawnedWorker) -> None:
        """Report a worker as failed that says an uncaught exception ends it; only a stop waits for its actual end."""
        if self._sent is not None or worker.pid in self._ending or worker.pid in self._hanging:
            return
        self._ending.add(worker.pid)
        self._has_failed = True
        failing = self._failing.get(worker.pid)
        self._on_exit(worker, WorkerExit(exitcode=LAST_WORD_EXITCODE, failing=failing))

    def _hangs(self, worker: SpawnedWorker) -> None:
        """Report a worker as failed that has closed its connections for too long, with an exception in flight."""
        self._closing.pop(worker.pid, None)
        failing = self._failing.get(worker.pid)
        if failing is None or self._alive.get(worker.pid) is not worker or self._sent is not None:
            return
        self._hanging.add(worker.pid)
        self._has_failed = True
        self._on_exit(worker, WorkerExit(exitcode=failing.exit_code, failing=failing))

    async def stop_workers(
        self, manner: StopManner, *, is_terminated: bool, asked_at: float | None = None
    ) -> tuple[int, ...]:
        """End every worker and all that they started.

        Args:
            manner: how much time the workers have.
            is_terminated: whether those that ran when the stop was asked for have got their TERM already.
            asked_at: when that was, by the event loop's clock; None: now.

        Returns:
            The process ids that survived KILL.
        """
        self._spares_savers |= manner is StopManner.LOSS
        began = asyncio.get_running_loop().time()
        try:
            term_at = (began if asked_at is None else asked_at) if is_terminated else None
            if await self._stop_gently(manner, term_at):
                return ()
            if self._spares_savers:
                self._hurry.clear()  # from now on a fence sets it
                await self._kill_others(until=began + self._times.grace_s)
            return await self._kill()
        finally:
            self._hurry.clear()  # not cleared at the beginning: `hurry` may be called before this stop begins
            self._spares_savers = False

    async def _stop_gently(self, manner: StopManner, term_at: float | None) -> bool:
        """Stop the workers without KILL, in the time that the manner allows; return whether no process is left."""
        times = self._times
        if manner is StopManner.RESTART:
            return await self._terminate(term_at, times.restart_grace_s, saves_for_s=times.grace_s)
        if manner is StopManner.GRACE and not self._alive and not self._has_failed:
            # After success, processes that a worker left behind, such as an upload, may finish first.
            is_gone = await self._wait_until_gone(times.grace_s)
            return is_gone or await self._terminate(None, times.restart_grace_s)
        if manner is StopManner.GRACE:
            saves_for_s = times.grace_s - times.restart_grace_s
            return await self._terminate(term_at, times.grace_s, saves_for_s=saves_for_s)
        return False

    def hurry(self, *, spares_savers: bool = False) -> None:
        """End the grace period of a running stop early; a worker that saves may have the rest of its own."""
        self._spares_savers = spares_savers
        self._hurry.set()

    def _collect_ended(self) -> None:
        """Report the workers that have ended before a stop's first signal, and note those that are ending just now."""
        if self._sent is not None:
            return
        for worker in list(self._alive.values()):
            if worker.has_ended():
                self._exited(worker)
            elif is_ending(worker.pid):
                self._was_ending.add(worker.pid)

    async def _terminate(self, term_at: float | None, grace_s: float, *, saves_for_s: float = 0.0) -> bool:
        """Send TERM to the workers and to all that they started, and wait; return whether no process is left.

        Args:
            term_at: when those got it that ran then, by the event loop's clock; None: they have not.
            grace_s: how long they have from then on.
            saves_for_s: how long a worker that saves is left alone at most. Then it has `restart_grace_s`, or what is
                left of the grace if that is more.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._collect_ended()
        self._sent = signal.SIGTERM
        if term_at is not None:
            return await self._wait_until_gone(grace_s, await self._terminate_young(term_at))
        savers = self._savers() if saves_for_s > 0 else {}
        told = {worker.pid for worker in self._alive.values() if worker.pid not in self._ending} - savers.keys()
        for pid in told:  # at once, because the search for what they have started takes time
            self._signal(self._alive[pid], signal.SIGTERM)
        if savers:
            await self._let_save(told, until=began + saves_for_s, others_until=began + grace_s)
            grace_s = max(self._times.restart_grace_s, began + grace_s - loop.time())
        if await self._wait_until_gone(grace_s, told):
            return True
        if not self._savers() or loop.time() >= began + saves_for_s:
            return False
        await self._let_save(told, until=began + saves_for_s, others_until=loop.time())  # it began after its TERM
        return await self._wait_until_gone(self._times.restart_grace_s, told)

    async def _terminate_young(self, term_at: float) -> set[int] | None:
        """Send TERM to the workers that may have missed the one from outside; return the process ids that have got one.

        None means that no worker may have missed it.
        """
        started = ((pid, worker.started) for pid, worker in self._alive.items() if pid not in self._ending)
        young = {pid for pid, at in started if at > term_at - MISSES_TERM_S}
        if not young:
            return None
        found = await self._find()  # first: what a worker has started is not known as its own when that has ended
        for pid in young & self._alive.keys():
            self._signal(self._alive[pid], signal.SIGTERM)
        return (found.keys() - self._below(young, found)) | young

    async def _kill_others(self, *, until: float) -> None:
        """Kill what no saving worker has started, and wait until none saves any more, `until` at the latest."""
        self._collect_ended()
        savers = self._savers()
        if not savers:
            return
        self._sent = self._sent or signal.SIGTERM
        for pid, worker in self._alive.items():  # at once, because the search for what they have started takes time
            if pid not in savers:
                self._killed.add(pid)
                self._signal(worker, signal.SIGKILL)
        await self._let_save(set(), until=until, others_until=-KILL_BOUND_S)

    def _savers(self) -> dict[int, SpawnedWorker]:
        """Return the workers that run and save, by process id."""
        saving = self._saving()
        may_save = ((pid, worker) for pid, worker in self._alive.items() if pid not in self._ending)
        return {pid: worker for pid, worker in may_save if worker.order.rank in saving}

    async def _let_save(self, told: set[int], *, until: float, others_until: float) -> None:
        """Wait as long as a worker saves, and then send it its TERM, if it has not got it yet.

        Args:
            told: the process ids that have got a TERM.
            until: when to wait no longer, by the event loop's clock.
            others_until: when the processes get a KILL that neither save nor were started by a worker that does.
        """
        loop = asyncio.get_running_loop()
        searched, waiting = -KILL_BOUND_S, self._savers()
        while waiting and not self._hurry.is_set() and loop.time() < until:
            if loop.time() - searched >= KILL_AGAIN_S:
                searched = loop.time()
                await self._stop_others(waiting, told, is_late=searched >= others_until)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), SAVED_EVERY_S)
            before, waiting = waiting, self._savers()
            self._terminate_saved(before.keys() - waiting.keys(), told)
        if not self._hurry.is_set():  # else all are killed now, or those that save may go on
            self._terminate_saved(waiting.keys(), told)

    def _terminate_saved(self, pids: Iterable[int], told: set[int]) -> None:
        for pid in set(pids) - told - self._ending:
            if pid in self._alive:
                self._signal(self._alive[pid], signal.SIGTERM)
                told.add(pid)

    async def _stop_others(self, savers: Collection[int], told: set[int], *, is_late: bool) -> None:
        """Stop what no saving worker has started: TERM to what has not got it, or KILL to all if it is late."""
        found = await self._find()
        others = {pid: found[pid] for pid in found.keys() - self._below(savers, found)}
        if is_late:
            self._killed |= others.keys() & self._alive.keys()
            signal_all(others.values(), signal.SIGKILL)
        else:
            self._terminate_others(others, told)

    @staticmethod
    def _below(pids: Iterable[int], found: Mapping[int, Process]) -> set[int]:
        """Return the process ids of these processes and of all that they have started."""
        roots = [found[pid] for pid in pids if pid in found]
        return {process.pid for process in with_descendants(roots, found.values())}

    async def _wait_until_gone(self, bound_s: float, told: set[int] | None = None) -> bool:
        """Wait until no worker and no process that they started is left, the bound is over, or `hurry` is called.

        Args:
            bound_s: how long to wait at most.
            told: the process ids that have got a TERM, if the processes not in it are to get one; else None.

        Returns:
            Whether no process is left.
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
        """Send TERM to processes that workers have started, except below a worker that is ending by itself."""
        left_alone = self._below(self._ending, found)
        signal_all((found[pid] for pid in found.keys() - left_alone - told), signal.SIGTERM)
        told |= found.keys() - left_alone

    async def _kill(self) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_BOUND_S
        self._collect_ended()
        self._sent = signal.SIGKILL
        for worker in self._alive.values():  # at once, because the search for what they have started takes time
            self._signal(worker, signal.SIGKILL)
        await self._thread.call(self._kill_below)
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

    def _kill_below(self) -> None:
        """Kill what is below this process; a look at all processes of a node with thousands takes too long for a fence.

        What a process starts during a look may be missed in it, and is there in the next one.
        """
        killed: set[int] = set()
        while (found := find_below(os.getpid(), self._marks, spared=self._spared())).keys() - killed:
            signal_all(found.values(), signal.SIGKILL)
            killed |= found.keys()

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
        failing, timer = self._failing.pop(worker.pid, None), self._closing.pop(worker.pid, None)
        if timer is not None:
            timer.cancel()
        if worker.pid in self._hanging:
            self._hanging.remove(worker.pid)
            return  # already reported
        if worker.pid in self._ending:
            self._ending.remove(worker.pid)
            self._has_ended.set()
            if exitcode in (0, LAST_WORD_EXITCODE) or self._sent is signal.SIGKILL:
                return  # already reported at its last word
            explained = Explained.NO
        else:
            explained = self._explains(worker, exitcode, failing)
        sent = signal.SIGKILL if worker.pid in self._killed else self._sent
        if failing is not None and not _is_end_of(failing, exitcode, is_closing=timer is not None, sent=sent):
            failing = None
        if failing is not None and (exitcode < 0 or exitcode in ENDED_BY_TERM):
            exitcode = failing.exit_code  # what it would have ended with
        self._on_exit(worker, WorkerExit(exitcode=exitcode, explained=explained, failing=failing))

    def _explains(self, worker: SpawnedWorker, exitcode: int, failing: Word | None) -> Explained:
        """Return whether a stop explains the end of a worker."""
        if self._sent is None or worker.pid in self._was_ending:
            return Explained.NO
        if exitcode == 0:
            return Explained.YES
        if exitcode == -signal.SIGKILL and self._sent is not signal.SIGKILL and worker.pid not in self._killed:
            return Explained.NO  # it is somebody else's: ours comes later
        is_ours = exitcode in ENDED_BY_TERM or exitcode == -signal.SIGKILL
        return Explained.YES if is_ours and failing is None else Explained.PERHAPS


def _is_end_of(failing: Word, exitcode: int, *, is_closing: bool, sent: signal.Signals | None) -> bool:
    """Return whether the exception that a worker spoke of explains its end.

    Args:
        failing: what it said.
        exitcode: how it ended.
        is_closing: whether it was still closing its connections.
        sent: the last signal of a stop.
    """
    if exitcode in ENDED_BY_TERM:
        return sent is not None  # else it comes from outside, perhaps for the whole node
    if exitcode >= 0:
        return exitcode != 0 and exitcode == failing.exit_code
    return is_closing or (exitcode == -signal.SIGKILL and sent is signal.SIGKILL)


async def _all_gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes runs any more."""
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
