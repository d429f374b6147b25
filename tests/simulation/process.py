"""A simulated process: an event loop of asyncio whose time is its machine's, and which can be frozen anywhere.

Theory of operation. The loop runs what is ready when the simulated clock says so, and one process after the other:
while it does, no time passes, unless the process is frozen. A freeze begins between two turns of the loop; one that
is armed with `freeze_at` begins in the middle of a turn, at one of the points where the process looks at its clock
or has something done: then that turn, which runs in a greenlet, is left as it stands and goes on after the thaw. What
comes to a frozen process piles up, as it does in the kernel.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.clock import LATE_S, NEVER, Clock, MachineClock

T = TypeVar("T")
Function = Callable[..., object]
ANSWERS_S = 0.01  # a resolver, or a scheduler
set_running_loop = asyncio._set_running_loop
Loop: Any = asyncio.AbstractEventLoop  # of which the agent uses a part


class Handle:
    """A call that is to be made, as `asyncio.Handle`, but in no context of its own: the agent has no context variables.

    A handle of asyncio takes longer to make than most calls take, and one with an `__init__` twice as long as this.
    """

    __slots__ = ("args", "callback")

    callback: Function | None
    args: tuple[Any, ...]

    def cancel(self) -> None:
        """Nobody will make it."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class Timer(Handle):
    """As `asyncio.TimerHandle`."""

    __slots__ = ("process", "rings_at")

    process: Process
    rings_at: float  # by its machine's clock

    def when(self) -> float:
        return self.rings_at

    def rings(self) -> None:
        """It is due."""
        process = self.process
        if self.callback is None or not process.is_alive:
            return
        (process._due if process.is_frozen else process._ready).append((self, None))
        if not process._is_scheduled:
            process._schedule()


# What a turn does: a call, or one that may have been called off, and None.
Call: TypeAlias = "tuple[Function, tuple[Any, ...]] | tuple[Handle, None]"


class Process(Loop):  # type: ignore[misc]
    """One of a simulated machine.

    Args:
        clock: the simulation's.
        own: the machine's.
        dice: what comes first after a freeze is drawn from it.
        crashed: told of what nobody has handled.
    """

    def __init__(
        self, clock: Clock, own: MachineClock, dice: random.Random, crashed: Callable[[BaseException], None]
    ) -> None:
        self._clock = clock
        self._own = own
        self._dice = dice
        self._crashed = crashed
        self.is_alive = True
        self.is_frozen = self.has_ever_frozen = False
        self.frozen_until = 0.0  # by the simulation's clock
        self._ready: deque[Call] = deque()
        self._arrived: list[Call] = []  # while it was frozen
        self._due: list[Call] = []
        self._is_scheduled = False  # a turn
        self._freeze_at = -1  # so many points from now; never
        self.is_armed = False  # for a freeze at a point of its code: else none needs to be counted
        self._freeze_s = 0.0
        self._turn: greenlet | None = None
        self._is_mid_turn = False
        self._thaws: list[Callable[[], object]] = []  # what waits for that besides
        self._handlers: dict[int, Callable[[], object]] = {}
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._tasks: list[Any] = []  # asyncio.Task
        self._timers: list[Timer] = []

    # What happens to it.

    def arrives(self, event: Callable[..., object], *args: object) -> None:
        """Something comes to this process from outside."""
        if not self.is_alive:
            return
        (self._arrived if self.is_frozen else self._ready).append((event, args))
        if not self._is_scheduled:
            self._schedule()

    def signal(self, number: int) -> None:
        """A signal for which there is a handler."""
        if number in self._handlers:
            self.arrives(self._handlers[number])

    def freeze(self, seconds: float) -> None:
        """It does nothing for a while."""
        if self.is_alive and not self.is_frozen:
            self.is_frozen = self.has_ever_frozen = True
            self.frozen_until = self._clock.now + seconds
            self._clock.after(seconds, self._thaw)

    def freeze_at(self, point: int, seconds: float) -> None:
        """It will be frozen at the point of its code that comes after so many others."""
        self._freeze_at, self._freeze_s = point, seconds
        self.is_armed = True

    @property
    def is_at_rest(self) -> bool:
        """Whether it has done all that was to be done at this moment."""
        return not (self.is_frozen or self._is_scheduled or self._is_mid_turn)

    @property
    def is_to_freeze(self) -> bool:
        """Whether it is frozen, or will be at a point of its code."""
        return self.is_frozen or self.is_armed

    def when_thawed(self, event: Callable[[], object]) -> None:
        """Goes on with another thread of this process, which is frozen with it."""
        if self.is_frozen:
            self._thaws.append(event)
        elif self.is_alive:
            event()

    def kill(self) -> None:
        """Nothing of it happens any more."""
        self.is_alive = False
        for task in self._tasks:
            task._log_destroy_pending = False
            coroutine = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def tasks_left(self) -> list[str]:
        """Names of the coroutines that have not ended, but for the one that asks."""
        left = [task for task in self._tasks if not task.done() and task is not asyncio.current_task(self)]
        return [task.get_coro().__qualname__ for task in left]

    def timers_left(self) -> list[str]:
        """What is to happen later, by name, if nobody calls it off."""
        left = [
            timer for timer in self._timers if not timer.cancelled() and timer.when() > self._own.shows(self._clock.now)
        ]
        return [getattr(timer.callback, "__qualname__", "") for timer in left]

    def reached(self) -> None:
        """The code that runs just now has come to a point where it may be frozen."""
        if not self.is_armed or self._turn is None or getcurrent() is not self._turn:
            return
        self._freeze_at -= 1
        if self._freeze_at < 0:
            self.is_armed = False
            self.freeze(self._freeze_s)
            self._is_mid_turn = True
            set_running_loop(None)
            assert self._turn.parent is not None
            self._turn.parent.switch()
            set_running_loop(self)

    def _thaw(self) -> None:
        self.is_frozen = False
        if not self.is_alive:
            return
        both = [self._arrived, self._due]
        self._dice.shuffle(both)
        self._ready.extend(both[0] + both[1])
        self._arrived, self._due = [], []
        thaws, self._thaws = self._thaws, []
        if self._is_mid_turn:
            self._is_mid_turn = False
            assert self._turn is not None
            self._turn.switch()
        for event in thaws:
            self.when_thawed(event)
        if self._ready and not self._is_scheduled:
            self._schedule()

    # Turns.

    def _schedule(self) -> None:
        """Something is to be done, and no turn is to come yet."""
        if not (self.is_frozen or self._is_mid_turn):
            self._is_scheduled = True
            self._clock.at_once(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        if not self.is_alive or self.is_frozen:
            return
        self.takes_turn()
        if self.is_armed:
            self._turn = greenlet(self._take_turn)
            self._turn.switch()
        else:
            self._take_turn()

    def takes_turn(self) -> None:
        """For who counts them."""

    def _take_turn(self) -> None:
        """As the loop of asyncio: what is made ready meanwhile waits for the next turn."""
        set_running_loop(self)
        ready = self._ready
        try:
            for _ in range(len(ready)):
                call: Any
                call, arguments = ready.popleft()
                if arguments is None:
                    call, arguments = call.callback, call.args
                    if call is None:
                        continue
                try:
                    call(*arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"exception": error})
                if not self.is_alive:
                    return
        finally:
            set_running_loop(None)
        if ready and not self._is_scheduled:
            self._schedule()

    # Of asyncio.AbstractEventLoop, what the agent uses.

    def time(self) -> float:
        own = self._own
        shown = self._clock.now * own.rate + own.ahead_s  # `shows`, for what is asked most
        if self.is_armed:
            self.reached()
        return shown

    def call_soon(self, callback: Function, *args: Any, context: Context | None = None) -> Handle | None:
        """With a context it is a future or a task of asyncio that calls, and these do not call it off."""
        handle = None
        if context is None:
            handle = Handle()
            handle.callback, handle.args = callback, args
            self._ready.append((handle, None))
        else:
            self._ready.append((callback, args))
        if not self._is_scheduled:
            self._schedule()
        return handle

    def call_soon_threadsafe(self, callback: Function, *args: Any, context: Context | None = None) -> Handle | None:
        return self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Function, *args: Any, context: Context | None = None) -> Timer:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, when: float, callback: Function, *args: Any, context: Context | None = None) -> Timer:
        if when == NEVER:
            raise AssertionError("a timer is set that never rings")  # asyncio would keep it for ever
        timer = Timer()
        timer.callback, timer.args, timer.rings_at, timer.process = callback, args, when, self
        if len(self._timers) > 200:
            shown = self._own.shows(self._clock.now)
            self._timers = [each for each in self._timers if not each.cancelled() and each.when() > shown]
        if when < NEVER:
            self._timers.append(timer)
            own = self._own
            self._clock.at((when - own.ahead_s) / own.rate + LATE_S, timer.rings)  # `moment_of`, for what is asked most
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **_: Any) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self)
        self._tasks = [other for other in self._tasks if not other.done()] if len(self._tasks) > 50 else self._tasks
        self._tasks.append(task)
        if not self.is_alive:
            self.kill()
        return task

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._handlers[sig] = partial(callback, *args)

    def run_in_executor(
        self, executor: None, func: Callable[..., T], *args: Any, within_s: float = ANSWERS_S
    ) -> asyncio.Future[T]:
        """A question that takes a moment: the resolver's, the scheduler's."""
        future = self.create_future()

        def answer() -> None:
            value = func(*args)
            self.arrives(lambda: None if future.done() else future.set_result(value))

        self._clock.after(within_s, lambda: self.when_thawed(answer))
        return future

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_alive:
            error = context.get("exception")
            self._crashed(error if error is not None else RuntimeError(str(context.get("message"))))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
