"""The simulated shared file system, and each agent's thread that works on it.

Theory of operation. The agent's own code for the run directory runs as it ships: `SharedOs` stands where its modules
look for `os` and `open`. What asks the server takes time: the thread, a greenlet, is left there, and goes on when the
answer is there. In between the others work on the same files; the thread is frozen with its process; and what was
asked for may happen although the answer never comes. That a name is absent may be answered from the directory that a
node's kernel remembers, as on NFS, until somebody on that node opens the directory.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import io
import os
import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.clock import chooser

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

T = TypeVar("T")
URGENT, USUAL, LAST = range(3)
STEPS = 4  # questions to the server in a piece of work, most often: each takes a part of its time
LOST_ANSWERS = 0.3  # of the errors: it was done


class Written(NamedTuple):
    """Something is written: a whole file, or lines of one."""

    path: str
    content: bytes


class _Listing(set[str]):
    """The names in a directory, and the same in order as what `os.scandir` gives: heads look again and again."""

    @cached_property
    def entries(self) -> tuple[Any, ...]:
        return tuple([SimpleNamespace(name=name) for name in sorted(self)])


class _Content(dict[str, list[bytes]]):
    """Contents by name, and what directories list, as long as no name comes or goes."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: dict[str, _Listing] = {}

    def __setitem__(self, path: str, content: list[bytes]) -> None:
        self.listings.clear()
        super().__setitem__(path, content)

    def setdefault(self, path: str, content: list[bytes]) -> list[bytes]:
        self.listings.clear()
        return super().setdefault(path, content)

    def pop(self, path: str, *default: Any) -> Any:
        self.listings.clear()
        return super().pop(path, *default)


class Files:
    """What the server has: each content by its name.

    `changed` is told of each name that comes into being, with who made it.
    """

    def __init__(self) -> None:
        self.content = _Content()  # a hard link is the same list
        self.changed: Callable[[Agent, str], object] = lambda _agent, _path: None

    def read(self, path: str) -> bytes | None:
        found = self.content.get(path)
        return None if found is None else found[0]

    def names(self, directory: str) -> _Listing:
        """Of a directory, those of its directories too."""
        found = self.content.listings.get(directory)
        if found is None:
            start = f"{directory}/"
            found = _Listing([path[len(start) :].split("/")[0] for path in self.content if path.startswith(start)])
            self.content.listings[directory] = found
        return found


class DiskThread:
    """One agent's, as `agent.background.BackgroundThread`.

    Args:
        agent: whose it is.
        latencies_s: of a piece of work.
    """

    def __init__(self, agent: Agent, latencies_s: tuple[float, ...], dice: random.Random) -> None:
        self.agent = agent
        self._dice = dice
        self._latency_s = chooser(dice, latencies_s)
        self._queue: list[tuple[int, int, Callable[[], Any] | None, asyncio.Future[Any] | None]] = []
        self._numbers = count()
        self._is_busy = False
        self._names: dict[
            str, tuple[float, AbstractSet[str]]
        ] = {}  # of a directory, as this node's kernel remembers it
        self.stalled_until = 0.0
        self.fails_until = 0.0
        self.is_done_before_trouble: bool | None = None  # None: that is drawn for each question
        self.stage = ""  # of the question that is on its way: asked, done
        self.looked_for, self.looked_at = "", 0.0  # what the last look was for

    @property
    def is_well(self) -> bool:
        return self.agent.run.clock.now >= max(self.stalled_until, self.fails_until)

    @property
    def is_idle(self) -> bool:
        return not (self._is_busy or self._queue)

    # Of agent.background.BackgroundThread.

    def call(self, function: Callable[[], T], *, is_urgent: bool = False) -> asyncio.Future[T]:
        self.agent.process.reached()
        return self._put(URGENT if is_urgent else USUAL, function)

    def best_effort(self, function: Callable[[], object]) -> None:
        self._push(USUAL, function, None)

    async def close(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait([self._put(LAST, lambda: None)], timeout=timeout_s)
        return bool(done)

    def watch(self, look: Callable[[], bool], found: Callable[[], None], *, every_s: float) -> Callable[[], None]:
        agent, clock = self.agent, self.agent.run.clock
        is_over = False

        def stop() -> None:
            nonlocal is_over
            is_over = True

        def work() -> None:
            has_found = look()
            if has_found:
                agent.process.arrives(found)
            clock.after(every_s, again)

        def again() -> None:
            if not is_over:
                agent.process.when_thawed(lambda: self._run(work))

        clock.after(self._dice.uniform(0, every_s), again)
        return stop

    # The queue.

    def _put(self, urgency: int, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.agent.process.create_future()
        self._push(urgency, function, future)
        return future

    def _push(self, urgency: int, function: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        heapq.heappush(self._queue, (urgency, next(self._numbers), function, future))
        self._next()

    def _next(self) -> None:
        if self._is_busy or not self._queue:
            return
        self._is_busy = True
        _, _, function, future = heapq.heappop(self._queue)
        assert function is not None

        def work() -> None:
            try:
                value, error = function(), None
            except Exception as raised:
                value, error = None, raised
            if future is not None:
                self.agent.process.arrives(_settle, future, value, error)
            self._is_busy = False
            self._next()

        clock = self.agent.run.clock
        clock.at(clock.now, lambda: self.agent.process.when_thawed(lambda: self._run(work)))

    def _run(self, work: Callable[[], None]) -> None:
        thread = IDLE.pop() if IDLE else Thread()
        if thread.parent is not getcurrent():  # whoever played before was another thread of Python
            thread = Thread()
        thread.disk = self
        thread.switch(work)

    # What the thread asks of the server.

    def ask(self, operation: Callable[[], T], *, is_write: bool) -> T:
        """Does it on the server, some time from now, and goes on when the answer is there."""
        thread, agent = getcurrent(), self.agent
        thread.check_goes_on()
        clock, process = agent.run.clock, agent.process
        if agent.run.foretold.is_played:
            agent.run.foretold.asks(agent)
        agent.run.spent["write" if is_write else "read"] += 1
        takes_s = self._latency_s() / STEPS
        outcome: list[Any] = []

        def answered() -> None:
            if clock.now < self.stalled_until:
                clock.at(self.stalled_until, answered)
            else:
                process.when_thawed(thread.switch)

        def act() -> None:
            is_done = is_on_its_way if self.is_done_before_trouble is None else self.is_done_before_trouble
            if clock.now < self.stalled_until and not is_done:
                clock.at(self.stalled_until, act)
                return
            is_failing = clock.now < self.fails_until
            self.stage = "done"
            try:
                if not is_failing or (is_write and self._is_done_although_it_fails()):
                    outcome.append(operation())
                if is_failing:
                    outcome[:] = [OSError(errno.EIO, os.strerror(errno.EIO))]
            except OSError as error:
                outcome[:] = [error]
            clock.after(takes_s / 2, answered)

        is_on_its_way = self._dice.random() < 0.5  # it happens when it would have, and only the answer is late
        clock.after(takes_s / 2, act)
        self.stage = "asked"
        thread.wait()
        self.stage = ""
        (value,) = outcome
        if isinstance(value, OSError):
            raise value
        return value  # type: ignore[no-any-return]

    def _is_done_although_it_fails(self) -> bool:
        if self.is_done_before_trouble is not None:
            return self.is_done_before_trouble
        return self._dice.random() < LOST_ANSWERS

    @property
    def waiting(self) -> int:
        """How much work is left besides what it is at."""
        return len(self._queue)

    def sleep(self, seconds: float) -> None:
        """Of the thread."""
        thread, clock = getcurrent(), self.agent.run.clock
        thread.check_goes_on()
        clock.after(seconds, lambda: self.agent.process.when_thawed(thread.switch))
        thread.wait()

    def look(self, path: str) -> bytes | None:
        """What a name has, as this node sees it."""
        files, agent = self.agent.run.files, self.agent
        agent.run.large.reads(path)
        self.looked_for, self.looked_at = path, agent.run.clock.now
        directory, _, name = path.rpartition("/")
        until, names = self._names.get(directory, (-1.0, set()))
        if agent.run.clock.now < until and name not in names:
            return None

        def read() -> bytes | None:
            self._remember(directory)
            return files.read(path)

        content = self.ask(read, is_write=False)
        if content:
            agent.run.reads.gets(agent, path)
        return content

    def names(self, directory: str) -> _Listing:
        """What a directory has: who opens one asks the server, on NFS too (close-to-open)."""
        return self.ask(lambda: self._remember(directory), is_write=False)

    def changed(self, path: str) -> None:
        """This node's kernel has changed the directory itself, and knows that."""
        self._names.pop(os.path.dirname(path), None)

    def tells(self, path: str, content: bytes) -> None:
        """Of what is on the server from now on."""
        self.agent.run.trace(self.agent, Written(path, content))

    def _remember(self, directory: str) -> _Listing:
        names = self.agent.run.files.names(directory)
        stale_s = self.agent.run.scenario.stale_s
        if stale_s:
            self._names[directory] = (self.agent.run.clock.now + stale_s, names)
        return names


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class Thread(greenlet):  # type: ignore[misc]
    """A greenlet that does one piece of work after the other, of any agent: to make one takes longer than most work."""

    disk: DiskThread  # whose work it does
    is_over = False

    def run(self, work: Callable[[], None]) -> None:
        while True:
            AT_WORK.add(self)
            work()
            AT_WORK.remove(self)
            IDLE.append(self)
            work = self.wait()

    def wait(self) -> Any:
        """Lets everything else go on until somebody switches to this thread; returns what is handed over then."""
        assert self.parent is not None
        return self.parent.switch()

    def check_goes_on(self) -> None:
        """Raises GreenletExit if the run is over: what cleans up then asks no server."""
        if self.is_over:
            raise GreenletExit


IDLE: list[Thread] = []  # those that have nothing to do
AT_WORK: set[Thread] = set()


def end_threads() -> None:
    """Ends all threads of a run that is over.

    The frame of a thread that waits holds the thread, and the run of its last work, and the collector does not look
    into it: whoever plays thousands of runs would keep them all.
    """
    while IDLE or AT_WORK:
        thread = IDLE.pop() if IDLE else AT_WORK.pop()
        thread.is_over = True
        if not thread.dead:  # of a broken rule
            thread.parent = getcurrent()
            thread.throw()


def _thread() -> DiskThread:
    """Whose work is done.

    Raises:
        OSError: that of a real thread which a test of something else has left: the patched modules are the process's.
    """
    thread = getcurrent()
    if not isinstance(thread, Thread):
        raise OSError(errno.EIO, "no thread of a simulated agent")
    return thread.disk


class SharedOs:
    """What `rundir.store`, and the journal and its claims in `agent.records`, use of `os`, on the simulated server."""

    O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_APPEND = os.O_RDONLY, os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_APPEND
    O_DIRECTORY, SEEK_CUR = os.O_DIRECTORY, os.SEEK_CUR

    def __init__(self) -> None:
        self.path = SimpleNamespace(
            join=os.path.join, dirname=os.path.dirname, split=os.path.split, isdir=lambda _: True, exists=self._exists
        )
        self.getpid, self.major = os.getpid, os.major
        self.geteuid = lambda: 1000  # agents run as the user
        self._open: dict[int, str] = {}
        self._numbers = count(1000)
        self._temporary = count()

    def uname(self) -> Any:
        return SimpleNamespace(nodename=_thread().agent.name)

    def urandom(self, size: int) -> bytes:
        return next(self._temporary).to_bytes(size, "big")

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        number = next(self._numbers)
        if flags & self.O_CREAT:
            files = _thread().agent.run.files
            if flags & self.O_EXCL and path in files.content:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            files.content.setdefault(path, [b""])
        self._open[number] = path
        return number

    def write(self, descriptor: int, content: Any) -> int:
        thread, path = _thread(), self._open[descriptor]
        thread.agent.run.files.content[path][0] += bytes(content)
        if not path.endswith(".tmp"):  # a line more; others see the rest when it has its name
            thread.tells(path, bytes(content))
        return len(content)

    def fsync(self, descriptor: int) -> None:
        """What is written is on the server in the moment of the write."""

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def mkdir(self, path: str, mode: int = 0) -> None:
        """Every directory is there."""

    def link(self, old: str, new: str) -> None:
        thread = _thread()
        files = thread.agent.run.files

        def link() -> None:
            if new in files.content:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
            files.content[new] = files.content[old]
            thread.tells(new, files.content[new][0])
            files.changed(thread.agent, new)

        thread.ask(link, is_write=True)
        thread.changed(new)

    def replace(self, old: str, new: str) -> None:
        thread = _thread()
        files = thread.agent.run.files

        def replace() -> None:
            if old not in files.content:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
            files.content[new] = files.content.pop(old)
            thread.tells(new, files.content[new][0])
            files.changed(thread.agent, new)

        thread.ask(replace, is_write=True)
        thread.changed(new)

    def unlink(self, path: str) -> None:
        if _thread().agent.run.files.content.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def stat(self, path: str) -> Any:
        content = _thread().agent.run.files.content
        links = sum(each is content[path] for each in content.values())
        return SimpleNamespace(st_nlink=links, st_dev=os.makedev(8, 0))  # appends are as those of one machine to a disk

    def scandir(self, directory: str) -> AbstractContextManager[tuple[Any, ...]]:
        return nullcontext(_thread().names(directory).entries)

    def _exists(self, path: str) -> bool:
        """As os.path.exists, which says no where it is told of an error."""
        try:
            return _thread().look(path) is not None
        except OSError:
            return False

    def open_file(self, path: str, mode: str = "r", **_: Any) -> io.BytesIO:
        """As `open`, for reading bytes."""
        content = _thread().look(path)
        if content is None or mode != "rb":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return io.BytesIO(content)
